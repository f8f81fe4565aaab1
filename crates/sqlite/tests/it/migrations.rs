//! Every migration with data in every table, what comes of them, and what is refused. Generic over the list of steps.

use std::collections::BTreeMap;
use std::path::Path;

use changefeed_core::{
    AccessStore, After, ConsumerStore, Cursor, DEFAULT_START, EventFilter, EventStore, FeedStore,
    InstanceStore, Kind, LeaseStore, MigrationStep, SCHEMA_VERSION, SchemaState, SchemaStore,
    TriggerStore, UlidStore, WatchStore,
};
use changefeed_sqlite::MIGRATIONS;

use crate::support::Lab;

/// A row for every table. Tables that a migration fills by itself have none.
const FILL: [(&str, &str); 29] = [
    ("feed", "(feed_id, name) values (7, 'old')"),
    (
        "shard_def",
        "(feed_id, shard, sweep_group, longpoll, start) values (7, 0, 0, 1, 2000000000000000)",
    ),
    (
        "numbered",
        "(feed_id, shard, change_sequence_number, change_id) \
         values (7, 0, 2000000000000001, 1), (7, 0, 2000000000000002, 2)",
    ),
    (
        "progress",
        "(feed_id, shard, change_sequence_number, marked_at) values (7, 0, 2000000000000003, 1)",
    ),
    (
        "consumer",
        "(name, feed_id, shard, cursor) values ('c', 7, 0, '2000000000000001')",
    ),
    (
        "subscription",
        "(name, feed_id, definition) values ('push', 7, \
         '{\"name\": \"push\", \"feed\": \"old\", \"to\": \"stdout:\"}')",
    ),
    ("subscription_shard", "(name, shard) values ('push', 0)"),
    (
        "subscription_parked",
        "(name, shard, epoch, cursor, reason) values ('push', 0, 0, '7', 'too large')",
    ),
    (
        "lease",
        "(name, owner, generation, expires_at) values ('sweep/0', 'me', 1, 1)",
    ),
    (
        "feed_source",
        "(feed_id, kind, table_name, change_id_column, shards) values (7, 'joined', 'orders', 'change_id', 1)",
    ),
    ("backfill", "(feed_id, total) values (7, 5)"),
    ("staged", "(owner, batch, at) values (99, 1, 0.5)"),
    (
        "shard_ulid",
        "values ('80270756-deeb-11ed-91f2-4f03a365d3f8', 0, 1, x'0102030405060708', 9)",
    ),
    (
        "incident",
        "(feed_id, shard_id, count) values ('80270756-deeb-11ed-91f2-4f03a365d3f8', 0, 2)",
    ),
    // Only one that refers to a row that there is can be committed.
    (
        "ulid_open",
        "(feed_id, shard_id, time, open) values ('80270756-deeb-11ed-91f2-4f03a365d3f8', 5, 1, 1)",
    ),
    ("ulid_probe", "(id) values (9)"),
    (
        "ulid_source",
        "(feed_id, ulid_feed, table_name, shard_column, ulid_column) \
         values (8, '80270756-deeb-11ed-91f2-4f03a365d3f8', 'orders', 'shard', 'ulid')",
    ),
    (
        "event_trigger",
        r#"(trigger_id, name, table_name, definition) values (5, 'paid', 'orders',
           '{"name": "paid", "table": "orders", "insert": true, "webhook": "http://127.0.0.1:9/x"}')"#,
    ),
    ("event_feed", "values (9)"),
    (
        "event",
        r#"(change_id, trigger_id, op, created_at, new) values (11, 5, 'I', 1, '{"id": 1}')"#,
    ),
    (
        "event_attempt",
        "(change_id, generation, number, outcome, duration_ms, late, created_at) \
         values (11, 1, 1, 'failure', 1, 0, 1)",
    ),
    (
        "event_request",
        "values ('80270756-deeb-11ed-91f2-4f03a365d3f8', 11, 1, 1)",
    ),
    ("event_backfill", "(trigger_id, total) values (5, 3)"),
    ("session_open", "(since) values (1)"),
    (
        "watched_table",
        r#"(table_id, table_name, key) values (1, 'orders', '["id"]')"#,
    ),
    (
        "watch",
        "(name, function_id, table_id, created_at) values ('mail', '1f5964a2ce98072e', 1, 1)",
    ),
    (
        "global_state",
        "(function_id, table_id, last_access_time) values ('1f5964a2ce98072e', 1, 1)",
    ),
    (
        "access_token",
        "(token_id, name, digest, scopes, created_at) values ('aaaaaaaaaaaa', 't', zeroblob(32), 'read', 1)",
    ),
    (
        "instance",
        "(name, roles, version, started_at, seen_at) values ('a', 'sweep', '0', 1, 1)",
    ),
];

/// The rows of every table, each as columns and what they hold.
fn content(app: &rusqlite::Connection) -> Content {
    let names = "select substr(name, 12) from sqlite_schema where type = 'table' and name like 'changefeed%'";
    let mut names = app.prepare(names).unwrap();
    let names = names.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let rows = |table: &str| {
        let mut rows = app
            .prepare(&format!("select * from changefeed_{table}"))
            .unwrap();
        let columns: Vec<String> = rows.column_names().into_iter().map(str::to_owned).collect();
        let row = |row: &rusqlite::Row<'_>| {
            let value = |n| row.get_ref(n).map(|value| format!("{value:?}"));
            let pairs = columns.iter().enumerate();
            pairs
                .map(|(n, name)| Ok((name.clone(), value(n)?)))
                .collect()
        };
        let rows = rows.query_map([], row).unwrap();
        rows.collect::<rusqlite::Result<Vec<_>>>().unwrap()
    };
    names
        .map(|name| name.unwrap())
        .map(|name| (name.clone(), rows(&name)))
        .collect()
}

type Content = BTreeMap<String, Vec<BTreeMap<String, String>>>;

/// Goes through these steps as `changefeed migrate` does, one after the other, with data in every table.
async fn walk(lab: &Lab, steps: &'static [MigrationStep]) -> Content {
    let app = lab.app();
    app.execute_batch("create table orders (id integer primary key, change_id integer)")
        .unwrap();
    let mut kept = Content::new();
    for (n, step) in steps.iter().enumerate() {
        let done = lab.store.migrate_by(&steps[..=n]).await.unwrap();
        assert_eq!((done.from, done.to), (step.version - 1, step.version));
        let now = content(&app);
        assert_kept(&kept, &now);
        for (table, values) in FILL {
            if now.get(table).is_some_and(Vec::is_empty) {
                app.execute_batch(&format!("insert into changefeed_{table} {values}"))
                    .unwrap();
            }
        }
        kept = content(&app);
        for (table, rows) in &kept {
            assert!(
                !rows.is_empty(),
                "changefeed_{table} is new: add a row of it to FILL"
            );
        }
        assert_eq!(
            lab.store.schema().await.unwrap(),
            SchemaState::At(step.version)
        );
        if step.version < SCHEMA_VERSION {
            let refused = lab.store.feeds().await.unwrap_err();
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
            let holds = |now: &BTreeMap<String, String>| {
                row.iter().all(|(name, value)| now.get(name) == Some(value))
            };
            assert!(now[table].iter().any(holds), "{table} lost {row:?}");
        }
    }
}

#[tokio::test]
async fn every_step_keeps_the_data_of_every_table() {
    let lab = Lab::bare().await;
    walk(&lab, MIGRATIONS).await;
    let store = &lab.store;
    assert_eq!(store.migrate().await.unwrap().from, SCHEMA_VERSION);
    // What the program reads of it.
    let feed = store.feeds().await.unwrap().remove(0);
    assert!(matches!(
        feed.source,
        Some(changefeed_core::Source::Joined { .. })
    ));
    let page = lab.page(&feed, 0, After::First, 10).await;
    assert_eq!(page.next, Cursor::Number(DEFAULT_START + 2));
    let consumer = store.consumers().await.unwrap().remove(0);
    assert_eq!(
        (consumer.cursor, consumer.lag_changes),
        (Cursor::Number(DEFAULT_START + 1), 1)
    );
    assert_eq!(store.lease_holders().await.unwrap().len(), 1);
    assert_eq!(store.incidents().await.unwrap()[0].count, 2);
    assert_eq!(
        store.triggers().await.unwrap()[0].definition.name.as_str(),
        "paid"
    );
    let events = store.events(&EventFilter::default(), 10).await.unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!(store.watches().await.unwrap()[0].name.as_str(), "mail");
    assert_eq!(store.tokens().await.unwrap().len(), 1);
    assert_eq!(store.instances().await.unwrap().len(), 1);
}

/// As it will be with the first migration after a release.
#[tokio::test]
async fn a_further_step_is_taken_once_or_not_at_all() {
    const NEXT: i32 = SCHEMA_VERSION + 1;
    const MADE_UP: MigrationStep = MigrationStep {
        version: NEXT,
        files: &[
            "-- Made up.\n-- Older programs: may continue.\nalter table changefeed_instance add column zone text;\n",
            "update changefeed_instance set zone = 'here';\n",
        ],
    };
    const FAILS: MigrationStep = MigrationStep {
        version: NEXT + 1,
        files: &["drop table changefeed_instance;\ninsert into changefeed_nothing values (1);\n"],
    };
    let lab = Lab::bare().await;
    let store = &lab.store;
    let walked = [MIGRATIONS, &[MADE_UP]].concat().leak();
    let kept = walk(&lab, walked).await;
    assert_eq!(kept["instance"][0]["zone"], "Text([104, 101, 114, 101])");
    // A second time there is nothing to do, and a step that fails leaves everything as it was.
    let again = store.migrate_by(walked).await.unwrap();
    assert_eq!((again.from, again.to), (NEXT, NEXT));
    let failing = [&*walked, &[FAILS]].concat().leak();
    store.migrate_by(failing).await.unwrap_err();
    assert_eq!(content(&lab.app()), kept);
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
    let others = [MIGRATIONS, &[other]].concat().leak();
    let refused = store.migrate_by(others).await.unwrap_err();
    let said = format!("migration {NEXT} in this database");
    assert!(refused.message().starts_with(&said), "{refused}");
    assert_eq!(content(&lab.app()), kept);
}

#[tokio::test]
async fn a_migration_that_was_changed_is_refused_with_the_next_step() {
    let lab = Lab::new().await;
    lab.app()
        .execute_batch("update changefeed_schema set checksum = 'another' where version = 1")
        .unwrap();
    let store = lab.other().await;
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
}

#[test]
fn every_migration_says_what_it_means_for_older_programs() {
    for step in MIGRATIONS {
        assert_ne!(step.older_programs(), "", "{}", step.version);
    }
}

/// `schema.sql` is for people who look at a change: what it does to the schema is seen there.
#[tokio::test]
async fn the_schema_is_the_one_that_is_committed() {
    let lab = Lab::new().await;
    let now = lab
        .shell("select sql || ';' from sqlite_schema where name like 'changefeed%' and sql is not null order by type, name;")
        .unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema.sql");
    if std::env::var_os("CHANGEFEED_TEST_WRITE_SCHEMA").is_some() {
        std::fs::write(&file, &now).unwrap();
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        now == committed,
        "crates/sqlite/schema.sql is not what the migrations make; \
         CHANGEFEED_TEST_WRITE_SCHEMA=1 cargo test -p changefeed-sqlite --test sqlite migrations:: writes it"
    );
}
