//! Conflict clauses of the application: what they remove is captured, and what they skip is not.

mod attacks;

use std::collections::BTreeMap;

use changefeed_core::Feed;

use crate::support::Lab;

/// Every statement in a fresh file, with and without recursive triggers.
async fn changes_of(table: &str, before: &str, statement: &str) -> Vec<String> {
    let mut answers = Vec::new();
    for recursive in ["off", "on"] {
        let lab = Lab::new().await;
        let app = lab.app();
        app.execute_batch(&format!(
            "pragma recursive_triggers = {recursive}; {table}; {before}"
        ))
        .unwrap();
        let feed: Feed = lab.captured("t", None, 1).await;
        app.execute_batch(statement).unwrap_or_default();
        let (keys, rows) = (lab.keys(&feed, 0), lab.rows(&feed, 0).await);
        let gone = |row: &String| if row == "gone" { "-" } else { "+" };
        let seen: Vec<String> = rows
            .iter()
            .zip(&keys)
            .map(|(r, k)| gone(r).to_owned() + k)
            .collect();
        answers.push(seen);
    }
    // With recursive triggers a row that is replaced is deleted first, and both are told. What is told last of
    // a key is the same.
    let told = |seen: &[String]| -> BTreeMap<String, String> {
        let signs = seen.iter().map(|told| told.split_at(1));
        signs
            .map(|(sign, key)| (key.to_owned(), sign.to_owned()))
            .collect()
    };
    assert_eq!(told(&answers[0]), told(&answers[1]), "{statement}");
    answers.remove(0)
}

const TABLE: &str = "create table t (id integer primary key, u text unique, a, b, unique (a, b))";
const ROWS: &str = "insert into t values (1, 'x', 1, 1), (2, 'y', 2, 2), (3, 'z', 3, 3)";

#[tokio::test]
async fn rows_removed_by_replace_are_changes() {
    for (statement, expected) in [
        // Through the primary key: the same key has a new row.
        (
            "insert or replace into t values (1, 'n', 9, 9)",
            &["+1"][..],
        ),
        ("replace into t values (1, 'x', 1, 1)", &["+1"]),
        // Through another unique key: another row is gone.
        (
            "insert or replace into t values (9, 'x', 9, 9)",
            &["-1", "+9"],
        ),
        (
            "insert or replace into t (u, a, b) values ('x', 9, 9)",
            &["-1", "+4"],
        ),
        (
            "insert or replace into t values (9, 'x', 2, 2)",
            &["-1", "-2", "+9"],
        ),
        (
            "insert or replace into t values (3, 'x', 2, 2)",
            &["-1", "-2", "+3"],
        ),
        (
            "insert or replace into t values (9, 'x', 1, 1)",
            &["-1", "+9"],
        ),
        (
            "update or replace t set u = 'x' where id = 2",
            &["-1", "+2"],
        ),
        (
            "update or replace t set a = 3, b = 3 where id = 2",
            &["-3", "+2"],
        ),
        ("update or replace t set id = 1 where id = 2", &["-2", "+1"]),
        // What is skipped or refused is not a change.
        ("insert or ignore into t values (9, 'x', 9, 9)", &[]),
        (
            "insert or ignore into t values (9, 'x', 9, 9); delete from t where id = 1",
            &["-1"],
        ),
        (
            "insert or ignore into t values (9, 'x', 9, 9); update t set id = 8 where id = 1",
            &["-1", "+8"],
        ),
        (
            "insert or ignore into t values (9, 'x', 9, 9), (8, 'new', 8, 8)",
            &["+8"],
        ),
        ("update or ignore t set u = 'x' where id = 2", &[]),
        ("update or fail t set u = 'x' where id > 0", &["+1"]),
        ("insert or abort into t values (9, 'x', 9, 9)", &[]),
        // An upsert is an update of the row that was there.
        (
            "insert into t values (9, 'x', 9, 9) on conflict (u) do update set a = 7",
            &["+1"],
        ),
        (
            "insert into t values (9, 'x', 9, 9) on conflict (u) do update set id = 7",
            &["-1", "+7"],
        ),
        (
            "insert into t values (9, 'x', 9, 9) on conflict do nothing",
            &[],
        ),
    ] {
        assert_eq!(
            changes_of(TABLE, ROWS, statement).await,
            expected,
            "{statement}"
        );
    }
}

/// With a second unique key and recursive triggers SQLite itself refuses this statement as soon
/// as the table has any delete trigger.
#[tokio::test]
async fn a_key_that_changes_while_another_row_is_replaced() {
    let table = "create table t (id integer primary key, u text unique)";
    let rows = "insert into t values (1, 'x'), (2, 'y')";
    let statement = "update or replace t set id = 9, u = 'x' where id = 2";
    assert_eq!(changes_of(table, rows, statement).await, ["-1", "-2", "+9"]);
}

#[tokio::test]
async fn a_multi_row_replace_that_eats_its_own_rows_is_followed() {
    let found = changes_of(TABLE, ROWS, "update or replace t set u = 'same'").await;
    // Each row removes the one before; the last one standing is number 3.
    assert_eq!(found, ["-1", "-1", "-2", "-2", "+3"]);
}

#[tokio::test]
async fn partial_and_collated_unique_indexes_and_without_rowid() {
    let table = "create table t (k text primary key, mail text, live integer, g as (live + 1)) without rowid;
         create unique index by_mail on t (mail collate nocase) where live = 1";
    let rows = "insert into t (k, mail, live) values ('a', 'X', 1), ('b', 'x', 0), ('c', 'y', 0)";
    for (statement, expected) in [
        (
            "insert or replace into t (k, mail, live) values ('n', 'x', 1)",
            &["-'a'", "+'n'"][..],
        ),
        (
            "insert or replace into t (k, mail, live) values ('n', 'x', 0)",
            &["+'n'"],
        ),
        (
            "update or replace t set live = 1, mail = 'x' where k = 'c'",
            &["-'a'", "+'c'"],
        ),
        (
            "insert or replace into t (k, mail, live) values ('b', 'q', 1)",
            &["+'b'"],
        ),
    ] {
        assert_eq!(
            changes_of(table, rows, statement).await,
            expected,
            "{statement}"
        );
    }
}

#[tokio::test]
async fn a_partial_index_whose_condition_alone_changes_is_followed() {
    let table = "create table t (k integer primary key, mail text, live integer);
         create unique index by_mail on t (mail) where live = 1";
    let rows = "insert into t values (1, 'x', 1), (2, 'x', 0)";
    assert_eq!(
        changes_of(table, rows, "update or replace t set live = 1 where k = 2").await,
        ["-1", "+2"]
    );
}

#[tokio::test]
async fn a_unique_generated_column_is_followed() {
    let table =
        "create table t (k integer primary key, first text, g text as (lower(first)) unique)";
    let rows = "insert into t (k, first) values (1, 'X'), (2, 'y')";
    assert_eq!(
        changes_of(
            table,
            rows,
            "update or replace t set first = 'x' where k = 2"
        )
        .await,
        ["-1", "+2"]
    );
    assert_eq!(
        changes_of(
            table,
            rows,
            "insert or replace into t (k, first) values (3, 'x')"
        )
        .await,
        ["-1", "+3"]
    );
}
