//! What a failure leaves behind: nothing.

use std::time::Duration;

use changefeed_core::{FeedStore, Kind, NewFeed, SchemaStore, TableName};
use changefeed_sqlserver::SqlServerStore;
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
