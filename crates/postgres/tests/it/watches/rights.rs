//! Nobody gets rights by a watch, and what is missing is named.

use changefeed_core::RowOperation::{Delete, Insert, Update};
use changefeed_core::{Kind, ParkedRows, TableName, WatchSpec};
use changefeed_postgres::PostgresStore;
use changefeed_testkit::backend::Session;
use changefeed_testkit::watching::{Scene, quick, spec, take_all};
use serde_json::json;

use crate::watches::scene;

/// A role that may work on watches, with what the guide says.
async fn worker(app: &dyn Session) -> String {
    let role = format!("worker_{}", fastrand::u32(..));
    app.run(&format!(
        "create role {role} login; select changefeed.grant_worker('{role}')"
    ))
    .await;
    role
}

async fn connect_as(scene: &Scene, role: &str) -> PostgresStore {
    let url = scene.backend.url();
    let (_, host) = url.split_once('@').unwrap();
    PostgresStore::connect(&format!("postgres://{role}@{host}"))
        .await
        .unwrap()
}

/// With rights of its own only, and with traps in its search path.
#[test]
fn writers_need_no_rights_and_get_none() {
    scene(async |scene| {
        let app = &scene.app;
        let role = format!("writer_{}", fastrand::u32(..));
        app.run(&format!(
            "create role {role}; grant insert, update, delete, select on orders to {role}; \
             create schema trap; grant all on schema trap to {role}; \
             grant temporary on database {} to {role}",
            app.value("select quote_ident(current_database())").await
        ))
        .await;
        let writer = scene.backend.session().await;
        writer
            .run(&format!(
                "set role {role}; \
                 create function trap.evil(text, text) returns boolean language plpgsql as \
                   $$ begin raise exception 'with the rights of %', current_user; end $$; \
                 create operator trap.= (leftarg = text, rightarg = text, function = trap.evil); \
                 create operator trap.<> (leftarg = text, rightarg = text, function = trap.evil); \
                 create temp table jsonb (x integer); create temp table int4 (x integer); \
                 set search_path = pg_temp, trap, pg_catalog, public"
            ))
            .await;
        writer
            .run("insert into public.orders values (1, 'a')")
            .await;
        writer.run("update public.orders set id = 2").await;
        writer.run("delete from public.orders").await;
        let denied = writer.execute("select * from changefeed.watch").await;
        assert!(denied.is_err());
        assert_eq!(scene.all(100).await.concat().len(), 2);
        app.run(&format!("drop owned by {role} cascade; drop role {role}"))
            .await;
    });
}

/// One that cannot see what it would hand over is told so before.
#[test]
fn a_missing_right_is_named() {
    scene(async |scene| {
        let app = &scene.app;
        let role = worker(&**app).await;
        app.run("create table other (id integer primary key)").await;
        let store = connect_as(&scene, &role).await;
        let refused = async || {
            use changefeed_core::WatchStore;
            let error = store.open_watch(&spec("x", "other")).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Permission, "{error:?}");
            error
        };
        let error = refused().await;
        assert_eq!(
            error.message(),
            "the database user may not read public.other"
        );
        assert!(error.advice().unwrap().starts_with("grant select on"));
        app.run(&format!("grant select on other to {role}")).await;
        let error = refused().await;
        assert!(
            error.message().ends_with("can make watches"),
            "{}",
            error.message()
        );
        assert!(
            error
                .advice()
                .unwrap()
                .starts_with("run `changefeed watch create` as")
        );
        app.run("alter table other enable row level security").await;
        let error = refused().await;
        assert!(error.message().starts_with("row-level security hides rows"));
        // What somebody else has made can be worked on without the right to make anything.
        app.run(&format!(
            "alter table other disable row level security; grant select on orders to {role}"
        ))
        .await;
        {
            use changefeed_core::WatchStore;
            let watch = store.open_watch(&spec("f", "orders")).await.unwrap();
            app.run("insert into orders values (1, 'a')").await;
            let store: &dyn changefeed_core::Store = &store;
            assert_eq!(take_all(store, &watch, &quick()).await.len(), 1);
        }
        app.run(&format!("drop owned by {role} cascade; drop role {role}"))
            .await;
    });
}

/// What is made for a watch belongs to the owner of the schema, whichever of its members has made it:
/// the trigger runs with the owner's rights, and what is taken from the member later fails no write.
#[test]
fn a_watch_of_a_member_belongs_to_the_owner() {
    scene(async |scene| {
        use changefeed_core::WatchStore;
        let app = &scene.app;
        let (owner, member) = (
            format!("owner_{}", fastrand::u32(..)),
            format!("member_{}", fastrand::u32(..)),
        );
        let database = app.value("select quote_ident(current_database())").await;
        app.run(&format!(
            "drop schema changefeed cascade; create role {owner} login; \
             create role {member} login; grant {owner} to {member}; \
             grant create on database {database} to {owner}; \
             create table more (id integer primary key, v text); \
             grant select, trigger on more to {member}"
        ))
        .await;
        {
            use changefeed_core::SchemaStore;
            connect_as(&scene, &owner).await.migrate().await.unwrap();
        }
        let store = connect_as(&scene, &member).await;
        let error = store.open_watch(&spec("m", "more")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Permission, "{error:?}");
        assert!(error.advice().unwrap().ends_with(&format!("to {owner}")));
        app.run(error.advice().unwrap()).await;
        let watch = store.open_watch(&spec("m", "more")).await.unwrap();
        let others = "select count(*) from (select relowner from pg_class where relnamespace = \
             'changefeed'::regnamespace union all select proowner from pg_proc where pronamespace = \
             'changefeed'::regnamespace) o(o) where o <> (select nspowner from pg_namespace where \
             nspname = 'changefeed')";
        assert_eq!(app.number(others).await, 0);
        // A member alters what the owner owns.
        app.run("alter table more rename id to number").await;
        store.open_watch(&spec("m", "more")).await.unwrap();
        app.run(&format!(
            "revoke all on more from {member}; revoke {owner} from {member}"
        ))
        .await;
        app.run(
            "insert into more values (1, 'a'); truncate more; insert into more values (2, 'b')",
        )
        .await;
        let worker: &dyn changefeed_core::Store = &connect_as(&scene, &owner).await;
        assert_eq!(take_all(worker, &watch, &quick()).await.concat().len(), 2);
        // Rights that the owner itself loses: writes go on.
        app.run(&format!("revoke select on more from {owner}"))
            .await;
        app.run("insert into more values (4, 'd'); truncate more")
            .await;
        app.run(&format!("alter schema changefeed owner to current_user; revoke all on schema changefeed from {owner}"))
            .await;
        app.run("insert into more values (5, 'e'); update more set v = 'f'; truncate more")
            .await;
        app.run(&format!(
            "drop owned by {member} cascade; drop role {member}; drop owned by {owner} cascade; drop role {owner}"
        ))
        .await;
    });
}

/// Casts and operators of somebody's own type are somebody's own functions: neither the trigger nor
/// a worker calls one, or it would run with their rights.
#[test]
fn nothing_of_the_owner_of_a_table_runs_with_our_rights() {
    scene(async |scene| {
        let app = &scene.app;
        app.run(
            "create type e as enum ('1', '2', '3'); create table who (what text); \
             create function spy_int(e) returns integer language plpgsql as \
               $$ begin insert into who values ('int'); return 1; end $$; \
             create function spy_text(e) returns text language plpgsql as \
               $$ begin insert into who values ('text'); return '1'; end $$; \
             create function spy_read(text) returns e language plpgsql as \
               $$ begin insert into who values ('read'); return '1'; end $$; \
             create function spy_json(e) returns json language plpgsql as \
               $$ begin insert into who values ('json'); return '1'; end $$; \
             create function spy_equal(e, e) returns boolean language plpgsql as \
               $$ begin insert into who values ('equal'); return true; end $$; \
             create function format(text, e) returns text language plpgsql as \
               $$ begin insert into who values ('format'); return '1'; end $$; \
             create cast (e as integer) with function spy_int(e) as assignment; \
             create cast (e as text) with function spy_text(e) as assignment; \
             create cast (text as e) with function spy_read(text) as assignment; \
             create cast (e as json) with function spy_json(e); \
             create operator = (leftarg = e, rightarg = e, function = spy_equal); \
             create operator > (leftarg = e, rightarg = e, function = spy_equal); \
             create table kept (id e primary key, v e, vs e[]); \
             insert into kept values ('1', '2', '{3}'), ('2', '3', '{}')",
        )
        .await;
        let spec = WatchSpec {
            from: changefeed_core::WatchFrom::Beginning,
            // Columns are compared, too.
            columns: true,
            ..spec("k", "kept")
        };
        let watch = scene.store.open_watch(&spec).await.unwrap();
        let all = async || take_all(&*scene.store, &watch, &quick()).await.concat();
        let one = json!({"id": "1", "v": "2", "vs": ["3"]});
        assert_eq!(
            all().await,
            [
                (Insert, one.clone()),
                (Insert, json!({"id": "2", "v": "3", "vs": []}))
            ]
        );
        app.run("update kept set v = '1' where id operator(pg_catalog.=) '2'")
            .await;
        app.run("update kept set id = '3' where id operator(pg_catalog.=) '1'")
            .await;
        assert_eq!(
            all().await,
            [
                (Update, json!({"id": "2", "v": "1", "vs": []})),
                (Delete, json!({"id": "1"})),
                (Insert, json!({"id": "3", "v": "2", "vs": ["3"]}))
            ]
        );
        app.run("truncate kept").await;
        assert_eq!(all().await.len(), 2);
        // A type that changes behind the back of the trigger and of a worker.
        app.run("insert into orders values (1, 'a')").await;
        assert_eq!(scene.all(100).await.concat().len(), 1);
        app.run("update orders set note = '1'").await;
        app.run(
            "alter table orders alter column note type e \
               using case note when '1' then '1'::e else '2'::e end",
        )
        .await;
        app.run(
            "alter table orders alter column id type e \
               using case id when 1 then '1'::e else '2'::e end",
        )
        .await;
        app.run("insert into orders values ('2', '3'); delete from orders where id operator(pg_catalog.=) '1'::e")
            .await;
        let settings = quick();
        let take = changefeed_core::Take {
            owner: "me",
            settings: &settings,
        };
        let stopped = scene.store.take(&scene.watch, take).await.unwrap_err();
        assert_eq!(stopped.kind(), Kind::NotFound, "{stopped:?}");
        let again = WatchSpec {
            table: TableName::unqualified("orders"),
            ..changefeed_testkit::watching::spec("f", "orders")
        };
        let watch = scene.store.open_watch(&again).await.unwrap();
        let changes = take_all(&*scene.store, &watch, &quick()).await.concat();
        assert!(
            changes.contains(&(Insert, json!({"id": "2", "note": "3"}))),
            "{changes:?}"
        );
        assert_eq!(
            app.value("select coalesce(string_agg(distinct what, ','), '') from who")
                .await,
            ""
        );
    });
}

/// Whoever may create something in a schema that is searched before ours must not get our rights.
#[test]
fn functions_in_the_search_path_are_not_called() {
    scene(async |scene| {
        let app = &scene.app;
        app.run(
            "create table who (what text); \
             create or replace function public.nextval(text) returns bigint language plpgsql as $$ begin \
               insert into public.who values ('nextval'); \
               return pg_catalog.nextval($1::regclass); end $$; \
             create function public.hashtextextended(text, integer) returns bigint \
               language plpgsql as $$ begin \
               insert into public.who values ('hash'); return 1; end $$; \
             create table more (id integer primary key)",
        )
        .await;
        let spec = WatchSpec {
            from: changefeed_core::WatchFrom::Beginning,
            ..spec("m", "more")
        };
        app.run("insert into more values (1)").await;
        let watch = scene.store.open_watch(&spec).await.unwrap();
        app.run("insert into more values (2); update more set id = 3 where id = 1")
            .await;
        let batch = take_all(&*scene.store, &watch, &quick()).await.concat();
        assert_eq!(batch.len(), 3, "{batch:?}");
        scene.store.watch_status(&watch, 1).await.unwrap();
        scene
            .store
            .retry_parked(&watch, ParkedRows::All)
            .await
            .unwrap();
        let beginning = changefeed_core::WatchFrom::Beginning;
        scene.store.reset_watch(&watch, beginning).await.unwrap();
        scene.store.drop_watch(&watch).await.unwrap();
        assert_eq!(
            app.value("select coalesce(string_agg(distinct what, ','), '') from who")
                .await,
            ""
        );
    });
}

/// Moving writes to the backlogs of all functions, whoever has made them.
#[test]
fn a_function_of_somebody_else_does_not_stop_a_worker() {
    scene(async |scene| {
        let app = &scene.app;
        let role = worker(&**app).await;
        app.run(&format!("grant select on orders to {role}")).await;
        let store = connect_as(&scene, &role).await;
        scene
            .store
            .open_watch(&spec("second", "orders"))
            .await
            .unwrap();
        app.run("insert into orders values (1, 'a')").await;
        let worker: &dyn changefeed_core::Store = &store;
        assert_eq!(take_all(worker, &scene.watch, &quick()).await.len(), 1);
        app.run(&format!("drop owned by {role} cascade; drop role {role}"))
            .await;
    });
}

/// Rows that a policy hides look like deleted ones: to be stopped is better.
#[test]
fn rows_that_become_hidden_are_not_handed_over_as_deleted() {
    scene(async |scene| {
        let app = &scene.app;
        let role = worker(&**app).await;
        app.run(&format!("grant select on orders to {role}")).await;
        let store = connect_as(&scene, &role).await;
        let worker: &dyn changefeed_core::Store = &store;
        assert!(take_all(worker, &scene.watch, &quick()).await.is_empty());
        app.run("alter table orders enable row level security; insert into orders values (1, 'a')")
            .await;
        let settings = quick();
        let take = changefeed_core::Take {
            owner: "worker",
            settings: &settings,
        };
        let error = worker.take(&scene.watch, take).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Permission, "{error:?}");
        app.run("alter table orders disable row level security")
            .await;
        let handed = changefeed_testkit::eventually("the row itself", || async {
            let batch = worker.take(&scene.watch, take).await.unwrap()?;
            Some(changefeed_testkit::watching::seen(&batch))
        })
        .await;
        assert_eq!(handed, [(Insert, json!({"id": 1, "note": "a"}))]);
        app.run(&format!("drop owned by {role} cascade; drop role {role}"))
            .await;
    });
}

/// What the guide says is enough, and what it does not allow is said.
#[test]
fn the_grants_of_the_guide_are_enough() {
    scene(async |scene| {
        let app = &scene.app;
        let role = format!("worker_{}", fastrand::u32(..));
        let guide = include_str!("../../../../../docs/watches.md");
        let grants = guide
            .split("```sql")
            .find(|block| block.contains("app_worker"));
        let grants = grants.unwrap().split("```").next().unwrap();
        app.run(&format!("create role {role} login")).await;
        app.run(&grants.replace("app_worker", &role)).await;
        let store = connect_as(&scene, &role).await;
        let worker: &dyn changefeed_core::Store = &store;
        let watch = worker.open_watch(&spec("f", "orders")).await.unwrap();
        app.run("insert into orders values (1, 'a'); truncate orders; insert into orders values (2, 'b')")
            .await;
        // Also a text that cannot be read.
        app.run(&format!(
            "insert into changefeed.changes_{} (_changefeed_operation, _changefeed_raw) \
             values (1, '[\"no number\"]')",
            watch.table_id
        ))
        .await;
        assert_eq!(take_all(worker, &watch, &quick()).await.concat().len(), 2);
        worker.watch_status(&watch, 1).await.unwrap();
        worker.retry_parked(&watch, ParkedRows::All).await.unwrap();
        // What only the owner of our tables can do.
        let columns = WatchSpec {
            columns: true,
            ..spec("f", "orders")
        };
        let error = worker.open_watch(&columns).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Permission, "{error:?}");
        assert!(error.message().contains("does not own"), "{error:?}");
        app.run("alter table orders alter id type bigint").await;
        let error = worker.open_watch(&spec("f", "orders")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Permission, "{error:?}");
        assert!(error.advice().unwrap().contains("as the role that owns"));
        scene.store.open_watch(&columns).await.unwrap();
        app.run("update orders set note = 'c'").await;
        let watch = worker.open_watch(&columns).await.unwrap();
        let batch = changefeed_testkit::watching::take(worker, &watch, "w", &quick()).await;
        assert_eq!(
            batch.unwrap().changes[0].columns.as_deref(),
            Some(&["note".to_owned()][..])
        );
        app.run(&format!("drop owned by {role} cascade; drop role {role}"))
            .await;
    });
}
