//! Tables, keys and columns of every shape, and what becomes of them.

use changefeed_core::RowOperation::{Delete, Insert, Update};
use changefeed_core::{Kind, TableName, WatchSpec};
use changefeed_testkit::watching::{quick, spec, take_all};
use serde_json::json;

use crate::scene;

/// Statement triggers would miss both.
#[test]
fn partitions_and_truncate_are_tracked() {
    scene(async |scene| {
        let app = &scene.app;
        app.run(
            "create table parted (id integer, region text, note text, primary key (id, region)) \
               partition by list (region); \
             create table parted_n partition of parted for values in ('n'); \
             create table parted_s partition of parted for values in ('s')",
        )
        .await;
        let watch = scene.store.open_watch(&spec("p", "parted")).await.unwrap();
        let all = async || take_all(&*scene.store, &watch, &quick()).await.concat();
        app.run(
            "insert into parted values (1, 'n', 'a'); insert into parted_s values (2, 's', 'b')",
        )
        .await;
        assert_eq!(all().await.len(), 2);
        app.run("update parted set region = 's' where id = 1").await;
        assert_eq!(
            all().await,
            [
                (Delete, json!({"id": 1, "region": "n"})),
                (Insert, json!({"id": 1, "region": "s", "note": "a"}))
            ]
        );
        app.run("insert into orders select i, 'a' from generate_series(1, 3) i")
            .await;
        scene.all(100).await;
        app.run("begin; truncate orders; insert into orders values (2, 'new'); commit")
            .await;
        let changes = scene.all(100).await.concat();
        assert_eq!(
            changes,
            [
                (Delete, json!({"id": 1})),
                (Delete, json!({"id": 3})),
                (Update, json!({"id": 2, "note": "new"}))
            ]
        );
    });
}

/// Truncating finds the key whatever the columns are called, and only that of the table itself.
#[test]
fn truncated_rows_are_found_whatever_their_columns_are_called() {
    scene(async |scene| {
        let app = &scene.app;
        app.run(
            "create table odd (\"($1)\" integer primary key, r text, changefeed_row text); \
             create table heir () inherits (odd); insert into heir values (1, 'h', 'h'); \
             insert into odd values (1, 'a', 'b')",
        )
        .await;
        let spec = WatchSpec {
            from: changefeed_core::WatchFrom::Beginning,
            ..spec("o", "odd")
        };
        let watch = scene.store.open_watch(&spec).await.unwrap();
        let all = async || take_all(&*scene.store, &watch, &quick()).await.concat();
        let row = json!({"($1)": 1, "r": "a", "changefeed_row": "b"});
        assert_eq!(all().await, [(Insert, row)]);
        app.run("truncate only odd").await;
        assert_eq!(all().await, [(Delete, json!({"($1)": 1}))]);
    });
}

/// In another schema, by its full name.
#[test]
fn tables_in_other_schemas_are_watched() {
    scene(async |scene| {
        scene
            .app
            .run(
                "create schema sales; create domain code as varchar(5) check (value <> ''); \
                 create collation insensitive (provider = icu, locale = 'und-u-ks-level2', \
                   deterministic = false); \
                 create table sales.items (id code primary key, note text); \
                 create table sales.names (id text collate insensitive primary key, note text)",
            )
            .await;
        for (name, table, id) in [("d", "items", "'a'"), ("n", "names", "'Ä'")] {
            let spec = WatchSpec {
                table: TableName::qualified("sales", table),
                ..spec(name, "x")
            };
            let watch = scene.store.open_watch(&spec).await.unwrap();
            let app = &scene.app;
            app.run(&format!("insert into sales.{table} values ({id}, 'a')"))
                .await;
            app.run(&format!("update sales.{table} set note = 'b'"))
                .await;
            let changes = take_all(&*scene.store, &watch, &quick()).await.concat();
            assert_eq!(changes.len(), 1, "{table}");
            assert_eq!((changes[0].0, &changes[0].1["note"]), (Insert, &json!("b")));
        }
        // A key that differs only in ways its collation does not see is the same key.
        let names = WatchSpec {
            table: TableName::qualified("sales", "names"),
            ..spec("n", "x")
        };
        let n = scene.store.open_watch(&names).await.unwrap();
        scene.app.run("update sales.names set id = 'ä'").await;
        let changes = take_all(&*scene.store, &n, &quick()).await.concat();
        assert_eq!(changes, [(Update, json!({"id": "ä", "note": "b"}))]);
    });
}

/// Names of ours must not be in the way of the application's.
#[test]
fn keys_may_be_called_like_columns_of_ours() {
    scene(async |scene| {
        let app = &scene.app;
        app.run(
            "create table named (id integer, version integer, op integer, xid integer, raw text, \
               changefeed_row text, primary key (id, version, op, xid, raw, changefeed_row))",
        )
        .await;
        let watch = scene.store.open_watch(&spec("n", "named")).await.unwrap();
        app.run("insert into named values (1, 2, 3, 4, 'r', 'c')")
            .await;
        let all = async || take_all(&*scene.store, &watch, &quick()).await.concat();
        let row =
            json!({"id": 1, "version": 2, "op": 3, "xid": 4, "raw": "r", "changefeed_row": "c"});
        assert_eq!(all().await, [(Insert, row.clone())]);
        app.run("delete from named").await;
        assert_eq!(all().await, [(Delete, row)]);
    });
}

/// Columns that an index only includes are no part of the key.
#[test]
fn included_columns_are_not_part_of_the_key() {
    scene(async |scene| {
        let app = &scene.app;
        app.run(
            "create table including (id integer, note json, v integer, primary key (id) include (v))",
        )
        .await;
        let watch = scene
            .store
            .open_watch(&spec("i", "including"))
            .await
            .unwrap();
        let all = async || take_all(&*scene.store, &watch, &quick()).await.concat();
        app.run("insert into including values (1, null, null), (2, null, 1)")
            .await;
        assert_eq!(all().await.len(), 2);
        app.run("update including set v = 2 where id = 2").await;
        assert_eq!(
            all().await,
            [(Update, json!({"id": 2, "note": null, "v": 2}))]
        );
        app.run("truncate including").await;
        assert_eq!(
            all().await,
            [(Delete, json!({"id": 1})), (Delete, json!({"id": 2}))]
        );
    });
}

/// Another column is not the same one under another name.
#[test]
fn a_key_that_moved_to_another_column_is_refused() {
    scene(async |scene| {
        scene
            .app
            .run("alter table orders drop constraint orders_pkey, add primary key (note)")
            .await;
        let error = scene
            .store
            .open_watch(&spec("f", "orders"))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error:?}");
        assert!(error.message().contains("another than when"), "{error:?}");
    });
}

/// A worker that knows the table as it was must not hand over rows as they were.
#[test]
fn added_columns_are_handed_over_at_once() {
    scene(async |scene| {
        scene.app.run("insert into orders values (1, 'a')").await;
        assert_eq!(scene.all(100).await.concat().len(), 1);
        scene
            .app
            .run("alter table orders add more integer default 7; update orders set note = 'b'")
            .await;
        assert_eq!(
            scene.all(100).await,
            [[(Update, json!({"id": 1, "note": "b", "more": 7}))]]
        );
    });
}
