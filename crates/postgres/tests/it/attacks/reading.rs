//! Reading runs nobody else's code with our rights, and gives the rows of no other table.

use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{
    After, Change, Content, Cursor, Feed, FeedId, Kind, NewFeed, Page, Result, ShardId, Source,
    Store, TableName, Uuid,
};
use changefeed_postgres::PostgresStore;
use changefeed_testkit::backend::{PostgresSession, Session};
use changefeed_testkit::postgres::{Database, fresh_database};
use changefeed_testkit::run;
use serde_json::{Value, json};

/// A database with a store and a session.
pub(crate) struct Scene {
    pub(crate) database: Database,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) session: Box<dyn Session>,
}

impl Scene {
    pub(crate) async fn new(setup: &str) -> Self {
        let database = fresh_database().await;
        let store: Arc<dyn Store> = Arc::new(PostgresStore::connect(database.url()).await.unwrap());
        store.migrate().await.unwrap();
        let session: Box<dyn Session> =
            Box::new(PostgresSession::connect(database.url()).await.unwrap());
        session.run(setup).await;
        Scene {
            database,
            store,
            session,
        }
    }

    pub(crate) async fn feed(&self, id: i16, source: Source) -> Result<Feed> {
        let mut new = NewFeed::new(format!("feed-{id}").parse().unwrap());
        new.id = Some(FeedId(id));
        new.source = Some(source);
        self.store.create_feed(&new).await
    }

    /// A feed of everything that happens to a table.
    pub(crate) async fn captured(&self, table: &str) -> Feed {
        let table = TableName::unqualified(table);
        let source = Source::captured(table);
        self.feed(1, source).await.unwrap()
    }

    /// A feed whose rows carry the ids of their changes.
    pub(crate) async fn joined(&self, id: i16, table: &str) -> Result<Feed> {
        let source = Source::Joined {
            table: TableName::unqualified(table),
            change_id_column: "change_id".to_owned(),
            shard_by: None,
        };
        self.feed(id, source).await
    }

    pub(crate) async fn sweep(&self) {
        self.session
            .run("select count(*) from changefeed.sweep(0)")
            .await;
    }

    pub(crate) async fn page(&self, feed: &Feed, after: After) -> Result<Page> {
        self.sweep().await;
        self.store.read(feed, ShardId(0), after, 1000).await
    }

    /// The newest states of all rows that have changed.
    pub(crate) async fn rows(&self, feed: &Feed) -> Vec<Value> {
        let page = self.page(feed, After::First).await.unwrap();
        page.changes.iter().map(row).collect()
    }
}

/// The row of a change; null if it is gone.
pub(crate) fn row(change: &Change) -> Value {
    match &change.content {
        Content::Row(row) => serde_json::from_str(row.get()).unwrap(),
        Content::Gone => Value::Null,
        other => panic!("{other:?}"),
    }
}

/// Whoever calls `trap` fails: what must not run cannot have run if there was no error.
const TRAP: &str = "create function trap() returns boolean language plpgsql as \
     $$ begin raise exception 'sprung by %', current_user; end $$; ";

#[test]
fn a_cast_to_json_of_an_own_type_is_not_run_by_readers() {
    run(async {
        let scene = Scene::new(&format!(
            "{TRAP} create type mood as enum ('good', 'bad'); create type pair as (a integer, b text); \
             create function mood_json(mood) returns json language plpgsql as \
               $$ begin perform trap(); return 'null'; end $$; \
             create function pair_json(pair) returns json language plpgsql as \
               $$ begin perform trap(); return 'null'; end $$; \
             create cast (mood as json) with function mood_json(mood); \
             create cast (pair as json) with function pair_json(pair); \
             create table t (id integer primary key, m mood, p pair, many mood[], change_id bigint); \
             insert into t values (7, 'bad', '(2,y)', '{{bad}}', 900); \
             create table u (shard integer, ulid bytea, m mood, primary key (shard, ulid))"
        ))
        .await;
        let captured = scene.captured("t").await;
        let joined = scene.joined(2, "t").await.unwrap();
        let ulids = Source::Ulid {
            feed: Uuid::from_u128(1),
            table: TableName::unqualified("u"),
            shard_column: "shard".to_owned(),
            ulid_column: "ulid".to_owned(),
        };
        let ulids = scene.feed(3, ulids).await.unwrap();
        scene
            .session
            .run(
                "insert into t values (1, 'good', '(1,x)', '{good,bad}', 1000); \
                 insert into changefeed.change (feed_id, shard, change_id) values (2, 0, 1000); \
                 insert into u values (0, decode(repeat('01', 16), 'hex'), 'good')",
            )
            .await;
        let one =
            json!({"id": 1, "m": "good", "p": "(1,x)", "many": ["good", "bad"], "change_id": 1000});
        let seven = json!({"id": 7, "m": "bad", "p": "(2,y)", "many": ["bad"], "change_id": 900});
        assert_eq!(scene.rows(&captured).await, std::slice::from_ref(&one));
        assert_eq!(scene.rows(&joined).await, std::slice::from_ref(&one));
        let ulid = "01".repeat(16);
        assert_eq!(
            scene.rows(&ulids).await,
            [json!({"shard": 0, "ulid": format!("\\x{ulid}"), "m": "good"})]
        );
        scene.store.shard_states(&ulids).await.unwrap();
        for feed in [&captured, &joined] {
            while !scene.store.backfill(feed, 10).await.unwrap().finished {}
        }
        assert_eq!(
            scene.rows(&captured).await,
            [one.clone(), seven.clone(), one.clone()]
        );
        assert_eq!(scene.rows(&joined).await, [seven, one]);
    });
}

/// The check of a domain, a cast from text, and operators beside the server's own.
#[test]
fn keys_are_compared_by_nobodys_functions() {
    run(async {
        let scene = Scene::new(&format!(
            "{TRAP} create type mood as enum ('good', 'bad'); create domain number as integer; \
             create table t (n number, m mood, v text, primary key (n, m))"
        ))
        .await;
        let feed = scene.captured("t").await;
        let session = &scene.session;
        session
            .run(
                "insert into t values (1, 'good', 'a'), (2, 'bad', 'b'); delete from t where n = 2",
            )
            .await;
        session
            .run(
                "create function read_mood(text) returns mood language plpgsql as \
                   $$ begin perform trap(); return 'good'; end $$; \
                 create cast (text as mood) with function read_mood(text) as implicit; \
                 create function equal(mood, mood) returns boolean language plpgsql as \
                   $$ begin return trap(); end $$; \
                 create function equal(number, integer) returns boolean language plpgsql as \
                   $$ begin return trap(); end $$; \
                 create operator = (leftarg = mood, rightarg = mood, function = equal); \
                 create operator > (leftarg = mood, rightarg = mood, function = equal); \
                 create operator = (leftarg = number, rightarg = integer, function = equal); \
                 alter domain number add check (trap()) not valid",
            )
            .await;
        let expected = json!({"n": 1, "m": "good", "v": "a"});
        assert_eq!(
            scene.rows(&feed).await,
            [expected.clone(), Value::Null, Value::Null]
        );
        while !scene.store.backfill(&feed, 1).await.unwrap().finished {}
        assert_eq!(scene.rows(&feed).await[0], expected);
    });
}

#[test]
fn whatever_takes_the_place_of_a_table_is_not_read() {
    run(async {
        let scene = Scene::new(&format!(
            "{TRAP} create schema s; create table s.t (id integer primary key, v text, change_id bigint)"
        ))
        .await;
        let source = Source::Joined {
            table: TableName::qualified("s", "t"),
            change_id_column: "change_id".to_owned(),
            shard_by: None,
        };
        let feed = scene.feed(1, source).await.unwrap();
        let session = &scene.session;
        session
            .run(
                "insert into s.t values (1, 'mine', 1000); \
                 insert into changefeed.change (feed_id, shard, change_id) values (1, 0, 1000)",
            )
            .await;
        let mine = json!({"id": 1, "v": "mine", "change_id": 1000});
        assert_eq!(scene.rows(&feed).await, std::slice::from_ref(&mine));
        // A view with its name, another table with its name, and a schema with the name of its schema.
        session
            .run(
                "alter table s.t rename to kept; \
                 create view s.t as select 1 as id, 'stolen' as v, 1000::bigint as change_id where trap()",
            )
            .await;
        assert_eq!(scene.rows(&feed).await, std::slice::from_ref(&mine));
        session
            .run(
                "drop view s.t; create table s.t (id integer primary key, v text, change_id bigint); \
                 insert into s.t values (1, 'other', 1000)",
            )
            .await;
        assert_eq!(scene.rows(&feed).await, std::slice::from_ref(&mine));
        session
            .run(
                "alter schema s rename to old; create schema s; \
                 create view s.kept as select 1 as id, 'stolen' as v, 1000::bigint as change_id where trap()",
            )
            .await;
        assert_eq!(scene.rows(&feed).await, [mine]);
        session.run("drop table old.kept").await;
        let error = scene.page(&feed, After::First).await.unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound, "{error:?}");
        let error = scene.joined(2, "s.kept").await.unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound, "{error:?}");
        // A view cannot be what a feed is made from.
        session
            .run("create view public.v as select 1000::bigint as change_id where trap()")
            .await;
        let error = scene.joined(2, "v").await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error:?}");
        assert!(error.message().contains("is a view"), "{error}");
    });
}

/// The planner runs immutable functions of indexes when their arguments are constants.
#[test]
fn a_function_in_an_index_is_not_run_by_readers() {
    run(async {
        let scene = Scene::new("").await;
        let role = format!("cf_owner_{:016x}", fastrand::u64(..));
        let session = &scene.session;
        session
            .run(&format!(
                "create role {role}; grant create on schema public to {role}; set role {role}; \
                 create table t (id integer primary key, change_id bigint); insert into t values (1, 1000); \
                 create function f(integer) returns integer language plpgsql as \
                   $$ begin if current_user <> '{role}' then raise exception 'sprung'; end if; return 1; end $$; \
                 alter function f(integer) immutable; create index evil on t ((f(1))); reset role"
            ))
            .await;
        let feed = scene.joined(1, "t").await.unwrap();
        session
            .run("insert into changefeed.change (feed_id, shard, change_id) values (1, 0, 1000)")
            .await;
        let error = scene.page(&feed, After::First).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported, "{error:?}");
        assert!(error.message().contains("index public.evil"), "{error}");
        session.run("drop index evil").await;
        assert_eq!(
            scene.rows(&feed).await,
            [json!({"id": 1, "change_id": 1000})]
        );
        session
            .run(&format!("drop owned by {role} cascade; drop role {role}"))
            .await;
    });
}

#[test]
fn a_key_of_another_type_finds_what_it_found() {
    run(async {
        let scene = Scene::new("create table t (id integer primary key, v text)").await;
        let feed = scene.captured("t").await;
        scene
            .session
            .run("insert into t values (1, 'a'), (2, 'b'); delete from t where id = 2")
            .await;
        for kind in ["bigint", "numeric", "text", "integer using id::integer"] {
            scene
                .session
                .run(&format!("alter table t alter id type {kind}"))
                .await;
            let rows = scene.rows(&feed).await;
            assert_eq!(rows[0]["v"], json!("a"), "{kind}");
            assert_eq!(rows[1..], [Value::Null, Value::Null], "{kind}");
        }
    });
}

/// What does not fit any more is told, is not called gone, and does not hide the others.
#[test]
fn a_key_that_does_not_fit_any_more_is_a_sentence() {
    run(async {
        let scene = Scene::new(
            "create type mood as enum ('good', 'bad'); create table t (m mood primary key, v text)",
        )
        .await;
        let feed = scene.captured("t").await;
        scene
            .session
            .run("insert into t values ('good', 'a'), ('bad', 'b')")
            .await;
        scene
            .session
            .run("alter type mood rename value 'bad' to 'worse'; update t set v = 'c' where m = 'worse'")
            .await;
        let first = scene.page(&feed, After::First).await.unwrap();
        assert_eq!(first.changes.len(), 1, "the one before it");
        assert_eq!(row(&first.changes[0])["v"], json!("a"));
        assert!(first.more);
        let error = scene
            .page(&feed, After::Cursor(first.next))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported, "{error:?}");
        assert!(error.message().contains("does not fit the key"), "{error}");
        let behind = Cursor::Number(first.next.number().unwrap() + 1);
        let last = scene.page(&feed, After::Cursor(behind)).await.unwrap();
        assert_eq!(row(&last.changes[0])["v"], json!("c"));
        assert!(!last.more);
    });
}

#[test]
fn a_primary_key_that_moved_gives_no_wrong_rows() {
    run(async {
        let scene =
            Scene::new("create table t (id integer primary key, code integer not null, v text)")
                .await;
        let feed = scene.captured("t").await;
        let session = &scene.session;
        session
            .run("insert into t values (1, 2, 'a'), (2, 1, 'b')")
            .await;
        session
            .run("alter table t drop constraint t_pkey, add primary key (code)")
            .await;
        let error = scene.page(&feed, After::First).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported, "{error:?}");
        assert!(error.message().contains("unique index"), "{error}");
        let found = scene.store.capture_findings().await.unwrap();
        assert!(
            found.iter().any(|f| f.subject == "feed feed-1"),
            "{found:?}"
        );
        session
            .run("alter table t add unique (id); alter table t rename id to number")
            .await;
        // What is captured from now on is known by the same column.
        session
            .run("insert into t values (5, 6, 'c'), (6, 5, 'd')")
            .await;
        let rows = scene.rows(&feed).await;
        assert_eq!(rows[0], json!({"number": 1, "code": 2, "v": "a"}));
        assert_eq!(rows[1], json!({"number": 2, "code": 1, "v": "b"}));
        assert_eq!(rows[2], json!({"number": 5, "code": 6, "v": "c"}));
        assert_eq!(rows[3], json!({"number": 6, "code": 5, "v": "d"}));
        session
            .run("alter table t drop column number; alter table t add column id integer")
            .await;
        let error = scene.page(&feed, After::First).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported, "{error:?}");
        assert!(error.message().contains("was dropped"), "{error}");
    });
}

/// `changefeed.read` stops where a backfill stands, and refuses what was trimmed and what is ahead.
#[test]
fn a_reader_by_sql_skips_nothing() {
    run(async {
        let scene = Scene::new(
            "create table t (id integer primary key); insert into t select generate_series(1, 30)",
        )
        .await;
        let feed = scene.captured("t").await;
        let session = &scene.session;
        session.run("insert into t values (1000)").await;
        scene.sweep().await;
        let mut seen = Vec::new();
        let mut cursor = 0_i64;
        let mut finished = scene.store.backfill(&feed, 10).await.unwrap().finished;
        loop {
            let rows = session
                .query(&format!(
                    "select change_sequence_number from changefeed.read('feed-1', 0, {cursor}, 7)"
                ))
                .await
                .unwrap();
            for row in &rows {
                cursor = row[0].as_deref().unwrap().parse().unwrap();
                seen.push(cursor);
            }
            if rows.is_empty() {
                if finished {
                    break;
                }
                finished = scene.store.backfill(&feed, 10).await.unwrap().finished;
            }
        }
        // The live row was there when the backfill began, so it is seen twice.
        assert_eq!(seen.len(), 32, "{seen:?}");
        let trimmed = scene
            .store
            .trim(&feed, Duration::ZERO.into(), 5)
            .await
            .unwrap();
        assert_eq!(trimmed.removed, 5);
        let read = async |after: i64| {
            let sql = format!("select count(*) from changefeed.read(1, 0, {after})");
            session.query(&sql).await.map_err(|e| e.to_string())
        };
        assert!(read(seen[4]).await.is_ok());
        assert!(read(seen[3]).await.unwrap_err().contains("has expired"));
        assert!(read(cursor).await.is_ok());
        assert!(read(cursor + 1).await.unwrap_err().contains("is ahead of"));
        assert!(
            session
                .query("select * from changefeed.read(1, 9)")
                .await
                .is_err()
        );
    });
}
