//! Rows that are large or cannot be read.

use std::time::Duration;

use changefeed_core::RowOperation::Insert;
use changefeed_core::{BatchOutcome, Store, Watch, WatchSettings};
use changefeed_postgres::PostgresStore;
use changefeed_testkit::backend::{PostgresSession, Session, eventually_true};
use changefeed_testkit::watching::{Copying, Instance, orders, quick, spec};

use crate::watches::scene;

/// One bad row must not sink its batch, be it that it cannot even be read.
#[test]
fn a_row_that_cannot_be_read_is_parked_alone() {
    scene(async |scene| {
        let app = &scene.app;
        app.run("create table large (id integer primary key, b bytea)")
            .await;
        let watch = scene.store.open_watch(&spec("l", "large")).await.unwrap();
        app.run(
            "insert into large values (1, 'x'), (3, 'z'); \
             insert into large select 2, convert_to(repeat('x', 540000000), 'utf8')",
        )
        .await;
        let handed = until_parked(&*scene.store, &watch).await;
        assert_eq!(handed.len(), 2, "{handed:?}");
        let status = scene.store.watch_status(&watch, 1).await.unwrap();
        assert_eq!(status.parked_changes[0].key.get(), "{\"id\":2}");
    });
}

/// What is handed over until one row was given up and nothing is left to do.
async fn until_parked(store: &dyn Store, watch: &Watch) -> Vec<String> {
    let settings = WatchSettings {
        retry_interval: Duration::from_millis(10),
        ..quick()
    };
    let mut handed = Vec::new();
    eventually_true("the bad row is parked", async || {
        let take = changefeed_core::Take {
            owner: "me",
            settings: &settings,
        };
        if let Ok(Some(batch)) = store.take(watch, take).await {
            handed.extend(batch.changes.iter().map(|c| c.item.get().to_owned()));
            let done = BatchOutcome::Done;
            store.settle(watch, &batch, &done, &settings).await.unwrap();
        }
        let status = store.watch_status(watch, 1).await.unwrap();
        status.parked == 1 && status.unprocessed == 0
    })
    .await;
    handed
}

/// A database with the encoding SQL_ASCII takes any bytes, also in keys.
#[test]
fn bytes_that_are_no_text_are_parked_alone() {
    scene(async |scene| {
        let app = &scene.app;
        let name = format!("ascii_{}", fastrand::u32(..));
        app.run(&format!(
            "create database {name} encoding 'SQL_ASCII' template template0 \
               lc_collate 'C' lc_ctype 'C'"
        ))
        .await;
        let url = scene.backend.url();
        let (server, _) = url.rsplit_once('/').unwrap();
        let url = format!("{server}/{name}");
        let store = PostgresStore::connect(&url).await.unwrap();
        let store: &dyn Store = &store;
        store.migrate().await.unwrap();
        let session = PostgresSession::connect(&url).await.unwrap();
        let session: &dyn Session = &session;
        session
            .run("create table a (id text primary key, v text)")
            .await;
        let watch = store.open_watch(&spec("a", "a")).await.unwrap();
        session
            .run("insert into a values ('1', 'x'), (E'\\xff', E'\\xfe'), ('3', 'z')")
            .await;
        assert_eq!(until_parked(store, &watch).await.len(), 2);
        let status = store.watch_status(&watch, 1).await.unwrap();
        assert_eq!(status.parked_changes[0].key.get(), "{\"id\":\"\u{fffd}\"}");
        let error = status.parked_changes[0].error.as_deref().unwrap_or("");
        assert!(error.contains("not UTF-8"), "{error}");
    });
}

/// However large the rows are, an instance does not read all of a batch at once.
#[test]
fn a_batch_of_large_rows_is_cut() {
    scene(async |scene| {
        scene
            .app
            .run(
                "insert into orders select i, repeat(md5(i::text), 200000) \
                 from generate_series(1, 8) i",
            )
            .await;
        let batch = scene.take("me", &quick()).await.unwrap();
        let ids = |batch: &changefeed_core::Batch| batch.changes.len();
        assert_eq!(ids(&batch), 2);
        assert_eq!(scene.settle(&batch, BatchOutcome::Done).await, 2);
        let rest = scene.all(100).await;
        assert!(rest.iter().all(|batch| batch.len() <= 2));
        assert_eq!(rest.concat().len(), 6);
        assert!(rest.concat().iter().all(|c| c.0 == Insert));
    });
}

/// Reading that took longer than the lease is told, counts, and does not go on for ever unseen.
#[test]
fn a_batch_that_was_read_too_late_is_not_handed_over() {
    scene(async |scene| {
        let app = &scene.app;
        app.run("insert into orders values (1, 'a'), (2, 'a')")
            .await;
        let alter = scene.backend.session().await;
        alter
            .run("begin; lock table orders in access exclusive mode")
            .await;
        let settings = WatchSettings {
            lease: Duration::from_millis(300),
            renewal: Duration::from_millis(50),
            ..quick()
        };
        let function = Copying::default();
        let backend = &*scene.backend;
        let instance =
            Instance::start(backend, &scene.watch, "slow", settings, function.clone()).await;
        // It waits for the table with rows that it has leased, until their lease is over.
        let over = format!(
            "select count(*) from {} where _changefeed_lease_owner = 'slow' \
             and _changefeed_lease_expiration_time < clock_timestamp()",
            scene.watch.leases_table
        );
        eventually_true("the lease is over", async || app.number(&over).await == 2).await;
        alter.run("rollback").await;
        eventually_true("it is tried again", async || {
            let status = scene.store.watch_status(&scene.watch, 0).await.unwrap();
            status.unprocessed == 0
        })
        .await;
        assert_eq!(function.rows(), orders(&**app).await);
        let totals = instance.stop().await;
        assert!(totals.failed >= 1, "{totals:?}");
    });
}
