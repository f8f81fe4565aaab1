//! What watches promise on PostgreSQL in particular: the application is never held up, failed or
//! attacked by what is for workers, and nothing that commits late is lost. One test per trap.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, and its name says what it is about"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed_core::{BatchOutcome, Kind, RowOperation, TableName, WatchSettings, WatchSpec};
use changefeed_testkit::backend::{Backend, PostgresBackend};
use changefeed_testkit::run;
use changefeed_testkit::watching::{Copying, Instance, Scene, orders, quick, spec, take_all};
use serde_json::json;

use RowOperation::{Delete, Insert, Update};

fn scene(case: impl AsyncFnOnce(Scene)) {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        case(Scene::new(backend).await).await;
    });
}

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

/// Workers that write to rows which the application's triggers write to would make it the victim.
#[test]
fn the_application_meets_no_worker_at_any_isolation_level() {
    scene(async |scene| {
        scene
            .app
            .run("insert into orders select i, 'a' from generate_series(1, 40) i")
            .await;
        let function = Copying::default();
        let settings = WatchSettings {
            batch: 7,
            ..quick()
        };
        let mut instances = Vec::new();
        for n in 0..3 {
            let (backend, owner) = (&*scene.backend, format!("i{n}"));
            let function = function.clone();
            instances.push(Instance::start(backend, &scene.watch, owner, settings, function).await);
        }
        let until = Instant::now() + Duration::from_secs(2);
        let mut writers = Vec::new();
        for (n, level) in ["read committed", "repeatable read", "serializable"]
            .into_iter()
            .enumerate()
        {
            let session = scene.backend.session().await;
            writers.push(tokio::spawn(async move {
                // Each has rows of its own: whatever fails is not the application's fault.
                let mut transactions = 0;
                while Instant::now() < until {
                    session
                        .run(&format!("begin isolation level {level}; select 1"))
                        .await;
                    for round in 0..3 {
                        for id in (n..40).step_by(3) {
                            session
                                .run(&format!(
                                    "update orders set note = '{transactions}.{round}' \
                                     where id = {id}"
                                ))
                                .await;
                        }
                        // Workers are at it meanwhile.
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                    session.run("commit").await;
                    transactions += 1;
                }
                transactions
            }));
        }
        for writer in writers {
            assert!(writer.await.unwrap() > 3);
        }
        changefeed_testkit::backend::eventually_true("all is done", async || {
            let status = scene.store.watch_status(&scene.watch, 0).await.unwrap();
            status.unprocessed == 0
        })
        .await;
        assert_eq!(function.rows(), orders(&*scene.app).await);
        for instance in instances {
            instance.stop().await;
        }
    });
}

/// Even while somebody holds the lock of the workers, for however long.
#[test]
fn no_writer_waits_for_the_lock_of_the_workers() {
    scene(async |scene| {
        let holder = scene.backend.session().await;
        holder
            .run(&format!(
                "begin; select pg_advisory_xact_lock(hashtextextended('changefeed/watch/{}', 0))",
                scene.watch.table_id
            ))
            .await;
        scene
            .app
            .run("set lock_timeout = '100ms'; insert into orders values (1, 'a')")
            .await;
        scene.app.run("update orders set note = 'b'").await;
        scene.app.run("delete from orders").await;
    });
}

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

/// Keys may be renamed and change their type while a trigger of before is in place.
#[test]
fn no_write_fails_because_the_key_was_altered() {
    scene(async |scene| {
        let app = &scene.app;
        app.run("alter table orders alter column id type bigint")
            .await;
        app.run("insert into orders values (1, 'a'), (9000000000, 'b')")
            .await;
        app.run("alter table orders rename column id to number")
            .await;
        app.run("insert into orders values (9000000001, 'c')").await;
        app.run("update orders set number = 9000000002 where number = 9000000001")
            .await;
        let watch = scene.store.open_watch(&spec("f", "orders")).await.unwrap();
        let changes = take_all(&*scene.store, &watch, &quick()).await.concat();
        assert_eq!(
            changes,
            [
                (Insert, json!({"number": 1, "note": "a"})),
                (Insert, json!({"number": 9_000_000_000_i64, "note": "b"})),
                (Delete, json!({"number": 9_000_000_001_i64})),
                (Insert, json!({"number": 9_000_000_002_i64, "note": "c"}))
            ]
        );
        // A key that is gone altogether fails no write either.
        app.run(
            "alter table orders drop constraint orders_pkey; alter table orders drop column number",
        )
        .await;
        app.run(
            "insert into orders values ('d'); update orders set note = 'e'; delete from orders",
        )
        .await;
    });
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
        let role = format!("worker_{}", fastrand::u32(..));
        app.run(&format!(
            "create role {role} login; grant usage on schema changefeed to {role}; \
             grant select, insert, update, delete on all tables in schema changefeed to {role}; \
             grant usage on all sequences in schema changefeed to {role}; \
             grant execute on all functions in schema changefeed to {role}; \
             create table other (id integer primary key)"
        ))
        .await;
        let url = scene.backend.url();
        let (_, host) = url.split_once('@').unwrap();
        let store =
            changefeed_postgres::PostgresStore::connect(&format!("postgres://{role}@{host}"))
                .await
                .unwrap();
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
            error
                .advice()
                .unwrap()
                .starts_with("grant create on schema changefeed")
        );
        app.run(&format!(
            "alter table other enable row level security; \
             grant create on schema changefeed to {role}"
        ))
        .await;
        let error = refused().await;
        assert!(error.message().starts_with("row level security hides rows"));
        // What somebody else has made can be worked on without the right to make anything.
        app.run(&format!(
            "alter table other disable row level security; \
             revoke create on schema changefeed from {role}; grant select on orders to {role}"
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

/// What notes keys as texts must not write them as the session of the writer happens to.
#[test]
fn keys_are_noted_alike_whatever_the_writer_has_set() {
    scene(async |scene| {
        let app = &scene.app;
        app.run("create table times (at timestamptz, f float8, primary key (at, f))")
            .await;
        let watch = scene.store.open_watch(&spec("t", "times")).await.unwrap();
        let all = async || take_all(&*scene.store, &watch, &quick()).await.concat();
        let row = "insert into times values ('2026-01-05 10:00+00', 0.1::float8 + 0.2)";
        app.run(row).await;
        let key = all().await.remove(0).1;
        let odd = scene.backend.session().await;
        odd.run(
            "set datestyle = 'SQL, DMY'; set extra_float_digits = 0; set timezone = 'Asia/Tokyo'",
        )
        .await;
        odd.run("truncate times").await;
        let status = scene.store.watch_status(&watch, 0).await.unwrap();
        assert_eq!(status.unprocessed, 1);
        assert_eq!(all().await, [(Delete, key)]);
        // The same where the trigger no longer knows the columns.
        odd.run("alter table times rename column f to g").await;
        odd.run(row).await;
        let watch = scene.store.open_watch(&spec("t", "times")).await.unwrap();
        let changes = take_all(&*scene.store, &watch, &quick()).await.concat();
        assert_eq!((changes.len(), changes[0].0), (1, Insert));
        assert_eq!(changes[0].1["g"].to_string(), "0.30000000000000004");
    });
}

/// Somebody cleans up by hand: the application goes on, and the next start makes all again.
#[test]
fn deleted_tables_of_ours_fail_no_write_and_are_made_again() {
    scene(async |scene| {
        let app = &scene.app;
        app.run(&format!(
            "drop table changefeed.changes_{}; drop table changefeed.global_state",
            scene.watch.table_id
        ))
        .await;
        app.run("insert into orders values (1, 'a')").await;
        app.run("update orders set note = 'b'; truncate orders")
            .await;
        let watch = scene.store.open_watch(&spec("f", "orders")).await.unwrap();
        app.run("insert into orders values (2, 'a')").await;
        let changes = take_all(&*scene.store, &watch, &quick()).await.concat();
        assert_eq!(changes, [(Insert, json!({"id": 2, "note": "a"}))]);
    });
}

/// One bad row must not sink its batch, be it that it cannot even be read.
#[test]
fn a_row_that_cannot_be_read_is_parked_alone() {
    scene(async |scene| {
        let app = &scene.app;
        app.run("create table large (id integer primary key, b bytea)")
            .await;
        let watch = scene.store.open_watch(&spec("l", "large")).await.unwrap();
        app.run(
            "insert into large values (1, 'x'), (3, 'z'); \
             insert into large select 2, convert_to(repeat('x', 540000000), 'utf8')",
        )
        .await;
        let settings = WatchSettings {
            interval: Duration::from_millis(10),
            ..quick()
        };
        let mut handed = Vec::new();
        changefeed_testkit::backend::eventually_true("the bad row is parked", async || {
            let take = changefeed_core::Take {
                owner: "me",
                settings: &settings,
            };
            if let Ok(Some(batch)) = scene.store.take(&watch, take).await {
                handed.extend(batch.changes.iter().map(|c| c.item.get().to_owned()));
                let done = BatchOutcome::Done;
                let settled = scene.store.settle(&watch, &batch, &done, &settings).await;
                settled.unwrap();
            }
            let status = scene.store.watch_status(&watch, 1).await.unwrap();
            status.parked == 1 && status.unprocessed == 0
        })
        .await;
        assert_eq!(handed.len(), 2, "{handed:?}");
        let status = scene.store.watch_status(&watch, 1).await.unwrap();
        assert_eq!(status.parked_changes[0].key.get(), "{\"id\":2}");
    });
}

/// Whoever may create something in a schema that is searched before ours must not get our rights.
#[test]
fn functions_in_the_search_path_are_not_called() {
    scene(async |scene| {
        let app = &scene.app;
        app.run(
            "create table who (what text); \
             create function public.nextval(text) returns bigint language plpgsql as $$ begin \
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
        scene.store.retry_parked(&watch).await.unwrap();
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

/// However large the rows are, an instance does not read all of a batch at once.
#[test]
fn a_batch_of_large_rows_is_cut() {
    scene(async |scene| {
        scene
            .app
            .run(
                "insert into orders select i, repeat(md5(i::text), 200000) \
                 from generate_series(1, 8) i",
            )
            .await;
        let batch = scene.take("me", &quick()).await.unwrap();
        let ids = |batch: &changefeed_core::Batch| batch.changes.len();
        assert_eq!(ids(&batch), 2);
        assert_eq!(scene.settle(&batch, BatchOutcome::Done).await, 2);
        let rest = scene.all(100).await;
        assert!(rest.iter().all(|batch| batch.len() <= 2));
        assert_eq!(rest.concat().len(), 6);
        assert!(rest.concat().iter().all(|c| c.0 == Insert));
    });
}

/// Moving writes to the backlogs of all functions, whoever has made them.
#[test]
fn a_function_of_somebody_else_does_not_stop_a_worker() {
    scene(async |scene| {
        let app = &scene.app;
        let role = format!("worker_{}", fastrand::u32(..));
        app.run(&format!(
            "create role {role} login; grant usage on schema changefeed to {role}; \
             grant select, insert, update, delete on all tables in schema changefeed to {role}; \
             grant usage on all sequences in schema changefeed to {role}; \
             grant execute on all functions in schema changefeed to {role}; \
             grant select on orders to {role}"
        ))
        .await;
        let url = scene.backend.url();
        let (_, host) = url.split_once('@').unwrap();
        let store =
            changefeed_postgres::PostgresStore::connect(&format!("postgres://{role}@{host}"))
                .await
                .unwrap();
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
