//! Every migration with data in every table, what comes of them, and what is refused. Generic over the list of steps.

use std::collections::BTreeMap;
use std::path::Path;

use changefeed_core::{
    AccessStore, ConsumerStore, EventFilter, EventStore, FeedStore, InstanceStore, Kind,
    LeaseStore, MigrationStep, SCHEMA_VERSION, SchemaState, SchemaStore, SubscriptionStore,
    SweepGroup, TriggerStore, UlidStore, WatchStore,
};
use changefeed_postgres::{MIGRATIONS, PostgresStore};
use changefeed_testkit::backend::{Backend, PostgresBackend, Session, numbers, settle};
use changefeed_testkit::run;
use serde_json::Value;

/// A row for every table, in an order that foreign keys allow. Tables that a migration fills by itself have none.
const FILL: [(&str, &str); 31] = [
    ("feed", "(feed_id, name) values (37, 'old'), (38, 'joined')"),
    ("shard", "(feed_id, shard) values (37, 0)"),
    (
        "feed_source",
        "(feed_id, kind, source, change_id_column, shards) \
         values (38, 'joined', 'public.orders', 'change_id', 1)",
    ),
    ("feed_reader", "values (37, 'pg_monitor')"),
    ("backfill", "(feed_id, total) values (38, 5)"),
    (
        "change_row",
        "(change_id, feed_id, key, op) values (1, 37, '[1]', 'I')",
    ),
    // What is numbered by a sweep also has its progress.
    (
        "change",
        "(feed_id, shard, change_id) values (37, 0, 1), (37, 0, 2); select * from changefeed.sweep(0)",
    ),
    ("inbox_0", "select 37, 0, 3, pg_current_xact_id()"),
    ("inbox_1", "select 37, 0, 4, pg_current_xact_id()"),
    ("inbox_2", "select 37, 0, 5, pg_current_xact_id()"),
    ("inbox_3", "select 37, 0, 6, pg_current_xact_id()"),
    (
        "consumer",
        "(name, feed_id, shard, cursor) values ('reader', 37, 0, '2000000000000001')",
    ),
    (
        "subscription",
        "(name, feed_id, definition) values ('push', 37, \
         '{\"name\": \"push\", \"feed\": \"old\", \"to\": \"stdout:\"}')",
    ),
    ("subscription_shard", "(name, shard) values ('push', 0)"),
    (
        "subscription_parked",
        "(name, shard, epoch, cursor, reason) values ('push', 0, 0, '7', 'too large')",
    ),
    (
        "lease",
        "(name, owner, generation, ttl_milliseconds, expires_at) \
         values ('sweep/0', 'me', 1, 60000, now() + interval '1 minute')",
    ),
    (
        "shard_ulid",
        "(feed_id, shard_id, time, ulid_high, ulid_low) \
         values ('80270756-deeb-11ed-91f2-4f03a365d3f8', 0, now(), '\\x0102030405060708', 9)",
    ),
    (
        "incident",
        "(feed_id, shard_id, count) values ('80270756-deeb-11ed-91f2-4f03a365d3f8', 0, 2)",
    ),
    (
        "event_trigger",
        "(trigger_id, name, source, schema_name, table_name, definition) overriding system value \
         values (7, 'paid', 'public.orders', 'public', 'orders', \
         '{\"name\": \"paid\", \"table\": \"public.orders\", \"insert\": true, \"webhook\": \"http://127.0.0.1:9/x\"}')",
    ),
    (
        "event",
        "(change_id, trigger_id, op, new) values (11, 7, 'I', '{\"id\": 1}')",
    ),
    (
        "event_attempt",
        "(change_id, generation, trigger_id, attempt, outcome) values (11, 1, 7, 1, 'failure')",
    ),
    (
        "event_request",
        "(key, change_id) values ('80270756-deeb-11ed-91f2-4f03a365d3f8', 11)",
    ),
    ("event_invoker", "values (7, 'pg_monitor')"),
    ("event_backfill", "(trigger_id, total) values (7, 3)"),
    ("event_gap", "(trigger_id, what) values (7, 'disabled')"),
    (
        "event_nested",
        "(xid, trigger_id, relation, old_row, change_id) values ('3', 7, 1, '(0,1)', 12)",
    ),
    (
        "watched_table",
        "(table_id, source, key, key_types, key_places) \
         values (5, 'public.orders', '{id}', '{pg_catalog.int4}', '{1}')",
    ),
    (
        "watch",
        "(name, function_id, table_id) values ('mail', '1f5964a2ce98072e', 5)",
    ),
    (
        "global_state",
        "(function_id, table_id) values ('1f5964a2ce98072e', 5)",
    ),
    (
        "access_token",
        "(token_id, name, digest, scopes) values ('aaaaaaaaaaaa', 't', decode(repeat('00', 32), 'hex'), 'read')",
    ),
    (
        "instance",
        "(name, roles, version) values ('a', 'sweep', '0')",
    ),
];

/// Has rows only while a transaction is under way.
const EMPTY: &str = "ulid_guard";

type Content = BTreeMap<String, Vec<Value>>;

/// The rows of every table, as JSON.
async fn content(session: &dyn Session) -> Content {
    let tables = session
        .query(
            "select relname from pg_class where relkind = 'r' and relnamespace = 'changefeed'::regnamespace",
        )
        .await
        .unwrap();
    let mut content = BTreeMap::new();
    for table in tables {
        let table = table[0].clone().unwrap();
        let rows = session
            .query(&format!(
                "select row_to_json(t)::text from changefeed.{table} t order by 1"
            ))
            .await
            .unwrap();
        let rows = rows.iter().map(|row| row[0].as_deref().unwrap());
        let rows = rows.map(|row| serde_json::from_str(row).unwrap()).collect();
        content.insert(table, rows);
    }
    content
}

/// Whether a row still has everything that it had.
fn holds(now: &Value, before: &Value) -> bool {
    let (now, before) = (now.as_object().unwrap(), before.as_object().unwrap());
    before
        .iter()
        .all(|(name, value)| now.get(name) == Some(value))
}

/// Goes through these steps as `changefeed migrate` does, one after the other, with data in every table.
async fn walk(admin: &dyn Session, store: &PostgresStore, steps: &[MigrationStep]) -> Content {
    admin
        .run("create table orders (id integer primary key, change_id bigint)")
        .await;
    let mut kept = Content::new();
    for (n, step) in steps.iter().enumerate() {
        let done = store.migrate_by(&steps[..=n]).await.unwrap();
        assert_eq!((done.from, done.to), (step.version - 1, step.version));
        let now = content(admin).await;
        assert_kept(&kept, &now);
        for (table, values) in FILL {
            // A view is filled with the tables behind it.
            let filled = match table {
                "shard" => "shard_definition",
                "change" => "numbered",
                table => table,
            };
            if now.get(filled).is_some_and(Vec::is_empty) {
                let insert = format!("insert into changefeed.{table} {values}");
                // In transactions of their own.
                for statement in insert.split("; ") {
                    admin.run(statement).await;
                }
            }
        }
        kept = content(admin).await;
        for (table, rows) in &kept {
            assert!(
                !rows.is_empty() || table == EMPTY,
                "{table} is new: add a row of it to FILL"
            );
        }
        assert_eq!(store.schema().await.unwrap(), SchemaState::At(step.version));
        if step.version < SCHEMA_VERSION {
            let refused = store.feeds().await.unwrap_err();
            assert_eq!(refused.kind(), Kind::SchemaTooOld);
            assert_eq!(refused.advice(), Some("run `changefeed migrate`"));
        }
    }
    kept
}

/// Columns may have been added, but nothing has gone.
fn assert_kept(kept: &Content, now: &Content) {
    for (table, rows) in kept {
        for row in rows {
            let found = now[table].iter().any(|now| holds(now, row));
            assert!(found, "{table} lost {row}");
        }
    }
}

#[test]
fn every_step_keeps_the_data_of_every_table() {
    run(async {
        let backend = PostgresBackend::fresh().await;
        let admin = (&backend as &dyn Backend).session().await;
        let store = PostgresStore::connect(&backend.url()).await.unwrap();
        walk(&*admin, &store, MIGRATIONS).await;
        assert_eq!(store.migrate().await.unwrap().from, SCHEMA_VERSION);
        // What the program reads of it.
        let feeds = store.feeds().await.unwrap();
        assert_eq!(feeds.len(), 2);
        settle(&store, SweepGroup(0)).await;
        let numbered = numbers(&store, &feeds[0], 0).await;
        let numbered: Vec<i64> = numbered.iter().map(|(_, id)| *id).collect();
        assert_eq!(numbered, [1, 2, 3, 4, 5, 6]);
        assert_eq!(store.consumers().await.unwrap()[0].lag_changes, 5);
        assert_eq!(store.lease_holders().await.unwrap().len(), 1);
        assert_eq!(store.incidents().await.unwrap()[0].count, 2);
        assert_eq!(
            store.triggers().await.unwrap()[0].definition.name.as_str(),
            "paid"
        );
        let events = store.events(&EventFilter::default(), 10).await.unwrap();
        assert_eq!(events.len(), 1);
        assert_eq!(store.watches().await.unwrap()[0].name.as_str(), "mail");
        let pushed = store.subscriptions().await.unwrap();
        assert_eq!(pushed[0].definition.sink, changefeed_core::Sink::Stdout);
        assert_eq!(pushed[0].shards.len(), 1);
        assert_eq!(store.tokens().await.unwrap().len(), 1);
        assert_eq!(store.instances().await.unwrap().len(), 1);
    });
}

/// As it will be with the first migration after a release.
#[test]
fn a_further_step_is_taken_once_or_not_at_all() {
    const NEXT: i32 = SCHEMA_VERSION + 1;
    const MADE_UP: MigrationStep = MigrationStep {
        version: NEXT,
        files: &[
            "-- Made up.\n-- Older programs: may continue.\nset local search_path = pg_catalog, pg_temp;\n\
             alter table changefeed.instance add column zone text;\n",
            "update changefeed.instance set zone = 'here';\n",
        ],
    };
    const FAILS: MigrationStep = MigrationStep {
        version: NEXT + 1,
        files: &["drop table changefeed.instance;\ninsert into changefeed.nothing values (1);\n"],
    };
    run(async {
        let backend = PostgresBackend::fresh().await;
        let admin = (&backend as &dyn Backend).session().await;
        let store = PostgresStore::connect(&backend.url()).await.unwrap();
        let walked = [MIGRATIONS, &[MADE_UP]].concat();
        let kept = walk(&*admin, &store, &walked).await;
        assert_eq!(kept["instance"][0]["zone"], "here");
        // A second time there is nothing to do, and a step that fails leaves everything as it was.
        let again = store.migrate_by(&walked).await.unwrap();
        assert_eq!((again.from, again.to), (NEXT, NEXT));
        let failing = [&*walked, &[FAILS]].concat();
        store.migrate_by(&failing).await.unwrap_err();
        assert_eq!(content(&*admin).await, kept);
        // This program does not know the step, and one that has another under its number refuses it.
        for refused in [
            store.feeds().await.unwrap_err(),
            store.migrate().await.unwrap_err(),
        ] {
            assert_eq!(refused.kind(), Kind::SchemaTooNew);
        }
        let other = MigrationStep {
            files: &["select 1;"],
            ..MADE_UP
        };
        let others = [MIGRATIONS, &[other]].concat();
        let refused = store.migrate_by(&others).await.unwrap_err();
        let said = format!("migration {NEXT} in this database");
        assert!(refused.message().starts_with(&said), "{refused}");
        assert_eq!(content(&*admin).await, kept);
    });
}

#[test]
fn a_migration_that_was_changed_is_refused_with_the_next_step() {
    run(async {
        let backend = PostgresBackend::fresh().await;
        let store = PostgresStore::connect(&backend.url()).await.unwrap();
        store.migrate().await.unwrap();
        let admin = (&backend as &dyn Backend).session().await;
        admin
            .run("update changefeed.schema_version set checksum = 'another' where version = 1")
            .await;
        let store = PostgresStore::connect(&backend.url()).await.unwrap();
        assert_eq!(store.schema().await.unwrap(), SchemaState::Changed(1));
        for refused in [
            store.feeds().await.unwrap_err(),
            store.migrate().await.unwrap_err(),
        ] {
            assert_eq!(refused.kind(), Kind::SchemaTooNew);
            assert!(
                refused
                    .message()
                    .starts_with("migration 1 in this database")
            );
            assert!(
                refused
                    .advice()
                    .is_some_and(|a| a.contains("changefeed uninstall"))
            );
        }
        store.uninstall().await.unwrap();
        store.migrate().await.unwrap();
        assert!(store.feeds().await.unwrap().is_empty());
    });
}

#[test]
fn every_migration_says_what_it_means_for_older_programs() {
    for step in MIGRATIONS {
        assert_ne!(step.older_programs(), "", "{}", step.version);
        // Operators are looked up when a step is run: not in a schema that others may create in.
        let path = "set local search_path = pg_catalog, pg_temp;";
        assert!(step.sql().contains(path), "{}", step.version);
    }
}

/// `schema.txt` is for people who look at a change: what it does to the schema is seen there.
#[test]
fn the_schema_is_the_one_that_is_committed() {
    run(async {
        let backend = PostgresBackend::fresh().await;
        let store = PostgresStore::connect(&backend.url()).await.unwrap();
        store.migrate().await.unwrap();
        let admin = (&backend as &dyn Backend).session().await;
        let lines = admin.query(include_str!("migrations/schema.sql")).await;
        let lines = lines
            .unwrap()
            .into_iter()
            .map(|row| row[0].clone().unwrap() + "\n");
        let now: String = lines.collect();
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema.txt");
        if std::env::var_os("CHANGEFEED_TEST_WRITE_SCHEMA").is_some() {
            std::fs::write(&file, &now).unwrap();
        }
        let committed = std::fs::read_to_string(&file).unwrap_or_default();
        let mut differ = now
            .lines()
            .filter(|line| !committed.lines().any(|l| l == *line));
        assert!(
            now == committed,
            "crates/postgres/schema.txt is not what the migrations make, beginning with {:?}; \
             CHANGEFEED_TEST_WRITE_SCHEMA=1 cargo test -p changefeed-postgres --test it migrations:: writes it",
            differ.next()
        );
    });
}
