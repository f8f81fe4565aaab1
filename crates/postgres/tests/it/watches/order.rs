//! What commits late, in chunks or under other circumstances, and what moving and polling cost.

use std::time::{Duration, Instant};

use changefeed_core::RowOperation::{Insert, Update};
use changefeed_core::{BatchOutcome, WatchSettings, WatchSpec};
use changefeed_testkit::watching::{quick, spec, take, take_all};
use serde_json::json;

use crate::watches::scene;

/// A watermark over versions that are drawn inside transactions would pass it.
#[test]
fn a_change_that_commits_late_is_not_lost() {
    scene(async |scene| {
        let slow = scene.backend.session().await;
        slow.run("begin; insert into orders values (1, 'slow')")
            .await;
        // Also one that has written before and after others.
        let mixed = scene.backend.session().await;
        mixed.run("begin; insert into orders values (2, 'a')").await;
        for id in 10..20 {
            scene
                .app
                .run(&format!("insert into orders values ({id}, 'quick')"))
                .await;
            assert_eq!(scene.all(100).await.concat().len(), 1);
        }
        mixed
            .run("insert into orders values (3, 'b'); commit")
            .await;
        assert_eq!(scene.all(100).await.concat().len(), 2);
        slow.run("savepoint s; update orders set note = 'slower' where id = 1; commit")
            .await;
        assert_eq!(
            scene.all(100).await,
            [[(Insert, json!({"id": 1, "note": "slower"}))]]
        );
        // And one in two phases.
        slow.run("begin; insert into orders values (4, 'p'); prepare transaction 'p'")
            .await;
        scene.app.run("insert into orders values (5, 'a')").await;
        assert_eq!(scene.all(100).await.concat().len(), 1);
        scene.app.run("commit prepared 'p'").await;
        assert_eq!(scene.all(100).await.concat().len(), 1);
    });
}

/// Transaction ids are no order of changes: one that began first may change a key last.
#[test]
fn an_early_transaction_that_changes_a_key_last_decides() {
    scene(async |scene| {
        let app = &scene.app;
        app.run("create table elsewhere (x integer); insert into orders values (1, 'old')")
            .await;
        scene.all(100).await;
        let early = scene.backend.session().await;
        early.run("begin; insert into elsewhere values (1)").await;
        app.run("delete from orders").await;
        early
            .run("insert into orders select i, 'new' from generate_series(1, 10500) i; commit")
            .await;
        // In another process, which knows nothing yet and moves in chunks.
        let store = scene.backend.store().await;
        let settings = WatchSettings {
            batch: 10_000,
            ..quick()
        };
        let changes = take_all(&*store, &scene.watch, &settings).await.concat();
        assert_eq!(changes.len(), 10_500);
        let first: Vec<_> = changes.iter().filter(|c| c.1["id"] == 1).collect();
        assert_eq!(first, [&(Update, json!({"id": 1, "note": "new"}))]);
        // A delete that comes late, after the row was handed over, is none.
        app.run(&format!(
            "insert into changefeed.changes_{} (id, _changefeed_operation) values (1, 2)",
            scene.watch.table_id
        ))
        .await;
        assert_eq!(
            scene.all(100).await,
            [[(Update, json!({"id": 1, "note": "new"}))]]
        );
    });
}

/// A worker whose server is restored from a copy must not wait for transaction ids of the old one.
#[test]
fn changes_under_transaction_ids_of_another_server_are_seen() {
    scene(async |scene| {
        scene.app.run("insert into orders values (1, 'a')").await;
        scene
            .app
            .run(&format!(
                "update changefeed.changes_{} set _changefeed_xid = '4611686018427387904'",
                scene.watch.table_id
            ))
            .await;
        // A new process has no idea of what was before.
        let store = scene.backend.store().await;
        let changes = take_all(&*store, &scene.watch, &quick()).await.concat();
        assert_eq!(changes.len(), 1);
    });
}

/// With a key that is checked late, the last change of a key may be of another row.
#[test]
fn rows_that_swap_their_keys_are_there() {
    scene(async |scene| {
        let app = &scene.app;
        app.run("create table swapped (id integer primary key deferrable, v integer)")
            .await;
        let watch = scene.store.open_watch(&spec("s", "swapped")).await.unwrap();
        let all = async || take_all(&*scene.store, &watch, &quick()).await.concat();
        app.run("insert into swapped values (1, 1), (2, 2)").await;
        all().await;
        app.run("update swapped set id = 3 - id").await;
        let mut changes = all().await;
        changes.sort_by_key(|c| c.1["id"].as_i64());
        let rows: Vec<_> = changes.into_iter().map(|c| c.1).collect();
        assert_eq!(rows, [json!({"id": 1, "v": 2}), json!({"id": 2, "v": 1})]);
    });
}

/// Dead rows that a held snapshot keeps must not be in the way of a poll.
#[test]
fn a_held_snapshot_does_not_make_polls_slower() {
    scene(async |scene| {
        let holder = scene.backend.session().await;
        holder
            .run("begin isolation level repeatable read; select count(*) from orders")
            .await;
        scene
            .app
            .run("insert into orders select i, 'a' from generate_series(1, 5000) i")
            .await;
        scene.all(1000).await;
        let poll = async || {
            let began = Instant::now();
            for _ in 0..20 {
                scene
                    .app
                    .run("update orders set note = note || 'x' where id = 1")
                    .await;
                assert_eq!(scene.all(100).await.concat().len(), 1);
                assert!(scene.take("me", &quick()).await.is_none());
            }
            began.elapsed()
        };
        let before = poll().await.min(poll().await);
        for _ in 0..8 {
            scene.app.run("update orders set note = 'b'").await;
            scene.all(1000).await;
        }
        let after = poll().await.min(poll().await);
        // 45,000 dead rows and as many dead index entries would show.
        assert!(
            after < before * 2 + Duration::from_millis(100),
            "{before:?} before, {after:?} after"
        );
    });
}

/// A backlog that was empty when it was vacuumed is believed to be empty for a long time.
#[test]
fn statistics_of_an_empty_backlog_do_not_make_moves_quadratic() {
    scene(async |scene| {
        let (app, leases) = (&scene.app, &scene.watch.leases_table);
        app.run("insert into orders select i, 'a' from generate_series(1, 20000) i")
            .await;
        scene.all(10_000).await;
        app.run(&format!("vacuum {leases}")).await;
        app.run(&format!(
            "vacuum changefeed.changes_{}",
            scene.watch.table_id
        ))
        .await;
        let began = Instant::now();
        for note in ["b", "c"] {
            app.run(&format!("update orders set note = '{note}'")).await;
            for _ in 0..3 {
                let batch = scene.take("me", &quick()).await.unwrap();
                assert_eq!(scene.settle(&batch, BatchOutcome::Released).await, 100);
            }
        }
        let took = began.elapsed();
        assert!(took < Duration::from_secs(20), "{took:?}");
        // What was given back is tried first, and may be handed over once more with its newer change.
        let handed = scene.all(10_000).await.concat().len();
        assert!((20_000..=20_100).contains(&handed), "{handed}");
    });
}

/// The whole history of a row that is being processed is one change.
#[test]
fn rows_of_a_batch_are_settled_in_one_statement_each() {
    scene(async |scene| {
        scene
            .app
            .run("insert into orders select i, 'a' from generate_series(1, 1000) i")
            .await;
        let settings = WatchSettings {
            batch: 1000,
            ..quick()
        };
        let batch = scene.take("me", &settings).await.unwrap();
        assert_eq!(batch.changes.len(), 1000);
        scene
            .app
            .run("update orders set note = 'b' where id <= 10")
            .await;
        assert!(scene.take("me", &settings).await.is_none());
        assert_eq!(scene.settle(&batch, BatchOutcome::Done).await, 1000);
        assert_eq!(scene.all(100).await.concat().len(), 10);
    });
}

/// A change that is moved late does not undo a newer one in process, but its columns are told.
#[test]
fn columns_of_a_change_that_is_moved_late_are_not_forgotten() {
    scene(async |scene| {
        let app = &scene.app;
        app.run(
            "create table t (id integer primary key, a text, b text); insert into t values (1)",
        )
        .await;
        let spec = WatchSpec {
            columns: true,
            ..spec("c", "t")
        };
        let watch = scene.store.open_watch(&spec).await.unwrap();
        app.run("update t set a = 'x'").await;
        let (store, settings) = (&*scene.store, quick());
        let held = take(store, &watch, "me", &settings).await.unwrap();
        // As if another chunk had it: a change of before that one.
        app.run(&format!(
            "insert into changefeed.changes_{} \
               (id, _changefeed_operation, _changefeed_order, _changefeed_columns) \
             values (1, 1, 0, '3')",
            watch.table_id
        ))
        .await;
        assert!(take(store, &watch, "other", &settings).await.is_none());
        let done = BatchOutcome::Done;
        store.settle(&watch, &held, &done, &settings).await.unwrap();
        let late = take(store, &watch, "me", &settings).await.unwrap();
        let told: Vec<_> = [held, late].map(|b| b.changes[0].columns.clone()).into();
        assert_eq!(told, [Some(vec!["a".into()]), Some(vec!["b".into()])]);
    });
}

/// What one transaction does is moved in chunks, and nothing of it is handed over before its end is
/// known: by a worker that was idle, too.
#[test]
fn a_large_transaction_is_in_order_for_a_running_worker() {
    scene(async |scene| {
        let app = &scene.app;
        app.run("insert into orders select i, 'a' from generate_series(1, 15000) i")
            .await;
        assert_eq!(scene.all(10_000).await.concat().len(), 15_000);
        assert!(scene.all(10_000).await.is_empty());
        app.run(
            "begin; update orders set note = 'b'; update orders set note = 'c' where id <= 5000; \
             commit",
        )
        .await;
        let handed = scene.all(1000).await.concat();
        let ids: Vec<i64> = (handed.iter())
            .map(|(_, item)| item["id"].as_i64().unwrap())
            .collect();
        assert_eq!(ids.len(), 15_000);
        assert!(ids[..10_000].iter().all(|id| *id > 5000));
        assert!(ids[10_000..].iter().all(|id| *id <= 5000));
    });
}
