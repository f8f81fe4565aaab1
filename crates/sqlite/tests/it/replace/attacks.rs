//! Rows that SQLite's REPLACE removes, with triggers and foreign keys of the application around it.
//!
//! The schemas that lost rows stand here by name; `crates/sqlite/tests/it/fuzz.rs` makes others.

use changefeed_core::{
    Capture, Delivery, EventFilter, EventStore, SchemaStore, TableName, TriggerDefinition,
    TriggerStore,
};
use changefeed_sqlite::SqliteStore;
use rusqlite::Connection;

/// The events of a statement, as `-old`, `+new` and `old>new`, each row by its JSON.
async fn events(setup: &str, statement: &str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("test.db");
    let store = SqliteStore::open(&path).await.unwrap();
    store.migrate().await.unwrap();
    let app = Connection::open(&path).unwrap();
    app.execute_batch(setup).unwrap();
    let definition = TriggerDefinition {
        name: "all".parse().unwrap(),
        table: TableName::unqualified("t"),
        capture: Capture::everything(),
        delivery: Delivery::default(),
    };
    store.create_trigger(&definition, false).await.unwrap();
    app.execute_batch(statement).unwrap();
    let mut events = store.events(&EventFilter::default(), 1000).await.unwrap();
    events.reverse();
    let told = |row: &Option<Box<serde_json::value::RawValue>>| {
        row.as_ref().map(|row| row.get().to_owned())
    };
    events
        .iter()
        .map(
            |logged| match (told(&logged.event.old), told(&logged.event.new)) {
                (Some(old), Some(new)) => format!("{old}>{new}"),
                (Some(old), None) => format!("-{old}"),
                (None, new) => format!("+{}", new.unwrap_or_default()),
            },
        )
        .collect()
}

#[tokio::test]
async fn a_before_trigger_that_updates_the_same_table_hides_no_removed_row() {
    let setup = "create table t (id integer primary key, u unique, n);
                 create trigger touch before insert on t begin
                   update t set n = n + 1 where id <> new.id; end;
                 insert into t values (1, 'x', 0), (2, 'y', 0);";
    for recursive in ["off", "on"] {
        let setup = format!("pragma recursive_triggers = {recursive}; {setup}");
        // The first row was touched when the second was inserted.
        assert_eq!(
            events(&setup, "insert or replace into t values (3, 'x', 5)").await,
            [
                r#"{"id":1,"u":"x","n":1}>{"id":1,"u":"x","n":2}"#,
                r#"{"id":2,"u":"y","n":0}>{"id":2,"u":"y","n":1}"#,
                r#"-{"id":1,"u":"x","n":2}"#,
                r#"+{"id":3,"u":"x","n":5}"#,
            ],
            "recursive {recursive}"
        );
    }
}

#[tokio::test]
async fn a_before_trigger_that_brings_a_row_into_the_way_hides_it_not() {
    let setup = "create table t (id integer primary key, u unique);
                 create trigger push before insert on t begin
                   update t set u = new.u where id = 1; end;
                 insert into t values (1, 'a');";
    assert_eq!(
        events(setup, "insert or replace into t values (2, 'b')").await,
        [
            r#"{"id":1,"u":"a"}>{"id":1,"u":"b"}"#,
            r#"-{"id":1,"u":"b"}"#,
            r#"+{"id":2,"u":"b"}"#,
        ]
    );
}

#[tokio::test]
async fn self_references_with_actions_hide_no_removed_row() {
    for (action, child) in [
        (
            "set null",
            r#"{"id":3,"u":"c","p":1}>{"id":3,"u":"c","p":null}"#,
        ),
        ("cascade", r#"-{"id":3,"u":"c","p":1}"#),
    ] {
        for recursive in ["off", "on"] {
            let setup = format!(
                "pragma foreign_keys = on; pragma recursive_triggers = {recursive};
                 create table t (id integer primary key, u unique,
                                 p references t(id) on delete {action});
                 insert into t values (1, 'a', null), (2, 'b', null), (3, 'c', 1);"
            );
            // By the primary key the first row goes, by the other key the second.
            let mut found = events(&setup, "insert or replace into t values (1, 'b', null)").await;
            let last = found.pop().unwrap();
            assert_eq!(
                last, r#"+{"id":1,"u":"b","p":null}"#,
                "{action} {recursive}"
            );
            found.sort();
            let mut expected = vec![
                r#"-{"id":1,"u":"a","p":null}"#,
                r#"-{"id":2,"u":"b","p":null}"#,
                child,
            ];
            expected.sort();
            assert_eq!(found, expected, "{action} {recursive}");
        }
    }
}

#[tokio::test]
async fn null_that_becomes_the_default_of_a_unique_column_removes_rows_that_are_seen() {
    for key in [
        "u text not null default 'x' unique",
        "u text not null on conflict replace default 'x' unique",
    ] {
        let setup = format!(
            "create table t (id integer primary key, {key}); insert into t values (1, 'x');"
        );
        assert_eq!(
            events(&setup, "insert or replace into t values (2, null)").await,
            [r#"-{"id":1,"u":"x"}"#, r#"+{"id":2,"u":"x"}"#],
            "{key}"
        );
    }
}

#[tokio::test]
async fn rows_removed_by_an_index_over_an_expression_are_seen() {
    let setup = "create table t (id integer primary key, name text, doc text);
                 create unique index by_name on t (lower(name)) where name <> '';
                 create unique index by_doc on t (json_extract(doc, '$.name')) where json_valid(doc);
                 insert into t values (1, 'A', 'no json'), (2, '', '{\"name\":1}');";
    // The expression over the document must not be asked of rows that are not in its index.
    assert_eq!(
        events(setup, "insert or replace into t values (3, 'a', 'none')")
            .await
            .iter()
            .map(|event| event[..8].to_owned())
            .collect::<Vec<_>>(),
        ["-{\"id\":1", "+{\"id\":3"]
    );
}
