//! Every migration with data in every table, and what is refused. Generic over the list of steps.

use std::collections::BTreeMap;

use changefeed_core::{
    AccessStore, ConsumerStore, EventFilter, EventStore, FeedStore, InstanceStore, Kind,
    LeaseStore, MigrationStep, SCHEMA_VERSION, SchemaState, SchemaStore, SweepGroup, TriggerStore,
    UlidStore, WatchStore,
};
use changefeed_sqlserver::{MIGRATIONS, SqlServerStore};
use changefeed_testkit::backend::{Backend, Session, SqlServerBackend, settle};
use changefeed_testkit::run;

/// A row for every table, in an order that foreign keys allow. Tables that a migration fills by itself have none.
const FILL: [(&str, &str); 27] = [
    ("feed", "(feed_id, name) values (37, 'old'), (38, 'joined')"),
    ("shard", "(feed_id, shard) values (37, 0)"),
    (
        "feed_source",
        "(feed_id, kind, table_id, change_id_column, shards) \
         select 38, 'joined', object_id('dbo.orders'), 'change_id', 1",
    ),
    ("feed_reader", "(feed_id, reader) values (37, 'public')"),
    ("backfill", "(feed_id, total) values (38, 5)"),
    (
        "change_row",
        "(change_id, feed_id, shard, op, [key]) values (1, 37, 0, 'I', '[\"1\"]')",
    ),
    // What is numbered by a sweep also has its progress.
    (
        "change",
        "(feed_id, shard, change_id) values (37, 0, 1), (37, 0, 2); exec changefeed.sweep 0",
    ),
    (
        "consumer",
        "(name, feed_id, shard, [cursor]) values ('reader', 37, 0, '2000000000000001')",
    ),
    (
        "subscription",
        "(name, feed_id, definition) values ('push', 37, \
         N'{\"name\": \"push\", \"feed\": \"old\", \"to\": \"stdout:\"}')",
    ),
    ("subscription_shard", "(name, shard) values ('push', 0)"),
    (
        "subscription_parked",
        "(name, shard, epoch, [cursor], reason) values ('push', 0, 0, '7', N'too large')",
    ),
    (
        "lease",
        "(name, owner, generation, ttl_milliseconds, expires_at) \
         values ('sweep/0', 'me', 1, 60000, dateadd(minute, 1, sysutcdatetime()))",
    ),
    (
        "shard_ulid",
        "(feed_id, shard_id, [time], ulid_high, ulid_low) values \
         ('80270756-deeb-11ed-91f2-4f03a365d3f8', 0, sysutcdatetime(), 0x0102030405060708, 9)",
    ),
    (
        "incident",
        "(feed_id, shard_id, [count]) values ('80270756-deeb-11ed-91f2-4f03a365d3f8', 0, 2)",
    ),
    (
        "ulid_life",
        "(feed_id, shard_id, incidents, transaction_id, session_id, timeout, alive_at, [time], high, low, base) \
         values ('80270756-deeb-11ed-91f2-4f03a365d3f8', 0, 2, 5, 6, 1000, sysutcdatetime(), sysutcdatetime(), \
         0x0102030405060708, 9, 1)",
    ),
    (
        "ulid_pulse",
        "(feed_id, shard_id, transaction_id, alive_at) \
         values ('80270756-deeb-11ed-91f2-4f03a365d3f8', 0, 5, sysutcdatetime())",
    ),
    (
        "event_trigger",
        "(trigger_id, name, table_id, schema_name, table_name, definition, [columns]) \
         select 7, 'paid', object_id('dbo.orders'), 'dbo', 'orders', \
         N'{\"name\": \"paid\", \"table\": \"dbo.orders\", \"insert\": true, \"webhook\": \"http://127.0.0.1:9/x\"}', '{}'",
    ),
    (
        "event",
        "(change_id, trigger_id, op, new) values (11, 7, 'I', N'{\"id\": 1}')",
    ),
    (
        "event_attempt",
        "(change_id, generation, trigger_id, attempt, outcome) values (11, 1, 7, 1, 'failure')",
    ),
    (
        "event_request",
        "(request_key, change_id, bits) values ('80270756-deeb-11ed-91f2-4f03a365d3f8', 11, 0)",
    ),
    (
        "event_invoker",
        "(trigger_id, invoker) values (7, 'public')",
    ),
    ("event_backfill", "(trigger_id, total) values (7, 3)"),
    (
        "watched_table",
        "(table_id, last_version, native, [key]) values (5, 1, 0, '[]')",
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
        "(token_id, name, digest, scopes) \
         values ('aaaaaaaaaaaa', 't', 0x0000000000000000000000000000000000000000000000000000000000000000, 'read')",
    ),
    (
        "instance",
        "(name, roles, version) values ('a', 'sweep', '0')",
    ),
];

type Content = BTreeMap<String, Vec<BTreeMap<String, Option<String>>>>;

/// The rows of every table, each value as a text.
async fn content(session: &dyn Session) -> Content {
    let columns = session
        .query(
            "select t.name, c.name, y.name from sys.tables t join sys.columns c on c.object_id = t.object_id \
             join sys.types y on y.user_type_id = c.user_type_id \
             where t.schema_id = schema_id('changefeed') order by t.name, c.column_id",
        )
        .await
        .unwrap();
    let mut tables: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for column in columns {
        let [table, name, type_name] = column.try_into().unwrap();
        let style = match type_name.as_deref() {
            Some("binary" | "varbinary") => ", 1",
            _ => "",
        };
        let name = name.unwrap();
        let value = format!("convert(nvarchar(max), [{name}]{style})");
        tables
            .entry(table.unwrap())
            .or_default()
            .push((name, value));
    }
    let mut content = BTreeMap::new();
    for (table, columns) in tables {
        let values: Vec<&str> = columns.iter().map(|(_, value)| value.as_str()).collect();
        let sql = format!("select {} from changefeed.[{table}]", values.join(", "));
        let rows = session.query(&sql).await.unwrap();
        let named = |row: Vec<Option<String>>| {
            let names = columns.iter().map(|(name, _)| name.clone());
            names.zip(row).collect()
        };
        content.insert(table, rows.into_iter().map(named).collect());
    }
    content
}

/// Goes through these steps as `changefeed migrate` does, one after the other, with data in every table.
async fn walk(admin: &dyn Session, store: &SqlServerStore, steps: &[MigrationStep]) -> Content {
    admin
        .run("create table dbo.orders (id int primary key, change_id bigint)")
        .await;
    let mut kept = Content::new();
    for (n, step) in steps.iter().enumerate() {
        let done = store.migrate_by(&steps[..=n]).await.unwrap();
        assert_eq!((done.from, done.to), (step.version - 1, step.version));
        let now = content(admin).await;
        assert_kept(&kept, &now);
        for (table, values) in FILL {
            if now.get(table).is_some_and(Vec::is_empty) {
                let insert = format!("insert into changefeed.{table} {values}");
                // In transactions of their own.
                for statement in insert.split("; ") {
                    admin.run(statement).await;
                }
            }
        }
        kept = content(admin).await;
        for (table, rows) in &kept {
            assert!(!rows.is_empty(), "{table} is new: add a row of it to FILL");
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
            let holds = |now: &BTreeMap<String, Option<String>>| {
                row.iter().all(|(name, value)| now.get(name) == Some(value))
            };
            assert!(now[table].iter().any(holds), "{table} lost {row:?}");
        }
    }
}

#[test]
fn every_step_keeps_the_data_of_every_table() {
    run(async {
        let backend = SqlServerBackend::fresh().await;
        let admin = (&backend as &dyn Backend).session().await;
        let store = SqlServerStore::connect(&backend.url()).await.unwrap();
        walk(&*admin, &store, MIGRATIONS).await;
        assert_eq!(store.migrate().await.unwrap().from, SCHEMA_VERSION);
        // What the program reads of it.
        assert_eq!(store.feeds().await.unwrap().len(), 2);
        settle(&store, SweepGroup(0)).await;
        assert_eq!(store.consumers().await.unwrap()[0].lag_changes, 1);
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
    });
}

/// As it will be with the first migration after a release.
#[test]
fn a_further_step_is_taken_once_or_not_at_all() {
    const NEXT: i32 = SCHEMA_VERSION + 1;
    const MADE_UP: MigrationStep = MigrationStep {
        version: NEXT,
        files: &[
            "-- Made up.\n-- Older programs: may continue.\nalter table changefeed.instance add zone varchar(10);\nGO\n",
            "update changefeed.instance set zone = 'here';\nGO\n",
        ],
    };
    const FAILS: MigrationStep = MigrationStep {
        version: NEXT + 1,
        files: &[
            "drop table changefeed.instance;\nGO\ninsert into changefeed.nothing values (1);\nGO\n",
        ],
    };
    run(async {
        let backend = SqlServerBackend::fresh().await;
        let admin = (&backend as &dyn Backend).session().await;
        let store = SqlServerStore::connect(&backend.url()).await.unwrap();
        let walked = [MIGRATIONS, &[MADE_UP]].concat();
        let kept = walk(&*admin, &store, &walked).await;
        assert_eq!(kept["instance"][0]["zone"].as_deref(), Some("here"));
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
        let backend = SqlServerBackend::fresh().await;
        let store = SqlServerStore::connect(&backend.url()).await.unwrap();
        store.migrate().await.unwrap();
        let admin = (&backend as &dyn Backend).session().await;
        admin
            .run("update changefeed.schema_version set checksum = 'another' where version = 1")
            .await;
        let store = SqlServerStore::connect(&backend.url()).await.unwrap();
        assert_eq!(store.schema().await.unwrap(), SchemaState::Changed(1));
        let refused = store.migrate().await.unwrap_err();
        assert_eq!(refused.kind(), Kind::SchemaTooNew, "{refused:?}");
        store.uninstall().await.unwrap();
        store.migrate().await.unwrap();
        assert!(store.feeds().await.unwrap().is_empty());
    });
}
