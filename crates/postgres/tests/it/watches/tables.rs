//! Tables, keys and columns of every shape, and what becomes of them.

use changefeed_core::RowOperation::{Delete, Insert, Update};
use changefeed_core::{Kind, TableName, Take, Watch, WatchSpec};
use changefeed_testkit::backend::captured;
use changefeed_testkit::watching::{quick, spec, take_all};
use serde_json::json;

use crate::watches::scene;

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

/// An idle one as well: nothing else would tell it.
#[test]
fn an_instance_notices_that_its_table_is_gone_or_has_another_key() {
    scene(async |scene| {
        let app = &scene.app;
        app.run("create table other (id integer primary key, n integer)")
            .await;
        let other = scene.store.open_watch(&spec("o", "other")).await.unwrap();
        assert!(scene.all(100).await.is_empty());
        let ended = async |watch: &Watch| {
            changefeed_testkit::eventually("an error", || async {
                let settings = quick();
                let take = Take {
                    owner: "me",
                    settings: &settings,
                };
                scene.store.take(watch, take).await.err()
            })
            .await
        };
        app.run("drop table orders").await;
        let error = ended(&scene.watch).await;
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.message().contains("was dropped"), "{error}");
        app.run("alter table other drop constraint other_pkey, add primary key (n)")
            .await;
        let error = ended(&other).await;
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.message().contains("was altered"), "{error}");
        // The sentence that a start says is about the watch, not about a number.
        app.run("create table orders (id integer primary key)")
            .await;
        let error = scene
            .store
            .open_watch(&spec("f", "orders"))
            .await
            .unwrap_err();
        assert!(error.message().contains("was dropped"), "{error}");
        // After `watch drop` it is the watch that is gone.
        scene.store.drop_watch(&other).await.unwrap();
        assert_eq!(ended(&other).await.message(), "there is no watch 'o'");
    });
}

/// A watch whose state was deleted is there all the same.
#[test]
fn an_instance_whose_state_is_deleted_says_so() {
    scene(async |scene| {
        scene.all(100).await;
        scene
            .app
            .run(&format!("drop table {}", scene.watch.leases_table))
            .await;
        let settings = quick();
        let take = Take {
            owner: "me",
            settings: &settings,
        };
        let error = scene.store.take(&scene.watch, take).await.unwrap_err();
        assert_eq!(error.message(), "the state of watch 'f' was deleted");
        assert!(
            error
                .advice()
                .is_some_and(|a| a.contains("the watch starts"))
        );
    });
}

/// Keys that no row can have any more must not keep the watch from starting, nor from moving.
#[test]
fn keys_that_fit_no_more_do_not_stop_a_watch() {
    scene(async |scene| {
        let app = &scene.app;
        app.run("create table texts (id text primary key, v text)")
            .await;
        let watch = scene.store.open_watch(&spec("t", "texts")).await.unwrap();
        app.run("insert into texts values ('abc', 'x'), ('01', 'x'), ('1', 'y')")
            .await;
        // Moved to the backlog, and held; and some that nobody has moved yet.
        let held = changefeed_testkit::watching::take(&*scene.store, &watch, "me", &quick()).await;
        assert_eq!(held.unwrap().changes.len(), 3);
        app.run("insert into texts values ('zz', 'x'); truncate texts")
            .await;
        app.run("alter table texts alter id type integer using id::integer")
            .await;
        app.run("insert into texts values (5, 'x')").await;
        let watch = scene.store.open_watch(&spec("t", "texts")).await.unwrap();
        let mut seen = std::collections::BTreeMap::new();
        changefeed_testkit::backend::eventually_true("all is handed over", async || {
            for (operation, item) in take_all(&*scene.store, &watch, &quick()).await.concat() {
                seen.insert(item["id"].as_i64().unwrap(), operation);
            }
            let status = scene.store.watch_status(&watch, 1).await.unwrap();
            status.unprocessed == 0
        })
        .await;
        assert_eq!(seen.get(&5), Some(&Insert), "{seen:?}");
        assert_eq!(seen.get(&1), Some(&Delete), "{seen:?}");
    });
}

/// A text that cannot be read under a running worker, either.
#[test]
fn a_noted_text_that_cannot_be_read_blocks_nothing() {
    scene(async |scene| {
        let app = &scene.app;
        app.run(&format!(
            "insert into changefeed.changes_{} (_changefeed_operation, _changefeed_raw) \
             values (1, '[\"no number\"]'), (1, '[\"7\"]')",
            scene.watch.table_id
        ))
        .await;
        app.run("insert into orders values (1, 'a')").await;
        assert_eq!(
            scene.all(100).await.concat(),
            [
                (Delete, json!({"id": 7})),
                (Insert, json!({"id": 1, "note": "a"}))
            ]
        );
    });
}

/// With a snapshot of its own nothing of the table can be believed: nobody is told, and nothing fails.
#[test]
fn truncating_under_an_old_snapshot_tells_nothing() {
    scene(async |scene| {
        let app = &scene.app;
        app.run("insert into orders values (1, 'a')").await;
        scene.all(100).await;
        let old = scene.backend.session().await;
        old.run("begin isolation level repeatable read; select count(*) from orders")
            .await;
        app.run("insert into orders values (2, 'b')").await;
        scene.all(100).await;
        old.run("truncate orders; commit").await;
        assert_eq!(scene.all(100).await.concat(), []);
        let log = format!("changefeed.changes_{}", scene.watch.table_id);
        assert_eq!(app.number(&format!("select count(*) from {log}")).await, 0);
    });
}

/// A trigger of somebody else by the name of ours would be taken for ours.
#[test]
fn a_trigger_with_our_name_is_refused() {
    scene(async |scene| {
        let app = &scene.app;
        app.run("create table squat (id integer primary key)").await;
        let oid = app.number("select 'squat'::regclass::oid::bigint").await;
        app.run(&format!(
            "create function nothing() returns trigger language plpgsql as \
               'begin return null; end'; \
             create trigger \"!changefeed_watch_{oid}\" after insert on squat \
               for each row execute function nothing()"
        ))
        .await;
        let error = scene
            .store
            .open_watch(&spec("s", "squat"))
            .await
            .unwrap_err();
        assert!(error.message().contains("somebody else"), "{error}");
    });
}

/// What `doctor` says about a watch.
#[test]
fn what_is_wrong_with_a_watch_is_found() {
    scene(async |scene| {
        let app = &scene.app;
        let ours = format!("\"!changefeed_watch_{}\"", scene.watch.table_id);
        let found = async || {
            let findings = scene.store.watch_findings().await.unwrap();
            let about = findings.iter().all(|f| f.subject == "watch f");
            assert!(about && findings.iter().all(|f| f.advice.is_some()));
            let messages: Vec<String> = findings.into_iter().map(|f| f.message).collect();
            messages.join("; ")
        };
        assert_eq!(found().await, "");
        app.run("alter table orders disable trigger all").await;
        let said = found().await;
        assert!(
            said.contains(&format!("{ours} on public.orders is disabled")),
            "{said}"
        );
        app.run("alter table orders enable trigger all").await;
        app.run(&format!("drop trigger {ours} on orders")).await;
        assert!(found().await.contains("is missing: changes are not noted"));
        scene.store.open_watch(&spec("f", "orders")).await.unwrap();
        assert_eq!(found().await, "");
        // Its trigger sorts before that of the watch, and is ours as well.
        let feed = captured("orders", TableName::unqualified("orders"), None, 1);
        scene.store.create_feed(&feed).await.unwrap();
        assert_eq!(found().await, "");
        app.run("create function early() returns trigger language plpgsql as 'begin return null; end'; \
             create trigger \" early\" after insert on orders for each row execute function early()")
            .await;
        assert!(found().await.contains("runs before ours"));
        app.run("drop trigger \" early\" on orders; create table heir () inherits (orders)")
            .await;
        assert!(found().await.contains("inherit"));
        app.run("drop table heir").await;
        app.run(&format!(
            "drop table changefeed.changes_{}",
            scene.watch.table_id
        ))
        .await;
        assert!(found().await.contains("was deleted"));
        scene.store.open_watch(&spec("f", "orders")).await.unwrap();
        app.run("alter table orders rename id to number").await;
        assert!(found().await.contains("primary key"));
        app.run("drop table orders").await;
        assert_eq!(found().await, "its table was dropped");
    });
}

/// Truncating state is a reset where watches come from: whoever does it is told, and whoever starts next.
#[test]
fn a_backlog_that_was_truncated_is_told_at_the_next_start() {
    scene(async |scene| {
        let app = &scene.app;
        app.run("insert into orders values (1, 'a')").await;
        let batch = scene.take("me", &quick()).await.unwrap();
        scene
            .settle(&batch, changefeed_core::BatchOutcome::Released)
            .await;
        app.run(&format!("truncate {}", scene.watch.leases_table))
            .await;
        let states = "select count(*) from changefeed.global_state";
        assert_eq!(app.number(states).await, 0);
        let opened = scene.store.open_watch(&spec("f", "orders")).await;
        assert_eq!(opened.unwrap().name, scene.watch.name);
        assert_eq!(app.number(states).await, 1);
        app.run("insert into orders values (2, 'b')").await;
        assert_eq!(
            scene.all(10).await.concat(),
            [(Insert, json!({"id": 2, "note": "b"}))]
        );
    });
}
