//! Promise 7: a writer that disappears stops its shard for at most the timeout, is counted once,
//! and cannot commit afterwards; one that lives is left alone.

use std::time::{Duration, Instant};

use changefeed_core::Kind;
use changefeed_sqlserver::{SqlServerStore, UlidIsolation};
use changefeed_testkit::backend::{Backend, Session};
use changefeed_testkit::postgres::Relay;
use changefeed_testkit::run;
use tokio::task::JoinSet;

use crate::ulids::support::{
    COMMIT, Scene, TIMEOUT, begin, insert, options, refused, row, run_all, scene, write,
};

/// What is promised is the timeout, on a machine that has time for us.
const BOUND: Duration = Duration::from_secs(20);

async fn begins(store: SqlServerStore, note: String) -> Instant {
    let mut transaction = store.begin_ulid(&options()).await.unwrap();
    let begun = Instant::now();
    insert(&mut transaction, &note).await;
    transaction.commit().await.unwrap();
    begun
}

/// Three writers go on; tells how long the first of them waited.
async fn others_go_on(scene: &Scene, what: &str) {
    let since = Instant::now();
    let mut writers = JoinSet::new();
    for n in 0..3 {
        writers.spawn(begins(scene.store.clone(), format!("{what} {n}")));
    }
    let first = writers.join_all().await.into_iter().min().unwrap();
    let stalled = first.duration_since(since);
    eprintln!("{what}: stalled for {} ms", stalled.as_millis());
    assert!(stalled < BOUND, "{what}: the shard stood for {stalled:?}");
    assert_eq!(scene.incidents().await, 1);
}

/// By plain T-SQL; it wakes up, and what it wrote is not published.
#[test]
fn promise_7_a_session_that_falls_silent_is_burned_once() {
    run(async {
        let scene = scene().await;
        let zombie = scene.session().await;
        run_all(&zombie, &[&begin(), &row("zombie")]).await;
        others_go_on(&scene, "silent").await;
        let said = refused(&zombie, COMMIT).await;
        assert!(
            said.starts_with("55603: ") && said.contains("its lock was burned"),
            "{said}"
        );
        assert_eq!(scene.notes().await.len(), 3);
        // Its session is as good as any other afterwards.
        run_all(&zombie, &["if @@trancount > 0 rollback transaction"]).await;
        run_all(&zombie, &[&begin(), &row("later"), COMMIT]).await;
        assert_eq!(scene.notes().await.len(), 4);
        assert_eq!(scene.incidents().await, 1);
    });
}

/// Without a FIN: both sides keep their sockets, and nothing arrives.
#[test]
fn promise_7_a_network_that_is_cut_stalls_for_one_timeout() {
    run(async {
        let scene = scene().await;
        let relay = Relay::to(&scene.backend.url()).await;
        let far = SqlServerStore::connect(&relay.url).await.unwrap();
        let mut lost = far.begin_ulid(&options()).await.unwrap();
        insert(&mut lost, "lost").await;
        relay.cut();
        others_go_on(&scene, "cut").await;
        relay.heal();
        let error = lost.commit().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Busy, "{error}");
        assert_eq!(scene.notes().await.len(), 3);
    });
}

/// Where the state alone would look as it had left it; with a snapshot, the number as well.
#[test]
fn promise_6_a_zombie_cannot_commit_even_if_nobody_has_since() {
    run(async {
        let scene = scene().await;
        for (before, isolation) in [UlidIsolation::ReadCommitted, UlidIsolation::Snapshot]
            .into_iter()
            .enumerate()
        {
            let relay = Relay::to(&scene.backend.url()).await;
            let far = SqlServerStore::connect(&relay.url).await.unwrap();
            let mut zombie = far.begin_ulid_with(&options(), isolation).await.unwrap();
            insert(&mut zombie, "zombie").await;
            relay.cut();
            let living = scene.store.begin_ulid(&options()).await.unwrap();
            assert_eq!(scene.incidents().await, i64::try_from(before).unwrap() + 1);
            living.rollback().await.unwrap();
            relay.heal();
            zombie.commit().await.unwrap_err();
            assert_eq!(scene.notes().await, [""; 0]);
        }
        write(&scene.store, "goes on").await;
    });
}

/// It computes for two timeouts; the library speaks for it, also while a statement runs.
#[test]
fn promise_7_a_holder_that_computes_is_kept_alive_by_the_library() {
    run(async {
        let scene = scene().await;
        let mut holder = scene.store.begin_ulid(&options()).await.unwrap();
        let waiting = tokio::spawn(begins(scene.store.clone(), "waiting".to_owned()));
        tokio::time::sleep(2 * TIMEOUT).await;
        insert(&mut holder, "slow").await;
        holder.commit().await.unwrap();
        waiting.await.unwrap();
        assert_eq!(
            scene.incidents().await,
            0,
            "a living holder was judged dead"
        );
        assert_eq!(scene.notes().await, ["slow", "waiting"]);
    });
}

/// The server notices a socket that is closed.
#[test]
fn promise_7_a_client_that_dies_frees_its_shard_at_once() {
    run(async {
        let scene = scene().await;
        let doomed = scene.session().await;
        run_all(&doomed, &[&begin(), &row("doomed")]).await;
        Box::new(doomed).kill().await;
        write(&scene.store, "goes on").await;
        assert_eq!(scene.notes().await, ["goes on"]);
        assert_eq!(scene.incidents().await, 0);
    });
}
