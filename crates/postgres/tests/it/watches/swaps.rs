//! What is behind a name or a type may become something else, made by whoever owns it: none of it
//! runs with our rights, and none of it is handed over.

use changefeed_core::RowOperation::{Delete, Insert, Update};
use changefeed_core::{Kind, TableName, WatchFrom, WatchSpec};
use changefeed_testkit::watching::{quick, spec, take_all};
use serde_json::json;

use crate::watches::scene;

/// The input function of such a type calls the owner's checks, and its texts depend on settings.
#[test]
fn keys_of_types_that_call_anybodys_functions_are_refused() {
    scene(async |scene| {
        let app = &scene.app;
        app.run(
            "create table who (what text); \
             create function spy() returns boolean language plpgsql as \
               $$ begin insert into who values (current_user); return true; end $$; \
             create domain d as text check (spy() or value is null); \
             create type c as (a d); create type plain as (f float8); \
             create type r as range (subtype = d); create type e as enum ('a', 'b'); \
             create domain de as e; create domain many as integer[]; \
             create table t1 (k c primary key); create table t2 (k d[] primary key); \
             create table t3 (k r primary key); create table t4 (k de primary key); \
             create table t5 (id integer, k plain, primary key (id, k)); \
             create table fine (k many, e e, d d, primary key (k, e, d))",
        )
        .await;
        for table in ["t1", "t2", "t3", "t4", "t5"] {
            let error = scene.store.open_watch(&spec("w", table)).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{error:?}");
            let expected = format!("unsupported key type: column 'k' of public.{table} is of type");
            assert!(error.message().starts_with(&expected), "{error}");
        }
        let watch = scene.store.open_watch(&spec("w", "fine")).await.unwrap();
        app.run("insert into fine values ('{1}', 'b', 'x'); truncate who")
            .await;
        let row = json!({"k": [1], "e": "b", "d": "x"});
        let all = async || take_all(&*scene.store, &watch, &quick()).await.concat();
        assert_eq!(all().await, [(Insert, row.clone())]);
        let beginning = WatchFrom::Beginning;
        scene.store.reset_watch(&watch, beginning).await.unwrap();
        assert_eq!(all().await, [(Insert, row.clone())]);
        assert_eq!(app.number("select count(*) from who").await, 0);
        // One that becomes such a type under a watch.
        app.run("alter table fine drop constraint fine_pkey; delete from fine")
            .await;
        app.run("alter table fine alter e type c using row('a')::c, add primary key (k, e, d)")
            .await;
        app.run("insert into fine values ('{1}', row('b'), 'x'); truncate who")
            .await;
        let error = scene
            .store
            .open_watch(&spec("w", "fine"))
            .await
            .unwrap_err();
        assert!(
            error.message().starts_with("unsupported key type"),
            "{error}"
        );
        assert_eq!(app.number("select count(*) from who").await, 0);
    });
}

/// A view in the table's place would run its owner's functions with our rights.
#[test]
fn a_view_in_the_place_of_the_table_is_not_read() {
    scene(async |scene| {
        let app = &scene.app;
        app.run(
            "create table who (what text); \
             create function spy() returns text language plpgsql as \
               $$ begin insert into public.who values (current_user); return 'stolen'; end $$; \
             create function spy_early() returns text language plpgsql immutable as \
               $$ begin perform public.spy(); return 'stolen'; end $$; \
             create schema s; create table s.t (id integer primary key, v text); \
             insert into s.t values (1, 'a')",
        )
        .await;
        let watched = WatchSpec {
            table: TableName::qualified("s", "t"),
            from: WatchFrom::Beginning,
            ..spec("w", "t")
        };
        let watch = scene.store.open_watch(&watched).await.unwrap();
        let all = async || take_all(&*scene.store, &watch, &quick()).await.concat();
        assert_eq!(all().await, [(Insert, json!({"id": 1, "v": "a"}))]);
        app.run(
            "begin; alter table s.t rename to t_real; \
             create view s.t as select id, spy() || spy_early() as v from s.t_real; commit",
        )
        .await;
        app.run("truncate who; insert into s.t_real values (2, 'b')")
            .await;
        assert_eq!(all().await, [(Insert, json!({"id": 2, "v": "b"}))]);
        // The same by its schema, which takes no lock on the table.
        app.run(
            "begin; alter schema s rename to s_real; create schema s; \
             create view s.t_real as select id, spy() || spy_early() as v from s_real.t_real; commit",
        )
        .await;
        app.run("truncate who; insert into s_real.t_real values (3, 'c')")
            .await;
        assert_eq!(all().await, [(Insert, json!({"id": 3, "v": "c"}))]);
        // All of its rows, too.
        let beginning = WatchFrom::Beginning;
        scene.store.reset_watch(&watch, beginning).await.unwrap();
        assert_eq!(all().await.len(), 3);
        app.run("truncate s_real.t_real").await;
        assert_eq!(all().await.len(), 3);
        assert_eq!(app.number("select count(*) from who").await, 0);
    });
}

/// Without malice: the application has put a new table into the place of the watched one.
#[test]
fn rows_of_another_table_in_its_place_are_not_handed_over() {
    scene(async |scene| {
        let app = &scene.app;
        app.run("insert into orders values (1, 'a'), (2, 'b')")
            .await;
        scene.all(100).await;
        app.run(
            "begin; alter table orders rename to old_orders; \
             create table orders (id integer primary key, note text); \
             insert into orders values (2, 'of another table'); commit",
        )
        .await;
        app.run("update old_orders set note = 'x'").await;
        assert_eq!(
            scene.all(100).await.concat(),
            [
                (Update, json!({"id": 1, "note": "x"})),
                (Update, json!({"id": 2, "note": "x"}))
            ]
        );
        app.run("delete from old_orders where id = 2").await;
        assert_eq!(scene.all(100).await.concat(), [(Delete, json!({"id": 2}))]);
    });
}

/// A statement about another table is refused before anything of it runs, whatever happens between
/// the look at a table and the reading of it.
#[test]
fn the_statement_that_reads_knows_its_table_by_number() {
    scene(async |scene| {
        let app = &scene.app;
        app.run(
            "create view fake as select id, note from orders; \
             create function to_orders(fake) returns orders language sql as \
               'select null::orders'; \
             create cast (fake as orders) with function to_orders(fake) as implicit",
        )
        .await;
        let read = async |table: &str| {
            app.execute(&format!(
                "prepare reading (orders) as select from only {table} r \
                   where changefeed.same_row(r.*, $1); deallocate reading"
            ))
            .await
        };
        read("orders").await.unwrap();
        assert!(read("fake").await.is_err());
        // And a look at what is not locked is no look.
        let hold = "select changefeed.hold_table('orders'::regclass, \
                      changefeed.table_signature('orders'::regclass))";
        assert!(app.execute(hold).await.is_err());
        app.run(&format!(
            "begin; lock table only orders in access share mode; {hold}; commit"
        ))
        .await;
        assert!(
            app.execute(&format!(
                "begin; lock table only fake in access share mode; {}",
                hold.replace("orders", "fake")
            ))
            .await
            .is_err()
        );
    });
}
