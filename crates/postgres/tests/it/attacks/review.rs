//! What an independent review of the hardened program found, one test each. What applies to every store is
//! in the conformance suite.

use std::time::Duration;

use changefeed_core::{
    After, Cursor, Finding, Kind, ParkedRows, Severity, ShardId, Source, TableName, WatchFrom,
};
use changefeed_testkit::backend::{PostgresSession, Session, captured, on_every_backend, read_all};
use changefeed_testkit::events::to_webhook;
use changefeed_testkit::run;
use changefeed_testkit::watching::{quick, spec, take_all};
use serde_json::{Value, json};

use crate::attacks::reading::{Scene, row};

async fn findings(scene: &Scene, subject: &str) -> Vec<Finding> {
    let mut findings = scene.store.capture_findings().await.unwrap();
    findings.retain(|f| f.subject == subject);
    findings
}

/// Sweeps leave a locked shard alone, for as long as the lock is held, and nothing else would tell.
#[test]
fn a_shard_that_somebody_keeps_locked_is_told_with_who_does() {
    run(async {
        let scene = Scene::new("create table t (id integer primary key)").await;
        scene.captured("t").await;
        assert_eq!(findings(&scene, "feed feed-1").await, []);
        let other = PostgresSession::connect(scene.database.url())
            .await
            .unwrap();
        let other: Box<dyn Session> = Box::new(other);
        other
            .run("begin; select from changefeed.shard_definition for update")
            .await;
        let pid = other.value("select pg_backend_pid()").await;
        let found = findings(&scene, "feed feed-1").await;
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].severity, Severity::Problem);
        let message = &found[0].message;
        assert!(message.starts_with("shard 0 is locked"), "{message}");
        assert!(message.contains(&format!("session {pid} of ")), "{message}");
        assert!(message.contains("transaction began at"), "{message}");
        let advice = found[0].advice.as_deref().unwrap();
        assert!(advice.ends_with(&format!("pg_terminate_backend({pid})")));
        other.run("rollback").await;
        assert_eq!(findings(&scene, "feed feed-1").await, []);
    });
}

/// Claims leave a locked trigger alone in the same way: a server process that was stopped in the middle of one
/// keeps the lock, and nobody delivers its events.
#[test]
fn a_trigger_that_somebody_keeps_locked_is_told_with_who_does() {
    run(async {
        let scene = Scene::new("create table t (id integer primary key)").await;
        let definition = to_webhook("mine", "t", "http://127.0.0.1:9/");
        scene
            .store
            .create_trigger(&definition, false)
            .await
            .unwrap();
        let other = PostgresSession::connect(scene.database.url())
            .await
            .unwrap();
        let other: Box<dyn Session> = Box::new(other);
        other
            .run("begin; select from changefeed.event_trigger for no key update")
            .await;
        let pid = other.value("select pg_backend_pid()").await;
        let problems = async || {
            let mut found = findings(&scene, "trigger mine").await;
            found.retain(|f| f.severity == Severity::Problem);
            found
        };
        let found = problems().await;
        assert_eq!(found.len(), 1, "{found:?}");
        let message = &found[0].message;
        assert!(message.starts_with("it is locked"), "{message}");
        assert!(message.contains(&format!("session {pid} of ")), "{message}");
        other.run("rollback").await;
        assert_eq!(problems().await, []);
    });
}

/// So can anybody with the lock that keeps the workers of a watched table apart.
#[test]
fn a_watch_whose_lock_somebody_keeps_is_told_with_who_does() {
    run(async {
        let scene = Scene::new("create table t (id integer primary key)").await;
        let watch = scene.store.open_watch(&spec("w", "t")).await.unwrap();
        let other = PostgresSession::connect(scene.database.url())
            .await
            .unwrap();
        let other: Box<dyn Session> = Box::new(other);
        other
            .run(&format!(
                "select pg_advisory_lock(hashtextextended('changefeed/watch/{}', 0))",
                watch.table_id
            ))
            .await;
        let pid = other.value("select pg_backend_pid()").await;
        let (found, retried) = tokio::join!(
            findings(&scene, "watch w"),
            scene.store.retry_parked(&watch, ParkedRows::All)
        );
        let error = retried.unwrap_err();
        assert_eq!(error.kind(), Kind::Busy, "{error:?}");
        assert!(
            error.message().contains("somebody keeps the watched table"),
            "{error}"
        );
        assert!(
            error.advice().is_some_and(|a| a.contains("doctor")),
            "{error:?}"
        );
        assert_eq!(found.len(), 1, "{found:?}");
        let message = &found[0].message;
        assert!(message.contains(&format!("session {pid} of ")), "{message}");
        other.run("select pg_advisory_unlock_all()").await;
        assert_eq!(findings(&scene, "watch w").await, []);
    });
}

/// A role that may sweep could keep a group from being swept for days, and clean-ups as well.
#[test]
fn whoever_may_sweep_takes_leases_of_sweep_groups_for_a_minute_at_most() {
    run(async {
        let scene = Scene::new("").await;
        let take =
            |name: &str, ttl: i64| format!("select changefeed.take_lease('{name}', 'me', {ttl})");
        for (name, ttl) in [
            ("sweep/0", 60_001),
            ("sweep/0", 2_000_000_000),
            ("sweep/0", 0),
            ("sweep/", 1000),
            ("sweep/0x", 1000),
            ("clean-up/events", 1000),
        ] {
            let error = scene.session.execute(&take(name, ttl)).await.unwrap_err();
            assert!(
                error.message.contains("take_lease is for sweep groups"),
                "{error}"
            );
        }
        scene.session.run(&take("sweep/-7", 60_000)).await;
        // What we take ourselves, with rights on the table.
        let minute = Duration::from_secs(60);
        for name in ["clean-up/events", "sweep/0"] {
            let lease = scene.store.lease(name, "us", minute).await.unwrap();
            assert!(lease.is_some());
        }
        let free = "select changefeed.free_lease('clean-up/events', 'us')";
        scene.session.run(free).await;
        let taken = scene.store.lease("clean-up/events", "them", minute).await;
        assert_eq!(taken.unwrap(), None);
    });
}

/// Rows are captured, read, backfilled and found in order by all columns of a key.
#[test]
fn keys_of_many_columns_work_or_are_refused() {
    run(on_every_backend(async |backend| {
        let store = backend.installed().await;
        let session = backend.session().await;
        for columns in [2, 8, 9] {
            let table = format!("t{columns}");
            let names: Vec<String> = (1..=columns).map(|n| format!("k{n}")).collect();
            // The key in another order than its columns.
            let key: Vec<&str> = names.iter().rev().map(String::as_str).collect();
            session
                .run(&format!(
                    "create table {table} ({} integer not null, v integer, primary key ({}))",
                    names.join(" integer not null, "),
                    key.join(", ")
                ))
                .await;
            let values = |last: i64, v: i64| {
                let same: Vec<String> = (1..columns).map(|_| "1".to_owned()).collect();
                format!("({}, {last}, {v})", same.join(", "))
            };
            let insert = async |last: i64, v: i64| {
                let sql = format!("insert into {table} values {}", values(last, v));
                session.run(&sql).await;
            };
            insert(1, 10).await;
            let name = TableName::unqualified(&table);
            let feed = match store.create_feed(&captured(&table, name, None, 1)).await {
                Ok(feed) => feed,
                Err(error) => {
                    assert_eq!(columns, 9, "{error}");
                    assert_eq!(error.kind(), Kind::Invalid);
                    assert!(
                        error.message().contains("at most 8 can be captured"),
                        "{error}"
                    );
                    continue;
                }
            };
            insert(2, 20).await;
            insert(3, 30).await;
            let last = names.last().unwrap();
            let delete = format!("delete from {table} where {last} = 3");
            session.run(&delete).await;
            while !store.backfill(&feed, 1).await.unwrap().finished {}
            backend.settle(&*store).await;
            let changes = read_all(&*store, &feed, 0, 10).await;
            let found: Vec<Value> = changes.iter().map(|c| row(c)["v"].clone()).collect();
            let expected = [json!(10), json!(20), json!(20), Value::Null, Value::Null];
            assert_eq!(found, expected, "{columns} columns");
        }
        let findings = store.capture_findings().await.unwrap();
        let problem = |f: &&Finding| f.severity == Severity::Problem;
        assert_eq!(findings.iter().find(problem), None);
    }));
}

/// It was accepted, and nothing could ever be read from it.
#[test]
fn a_key_that_could_never_be_read_is_refused_at_once() {
    run(async {
        let scene = Scene::new(
            "create type pair as (a integer, b integer); \
             create table t (p pair, n integer, primary key (n, p))",
        )
        .await;
        let source = Source::captured(TableName::unqualified("t"));
        let error = scene.feed(1, source).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error:?}");
        let told = error.message();
        assert!(
            told.contains("column p of public.t would run code"),
            "{told}"
        );
        let triggers = "select count(*) from pg_trigger where tgrelid = 't'::regclass";
        assert_eq!(scene.session.number(triggers).await, 0);
    });
}

/// Their rows are rows of the parent for most queries, but no trigger fires for them.
#[test]
fn tables_that_inherit_are_neither_captured_nor_read() {
    run(async {
        let scene = Scene::new(
            "create table t (id integer primary key, v text, change_id bigint); \
             create table heir () inherits (t); \
             insert into heir values (1, 'of the heir', 1000), (2, 'of the heir', 1001)",
        )
        .await;
        let feed = scene.captured("t").await;
        scene
            .session
            .run("insert into t values (1, 'own', 1000); insert into t values (2, 'own', 1001); delete from only t where id = 2")
            .await;
        let rows = scene.rows(&feed).await;
        let own = json!({"id": 1, "v": "own", "change_id": 1000});
        assert_eq!(rows, [own.clone(), Value::Null, Value::Null]);
        let backfill = scene.store.backfill(&feed, 100).await.unwrap();
        assert_eq!((backfill.total, backfill.added), (1, 1));
        let joined = scene.joined(2, "t").await.unwrap();
        scene
            .session
            .run(
                "insert into changefeed.change (feed_id, shard, change_id) \
                 values (2, 0, 1000), (2, 0, 1001)",
            )
            .await;
        assert_eq!(scene.rows(&joined).await, [own, Value::Null]);
        let found = findings(&scene, "feed feed-1").await;
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].message.contains("such as public.heir"),
            "{found:?}"
        );
    });
}

/// Whoever owns the foreign server would be asked with our rights.
#[test]
fn a_partition_that_is_a_foreign_table_is_not_read() {
    run(async {
        let table = "create table t (id integer primary key, v text) partition by range (id); \
             create table low partition of t for values from (0) to (10); \
             create foreign data wrapper nothing; create server s foreign data wrapper nothing; ";
        let scene = Scene::new(table).await;
        let feed = scene.captured("t").await;
        scene.session.run("insert into t values (1, 'a')").await;
        assert_eq!(scene.rows(&feed).await, [json!({"id": 1, "v": "a"})]);
        // A foreign table has no unique index, so a parent with a primary key takes none.
        scene
            .session
            .run(
                "create table parent (id integer, v text, change_id bigint) partition by range (id); \
                 create foreign table far partition of parent for values from (0) to (10) server s",
            )
            .await;
        let error = scene.joined(2, "parent").await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error:?}");
        assert!(
            error
                .message()
                .contains("partition public.far of public.parent"),
            "{error}"
        );
        // One that was attached later.
        scene.session.run("drop foreign table far").await;
        let joined = scene.joined(2, "parent").await.unwrap();
        scene
            .session
            .run(
                "insert into changefeed.change (feed_id, shard, change_id) values (2, 0, 1000); \
                 create foreign table far partition of parent for values from (0) to (10) server s",
            )
            .await;
        let error = scene.page(&joined, After::First).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported, "{error:?}");
        assert!(
            error
                .message()
                .contains("partition public.far of public.parent"),
            "{error}"
        );
        assert_eq!(findings(&scene, "feed feed-2").await.len(), 1);
    });
}

/// Each is found by literals: names and labels are anything.
#[test]
fn keys_of_an_own_type_are_found_whatever_they_are_called() {
    run(async {
        let scene = Scene::new(
            "create type mood as enum ('50 %L', 'it''s', 'x'); \
             create table t (\"100%s\" mood, n integer, primary key (\"100%s\", n))",
        )
        .await;
        let feed = scene.captured("t").await;
        scene
            .session
            .run("insert into t values ('50 %L', 1), ('it''s', 2), ('x', 3); delete from t where n = 3")
            .await;
        let rows = scene.rows(&feed).await;
        let found: Vec<Value> = rows.iter().map(|row| row["100%s"].clone()).collect();
        let expected = [json!("50 %L"), json!("it's"), Value::Null, Value::Null];
        assert_eq!(found, expected);
        // The rest of a page is read from where it ended.
        let page = scene.store.read(&feed, ShardId(0), After::First, 3).await;
        let page = page.unwrap();
        assert_eq!((page.changes.len(), page.more), (3, true));
        assert_eq!(page.next, page.changes[2].cursor);
        assert!(matches!(page.next, Cursor::Number(_)));
    });
}

/// A worker may write how far it has loaded; nobody is to fail because of what it wrote.
#[test]
fn a_position_of_loading_that_cannot_be_read_begins_again() {
    run(async {
        let scene = Scene::new(
            "create table t (a integer, b date, primary key (a, b)); \
             insert into t values (1, '2020-01-01'), (2, '2020-01-02')",
        )
        .await;
        let watch = scene.store.open_watch(&spec("f", "t")).await.unwrap();
        scene
            .store
            .reset_watch(&watch, WatchFrom::Beginning)
            .await
            .unwrap();
        let batches = take_all(&*scene.store, &watch, &quick()).await;
        assert_eq!(batches.concat().len(), 2);
        for bad in [
            r#"["x", "2020-01-01"]"#,
            r#"["1"]"#,
            r#"["1", "someday"]"#,
            r#"[1, null]"#,
            r#"{"a": 1}"#,
            r#""x""#,
        ] {
            scene
                .session
                .run(&format!(
                    "update changefeed.watch set loading = true, loaded_to = '{bad}'"
                ))
                .await;
            let watch = scene.store.open_watch(&spec("f", "t")).await.unwrap();
            let batches = take_all(&*scene.store, &watch, &quick()).await;
            assert_eq!(batches.concat().len(), 2, "{bad}");
        }
    });
}

/// Each is looked up by a statement of its own, so that a page of them may take longer than a statement may. Then
/// the rest is for the next page. Here no time is left from the start, so that no machine is too fast for it.
#[test]
fn a_page_of_keys_of_an_own_type_ends_when_its_time_is_over() {
    run(async {
        let scene = Scene::new(
            "create type mood as enum ('a', 'b', 'c', 'd'); create table t (m mood primary key, n integer)",
        )
        .await;
        let feed = scene.captured("t").await;
        let page = "select pg_get_functiondef(oid) from pg_proc \
                    where pronamespace = 'changefeed'::regnamespace and proname = 'page'";
        let definition = scene.session.value(page).await;
        let hurried = definition.replace("interval '2 seconds'", "interval '-1 seconds'");
        assert_ne!(hurried, definition);
        scene.session.run(&hurried).await;
        scene
            .session
            .run("insert into t values ('a', 1), ('b', 2), ('c', 3), ('d', 4); delete from t where m = 'b'")
            .await;
        let (mut after, mut rows) = (After::First, Vec::new());
        loop {
            let page = scene.page(&feed, after).await.unwrap();
            assert_eq!(page.changes.len(), 1, "at least one, and no more");
            rows.extend(page.changes.iter().map(row));
            after = After::Cursor(page.next);
            if !page.more {
                break;
            }
        }
        let row = |m: &str, n: i64| json!({"m": m, "n": n});
        let expected = [
            row("a", 1),
            Value::Null,
            row("c", 3),
            row("d", 4),
            Value::Null,
        ];
        assert_eq!(rows, expected);
    });
}

/// As many columns as a table can have, of which one was altered: asked for one by one, they took seconds of every
/// write, and lists of them are longer than a function has arguments.
#[test]
fn a_table_of_1590_columns_is_captured_and_read_also_when_it_was_altered() {
    run(async {
        let columns: Vec<String> = (1..1590).map(|n| format!("c{n} integer")).collect();
        let setup = format!(
            "create table t (id integer primary key, {})",
            columns.join(", ")
        );
        let scene = Scene::new(&setup).await;
        let feed = scene.captured("t").await;
        let definition = to_webhook("wide", "t", "http://127.0.0.1:9/");
        scene
            .store
            .create_trigger(&definition, false)
            .await
            .unwrap();
        scene
            .session
            .run("insert into t (id, c1589) values (1, 7)")
            .await;
        scene
            .session
            .run("alter table t alter c7 type bigint")
            .await;
        scene
            .session
            .run("insert into t (id, c1589) values (2, 8)")
            .await;
        let rows = scene.rows(&feed).await;
        assert_eq!(rows.len(), 2);
        for (row, last) in rows.iter().zip([7, 8]) {
            assert_eq!(row.as_object().unwrap().len(), 1590);
            assert_eq!(row["c1589"], json!(last));
        }
        let events = "select string_agg(concat(new ->> 'id', ' ', new ->> 'c1589', ' ', \
                          (select count(*) from json_object_keys(new))), ', ' order by change_id) \
                      from changefeed.event_log";
        assert_eq!(scene.session.value(events).await, "1 7 1590, 2 8 1590");
    });
}
