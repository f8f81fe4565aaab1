//! Which tables can be watched, whatever they are called and whatever their keys are.

use std::sync::Arc;

use changefeed_core::{Kind, RowOperation, TableName, WatchSpec};
use serde_json::json;

use RowOperation::{Delete, Insert, Update};

use crate::backend::Backend;
use crate::watching::{Scene, quick, spec, take, take_all};

/// And nothing is made.
pub async fn what_cannot_be_watched_is_refused_in_one_sentence(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    scene
        .app
        .run(
            "create view seen as select * from orders; \
             create table keyless (id integer); \
             create table reserved (_changefeed_lease_owner integer primary key, note text); \
             create table fine (id integer primary key, _changefeed_lease_owner text)",
        )
        .await;
    let refused = async |name: &str, table: &str| {
        let error = scene
            .store
            .open_watch(&spec(name, table))
            .await
            .unwrap_err();
        assert!(!error.message().contains('\n'));
        error
    };
    let missing = refused("x", "nothing").await;
    assert_eq!(missing.kind(), Kind::NotFound);
    assert_eq!(missing.message(), "there is no table nothing");
    for (table, words) in [
        ("keyless", "has no primary key"),
        ("seen", "is a view"),
        ("reserved", "has a name that changefeed needs for itself"),
    ] {
        let error = refused("x", table).await;
        assert_eq!(error.kind(), Kind::Invalid, "{table}");
        assert!(error.message().contains(words), "{error}");
    }
    let elsewhere = refused("f", "fine").await;
    assert_eq!(elsewhere.kind(), Kind::AlreadyExists);
    assert!(
        elsewhere.message().contains("already watches"),
        "{elsewhere}"
    );
    assert_eq!(
        scene.store.watches().await.unwrap(),
        std::slice::from_ref(&scene.watch)
    );
    // Only the key shares a table with our columns.
    let fine = scene.store.open_watch(&spec("fine", "fine")).await.unwrap();
    scene.app.run("insert into fine values (1, 'me')").await;
    assert_eq!(
        take_all(&*scene.store, &fine, &quick()).await,
        [[(Insert, json!({"id": 1, "_changefeed_lease_owner": "me"}))]]
    );
}

/// Anything that has equality.
pub async fn keys_of_every_kind(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let bytes = match scene.backend.words().ulid_type {
        "bytea" => ("bytea", "'\\x00ff'::bytea", "uuid", "timestamptz"),
        "binary(16)" => (
            "varbinary(20)",
            "0x00ff",
            "uniqueidentifier",
            "datetimeoffset(3)",
        ),
        _ => ("blob", "x'00ff'", "text", "text"),
    };
    let (blob, zero, uuid, time) = bytes;
    let moment = match time {
        "datetimeoffset(3)" => "cast('2024-02-29 12:30:00.123 +00:00' as datetimeoffset(3))",
        _ => "'2024-02-29 12:30:00.123+00'",
    };
    let id = "5f6e9b5e-9f0d-4d3a-8d5b-1c9d2f3a4b5c";
    for (table, columns, values, changed) in [
        (
            "pairs",
            "a integer, b varchar(20), note text, primary key (b, a)".to_owned(),
            "1, 'it''s \"x\"', 'n'".to_owned(),
            "a = 2",
        ),
        (
            "blobs",
            format!("k {blob} primary key, note text"),
            format!("{zero}, 'n'"),
            "note = 'm'",
        ),
        (
            "uuids",
            format!("k {uuid} primary key, note text"),
            format!("'{id}', 'n'"),
            "note = 'm'",
        ),
        (
            "numbers",
            "k numeric(20, 4) primary key, note text".to_owned(),
            "12345.5, 'n'".to_owned(),
            "note = 'm'",
        ),
        (
            "times",
            format!("k {time} primary key, note text"),
            format!("{moment}, 'n'"),
            "note = 'm'",
        ),
    ] {
        scene
            .app
            .run(&format!("create table {table} ({columns})"))
            .await;
        let watch = scene.store.open_watch(&spec(table, table)).await.unwrap();
        let take = async || take_all(&*scene.store, &watch, &quick()).await.concat();
        scene
            .app
            .run(&format!("insert into {table} values ({values})"))
            .await;
        let inserted = take().await;
        assert_eq!(inserted.len(), 1, "{table}");
        assert_eq!(inserted[0].0, Insert, "{table}");
        assert_eq!(inserted[0].1["note"], "n", "{table}");
        scene
            .app
            .run(&format!("update {table} set {changed}"))
            .await;
        let updated = take().await;
        let operations: Vec<RowOperation> = updated.iter().map(|(o, _)| *o).collect();
        if table == "pairs" {
            assert_eq!(operations, [Delete, Insert]);
            assert_eq!(updated[0].1, json!({"b": "it's \"x\"", "a": 1}));
        } else {
            assert_eq!(operations, [Update], "{table}");
            assert_eq!(updated[0].1["k"], inserted[0].1["k"]);
        }
        scene.app.run(&format!("delete from {table}")).await;
        let deleted = take().await;
        assert_eq!(deleted.len(), 1, "{table}");
        assert_eq!(deleted[0].0, Delete);
        scene.store.drop_watch(&watch).await.unwrap();
    }
}

/// Whatever a table and its columns are called.
pub async fn names_that_need_quotes(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let table = "UPPER \"case\" {log}";
    let sql = "\"UPPER \"\"case\"\" {log}\"";
    scene
        .app
        .run(&format!(
            "create table {sql} (\"order\" integer, \"wei]rd {{keys}}\" text, \"select\" text, \
             primary key (\"wei]rd {{keys}}\", \"order\"))"
        ))
        .await;
    let spec = WatchSpec {
        table: TableName::unqualified(table),
        ..spec("quoted", "x")
    };
    let watch = scene.store.open_watch(&spec).await.unwrap();
    scene
        .app
        .run(&format!("insert into {sql} values (1, 'k', 's')"))
        .await;
    assert_eq!(
        take_all(&*scene.store, &watch, &quick()).await,
        [[(
            Insert,
            json!({"order": 1, "wei]rd {keys}": "k", "select": "s"})
        )]]
    );
    scene.app.run(&format!("delete from {sql}")).await;
    assert_eq!(
        take_all(&*scene.store, &watch, &quick()).await,
        [[(Delete, json!({"order": 1, "wei]rd {keys}": "k"}))]]
    );
    assert!(scene.store.watch_status(&watch, 0).await.is_ok());
}

/// JSON numbers are as the database wrote them.
pub async fn large_integers_and_all_columns_arrive_unharmed(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    scene
        .app
        .run("create table big (id bigint primary key, n bigint, t text)")
        .await;
    let watch = scene.store.open_watch(&spec("big", "big")).await.unwrap();
    scene
        .app
        .run("insert into big values (9223372036854775807, -9223372036854775808, 'ü\u{1f600}')")
        .await;
    let batch = take(&*scene.store, &watch, "me", &quick()).await.unwrap();
    assert_eq!(
        batch.changes[0].item.get(),
        "{\"id\":9223372036854775807,\"n\":-9223372036854775808,\"t\":\"ü\u{1f600}\"}"
    );
}

/// Where triggers do not survive it, the watch must be started again before the next write.
async fn before_the_next_write(scene: &Scene, table: &str) {
    if !scene.backend.words().triggers_survive_renames {
        scene.store.open_watch(&spec("f", table)).await.unwrap();
    }
}

/// Columns come and go, tables and keys are renamed; the application's writes never fail for it.
pub async fn a_table_that_is_renamed_or_altered_is_watched_on(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let app = &scene.app;
    app.run("alter table orders add column extra text").await;
    app.run("insert into orders values (1, 'a', 'x')").await;
    assert_eq!(
        scene.all(100).await,
        [[(Insert, json!({"id": 1, "note": "a", "extra": "x"}))]]
    );
    app.run("alter table orders drop column note").await;
    app.run("alter table orders rename to purchases").await;
    before_the_next_write(&scene, "purchases").await;
    app.run("update purchases set extra = 'y'").await;
    let store = scene.backend.store().await;
    assert_eq!(
        take_all(&*store, &scene.watch, &quick()).await,
        [[(Update, json!({"id": 1, "extra": "y"}))]]
    );
    app.run("alter table purchases rename column id to number")
        .await;
    before_the_next_write(&scene, "purchases").await;
    app.run("insert into purchases values (2, 'z')").await;
    app.run("delete from purchases where number = 1").await;
    // It is asked for under its new name, which makes our tables follow.
    let watch = store.open_watch(&spec("f", "purchases")).await.unwrap();
    assert_eq!(watch.table.name, "purchases");
    assert_eq!(
        take_all(&*store, &watch, &quick()).await.concat(),
        [
            (Insert, json!({"number": 2, "extra": "z"})),
            (Delete, json!({"number": 1}))
        ]
    );
    app.run("drop table purchases").await;
    let dropped = store.watches().await.unwrap().remove(0);
    assert_eq!(dropped.table.name, "(dropped)");
    // Whoever starts it, as `serve` does by that name, is told what has happened.
    for table in ["(dropped)", "purchases"] {
        let error = store.open_watch(&spec("f", table)).await.unwrap_err();
        assert!(error.message().contains("was dropped"), "{error}");
        assert!(error.advice().unwrap().contains("watch drop f"), "{error}");
    }
    store.drop_watch(&watch).await.unwrap();
}

/// Whatever was watched.
pub async fn uninstalling_removes_triggers_and_tables(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    scene.app.run("insert into orders values (1, 'a')").await;
    scene.store.uninstall().await.unwrap();
    scene.app.run("update orders set note = 'b'").await;
    scene.app.run("delete from orders").await;
    scene.store.migrate().await.unwrap();
    assert!(scene.store.watches().await.unwrap().is_empty());
}
