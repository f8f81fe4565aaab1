//! Which changes are handed over, in which order, and what can be watched.

use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{
    BatchOutcome, CHANGES_PER_WORKER, Kind, RowOperation, WatchFrom, WatchSettings, WatchSpec,
};
use serde_json::json;

use RowOperation::{Delete, Insert, Update};

use crate::backend::Backend;
use crate::watching::{Scene, ids, quick, seen, spec, take_all};

/// With all columns; a deleted row with its key alone.
pub async fn inserts_updates_and_deletes_are_handed_over(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    assert!(scene.all(100).await.is_empty());
    scene
        .app
        .run("insert into orders values (1, 'a'), (2, null)")
        .await;
    assert_eq!(
        scene.all(100).await,
        [[
            (Insert, json!({"id": 1, "note": "a"})),
            (Insert, json!({"id": 2, "note": null}))
        ]]
    );
    scene
        .app
        .run("update orders set note = 'b' where id = 2")
        .await;
    scene.app.run("delete from orders where id = 1").await;
    assert_eq!(
        scene.all(100).await,
        [[
            (Update, json!({"id": 2, "note": "b"})),
            (Delete, json!({"id": 1}))
        ]]
    );
    assert!(scene.all(100).await.is_empty(), "each change once");
}

/// "If changes to multiple rows are made at once the exact order … is based on the order returned
/// by the CHANGETABLE function": here, the order in which the rows were changed.
pub async fn note_1_rows_changed_at_once_come_in_the_order_of_their_changes(
    backend: Arc<dyn Backend>,
) {
    let scene = Scene::new(backend).await;
    scene
        .app
        .run("insert into orders values (3, 'c'), (1, 'a'), (2, 'b')")
        .await;
    let batch = scene.take("me", &quick()).await.unwrap();
    assert_eq!(ids(&batch), [3, 1, 2]);
    let versions: Vec<i64> = batch.changes.iter().map(|c| c.version).collect();
    assert!(versions.is_sorted());
}

/// "If multiple changes are made to a row between each iteration of the loop then only a single
/// change entry exists for that row which will show the difference between the last processed
/// state and the current state."
pub async fn note_2_changes_between_two_calls_are_one(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let app = &scene.app;
    app.run("insert into orders values (1, 'a'), (2, 'a')")
        .await;
    app.run("update orders set note = 'b'").await;
    assert_eq!(
        scene.all(100).await,
        [[
            (Insert, json!({"id": 1, "note": "b"})),
            (Insert, json!({"id": 2, "note": "b"}))
        ]],
        "insert and update are one insert"
    );
    for note in ["c", "d", "e"] {
        app.run(&format!("update orders set note = '{note}' where id = 1"))
            .await;
    }
    app.run("update orders set note = 'x' where id = 2").await;
    app.run("delete from orders where id = 2").await;
    app.run("insert into orders values (3, 'a')").await;
    app.run("delete from orders where id = 3").await;
    assert_eq!(
        scene.all(100).await,
        [[
            (Update, json!({"id": 1, "note": "e"})),
            (Delete, json!({"id": 2})),
            // What came and went is told too: somebody may have seen it elsewhere.
            (Delete, json!({"id": 3}))
        ]]
    );
    app.run("delete from orders where id = 1").await;
    app.run("insert into orders values (1, 'again')").await;
    app.run("insert into orders values (4, 'a')").await;
    app.run("delete from orders where id = 4").await;
    app.run("insert into orders values (4, 'b')").await;
    assert_eq!(
        scene.all(100).await,
        [[
            (Update, json!({"id": 1, "note": "again"})),
            (Insert, json!({"id": 4, "note": "b"}))
        ]],
        "relative to what the function has been handed"
    );
    // The same when the changes reach the backlog one by one.
    let settings = quick();
    let other = scene
        .store
        .open_watch(&spec("other", "orders"))
        .await
        .unwrap();
    app.run("insert into orders values (5, 'a')").await;
    scene.all(100).await;
    app.run("delete from orders where id = 5").await;
    scene.all(100).await;
    app.run("insert into orders values (5, 'b')").await;
    app.run("update orders set note = 'z' where id = 1").await;
    scene.all(100).await;
    app.run("delete from orders where id = 1").await;
    scene.all(100).await;
    assert_eq!(
        take_all(&*scene.store, &other, &settings).await,
        [[
            (Insert, json!({"id": 5, "note": "b"})),
            (Delete, json!({"id": 1}))
        ]]
    );
}

/// "If changes are made to a set of rows, and then another set of changes are made to half of those
/// same rows, then the half of the rows that weren't changed a second time are processed first."
pub async fn note_3_rows_that_changed_again_come_after_those_that_did_not(
    backend: Arc<dyn Backend>,
) {
    let scene = Scene::new(backend).await;
    let values: Vec<String> = (1..=20).map(|id| format!("({id}, 'a')")).collect();
    scene
        .app
        .run(&format!("insert into orders values {}", values.join(", ")))
        .await;
    scene.all(100).await;
    scene.app.run("update orders set note = 'b'").await;
    scene
        .app
        .run("update orders set note = 'c' where id % 2 = 0")
        .await;
    let batches = scene.all(10).await;
    assert_eq!(batches.len(), 2);
    let ids = |batch: usize| -> Vec<i64> {
        let rows = batches[batch].iter();
        rows.map(|(_, item)| item["id"].as_i64().unwrap()).collect()
    };
    assert_eq!(ids(0), (1..=20).step_by(2).collect::<Vec<_>>());
    assert_eq!(ids(1), (2..=20).step_by(2).collect::<Vec<_>>());
}

/// Also where there is more than is moved at a time.
pub async fn note_3_holds_for_a_large_backlog(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    scene
        .app
        .run(
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < 12000) \
             insert into orders select i, 'a' from n",
        )
        .await;
    scene
        .app
        .run("update orders set note = 'b' where id <= 6000")
        .await;
    let batches = scene.all(6000).await;
    let firsts: Vec<i64> = batches
        .iter()
        .map(|batch| batch[0].1["id"].as_i64().unwrap())
        .collect();
    assert_eq!(firsts, [6001, 1]);
    assert_eq!(batches.concat().len(), 12_000, "each row once");
}

/// And there is no waiting between full batches.
pub async fn a_batch_has_at_most_its_size_and_the_rest_follows(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let values: Vec<String> = (1..=25).map(|id| format!("({id}, 'a')")).collect();
    scene
        .app
        .run(&format!("insert into orders values {}", values.join(", ")))
        .await;
    let sizes: Vec<usize> = scene.all(10).await.iter().map(Vec::len).collect();
    assert_eq!(sizes, [10, 10, 5]);
}

/// As the table's key is what a row is known by.
pub async fn a_changed_key_is_a_delete_and_an_insert(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    scene.app.run("insert into orders values (1, 'a')").await;
    scene.all(100).await;
    scene
        .app
        .run("update orders set id = 2, note = 'b' where id = 1")
        .await;
    assert_eq!(
        scene.all(100).await,
        [[
            (Delete, json!({"id": 1})),
            (Insert, json!({"id": 2, "note": "b"}))
        ]]
    );
}

/// Nor does it leave anything behind.
pub async fn what_was_rolled_back_is_never_handed_over(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let begin = scene.backend.words().begin;
    scene
        .app
        .run(&format!(
            "{begin}; insert into orders values (1, 'a'); rollback"
        ))
        .await;
    scene
        .app
        .run(&format!(
            "{begin}; insert into orders values (2, 'a'); savepoint s; \
             insert into orders values (3, 'a'); rollback to savepoint s; commit"
        ))
        .await;
    assert_eq!(
        scene.all(100).await,
        [[(Insert, json!({"id": 2, "note": "a"}))]]
    );
}

/// Each is handed everything, at its own pace.
pub async fn several_functions_watch_one_table_independently(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let g = scene.store.open_watch(&spec("g", "orders")).await.unwrap();
    assert_ne!(scene.watch.leases_table, g.leases_table);
    scene.app.run("insert into orders values (1, 'a')").await;
    let held = scene.take("me", &quick()).await.unwrap();
    assert_eq!(ids(&held), [1]);
    assert_eq!(
        take_all(&*scene.store, &g, &quick()).await,
        [[(Insert, json!({"id": 1, "note": "a"}))]]
    );
    scene.app.run("update orders set note = 'b'").await;
    assert_eq!(
        take_all(&*scene.store, &g, &quick()).await,
        [[(Update, json!({"id": 1, "note": "b"}))]]
    );
    assert_eq!(scene.settle(&held, BatchOutcome::Done).await, 1);
    assert_eq!(
        scene.all(100).await,
        [[(Update, json!({"id": 1, "note": "b"}))]]
    );
    // One that comes or goes while another instance is at work is noticed by that one.
    let (other, h) = (
        scene.backend.store().await,
        scene.store.open_watch(&spec("h", "orders")).await.unwrap(),
    );
    scene.app.run("insert into orders values (2, 'a')").await;
    assert_eq!(take_all(&*other, &g, &quick()).await.len(), 1);
    assert_eq!(take_all(&*scene.store, &h, &quick()).await.len(), 1);
    scene.store.drop_watch(&h).await.unwrap();
    scene.app.run("insert into orders values (3, 'a')").await;
    assert_eq!(take_all(&*other, &g, &quick()).await.len(), 1);
    assert_eq!(scene.all(100).await.concat().len(), 2);
}

/// `serve` opens what it has read some time ago.
pub async fn a_dropped_watch_is_not_made_again_by_who_wants_an_existing_one(
    backend: Arc<dyn Backend>,
) {
    let scene = Scene::new(backend).await;
    let existing = WatchSpec {
        existing: true,
        ..spec("h", "orders")
    };
    let unknown = scene.store.open_watch(&existing).await.unwrap_err();
    assert_eq!(unknown.kind(), Kind::NotFound, "{unknown:?}");
    let watch = scene.store.open_watch(&spec("h", "orders")).await.unwrap();
    assert_eq!(scene.store.open_watch(&existing).await.unwrap(), watch);
    scene.store.drop_watch(&watch).await.unwrap();
    let dropped = scene.store.open_watch(&existing).await.unwrap_err();
    assert_eq!(dropped.kind(), Kind::NotFound, "{dropped:?}");
    let left = scene.store.watches().await.unwrap();
    assert!(left.iter().all(|w| w.name != existing.name), "{left:?}");
}

/// From now: not even what nobody has taken yet.
pub async fn a_new_function_begins_now_or_at_the_beginning(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    scene
        .app
        .run("insert into orders values (1, 'a'), (2, 'b')")
        .await;
    let now = scene
        .store
        .open_watch(&spec("now", "orders"))
        .await
        .unwrap();
    let beginning = WatchSpec {
        from: WatchFrom::Beginning,
        ..spec("beginning", "orders")
    };
    let beginning = scene.store.open_watch(&beginning).await.unwrap();
    assert!(take_all(&*scene.store, &now, &quick()).await.is_empty());
    scene
        .app
        .run("update orders set note = 'c' where id = 2")
        .await;
    assert_eq!(
        take_all(&*scene.store, &beginning, &quick()).await.concat(),
        [
            (Insert, json!({"id": 1, "note": "a"})),
            (Insert, json!({"id": 2, "note": "c"}))
        ]
    );
    assert_eq!(
        take_all(&*scene.store, &now, &quick()).await,
        [[(Update, json!({"id": 2, "note": "c"}))]]
    );
    assert_eq!(
        scene.all(100).await.concat().len(),
        2,
        "the one that was there"
    );
}

/// By its name, whichever process it is in.
pub async fn a_known_function_goes_on_and_a_renamed_one_starts_over(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    scene.app.run("insert into orders values (1, 'a')").await;
    scene.all(100).await;
    scene.app.run("insert into orders values (2, 'a')").await;
    let store = scene.backend.store().await;
    // Where it begins is decided once.
    let again = WatchSpec {
        from: WatchFrom::Beginning,
        ..spec("f", "orders")
    };
    let watch = store.open_watch(&again).await.unwrap();
    assert_eq!(watch, scene.watch);
    assert_eq!(
        take_all(&*store, &watch, &quick()).await,
        [[(Insert, json!({"id": 2, "note": "a"}))]]
    );
    let renamed = WatchSpec {
        from: WatchFrom::Beginning,
        ..spec("F", "orders")
    };
    let renamed = store.open_watch(&renamed).await.unwrap();
    assert_ne!(renamed.function_id, watch.function_id);
    assert_eq!(
        take_all(&*store, &renamed, &quick()).await.concat().len(),
        2
    );
}

/// And the others are not touched by it.
pub async fn a_function_can_be_reset(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let g = scene.store.open_watch(&spec("g", "orders")).await.unwrap();
    scene.app.run("insert into orders values (1, 'a')").await;
    let reset = async |from| scene.store.reset_watch(&scene.watch, from).await.unwrap();
    reset(WatchFrom::Now).await;
    assert!(scene.all(100).await.is_empty());
    reset(WatchFrom::Beginning).await;
    assert_eq!(
        scene.all(100).await,
        [[(Insert, json!({"id": 1, "note": "a"}))]]
    );
    // While a batch is out: its success is not for what comes now.
    scene.app.run("update orders set note = 'b'").await;
    let held = scene.take("me", &quick()).await.unwrap();
    reset(WatchFrom::Beginning).await;
    assert_eq!(scene.settle(&held, BatchOutcome::Done).await, 0);
    assert_eq!(scene.all(100).await.concat().len(), 1);
    assert_eq!(
        take_all(&*scene.store, &g, &quick()).await.concat().len(),
        1
    );
}

/// With the last watch goes the tracking.
pub async fn a_dropped_watch_leaves_the_table_as_it_was(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let g = scene.store.open_watch(&spec("g", "orders")).await.unwrap();
    scene.store.drop_watch(&scene.watch).await.unwrap();
    scene.app.run("insert into orders values (1, 'a')").await;
    assert_eq!(take_all(&*scene.store, &g, &quick()).await.len(), 1);
    scene.store.drop_watch(&g).await.unwrap();
    scene.app.run("update orders set note = 'b'").await;
    scene.app.run("delete from orders").await;
    assert!(scene.store.watches().await.unwrap().is_empty());
    let error = scene.store.drop_watch(&g).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    let taken = scene
        .store
        .take(
            &g,
            changefeed_core::Take {
                owner: "me",
                settings: &quick(),
            },
        )
        .await;
    assert_eq!(taken.unwrap_err().kind(), Kind::NotFound);
    let state = scene.backend.words().our("global_state");
    let left = format!("select count(*) from {state}");
    assert_eq!(scene.app.number(&left).await, 0);
    // It can be watched again.
    let f = scene.store.open_watch(&spec("f", "orders")).await.unwrap();
    scene.app.run("insert into orders values (2, 'a')").await;
    assert_eq!(take_all(&*scene.store, &f, &quick()).await.len(), 1);
}

/// As the documents of the system behind the seed allow.
pub async fn state_deleted_by_hand_is_made_again(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let g = scene.store.open_watch(&spec("g", "orders")).await.unwrap();
    let app = &scene.app;
    app.run(&format!("drop table {}", scene.watch.leases_table))
        .await;
    app.run(&format!(
        "delete from {}",
        scene.backend.words().our("global_state")
    ))
    .await;
    app.run("insert into orders values (1, 'a')").await;
    // The other function does not suffer.
    assert_eq!(
        take_all(&*scene.backend.store().await, &g, &quick())
            .await
            .len(),
        1
    );
    let watch = scene.store.open_watch(&spec("f", "orders")).await.unwrap();
    assert_eq!(watch, scene.watch);
    assert!(scene.all(100).await.is_empty(), "it begins now");
    app.run("insert into orders values (2, 'a')").await;
    assert_eq!(scene.all(100).await.concat().len(), 1);
}

/// Receivers of webhooks tell batches apart by their versions, and there may be those of several
/// databases: they begin by the time, in milliseconds, each of which has room for a million.
pub async fn versions_are_not_those_of_another_database(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    scene.app.run("insert into orders values (1, 'a')").await;
    let batch = scene.take("me", &quick()).await.unwrap();
    let since_1970 = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let began = batch.changes[0].version >> 20;
    let ago = i64::try_from(since_1970.as_millis()).unwrap() - began;
    assert!((-3_600_000..3_600_000).contains(&ago), "{ago} ms ago");
}

/// For people, for metrics, and for an autoscaler that runs a query with one number.
pub async fn the_backlog_is_counted_and_shown_in_one_row(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let status = async || scene.store.watch_status(&scene.watch, 10).await.unwrap();
    assert_eq!(status().await.unprocessed, 0);
    let n = CHANGES_PER_WORKER + 1;
    scene
        .app
        .run(&format!(
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < {n}) \
             insert into orders select i, 'a' from n"
        ))
        .await;
    scene
        .app
        .run("update orders set note = 'b' where id <= 10")
        .await;
    // Nobody has looked yet: an autoscaler with no worker must see it all the same.
    let before = status().await;
    assert_eq!((before.unprocessed, before.leased), (n, 0));
    assert_eq!(before.suggested_workers, 2);
    let view = scene
        .backend
        .words()
        .our(&format!("backlog_{}", scene.watch.function_id));
    let shown = scene
        .app
        .query(&format!(
            "select unprocessed, suggested_workers from {view}"
        ))
        .await
        .unwrap();
    assert_eq!(shown, [[Some(n.to_string()), Some("2".into())]]);
    // As many as somebody has said, until somebody says otherwise.
    let smaller = WatchSpec {
        max_changes_per_worker: Some(100),
        ..spec("f", "orders")
    };
    scene.store.open_watch(&smaller).await.unwrap();
    let unsaid = spec("f", "orders");
    scene.store.open_watch(&unsaid).await.unwrap();
    assert_eq!(status().await.suggested_workers, 11);
    let workers = format!("select suggested_workers from {view}");
    assert_eq!(scene.app.number(&workers).await, 11);
    let lasting = WatchSettings {
        lease: Duration::from_secs(600),
        ..quick()
    };
    let batch = scene.take("me", &lasting).await.unwrap();
    let during = status().await;
    assert_eq!((during.unprocessed, during.leased), (n, 100));
    assert_eq!(seen(&batch).len(), 100);
    // Without a row of the state table for it: the table is a courtesy.
    assert!(during.idle_ms.is_some_and(|ms| ms < 10_000));
    scene.settle(&batch, BatchOutcome::Done).await;
    assert_eq!(status().await.unprocessed, n - 100);
}
