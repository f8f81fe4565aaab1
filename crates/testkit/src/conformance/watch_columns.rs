//! Which columns were changed, for functions that want to know.

use std::sync::Arc;

use changefeed_core::{Batch, BatchOutcome, RowOperation, Watch, WatchSettings, WatchSpec};

use RowOperation::{Delete, Insert, Update};

use crate::backend::Backend;
use crate::watching::{Scene, failed, ids, quick, spec, take};

/// A scene with a table `t (id, a, b, c)`, which has one row, watched with columns.
async fn watched(backend: Arc<dyn Backend>) -> (Scene, Watch) {
    let scene = Scene::new(backend).await;
    scene
        .app
        .run(
            "create table t (id integer primary key, a text, b integer, \"c {}\"\"\" text); \
             insert into t values (1, 'a', 1, 'c')",
        )
        .await;
    let spec = WatchSpec {
        columns: true,
        ..spec("columns", "t")
    };
    let watch = scene.store.open_watch(&spec).await.unwrap();
    (scene, watch)
}

type Changed = (i64, RowOperation, Option<Vec<String>>);

fn told(batch: &Batch) -> Vec<Changed> {
    let ids = ids(batch);
    let changes = batch.changes.iter();
    changes
        .zip(ids)
        .map(|(c, id)| (id, c.operation, c.columns.clone()))
        .collect()
}

/// What there is to do, in one batch, with an outcome.
async fn next(scene: &Scene, watch: &Watch, outcome: BatchOutcome) -> Vec<Changed> {
    let Some(batch) = take(&*scene.store, watch, "me", &quick()).await else {
        return Vec::new();
    };
    let settled = scene.store.settle(watch, &batch, &outcome, &quick()).await;
    settled.unwrap();
    told(&batch)
}

async fn done(scene: &Scene, watch: &Watch) -> Vec<Changed> {
    next(scene, watch, BatchOutcome::Done).await
}

fn columns(names: &[&str]) -> Option<Vec<String>> {
    Some(names.iter().map(|n| (*n).to_owned()).collect())
}

/// United over all updates between two calls, in the order of the table.
pub async fn an_update_tells_the_columns_that_were_changed(backend: Arc<dyn Backend>) {
    let (scene, watch) = watched(backend).await;
    let app = &scene.app;
    let by_value = scene.backend.words().columns_by_value;
    app.run("update t set a = 'x'").await;
    assert_eq!(done(&scene, &watch).await, [(1, Update, columns(&["a"]))]);
    app.run("update t set \"c {}\"\"\" = null").await;
    app.run("update t set b = b + 1, a = a").await;
    let written = ["a", "b", "c {}\""];
    let expected = if by_value { &written[1..] } else { &written };
    assert_eq!(done(&scene, &watch).await, [(1, Update, columns(expected))]);
    app.run("update t set a = a").await;
    let expected = if by_value { &[][..] } else { &["a"] };
    assert_eq!(done(&scene, &watch).await, [(1, Update, columns(expected))]);
    // Only an update has them.
    app.run("insert into t values (2, 'a', 1, 'c')").await;
    app.run("update t set a = 'b' where id = 2").await;
    assert_eq!(done(&scene, &watch).await, [(2, Insert, None)]);
    app.run("update t set a = 'c' where id = 2").await;
    app.run("delete from t where id = 2").await;
    assert_eq!(done(&scene, &watch).await, [(2, Delete, None)]);
    // One that was gone in between may be another one altogether.
    app.run("delete from t where id = 1").await;
    app.run("insert into t values (1, 'a', 1, 'c')").await;
    app.run("update t set b = 7").await;
    assert_eq!(done(&scene, &watch).await, [(1, Update, None)]);
}

/// Nothing is told too little, whatever becomes of the batches.
pub async fn columns_are_kept_until_they_were_handed_over(backend: Arc<dyn Backend>) {
    let (scene, watch) = watched(backend).await;
    let app = &scene.app;
    let all = async || done(&scene, &watch).await;
    // Changes that reach the backlog one by one.
    let other = scene.store.open_watch(&spec("other", "t")).await.unwrap();
    app.run("update t set a = 'x'").await;
    done(&scene, &other).await;
    app.run("update t set b = 2").await;
    done(&scene, &other).await;
    assert_eq!(all().await, [(1, Update, columns(&["a", "b"]))]);
    // One that comes while the row is in process, and another.
    app.run("update t set a = 'y'").await;
    let held = take(&*scene.store, &watch, "me", &quick()).await.unwrap();
    assert_eq!(told(&held), [(1, Update, columns(&["a"]))]);
    app.run("update t set b = 3").await;
    done(&scene, &other).await;
    app.run("update t set \"c {}\"\"\" = 'd'").await;
    done(&scene, &other).await;
    let settle = async |batch: &Batch, outcome, settings: &WatchSettings| {
        scene
            .store
            .settle(&watch, batch, &outcome, settings)
            .await
            .unwrap()
    };
    settle(&held, BatchOutcome::Done, &quick()).await;
    assert_eq!(all().await, [(1, Update, columns(&["b", "c {}\""]))]);
    // One that was released, one that failed for good while a newer one waits.
    app.run("update t set a = 'z'").await;
    let held = take(&*scene.store, &watch, "me", &quick()).await.unwrap();
    app.run("update t set b = 4").await;
    done(&scene, &other).await;
    settle(&held, BatchOutcome::Released, &quick()).await;
    app.run("update t set id = id").await;
    done(&scene, &other).await;
    let once = WatchSettings {
        attempts: 1,
        ..quick()
    };
    let held = crate::eventually("it is taken again", || {
        take(&*scene.store, &watch, "me", &once)
    })
    .await;
    let written = ["id", "a", "b", "c {}\""];
    let from = usize::from(scene.backend.words().columns_by_value);
    assert_eq!(told(&held), [(1, Update, columns(&written[from..3]))]);
    app.run("update t set \"c {}\"\"\" = 'e'").await;
    done(&scene, &other).await;
    settle(&held, failed("no"), &once).await;
    assert_eq!(all().await, [(1, Update, columns(&written[from..]))]);
    // Parked, and brought back by a newer one.
    app.run("update t set a = 'q'").await;
    let held = take(&*scene.store, &watch, "me", &once).await.unwrap();
    settle(&held, failed("no"), &once).await;
    app.run("update t set b = 9").await;
    assert_eq!(all().await, [(1, Update, columns(&["a", "b"]))]);
}

/// Nobody pays for what nobody wants, and nobody who wants it loses it.
pub async fn columns_are_noted_while_some_function_wants_them(backend: Arc<dyn Backend>) {
    let (scene, watch) = watched(backend).await;
    let app = &scene.app;
    let plain = WatchSpec {
        columns: false,
        ..spec("plain", "t")
    };
    let plain = scene.store.open_watch(&plain).await.unwrap();
    // An instance that does not ask for them leaves them to the others.
    scene.store.open_watch(&spec("columns", "t")).await.unwrap();
    app.run("update t set a = 'x'").await;
    assert_eq!(done(&scene, &watch).await, [(1, Update, columns(&["a"]))]);
    done(&scene, &plain).await;
    scene.store.drop_watch(&watch).await.unwrap();
    let plain = scene.store.open_watch(&spec("plain", "t")).await.unwrap();
    app.run("update t set a = 'y'").await;
    assert_eq!(done(&scene, &plain).await, [(1, Update, None)]);
    // What happened before anybody asked is not known.
    app.run("update t set a = 'z'").await;
    let asking = WatchSpec {
        columns: true,
        ..spec("plain", "t")
    };
    let asking = scene.store.open_watch(&asking).await.unwrap();
    app.run("update t set b = 5").await;
    assert_eq!(done(&scene, &asking).await, [(1, Update, None)]);
    app.run("update t set b = 6").await;
    assert_eq!(done(&scene, &asking).await, [(1, Update, columns(&["b"]))]);
}

/// As the table calls them when they are handed over.
pub async fn a_renamed_column_is_told_by_its_name_of_today(backend: Arc<dyn Backend>) {
    let (scene, watch) = watched(backend).await;
    let app = &scene.app;
    app.run("alter table t rename column a to renamed").await;
    app.run("alter table t add column d text").await;
    assert!(done(&scene, &watch).await.is_empty());
    app.run("update t set renamed = 'x', d = 'y'").await;
    let told = done(&scene, &watch).await;
    match &told[0].2 {
        // Where only a start makes the trigger anew, any column may have changed.
        None => {
            let spec = WatchSpec {
                columns: true,
                ..spec("columns", "t")
            };
            scene.store.open_watch(&spec).await.unwrap();
            app.run("update t set renamed = 'z', d = 'z'").await;
            assert_eq!(
                done(&scene, &watch).await,
                [(1, Update, columns(&["renamed", "d"]))]
            );
        }
        known => assert_eq!(*known, columns(&["renamed", "d"])),
    }
}

/// What is changed after the table was altered and before an instance has seen that.
pub async fn columns_of_an_altered_table_are_not_known(backend: Arc<dyn Backend>) {
    let (scene, watch) = watched(backend).await;
    assert!(done(&scene, &watch).await.is_empty());
    let app = &scene.app;
    app.run("insert into t values (2, 'a', 1, 'c')").await;
    done(&scene, &watch).await;
    app.run("alter table t add column d integer default 5")
        .await;
    app.run("update t set d = 6 where id = 1").await;
    app.run("update t set d = 7, a = 'x' where id = 2").await;
    let spec = WatchSpec {
        columns: true,
        ..spec("columns", "t")
    };
    let watch = scene.store.open_watch(&spec).await.unwrap();
    // Where the database tells what a statement has written, it is known all the same.
    let known = |names| {
        (!scene.backend.words().columns_by_value)
            .then(|| columns(names))
            .flatten()
    };
    assert_eq!(
        done(&scene, &watch).await,
        [(1, Update, known(&["d"])), (2, Update, known(&["a", "d"]))]
    );
    app.run("update t set d = 8 where id = 1").await;
    assert_eq!(done(&scene, &watch).await, [(1, Update, columns(&["d"]))]);
}
