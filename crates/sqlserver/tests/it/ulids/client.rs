//! The Rust client.

use changefeed_core::Kind;
use changefeed_sqlserver::UlidIsolation;
use changefeed_testkit::run;
use tokio::task::JoinSet;

use crate::ulids::support::{insert, options, scene, write};

/// What came after the error would be committed one by one, and nobody would verify it.
#[test]
fn after_an_error_that_undid_it_nothing_more_is_written() {
    run(async {
        let scene = scene().await;
        let mut transaction = scene.store.begin_ulid(&options()).await.unwrap();
        let ulid = insert(&mut transaction, "a").await;
        let twice = "insert into event (shard, ulid, note) values (0, @P1, 'again')";
        let error = transaction
            .execute(twice, &[&ulid.to_bytes().as_slice()])
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Database, "{error}");
        let late = "insert into event (shard, ulid, note) values (0, 0x05, 'late')";
        let error = transaction.batch(late).await.unwrap_err();
        assert!(error.to_string().contains("rolled back"), "{error}");
        assert!(transaction.commit().await.is_err());
        assert_eq!(scene.notes().await, [""; 0]);
        write(&scene.store, "goes on").await;
        assert_eq!(scene.notes().await, ["goes on"]);
    });
}

/// ULIDs by the client and by the server, in one transaction and the next.
#[test]
fn client_and_server_count_together() {
    run(async {
        let scene = scene().await;
        let mut transaction = scene.store.begin_ulid(&options()).await.unwrap();
        insert(&mut transaction, "first").await;
        transaction
            .batch(&crate::ulids::support::row("server"))
            .await
            .unwrap();
        let many: Vec<_> = transaction.ulids(100_000).unwrap().collect();
        assert!(many.windows(2).all(|pair| pair[0] < pair[1]));
        insert(&mut transaction, "second").await;
        transaction.commit().await.unwrap();
        write(&scene.store, "next").await;
        assert_eq!(scene.notes().await, ["first", "second", "server", "next"]);
    });
}

/// However it ends.
#[test]
fn the_shard_is_free_again() {
    run(async {
        let scene = scene().await;
        for isolation in [UlidIsolation::ReadCommitted, UlidIsolation::Snapshot] {
            let begin = async || scene.store.begin_ulid_with(&options(), isolation).await;
            let mut dropped = begin().await.unwrap();
            insert(&mut dropped, "dropped").await;
            drop(dropped);
            let mut undone = begin().await.unwrap();
            insert(&mut undone, "undone").await;
            undone.rollback().await.unwrap();
            let mut kept = begin().await.unwrap();
            insert(&mut kept, "kept").await;
            kept.commit().await.unwrap();
        }
        assert_eq!(scene.notes().await, ["kept", "kept"]);
        assert_eq!(scene.incidents().await, 0);
    });
}

/// With a lock that is older than the snapshot nobody finds the shard moved.
#[test]
fn writers_with_a_snapshot_take_turns() {
    run(async {
        let scene = scene().await;
        let mut writers = JoinSet::new();
        for n in 0..4 {
            let store = scene.store.clone();
            writers.spawn(async move {
                for turn in 0..3 {
                    let isolation = match turn % 2 {
                        0 => UlidIsolation::Snapshot,
                        _ => UlidIsolation::ReadCommitted,
                    };
                    let begun = store.begin_ulid_with(&options(), isolation).await;
                    let mut transaction = begun.unwrap();
                    insert(&mut transaction, &format!("{n} {turn}")).await;
                    transaction.commit().await.unwrap();
                }
            });
        }
        writers.join_all().await;
        assert_eq!(scene.notes().await.len(), 12);
        assert_eq!(scene.incidents().await, 0);
    });
}
