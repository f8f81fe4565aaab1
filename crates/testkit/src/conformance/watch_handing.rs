//! What a function is handed of what there is, how often, and what it says about single rows.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use changefeed_core::{
    BatchFormat, BatchOutcome, Images, Part, RowChange, RowFilter, RowOperation, WatchSettings,
    WatchSpec,
};
use changefeed_engine::{CancellationToken, Closure, Handled, Watcher};
use serde_json::{Value, json};

use RowOperation::{Delete, Insert, Update};

use crate::backend::{Backend, eventually_true};
use crate::watching::{Scene, failed, ids, quick, seen, spec, take, take_all};

/// The others are done, and a newer change of the row is not lost.
pub async fn promise_10_rows_of_a_batch_that_failed_are_tried_again_alone(
    backend: Arc<dyn Backend>,
) {
    let scene = Scene::new(backend).await;
    let insert = "insert into orders values (1, 'a'), (2, 'a'), (3, 'a'), (4, 'a')";
    scene.app.run(insert).await;
    let batch = scene.take("me", &quick()).await.unwrap();
    assert_eq!(ids(&batch), [1, 2, 3, 4]);
    // Newer changes of one that is done and of one that has failed.
    scene
        .app
        .run("update orders set note = 'b' where id in (1, 2)")
        .await;
    let version = |at: usize| batch.changes[at].version;
    let bad = vec![version(1), version(2)];
    let done = batch.part(Part::Without(bad.clone()));
    assert_eq!(scene.settle(&done, BatchOutcome::Done).await, 2);
    let bad = batch.part(Part::Only(bad));
    assert_eq!(scene.settle(&bad, failed("no room")).await, 2);
    let status = scene.store.watch_status(&scene.watch, 0).await.unwrap();
    assert_eq!(status.last_error.as_deref(), Some("no room"));
    let mut handed = Vec::new();
    eventually_true("all of them are handed over", async || {
        while let Some(batch) = scene.take("me", &quick()).await {
            handed.extend(seen(&batch));
            scene.settle(&batch, BatchOutcome::Done).await;
        }
        let status = scene.store.watch_status(&scene.watch, 0).await.unwrap();
        status.unprocessed == 0
    })
    .await;
    let of = |id: i64| handed.iter().rfind(|(_, item)| item["id"] == id);
    assert_eq!(of(1), Some(&(Update, json!({"id": 1, "note": "b"}))));
    assert_eq!(of(2).unwrap().1, json!({"id": 2, "note": "b"}));
    assert_eq!(of(3), Some(&(Insert, json!({"id": 3, "note": "a"}))));
    assert_eq!(of(4), None, "it was done");
}

/// Of an instance that has lost its lease.
pub async fn promise_9_a_late_part_of_a_batch_is_ignored(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    scene
        .app
        .run("insert into orders values (1, 'a'), (2, 'a')")
        .await;
    let brief = WatchSettings {
        lease: Duration::from_millis(100),
        renewal: Duration::from_millis(50),
        ..quick()
    };
    let late = scene.take("late", &brief).await.unwrap();
    let mut other = None;
    eventually_true("the lease has ended", async || {
        other = scene.take("other", &quick()).await;
        other.is_some()
    })
    .await;
    let bad = vec![late.changes[0].version];
    for (part, outcome) in [
        (Part::Without(bad.clone()), BatchOutcome::Done),
        (Part::Only(bad), failed("too late")),
    ] {
        assert_eq!(scene.settle(&late.part(part), outcome).await, 0);
    }
    assert_eq!(scene.settle(&other.unwrap(), BatchOutcome::Done).await, 2);
}

/// What one instance hands over, as it goes.
struct Told {
    calls: Arc<Mutex<Vec<Vec<Value>>>>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Told {
    async fn start(
        scene: &Scene,
        spec: WatchSpec,
        settings: WatchSettings,
        format: BatchFormat,
        fails: fn(usize, &[RowChange]) -> Handled,
    ) -> Self {
        let watch = scene.store.open_watch(&spec).await.unwrap();
        let watcher = Watcher::new(scene.backend.store().await, watch, settings, "me");
        let watcher = watcher.filter(&spec.filter, format).unwrap();
        let calls: Arc<Mutex<Vec<Vec<Value>>>> = Arc::default();
        let (noted, stop) = (calls.clone(), CancellationToken::new());
        let shutdown = stop.clone();
        let task = tokio::spawn(async move {
            let function = Closure(move |changes: Vec<RowChange>| {
                let told = changefeed_core::batch_json(&changes, format).unwrap();
                let mut calls = noted.lock().unwrap();
                calls.push(serde_json::from_str(&told).unwrap());
                std::future::ready(Ok(fails(calls.len(), &changes)))
            });
            watcher.run(&function, shutdown).await.unwrap();
        });
        Told { calls, stop, task }
    }

    fn calls(&self) -> Vec<Vec<Value>> {
        self.calls.lock().unwrap().clone()
    }

    /// What comes next.
    async fn next(&self, count: usize) -> Vec<Value> {
        eventually_true("it is handed over", async || {
            self.calls.lock().unwrap().iter().flatten().count() >= count
        })
        .await;
        std::mem::take(&mut *self.calls.lock().unwrap()).concat()
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

/// They are tried again with their error, and nothing else is.
pub async fn a_function_says_which_rows_have_failed(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    scene
        .app
        .run("insert into orders values (1, 'a'), (2, 'bad'), (3, 'a'), (4, 'bad'), (5, 'a')")
        .await;
    let told = Told::start(
        &scene,
        spec("f", "orders"),
        quick(),
        BatchFormat::default(),
        |call, changes| {
            let bad = changes.iter().enumerate();
            let bad = bad.filter(|(_, change)| change.item.get().contains("bad") && call < 3);
            Handled::except(bad.map(|(place, _)| (place, "it is bad")))
        },
    )
    .await;
    eventually_true("everything is processed", async || {
        let status = scene.store.watch_status(&scene.watch, 0).await.unwrap();
        status.unprocessed == 0
    })
    .await;
    let calls = told.calls();
    let ids = |call: &Vec<Value>| -> Vec<i64> {
        call.iter()
            .map(|c| c["Item"]["id"].as_i64().unwrap())
            .collect()
    };
    let ids: Vec<Vec<i64>> = calls.iter().map(ids).collect();
    assert_eq!(ids, [vec![1, 2, 3, 4, 5], vec![2, 4], vec![2, 4]]);
    told.stop().await;
}

/// However soon there is something, and as one call.
pub async fn changes_between_two_looks_are_one(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let settings = WatchSettings {
        polling_interval: Duration::from_millis(1500),
        ..quick()
    };
    let all = |_: usize, _: &[RowChange]| Handled::all();
    let format = BatchFormat::default();
    let told = Told::start(&scene, spec("f", "orders"), settings, format, all).await;
    scene.app.run("insert into orders values (1, 'a')").await;
    told.next(1).await;
    // It has found nothing more, and waits.
    for note in ["b", "c", "d"] {
        scene
            .app
            .run(&format!("update orders set note = '{note}'"))
            .await;
    }
    let next = told.next(1).await;
    assert_eq!(
        next,
        [json!({"Operation": 1, "Item": {"id": 1, "note": "d"}})]
    );
    told.stop().await;
}

/// To the function, the table has just the rows for which the condition is true.
pub async fn a_filter_makes_rows_come_and_go(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let app = &scene.app;
    app.run("create table t (id integer primary key, state text, note text, n integer)")
        .await;
    app.run("insert into t values (1, 'paid', 'x', 1), (2, 'new', 'x', 1)")
        .await;
    let filter = RowFilter {
        when: Some("state = 'paid' and n < 10".to_owned()),
        columns: vec!["state".to_owned()],
        ..RowFilter::default()
    };
    let format = BatchFormat::default();
    let spec = spec("paid", "t").wanting(&filter, format);
    let told = Told::start(&scene, spec, quick(), format, |_, _| Handled::all()).await;
    let handed = |operation: RowOperation, item: Value| json!({"Operation": operation.number(), "Item": item});
    let paid = |id: i64| json!({"id": id, "state": "paid"});
    app.run("update t set state = 'paid' where id = 2").await;
    let first = told.next(1).await;
    assert_eq!(first.len(), 1);
    app.run("update t set note = 'y' where id = 2").await;
    app.run("insert into t values (3, 'new', 'x', 1)").await;
    app.run("update t set state = 'sent' where id = 1").await;
    assert_eq!(told.next(1).await, [handed(Delete, json!({"id": 1}))]);
    app.run("insert into t values (4, 'paid', 'x', 1)").await;
    assert_eq!(told.next(1).await, [handed(Insert, paid(4))]);
    app.run("delete from t where id = 4").await;
    assert_eq!(told.next(1).await, [handed(Delete, json!({"id": 4}))]);
    told.stop().await;
}

/// Before each of the changes that are one, exactly as the row was handed over; or a sentence says that this cannot be
/// had.
pub async fn the_row_as_it_was_is_told(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let app = &scene.app;
    app.run("create table t (id integer primary key, \"a b\" text, n integer)")
        .await;
    app.run("insert into t values (1, 'it''s', 1), (2, null, 2)")
        .await;
    let format = BatchFormat {
        before: true,
        ..BatchFormat::default()
    };
    let wanted = spec("before", "t").wanting(&RowFilter::default(), format);
    let watch = match scene.store.open_watch(&wanted).await {
        Err(error) => {
            assert_eq!(error.kind(), changefeed_core::Kind::Unsupported, "{error}");
            return;
        }
        watch => watch.unwrap(),
    };
    let next = async || {
        let batch = take(&*scene.store, &watch, "me", &quick()).await.unwrap();
        let images = batch.changes.iter().map(|c| c.images.clone().unwrap());
        let images: Vec<Images> = images.collect();
        (batch, images)
    };
    let row = |id: i64, a: Option<&str>, n: i64| Some(json!({"id": id, "a b": a, "n": n}));
    let rows = |images: &Images| -> Vec<Option<Value>> {
        let rows = images.rows.iter();
        rows.map(|r| r.as_ref().map(|r| serde_json::from_str(r.get()).unwrap()))
            .collect()
    };
    app.run("update t set n = 5 where id = 1").await;
    app.run("delete from t where id = 1").await;
    app.run("insert into t values (3, 'x', 3)").await;
    let (batch, images) = next().await;
    assert_eq!(ids(&batch), [1, 3]);
    assert_eq!(
        rows(&images[0]),
        [row(1, Some("it's"), 1), row(1, Some("it's"), 5)]
    );
    assert_eq!(rows(&images[1]), [None]);
    // Newer changes of rows in process are told with the next batch, also after a failure.
    app.run("update t set n = 6 where id = 3").await;
    let bad = batch.part(Part::Only(vec![batch.changes[1].version]));
    let settle = async |batch: &changefeed_core::Batch, outcome| {
        let settled = scene.store.settle(&watch, batch, &outcome, &quick()).await;
        settled.unwrap().rows
    };
    let good = batch.part(Part::Only(vec![batch.changes[0].version]));
    assert_eq!(settle(&good, BatchOutcome::Done).await, 1);
    assert_eq!(settle(&bad, BatchOutcome::Done).await, 1);
    let (batch, images) = next().await;
    assert_eq!(rows(&images[0]), [row(3, Some("x"), 3)]);
    settle(&batch, BatchOutcome::Done).await;
    // Of very many only the first.
    for n in 0..20 {
        app.run(&format!("update t set n = {} where id = 2", 100 + n))
            .await;
    }
    let (batch, images) = next().await;
    assert_eq!(
        images[0].first().map(|r| r.get().contains("\"n\":2")),
        Some(true)
    );
    assert!(images[0].more);
    settle(&batch, BatchOutcome::Done).await;
    // To a filter it is exact: what never was there is not told as gone.
    let filter = RowFilter {
        when: Some("n < 10".to_owned()),
        ..RowFilter::default()
    };
    let sieve = filter.sieve(scene.store.dialect().fold, format).unwrap();
    let handed = async || {
        let (batch, _) = next().await;
        settle(&batch, BatchOutcome::Done).await;
        let changes = sieve.sift(&batch).into_iter();
        changes.map(|c| c.operation).collect::<Vec<_>>()
    };
    app.run("update t set n = 200 where id = 2").await;
    assert_eq!(handed().await, []);
    app.run("update t set n = 3 where id = 2").await;
    assert_eq!(handed().await, [Insert]);
    app.run("update t set n = 4 where id = 2").await;
    assert_eq!(handed().await, [Update]);
    app.run("update t set n = 50 where id = 2").await;
    app.run("update t set n = 51 where id = 2").await;
    assert_eq!(handed().await, [Delete]);
}

/// What a function changes itself, and says so in its transaction, it is not handed; others are.
pub async fn a_functions_own_changes_are_not_handed_to_it(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let other = scene
        .store
        .open_watch(&spec("other", "orders"))
        .await
        .unwrap();
    let app = &scene.app;
    if app.query("select pg_backend_pid()").await.is_err() {
        return;
    }
    app.run("insert into orders values (1, 'a'), (2, 'a')")
        .await;
    assert_eq!(scene.all(10).await.concat().len(), 2);
    app.run(
        "begin; set local changefeed.watch = 'f'; update orders set note = 'done' where id = 1; \
         insert into orders values (3, 'made'); commit",
    )
    .await;
    assert_eq!(scene.all(10).await.concat(), []);
    // What somebody else has changed as well is handed over.
    app.run(
        "begin; set local changefeed.watch = 'f'; update orders set note = 'done' where id = 2; commit; \
         update orders set note = 'again' where id = 2",
    )
    .await;
    let again = vec![(Update, json!({"id": 2, "note": "again"}))];
    assert_eq!(scene.all(10).await.concat(), again);
    let others = take_all(&*scene.store, &other, &quick()).await.concat();
    assert_eq!(others.len(), 3, "the other function is handed everything");
}
