//! What a failure leaves behind: nothing.

use std::time::Duration;

use changefeed_core::{
    After, Cursor, FeedStore, Kind, NewFeed, SchemaStore, ShardId, SweepGroup, SweepStore,
    TableName,
};
use changefeed_sqlserver::{SqlServerStore, statements};
use changefeed_testkit::backend::{Backend, Session, SqlServerBackend, captured, name};
use changefeed_testkit::run;

/// A feed that cannot be made was begun in a transaction: the feed and its shards were inserted, and
/// then its table was not there. Its connection must not go back to the pool with that transaction
/// open, or its locks would keep everybody else from the very rows.
#[test]
fn a_feed_that_cannot_be_made_leaves_no_lock_and_no_open_transaction() {
    run(async {
        let backend = SqlServerBackend::fresh().await;
        let store = SqlServerStore::connect(&backend.url()).await.unwrap();
        store.migrate().await.unwrap();
        let session = (&backend as &dyn Backend).session().await;
        session
            .run("create table keyless (id integer, note text)")
            .await;
        for table in ["no_such_table", "keyless"] {
            let new = captured("orders", TableName::unqualified(table), None, 2);
            let error = store.create_feed(&new).await.unwrap_err();
            assert!(
                matches!(error.kind(), Kind::NotFound | Kind::Invalid),
                "{error:?}"
            );
            assert_free(&*session).await;
        }
        // The same when whoever asked went away in the middle of it, wherever that was.
        for micros in (0..20).map(|n| n * 2_000) {
            let doomed = captured("orders", TableName::unqualified("no_such_table"), None, 2);
            let cut = tokio::time::timeout(Duration::from_micros(micros), async {
                let _ = store.create_feed(&doomed).await;
            });
            let _ = cut.await;
            assert_free(&*session).await;
        }
        // The name and the numbers are free as well.
        let made = store.create_feed(&NewFeed::new(name("orders"))).await;
        assert_eq!(made.unwrap().name, name("orders"));
        assert_eq!(store.feeds().await.unwrap().len(), 1);
    });
}

/// Somebody else takes locks that an open transaction of ours would hold: the table of feeds as a
/// whole, and its shards. The server may need a moment to notice that a connection was cut.
async fn assert_free(session: &dyn Session) {
    session.run("set lock_timeout 20000").await;
    session.run("begin transaction").await;
    session
        .run("insert into changefeed.feed (feed_id, name) values (1, 'orders')")
        .await;
    session
        .run("insert into changefeed.shard (feed_id, shard) values (1, 0), (1, 1)")
        .await;
    session.run("rollback").await;
}

/// A feed with more changes than one transaction removes is dropped to the last of them, with the keys
/// of its rows, and takes nothing of another feed with it. The first part alone, which is what a drop
/// that was cut off leaves, shows readers that something is gone.
#[test]
fn a_large_feed_is_dropped_to_its_last_change() {
    run(async {
        let backend = SqlServerBackend::fresh().await;
        let store = SqlServerStore::connect(&backend.url()).await.unwrap();
        store.migrate().await.unwrap();
        let session = (&backend as &dyn Backend).session().await;
        session
            .run("create table orders (id integer primary key)")
            .await;
        let orders = |feed| captured(feed, TableName::unqualified("orders"), None, 1);
        let dropped = store.create_feed(&orders("dropped")).await.unwrap();
        let kept = store.create_feed(&orders("kept")).await.unwrap();
        session
            .run(
                "with d as (select n from (values (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)) v (n)) \
                 insert into orders (id) \
                 select a.n + 10 * b.n + 100 * c.n + 1000 * e.n \
                 from d a cross join d b cross join d c cross join d e",
            )
            .await;
        store.sweep(SweepGroup(0)).await.unwrap();
        // One that has no number yet.
        session.run("insert into orders values (10000)").await;
        let count = |table: &str| format!("select count(*) from changefeed.{table}");
        assert_eq!(session.number(&count("change")).await, 20_002);
        // Whoever drops it is cut off after the first part.
        let (_, part) = statements()
            .unwrap()
            .into_iter()
            .find(|(name, _)| name == "feed_empty.sql")
            .unwrap();
        let part = part
            .replace("@P1", &dropped.id.to_string())
            .replace("@P2", "3000");
        session.run(&store.platform().statement(&part)).await;
        assert_eq!(session.number(&count("change")).await, 17_002);
        let beginning = After::Cursor(Cursor::Number(0));
        let error = store.read(&dropped, ShardId(0), beginning, 10).await;
        assert_eq!(error.unwrap_err().kind(), Kind::CursorExpired);
        store.drop_feed(&dropped).await.unwrap();
        assert_eq!(session.number(&count("change")).await, 10_001);
        assert_eq!(session.number(&count("change_row")).await, 10_001);
        store.sweep(SweepGroup(0)).await.unwrap();
        let page = store.read(&kept, ShardId(0), After::First, 10).await;
        assert_eq!(page.unwrap().changes.len(), 10);
        session.run("insert into orders values (10001)").await;
    });
}

/// Drivers that turn off auto-commit have implicit transactions, and a session may limit its statements to some rows.
/// Numbers are committed all the same, all of them, and the identity that the caller drew stays the last.
#[test]
fn sweeps_and_reads_are_their_own_whatever_the_session_is_set_to() {
    run(async {
        let backend = SqlServerBackend::fresh().await;
        let store = SqlServerStore::connect(&backend.url()).await.unwrap();
        store.migrate().await.unwrap();
        let feed = store.create_feed(&NewFeed::new(name("orders"))).await;
        let feed = feed.unwrap();
        let session = (&backend as &dyn Backend).session().await;
        session
            .run("create table item (id integer identity(7, 1) primary key, note integer)")
            .await;
        session.run("insert into item values (1)").await;
        let publish = format!(
            "insert into changefeed.change (feed_id, shard, change_id) \
             select {}, 0, next value for changefeed.change_id from (values (1), (2), (3)) three (n)",
            feed.id
        );
        let read = format!("exec changefeed.[read] {}, 0", feed.id);
        let poll = format!("exec changefeed.longpoll {}, 0, 0, 1000", feed.id);
        for sweep in [
            "exec changefeed.sweep 0",
            "exec changefeed.sweep_loop 0, 1000, 0",
        ] {
            session.run(&publish).await;
            session.run("set rowcount 1").await;
            session.run("set implicit_transactions on").await;
            for call in [sweep, &read] {
                session.run(call).await;
                assert_eq!(session.number("select @@trancount").await, 0, "{call}");
            }
            // It owns the waiting lock, and so the transaction stays.
            session.run(&poll).await;
            assert_eq!(session.number("select @@trancount").await, 1);
            session.run("rollback transaction").await;
            session.run("set implicit_transactions off").await;
            session.run("set rowcount 0").await;
        }
        let identity = "select convert(bigint, @@identity)";
        assert_eq!(session.number(identity).await, 7);
        let page = store.read(&feed, ShardId(0), After::First, 10).await;
        assert_eq!(page.unwrap().changes.len(), 6);
    });
}

/// A client that was cut off while it waited may keep the lock that readers of its shard wait on. Others are swept
/// and told.
#[test]
fn a_stranger_with_one_shards_lock_stops_no_sweep_loop() {
    run(async {
        let backend = SqlServerBackend::fresh().await;
        let store = SqlServerStore::connect(&backend.url()).await.unwrap();
        store.migrate().await.unwrap();
        let feed = store.create_feed(&NewFeed::new(name("orders"))).await;
        let feed = feed.unwrap();
        let stranger = (&backend as &dyn Backend).session().await;
        stranger.run("begin transaction").await;
        let lock = format!(
            "exec sp_getapplock @Resource = N'changefeed.longpoll/{}/0', @LockMode = 'Shared', \
             @LockOwner = 'Transaction', @LockTimeout = 1000",
            feed.id
        );
        stranger.run(&lock).await;
        let session = (&backend as &dyn Backend).session().await;
        let publish = format!(
            "insert into changefeed.change (feed_id, shard, change_id) \
             values ({}, 0, next value for changefeed.change_id)",
            feed.id
        );
        session.run(&publish).await;
        session
            .run("exec changefeed.sweep_loop 0, 1000, 2000")
            .await;
        let page = store.read(&feed, ShardId(0), After::First, 10).await;
        assert_eq!(page.unwrap().changes.len(), 1);
        stranger.run("rollback transaction").await;
    });
}

/// A writer may limit its own statements to some rows. What a trigger notes of them is not limited: a
/// row that moves to another key is two changes.
#[test]
fn a_writer_that_limits_its_statements_limits_nothing_of_ours() {
    run(async {
        let backend = SqlServerBackend::fresh().await;
        let store = SqlServerStore::connect(&backend.url()).await.unwrap();
        store.migrate().await.unwrap();
        let session = (&backend as &dyn Backend).session().await;
        session
            .run("create table orders (id integer primary key)")
            .await;
        let new = captured("orders", TableName::unqualified("orders"), None, 1);
        store.create_feed(&new).await.unwrap();
        session.run("set rowcount 1").await;
        session.run("insert into orders values (1)").await;
        session.run("update orders set id = 7").await;
        session.run("set rowcount 0").await;
        let changes = "select count(*) from changefeed.change";
        assert_eq!(session.number(changes).await, 3);
    });
}
