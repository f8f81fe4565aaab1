//! Table owners who change a watched table, and watches that cost too much.

use std::sync::Arc;

use changefeed_core::{Kind, Take, WatchSpec};
use changefeed_testkit::backend::{Backend, PostgresBackend, is_woken};
use changefeed_testkit::events::everything;
use changefeed_testkit::watching::{Scene, quick, spec, take_all};
use changefeed_testkit::{eventually, run};
use serde_json::Value;

use crate::attacks::pools::Frozen;

fn scene(case: impl AsyncFnOnce(Scene)) {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        case(Scene::new(backend).await).await;
    });
}

/// A type whose casts and operators note who has called them.
const SPIES: &str = "create table spy (what text, who name); grant insert on spy to public; \
     create type e as enum ('1', '2', '7'); \
     create function to_int(e) returns integer language plpgsql as \
       $$ begin insert into public.spy values ('int', current_user); return 1; end $$; \
     create function to_text(e) returns text language plpgsql as \
       $$ begin insert into public.spy values ('text', current_user); return '1'; end $$; \
     create function to_json(e) returns json language plpgsql as \
       $$ begin insert into public.spy values ('json', current_user); return '1'; end $$; \
     create cast (e as integer) with function to_int(e) as assignment; \
     create cast (e as text) with function to_text(e) as assignment; \
     create cast (e as json) with function to_json(e)";

/// What an owner does to a table `t (id integer primary key, v text)`, and a write afterwards that
/// changes the row with the key 7.
const ALTERATIONS: [(&str, &str); 11] = [
    (
        "alter table t rename id to number",
        "insert into t (number, v) values (7, 'x')",
    ),
    (
        "alter table t alter id type bigint",
        "insert into t (id, v) values (7, 'x')",
    ),
    (
        "alter table t alter id type text",
        "insert into t (id, v) values ('7', 'x')",
    ),
    (
        "alter table t alter id type e using '1'::e",
        "insert into t (id, v) values ('7', 'x')",
    ),
    (
        "alter table t alter id type bigint; alter table t rename id to v2",
        "insert into t (v2, v) values (7, 'x')",
    ),
    (
        "alter table t rename v to id2; alter table t rename id to v; alter table t rename id2 to id",
        "insert into t (v, id) values (7, 'x')",
    ),
    (
        "alter table t add w integer default 3",
        "insert into t (id, v) values (7, 'x')",
    ),
    ("alter table t drop v", "insert into t (id) values (7)"),
    (
        "alter table t alter v type e using '1'::e",
        "insert into t (id, v) values (7, '2')",
    ),
    (
        "alter table t rename to u; alter table u rename to t",
        "insert into t values (7, 'x')",
    ),
    (
        "create domain d as integer check (value > 0); alter table t alter id type d",
        "insert into t (id, v) values (7, 'x')",
    ),
];

async fn table(scene: &Scene, n: usize) -> WatchSpec {
    scene
        .app
        .run(
            "drop table if exists t; drop domain if exists d; \
             create table t (id integer primary key, v text); insert into t values (1, 'a')",
        )
        .await;
    let spec = WatchSpec {
        // Columns are compared, too.
        columns: n.is_multiple_of(2),
        ..spec(&format!("w{n}"), "t")
    };
    scene.store.open_watch(&spec).await.unwrap();
    spec
}

/// The keys that the function is handed, as texts. The watch is started again, as people are told to.
async fn handed(scene: &Scene, spec: &WatchSpec) -> Vec<String> {
    let watch = scene.store.open_watch(spec).await.unwrap();
    let changes = take_all(&*scene.store, &watch, &quick()).await.concat();
    scene.store.drop_watch(&watch).await.unwrap();
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let keys = changes.iter().filter_map(|(_, item)| {
        let columns = item.as_object().unwrap();
        columns.values().map(text).find(|v| v == "7" || v == "1")
    });
    keys.collect()
}

/// A query of the catalogue in a trigger function goes by the writer's snapshot. So none is believed:
/// the write goes on, the change is noted under the key that the row has, and nothing of the owner runs
/// with our rights.
#[test]
fn a_key_that_is_altered_behind_a_snapshot_is_noted() {
    scene(async |scene| {
        scene.app.run(SPIES).await;
        scene.app.run("create table other (n integer)").await;
        for (n, (alter, write)) in ALTERATIONS.into_iter().enumerate() {
            for isolation in ["repeatable read", "serializable"] {
                let spec = table(&scene, n).await;
                let writer = scene.backend.session().await;
                writer
                    .run(&format!(
                        "begin isolation level {isolation}; select * from other"
                    ))
                    .await;
                scene.app.run(alter).await;
                writer.run(write).await;
                writer.run("commit").await;
                let keys = handed(&scene, &spec).await;
                assert!(
                    keys.contains(&"7".to_owned()),
                    "{isolation}: {alter}: {keys:?}"
                );
            }
        }
        let sprung = "select coalesce(string_agg(distinct what, ','), '') from spy";
        assert_eq!(scene.app.value(sprung).await, "");
    });
}

/// Sessions keep the plans of what they have done before: none of their writes fails, and none is lost.
#[test]
fn sessions_that_are_open_while_a_key_is_altered_go_on() {
    scene(async |scene| {
        scene.app.run(SPIES).await;
        for (n, (alter, write)) in ALTERATIONS.into_iter().enumerate() {
            let spec = table(&scene, n).await;
            let writer = scene.backend.session().await;
            for value in 100..107 {
                writer
                    .run(&format!("insert into t values ({value}, 'b')"))
                    .await;
                writer.run("update t set v = v || 'c' where id > 99").await;
            }
            writer.run("delete from t where id > 99").await;
            let watch = scene.store.open_watch(&spec).await.unwrap();
            take_all(&*scene.store, &watch, &quick()).await;
            scene.app.run(alter).await;
            writer.run(write).await;
            writer.run("delete from t").await;
            let keys = handed(&scene, &spec).await;
            assert!(keys.contains(&"7".to_owned()), "{alter}: {keys:?}");
        }
        let sprung = "select coalesce(string_agg(distinct what, ','), '') from spy";
        assert_eq!(scene.app.value(sprung).await, "");
    });
}

/// A role that owns a table `t` with one row, and an immutable function that notes who has called it. The
/// planner calls it when it finds it in an index, statistics or a constraint.
async fn owner(scene: &Scene) -> String {
    let role = format!("owner_{}", fastrand::u64(..));
    scene
        .app
        .run(&format!(
            "drop table if exists t, spy; drop function if exists f, note; \
             create role {role}; grant create on schema public to {role}; \
             create table spy (who name); grant all on spy to public; set role {role}; \
             create table t (id integer primary key, v text); insert into t values (1, 'a'); \
             create function note() returns integer language plpgsql as \
               $$ begin insert into public.spy values (current_user); return 1; end $$; \
             create function f(integer) returns integer language plpgsql as \
               $$ begin return public.note(); end $$; \
             alter function f(integer) immutable; reset role"
        ))
        .await;
    role
}

/// Nobody but the owner has run the function.
async fn not_sprung(scene: &Scene, role: &str, case: &str) {
    let others = format!("select count(*) from spy where who <> '{role}'");
    assert_eq!(scene.app.number(&others).await, 0, "{case}");
    scene
        .app
        .run(&format!("drop owned by {role} cascade; drop role {role}"))
        .await;
}

const TRAPS: [&str; 2] = [
    "create index evil on t ((f(1)))",
    "create statistics evil on (f(1)), id from t",
];

/// The planner runs immutable functions of indexes and statistics, as readers of feeds know.
#[test]
fn a_function_in_an_index_is_not_run_by_watches_and_backfills() {
    scene(async |scene| {
        for (n, trap) in TRAPS.into_iter().enumerate() {
            let role = owner(&scene).await;
            let spec = spec(&format!("w{n}"), "t");
            let watch = scene.store.open_watch(&spec).await.unwrap();
            let definition = everything(&format!("e{n}"), "t");
            let trigger = scene.store.create_trigger(&definition, true).await.unwrap();
            let evil =
                format!("set role {role}; {trap}; insert into t values (2, 'b'); reset role");
            scene.app.run(&evil).await;
            let take = Take {
                owner: "me",
                settings: &quick(),
            };
            let mut errors = vec![
                scene.store.take(&watch, take).await.map(drop).unwrap_err(),
                scene.store.open_watch(&spec).await.map(drop).unwrap_err(),
            ];
            let backfill = scene.store.backfill_trigger(&trigger, 10).await;
            errors.push(backfill.map(drop).unwrap_err());
            let from = changefeed_core::WatchFrom::Beginning;
            let reset = scene.store.reset_watch(&watch, from).await;
            errors.push(reset.unwrap_err());
            for error in errors {
                assert_eq!(error.kind(), Kind::Unsupported, "{trap}: {error:?}");
                assert!(error.message().contains("evil"), "{error:?}");
            }
            scene.store.drop_watch(&watch).await.unwrap();
            not_sprung(&scene, &role, trap).await;
        }
    });
}

/// The constraints of partitions, which the planner looks at to leave some of them out.
#[test]
fn a_function_in_a_constraint_is_not_run_by_watches() {
    scene(async |scene| {
        let role = owner(&scene).await;
        scene
            .app
            .run(&format!(
                "drop table t; set role {role}; \
                 create table t (id integer primary key, v text) partition by range (id); \
                 create table t1 partition of t for values from (0) to (9); \
                 alter table t1 add check (f(1) = 1); insert into t values (1, 'a'); reset role"
            ))
            .await;
        let spec = WatchSpec {
            from: changefeed_core::WatchFrom::Beginning,
            ..spec("w", "t")
        };
        let watch = scene.store.open_watch(&spec).await.unwrap();
        assert_eq!(take_all(&*scene.store, &watch, &quick()).await.len(), 1);
        scene.app.run("truncate t").await;
        assert_eq!(take_all(&*scene.store, &watch, &quick()).await.len(), 1);
        scene.store.drop_watch(&watch).await.unwrap();
        not_sprung(&scene, &role, "a constraint").await;
    });
}

/// What notes the rows of a table that is truncated runs with our rights, in a statement of the table's
/// owner, and may have a snapshot from before the index was made: then it does not read them.
#[test]
fn a_function_in_an_index_is_not_run_when_a_table_is_truncated() {
    scene(async |scene| {
        for trap in TRAPS {
            for isolation in ["read committed", "repeatable read", "serializable"] {
                let role = owner(&scene).await;
                let spec = spec("w", "t");
                let watch = scene.store.open_watch(&spec).await.unwrap();
                let writer = scene.backend.session().await;
                writer
                    .run(&format!(
                        "set role {role}; begin isolation level {isolation}; select 1 from pg_class"
                    ))
                    .await;
                let evil = format!("set role {role}; {trap}; reset role");
                scene.app.run(&evil).await;
                writer.run("truncate t; commit").await;
                writer.run(&format!("set role {role}")).await;
                assert_eq!(writer.number("select count(*) from t").await, 0);
                scene.store.drop_watch(&watch).await.unwrap();
                drop(writer);
                not_sprung(&scene, &role, &format!("{trap}, {isolation}")).await;
            }
        }
    });
}

/// Truncating reads the keys of all rows, where the catalogue can be believed.
#[test]
fn a_truncate_is_a_delete_of_every_row_unless_behind_a_snapshot() {
    scene(async |scene| {
        for (isolation, keys) in [
            ("read committed", &["1"][..]),
            ("repeatable read", &[]),
            ("serializable", &[]),
        ] {
            let spec = table(&scene, 1).await;
            let writer = scene.backend.session().await;
            writer
                .run(&format!(
                    "begin isolation level {isolation}; select 1 from pg_class"
                ))
                .await;
            scene.app.run("alter table t rename id to number").await;
            writer.run("truncate t; commit").await;
            assert_eq!(handed(&scene, &spec).await, keys, "{isolation}");
        }
    });
}

/// One session waits for commits on behalf of all watches. If it is stopped, changes come late, and none is
/// lost; nor is one when its connection is cut.
#[test]
fn a_frozen_session_that_waits_for_commits_loses_nothing() {
    scene(async |scene| {
        let mut waiter = scene.store.listen_to_watch(&scene.watch);
        let waiting = async || {
            let rows = scene
                .app
                .query(
                    "select pid::text from pg_stat_activity where datname = current_database() \
                     and state = 'active' and query like 'call changefeed.await_commit%'",
                )
                .await
                .unwrap();
            rows.first().map(|row| row[0].clone().unwrap())
        };
        let pid = eventually("a session waits", waiting).await;
        let frozen = Frozen::stop(pid.parse().unwrap());
        for id in 1..=2 {
            waiter.look();
            let insert = format!("insert into orders values ({id}, 'x')");
            scene.app.run(&insert).await;
            let woken = async {
                while scene.all(10).await.is_empty() {
                    assert!(is_woken(&mut waiter).await, "change {id} woke nobody");
                    waiter.look();
                }
            };
            woken.await;
        }
        drop(frozen);
        let pid = eventually("a session waits", waiting).await;
        waiter.look();
        let cut = format!("select pg_terminate_backend({pid})");
        scene.app.run(&cut).await;
        scene.app.run("insert into orders values (3, 'x')").await;
        assert!(is_woken(&mut waiter).await, "change 3 woke nobody");
        assert_eq!(scene.all(10).await.len(), 1);
    });
}

/// A snapshot that is kept while the session sleeps would keep dead rows alive.
#[test]
fn waiting_for_commits_does_not_hold_back_vacuum() {
    scene(async |scene| {
        let _waiter = scene.store.listen_to_watch(&scene.watch);
        let horizon = async || {
            let rows = scene
                .app
                .query(
                    "select backend_xmin::text, pg_snapshot_xmax(pg_current_snapshot())::text \
                     from pg_stat_activity where datname = current_database() \
                       and query like 'call changefeed.await_commit%'",
                )
                .await
                .unwrap();
            rows.into_iter().next()
        };
        let number = |text: &Option<String>| text.as_ref().map(|n| n.parse::<u64>().unwrap());
        let row = eventually("a session waits", horizon).await;
        let before = number(&row[1]);
        scene.app.run("insert into orders values (1, 'x')").await;
        // It moves on with the others, while nobody takes anything.
        eventually("its snapshot is a new one", async || {
            let row = horizon().await?;
            (row[0].is_none() || number(&row[0]) > before).then_some(())
        })
        .await;
    });
}
