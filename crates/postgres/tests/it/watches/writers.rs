//! The application is never held up or failed by what is for workers.

use std::time::{Duration, Instant};

use changefeed_core::RowOperation::{Delete, Insert};
use changefeed_core::{Kind, Take, WatchSettings};
use changefeed_postgres::PostgresStore;
use changefeed_testkit::backend::eventually_true;
use changefeed_testkit::postgres::Relay;
use changefeed_testkit::watching::{Copying, Instance, orders, quick, spec, take_all};
use serde_json::json;

use crate::watches::scene;

/// Workers that write to rows which the application's triggers write to would make it the victim.
#[test]
fn the_application_meets_no_worker_at_any_isolation_level() {
    scene(async |scene| {
        scene
            .app
            .run("insert into orders select i, 'a' from generate_series(1, 40) i")
            .await;
        let function = Copying::default();
        let settings = WatchSettings {
            batch: 7,
            ..quick()
        };
        let mut instances = Vec::new();
        for n in 0..3 {
            let (backend, owner) = (&*scene.backend, format!("i{n}"));
            let function = function.clone();
            instances.push(Instance::start(backend, &scene.watch, owner, settings, function).await);
        }
        let until = Instant::now() + Duration::from_secs(2);
        let mut writers = Vec::new();
        for (n, level) in ["read committed", "repeatable read", "serializable"]
            .into_iter()
            .enumerate()
        {
            let session = scene.backend.session().await;
            writers.push(tokio::spawn(async move {
                // Each has rows of its own: whatever fails is not the application's fault.
                let mut transactions = 0;
                while Instant::now() < until || transactions < 4 {
                    session
                        .run(&format!("begin isolation level {level}; select 1"))
                        .await;
                    for round in 0..3 {
                        for id in (n..40).step_by(3) {
                            session
                                .run(&format!(
                                    "update orders set note = '{transactions}.{round}' \
                                     where id = {id}"
                                ))
                                .await;
                        }
                        // Workers are at it meanwhile.
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                    session.run("commit").await;
                    transactions += 1;
                }
            }));
        }
        for writer in writers {
            writer.await.unwrap();
        }
        changefeed_testkit::backend::eventually_true("all is done", async || {
            let status = scene.store.watch_status(&scene.watch, 0).await.unwrap();
            status.unprocessed == 0
        })
        .await;
        assert_eq!(function.rows(), orders(&*scene.app).await);
        for instance in instances {
            instance.stop().await;
        }
    });
}

/// Even while somebody holds the lock of the workers, for however long.
#[test]
fn no_writer_waits_for_the_lock_of_the_workers() {
    scene(async |scene| {
        let holder = scene.backend.session().await;
        holder
            .run(&format!(
                "begin; select pg_advisory_xact_lock(hashtextextended('changefeed/watch/{}', 0))",
                scene.watch.table_id
            ))
            .await;
        scene
            .app
            .run("set lock_timeout = '100ms'; insert into orders values (1, 'a')")
            .await;
        scene.app.run("update orders set note = 'b'").await;
        scene.app.run("delete from orders").await;
    });
}

/// Keys may be renamed and change their type while a trigger of before is in place.
#[test]
fn no_write_fails_because_the_key_was_altered() {
    scene(async |scene| {
        let app = &scene.app;
        app.run("alter table orders alter column id type bigint")
            .await;
        app.run("insert into orders values (1, 'a'), (9000000000, 'b')")
            .await;
        app.run("alter table orders rename column id to number")
            .await;
        app.run("insert into orders values (9000000001, 'c')").await;
        app.run("update orders set number = 9000000002 where number = 9000000001")
            .await;
        let watch = scene.store.open_watch(&spec("f", "orders")).await.unwrap();
        let changes = take_all(&*scene.store, &watch, &quick()).await.concat();
        assert_eq!(
            changes,
            [
                (Insert, json!({"number": 1, "note": "a"})),
                (Insert, json!({"number": 9_000_000_000_i64, "note": "b"})),
                (Delete, json!({"number": 9_000_000_001_i64})),
                (Insert, json!({"number": 9_000_000_002_i64, "note": "c"}))
            ]
        );
        // A key that is gone altogether fails no write either.
        app.run(
            "alter table orders drop constraint orders_pkey; alter table orders drop column number",
        )
        .await;
        app.run(
            "insert into orders values ('d'); update orders set note = 'e'; delete from orders",
        )
        .await;
    });
}

/// Somebody cleans up by hand: the application goes on, and the next start makes all again.
#[test]
fn deleted_tables_of_ours_fail_no_write_and_are_made_again() {
    scene(async |scene| {
        let app = &scene.app;
        app.run(&format!(
            "drop table changefeed.changes_{}; drop table changefeed.global_state",
            scene.watch.table_id
        ))
        .await;
        app.run("insert into orders values (1, 'a')").await;
        app.run("update orders set note = 'b'; truncate orders")
            .await;
        let watch = scene.store.open_watch(&spec("f", "orders")).await.unwrap();
        app.run("insert into orders values (2, 'a')").await;
        let changes = take_all(&*scene.store, &watch, &quick()).await.concat();
        assert_eq!(changes, [(Insert, json!({"id": 2, "note": "a"}))]);
    });
}

/// What notes keys as texts must not write them as the session of the writer happens to.
#[test]
fn keys_are_noted_alike_whatever_the_writer_has_set() {
    scene(async |scene| {
        let app = &scene.app;
        app.run("create table times (at timestamptz, f float8, primary key (at, f))")
            .await;
        let watch = scene.store.open_watch(&spec("t", "times")).await.unwrap();
        let all = async || take_all(&*scene.store, &watch, &quick()).await.concat();
        let row = "insert into times values ('2026-01-05 10:00+00', 0.1::float8 + 0.2)";
        app.run(row).await;
        let key = all().await.remove(0).1;
        let odd = scene.backend.session().await;
        odd.run(
            "set datestyle = 'SQL, DMY'; set extra_float_digits = 0; set timezone = 'Asia/Tokyo'",
        )
        .await;
        odd.run("truncate times").await;
        let status = scene.store.watch_status(&watch, 0).await.unwrap();
        assert_eq!(status.unprocessed, 1);
        assert_eq!(all().await, [(Delete, key)]);
        // The same where the trigger no longer knows the columns.
        odd.run("alter table times rename column f to g").await;
        odd.run(row).await;
        let watch = scene.store.open_watch(&spec("t", "times")).await.unwrap();
        let changes = take_all(&*scene.store, &watch, &quick()).await.concat();
        assert_eq!((changes.len(), changes[0].0), (1, Insert));
        assert_eq!(changes[0].1["g"].to_string(), "0.30000000000000004");
    });
}

/// Anybody can take an advisory lock: workers say that they wait, and go on afterwards.
#[test]
fn workers_do_not_wait_for_their_lock_without_a_word() {
    scene(async |scene| {
        scene.app.run("insert into orders values (1, 'a')").await;
        let holder = scene.backend.session().await;
        holder
            .run(&format!(
                "begin; select pg_advisory_xact_lock(hashtextextended('changefeed/watch/{}', 0))",
                scene.watch.table_id
            ))
            .await;
        let settings = quick();
        let take = Take {
            owner: "me",
            settings: &settings,
        };
        let waited = scene.store.take(&scene.watch, take);
        let waited = tokio::time::timeout(Duration::from_secs(30), waited).await;
        let error = waited.unwrap().unwrap_err();
        assert_eq!(error.kind(), Kind::Busy, "{error:?}");
        assert!(
            error.message().contains("the lock of its workers"),
            "{error:?}"
        );
        holder.run("rollback").await;
        assert_eq!(scene.all(100).await.concat().len(), 1);
    });
}

/// A process that is stopped while rows are sent to it would keep the table's lock, and everybody
/// waits behind whoever alters the table.
#[test]
fn a_frozen_worker_does_not_keep_the_table() {
    scene(async |scene| {
        let app = &scene.app;
        app.run("insert into orders select i, repeat(md5(i::text), 240000) from generate_series(1, 2) i")
            .await;
        let alter = scene.backend.session().await;
        alter
            .run("begin; lock table orders in access exclusive mode")
            .await;
        let relay = Relay::to(&scene.backend.url()).await;
        let store = PostgresStore::connect(&relay.url).await.unwrap();
        let watch = scene.watch.clone();
        let frozen = tokio::spawn(async move {
            let settings = quick();
            let take = Take {
                owner: "frozen",
                settings: &settings,
            };
            let store: &dyn changefeed_core::Store = &store;
            let _ = store.take(&watch, take).await;
        });
        let waits = "select count(*) from pg_locks where relation = 'orders'::regclass \
                     and not granted";
        eventually_true("it waits for the table", async || {
            app.number(waits).await == 1
        })
        .await;
        relay.choke();
        alter.run("rollback").await;
        let sends = "select count(*) from pg_stat_activity \
                     where datname = current_database() and wait_event = 'ClientWrite'";
        eventually_true("rows are sent", async || app.number(sends).await == 1).await;
        alter
            .run("begin; set local lock_timeout = '1s'; lock table orders in access exclusive mode; rollback")
            .await;
        frozen.abort();
    });
}
