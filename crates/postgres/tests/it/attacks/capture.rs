//! Table owners who change a table behind a writer's snapshot, settings of writers that shape what is
//! captured, and triggers that write while a statement is at work.

use std::sync::Arc;

use changefeed_core::{FeedBinding, NewFeed, OrderBy, Store, TableName, Updates};
use changefeed_postgres::PostgresStore;
use changefeed_testkit::backend::{PostgresSession, Session, captured};
use changefeed_testkit::events::{everything, told_by};
use changefeed_testkit::postgres::{Database, fresh_database};
use changefeed_testkit::run;

/// A database with a store and a session of its administrator.
pub(crate) struct Stage {
    pub(crate) database: Database,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) session: Box<dyn Session>,
}

impl Stage {
    pub(crate) async fn new(setup: &str) -> Self {
        let database = fresh_database().await;
        let store: Arc<dyn Store> = Arc::new(PostgresStore::connect(database.url()).await.unwrap());
        store.migrate().await.unwrap();
        let session: Box<dyn Session> =
            Box::new(PostgresSession::connect(database.url()).await.unwrap());
        session.run(setup).await;
        Stage {
            database,
            store,
            session,
        }
    }

    pub(crate) async fn another(&self) -> Box<dyn Session> {
        Box::new(PostgresSession::connect(self.database.url()).await.unwrap())
    }

    /// Everything that captures: a feed with shards, an event trigger that captures by statement
    /// where it can, one with a condition, and one with a feed, an order and a payload.
    pub(crate) async fn capture_in_every_way(&self, table: &str, shard_by: &str) {
        let name = TableName::unqualified(table);
        let feed = captured("captured", name, Some(shard_by), 3);
        self.store.create_feed(&feed).await.unwrap();
        let make = async |name: &str, change: &dyn Fn(&mut changefeed_core::TriggerDefinition)| {
            let mut definition = everything(name, table);
            change(&mut definition);
            self.store.create_trigger(&definition, false).await.unwrap();
        };
        make("plain", &|_| {}).await;
        make("condition", &|d| {
            d.capture.condition = Some("old is null or new is null or true".into());
        })
        .await;
        let fed = NewFeed {
            shards: 3,
            ..NewFeed::new("fed".parse().unwrap())
        };
        self.store.create_feed(&fed).await.unwrap();
        make("fed", &|d| {
            d.capture.order_by = Some(OrderBy::Key);
            d.capture.feed = Some(FeedBinding {
                feed: "fed".parse().unwrap(),
                shard_by: Some(shard_by.into()),
            });
        })
        .await;
        make("deleted", &|d| {
            d.capture.insert = false;
            d.capture.update = Updates::Ignored;
        })
        .await;
    }

    /// How many changes a feed has that were not numbered yet.
    pub(crate) async fn pending(&self, feed: &str) -> i64 {
        self.session
            .number(&format!(
                "select count(*) from changefeed.change c join changefeed.feed f using (feed_id) \
                 where f.name = '{feed}'"
            ))
            .await
    }

    pub(crate) async fn nothing_is_missing(&self) {
        let gaps = self
            .session
            .query("select what from changefeed.event_gap")
            .await;
        assert!(gaps.as_ref().unwrap().is_empty(), "{gaps:?}");
        let texts = "select count(*) from changefeed.event where old::text like '%changefeed_rec%' \
                     or new::text like '%changefeed_rec%'";
        assert_eq!(self.session.number(texts).await, 0, "captured as a text");
    }
}

/// A role without rights, gone with its test.
pub(crate) struct Owner {
    pub(crate) name: String,
    url: String,
}

impl Owner {
    pub(crate) async fn new(stage: &Stage) -> Self {
        let name = format!("cf_owner_{:016x}", fastrand::u64(..));
        stage
            .session
            .run(&format!(
                "create role {name}; grant all on schema public to {name}; \
                 create table pwned (who text, how text); grant insert on pwned to public"
            ))
            .await;
        Owner {
            name,
            url: stage.database.url().to_owned(),
        }
    }

    /// What ran with rights that were not the owner's.
    pub(crate) async fn got_nothing(&self, stage: &Stage, what: &str) {
        let ran = stage
            .session
            .query(&format!("select * from pwned where who <> '{}'", self.name))
            .await
            .unwrap();
        assert!(ran.is_empty(), "{what}: ran with rights of others: {ran:?}");
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let (name, url) = (self.name.clone(), self.url.clone());
        let cleaner = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                if let Ok(session) = PostgresSession::connect(&url).await {
                    let _ = session
                        .execute(&format!("drop owned by {name} cascade; drop role {name}"))
                        .await;
                }
            });
            std::io::Result::Ok(())
        });
        let _ = cleaner.join();
    }
}

/// Types with casts that write down who ran them.
const TRAPS: &str = "\
    create type mood as enum ('0', '1', '10'); create type pair as (x int); \
    create function trap(how text) returns void language plpgsql as $$ begin \
      insert into public.pwned values (current_user, how); end $$; \
    create function mood_json(mood) returns json language plpgsql as $$ begin \
      perform public.trap('mood as json'); return '1'; end $$; \
    create function mood_jsonb(mood) returns jsonb language plpgsql as $$ begin \
      perform public.trap('mood as jsonb'); return '1'; end $$; \
    create function mood_text(mood) returns text language plpgsql as $$ begin \
      perform public.trap('mood as text'); return 'x'; end $$; \
    create function mood_int(mood) returns bigint language plpgsql as $$ begin \
      perform public.trap('mood as bigint'); return 1; end $$; \
    create function pair_json(pair) returns json language plpgsql as $$ begin \
      perform public.trap('pair as json'); return '1'; end $$; \
    create cast (mood as json) with function mood_json(mood); \
    create cast (mood as jsonb) with function mood_jsonb(mood); \
    create cast (mood as text) with function mood_text(mood) as implicit; \
    create cast (mood as bigint) with function mood_int(mood) as implicit; \
    create cast (pair as json) with function pair_json(pair); \
    create function checked(int) returns boolean language plpgsql as $$ begin \
      perform public.trap('check'); return true; end $$; \
    create domain careful as int check (checked(value));";

/// What happens behind the snapshot, and the values of a row and the update that fit it then.
const BEHIND: [(&str, &str, &str); 14] = [
    (
        "alter table orders alter a type mood using '1'",
        "10, '1', 'b'",
        "a = '0'",
    ),
    (
        "alter table orders alter id type mood using '1'",
        "'10', 1, 'b'",
        "a = 2",
    ),
    (
        "alter table orders alter b type pair using row(1)::pair",
        "10, 1, row(1)::pair",
        "a = 2",
    ),
    (
        "alter table orders alter b type mood[] using '{}'",
        "10, 1, '{0,1}'",
        "a = 2",
    ),
    (
        "alter table orders alter a type careful",
        "10, 1, 'b'",
        "a = 2",
    ),
    ("alter table orders rename b to c", "10, 1, 'b'", "c = 'z'"),
    ("alter table orders rename a to c", "10, 1, 'b'", "b = 'z'"),
    ("alter table orders rename id to key", "10, 1, 'b'", "a = 2"),
    ("alter table orders drop column b", "10, 1", "a = 2"),
    (
        "alter table orders add column z mood default '1'",
        "10, 1, 'b'",
        "z = '0'",
    ),
    (
        "alter table orders alter a type bigint",
        "10, 1, 'b'",
        "a = 2",
    ),
    (
        "alter table orders alter id type bigint, alter b type varchar(9)",
        "10, 1, 'b'",
        "a = 2",
    ),
    (
        "alter table orders drop constraint orders_pkey; alter table orders rename id to k; \
         alter table orders add constraint other primary key (a, k)",
        "10, 1, 'b'",
        "b = 'z'",
    ),
    (
        "alter table orders rename a to x; alter table orders rename b to a; \
         alter table orders rename x to b",
        "10, 1, 'b'",
        "b = 2",
    ),
];

async fn altered_behind_a_snapshot(isolation: &str, has_written: bool) {
    for (ddl, values, update) in BEHIND {
        let stage = Stage::new("create table orders (id int primary key, a int, b text)").await;
        let owner = Owner::new(&stage).await;
        let name = &owner.name;
        stage
            .session
            .run(&format!("alter table orders owner to {name}"))
            .await;
        stage.capture_in_every_way("orders", "a").await;
        let writer = stage.another().await;
        writer.run(&format!("set role {name}")).await;
        let mut seen = 0;
        if has_written {
            writer
                .run(
                    "insert into orders values (1, 1, 'x'); update orders set b = 'y'; \
                      delete from orders",
                )
                .await;
            seen = 3;
        }
        writer
            .run(&format!("begin isolation level {isolation}; select 1"))
            .await;
        let attacker = stage.another().await;
        attacker
            .run(&format!("set role {name}; {TRAPS} {ddl}"))
            .await;
        let what = format!("{isolation}, written before: {has_written}, {ddl}");
        for write in [
            format!("insert into orders values ({values})"),
            format!("update orders set {update}"),
            "delete from orders".to_owned(),
        ] {
            let wrote = writer.execute(&write).await;
            assert!(wrote.is_ok(), "{what}: {write}: {wrote:?}");
        }
        writer.run("commit").await;
        owner.got_nothing(&stage, &what).await;
        stage.nothing_is_missing().await;
        for trigger in ["plain", "condition", "fed"] {
            let told = told_by(&*stage.store, trigger).await.split_off(seen);
            let ops: Vec<&str> = told.iter().map(|t| t.0).collect();
            assert_eq!(ops, ["INSERT", "UPDATE", "DELETE"], "{what}: {trigger}");
            let row = told[0].2.as_object().unwrap();
            let has_key = row.values().any(|value| *value == 10 || *value == "10");
            assert!(has_key, "{what}: {trigger}: {row:?}");
            let columns = values.split(", ").count() + usize::from(ddl.contains("add column"));
            assert_eq!(row.len(), columns, "{what}: {trigger}: {row:?}");
        }
        assert_eq!(told_by(&*stage.store, "deleted").await.len(), 1 + seen / 3);
        // An update that changes the shard is a change at both places.
        assert!(stage.pending("captured").await >= 3 + i64::try_from(seen).unwrap());
        let empty = "select count(*) from changefeed.change_row where key = '[]'";
        assert_eq!(stage.session.number(empty).await, 0, "{what}");
    }
}

#[test]
fn a_table_altered_behind_repeatable_read_runs_no_code_and_loses_nothing() {
    run(altered_behind_a_snapshot("repeatable read", false));
}

#[test]
fn a_table_altered_behind_repeatable_read_of_a_session_that_has_written() {
    run(altered_behind_a_snapshot("repeatable read", true));
}

#[test]
fn a_table_altered_behind_serializable_runs_no_code_and_loses_nothing() {
    run(altered_behind_a_snapshot("serializable", false));
}

#[test]
fn a_table_altered_behind_serializable_of_a_session_that_has_written() {
    run(altered_behind_a_snapshot("serializable", true));
}

/// A snapshot that is older than the feed and the trigger, and then also than a change of the table.
#[test]
fn what_a_snapshot_does_not_know_yet_captures_nevertheless() {
    run(async {
        for ddl in ["", "alter table orders rename a to c"] {
            let stage = Stage::new("create table orders (id int primary key, a int)").await;
            let writer = stage.another().await;
            writer
                .run("begin isolation level repeatable read; select 1")
                .await;
            stage.capture_in_every_way("orders", "a").await;
            stage.session.run(ddl).await;
            writer
                .run("insert into orders values (1, 7); delete from orders; commit")
                .await;
            stage.nothing_is_missing().await;
            for trigger in ["plain", "condition", "fed"] {
                assert_eq!(told_by(&*stage.store, trigger).await.len(), 2, "{ddl}");
            }
            assert_eq!(stage.pending("captured").await, 2);
            assert_eq!(stage.pending("fed").await, 2);
        }
    });
}

/// Whatever goes wrong: the row is there as a text, and the write too.
#[test]
fn a_row_that_cannot_be_taken_apart_is_kept_as_a_text() {
    run(async {
        let stage = Stage::new("create table orders (id int primary key, a int)").await;
        stage.capture_in_every_way("orders", "a").await;
        stage
            .session
            .run(
                "create or replace function changefeed.event_capture(\
                   plan jsonb, relation oid, old_alias text, new_alias text) returns changefeed.event_expressions language plpgsql as $$ begin \
                 raise exception 'no'; end $$; alter table orders add column z int; \
                 insert into orders values (1, 7, 8); delete from orders",
            )
            .await;
        for trigger in ["plain", "condition", "fed"] {
            let told = told_by(&*stage.store, trigger).await;
            assert_eq!(told[0].2["changefeed_record"], "(1,7,8)", "{trigger}");
            assert_eq!(told[1].1["changefeed_record"], "(1,7,8)", "{trigger}");
        }
    });
}

/// One row, one shard, whoever writes: by every type whose text a setting shapes.
#[test]
fn the_shard_of_a_row_does_not_depend_on_the_settings_of_its_writer() {
    run(async {
        for (kind, value) in [
            ("timestamptz", "'2026-01-01 12:00+00'"),
            ("float8", "0.1::float8 + 0.2::float8"),
            ("interval", "'1 year 2 days 03:04:05'"),
            ("bytea", "'\\x00ff27'"),
            ("money", "'1234.5'"),
            ("timestamptz[]", "array['2026-01-01 12:00+00'::timestamptz]"),
            ("moment", "'2026-01-01 12:00+00'"),
            ("regclass", "'public.things'::regclass"),
        ] {
            // What was something else when the triggers were made, too.
            for altered in [false, true] {
                if altered && !["timestamptz", "float8"].contains(&kind) {
                    continue;
                }
                let column = if altered { "int" } else { kind };
                let stage = Stage::new(&format!(
                    "create domain moment as timestamptz; create table things (id int); \
                     create table orders (id int primary key, a {column}, n int default 0)"
                ))
                .await;
                stage.capture_in_every_way("orders", "a").await;
                if altered {
                    let alter = format!("alter table orders alter a type {kind} using {value}");
                    stage.session.run(&alter).await;
                }
                stage
                    .session
                    .run(&format!("insert into orders values (1, {value})"))
                    .await;
                for settings in [
                    "set timezone = 'Asia/Tokyo'",
                    "set extra_float_digits = 0",
                    "set datestyle = 'German, DMY'; set bytea_output = escape",
                    "set intervalstyle = iso_8601; set search_path = pg_catalog",
                    "set extra_float_digits = -5; set timezone = 'America/New_York'",
                ] {
                    let writer = stage.another().await;
                    let write = format!("{settings}; update public.orders set n = n + 1");
                    writer.run(&write).await;
                }
                for feed in ["captured", "fed"] {
                    let shards = stage
                        .session
                        .query(&format!(
                            "select distinct c.shard from changefeed.change c \
                             join changefeed.feed f using (feed_id) where f.name = '{feed}'"
                        ))
                        .await
                        .unwrap();
                    assert_eq!(shards.len(), 1, "{feed}, {kind}, altered: {altered}");
                    assert_eq!(stage.pending(feed).await, 6, "{feed}, {kind}");
                }
                let keys = "select count(distinct order_key) from changefeed.event \
                            where order_key is not null";
                assert_eq!(stage.session.number(keys).await, 1);
            }
        }
    });
}

/// A view's trigger does not fire in this mode, and nothing would be stored: it is refused.
#[test]
fn a_change_that_would_not_be_stored_is_refused() {
    run(async {
        let stage = Stage::new(
            "insert into changefeed.feed values (7, 'f'); \
             insert into changefeed.shard (feed_id, shard) values (7, 0); \
             set session_replication_role = replica",
        )
        .await;
        let insert = "insert into changefeed.change (feed_id, shard, change_id) values (7, 0, 1)";
        let refused = stage.session.execute(insert).await.unwrap_err();
        assert_eq!(
            refused.message,
            "55000: changefeed: this change would not be stored, because session_replication_role is replica"
        );
        let local = format!("set session_replication_role = local; {insert}");
        stage.session.run(&local).await;
        assert_eq!(stage.pending("f").await, 1);
    });
}
