//! Conflict clauses of the application: the rows they remove are DELETE events with their values.

use crate::event_support::everything;
use crate::support::Lab;

/// Every statement in a fresh file, with and without recursive triggers, as `-old` and `+new`.
async fn events_of(table: &str, before: &str, statement: &str) -> Vec<String> {
    let mut answers = Vec::new();
    for recursive in ["off", "on"] {
        let lab = Lab::new().await;
        let app = lab.app();
        app.execute_batch(&format!(
            "pragma recursive_triggers = {recursive}; {table}; {before}"
        ))
        .unwrap();
        lab.trigger(&everything("t")).await;
        app.execute_batch(statement).unwrap_or_default();
        let first = |row: &str| {
            let row = row.split_once(':').unwrap().1;
            row.split_once([',', '}'])
                .unwrap()
                .0
                .trim_matches('"')
                .to_owned()
        };
        let seen: Vec<String> = lab
            .log()
            .await
            .iter()
            .map(|logged| {
                let event = &logged.event;
                match (&event.old, &event.new) {
                    (None, Some(new)) => format!("+{}", first(new.get())),
                    (Some(old), None) => format!("-{}", first(old.get())),
                    (Some(old), Some(new)) => format!("{}>{}", first(old.get()), first(new.get())),
                    (None, None) => "nothing".to_owned(),
                }
            })
            .collect();
        answers.push(seen);
    }
    assert_eq!(answers[0], answers[1], "{statement}");
    answers.remove(0)
}

const TABLE: &str = "create table t (id integer primary key, u text unique, a, b, unique (a, b))";
const ROWS: &str = "insert into t values (1, 'x', 1, 1), (2, 'y', 2, 2), (3, 'z', 3, 3)";

#[tokio::test]
async fn rows_removed_by_replace_are_deleted() {
    for (statement, expected) in [
        (
            "insert or replace into t values (1, 'n', 9, 9)",
            &["-1", "+1"][..],
        ),
        ("replace into t values (1, 'x', 1, 1)", &["-1", "+1"]),
        (
            "insert or replace into t values (9, 'x', 9, 9)",
            &["-1", "+9"],
        ),
        (
            "insert or replace into t (u, a, b) values ('x', 9, 9)",
            &["-1", "+4"],
        ),
        (
            "insert or replace into t values (9, 'x', 1, 1)",
            &["-1", "+9"],
        ),
        (
            "update or replace t set u = 'x' where id = 2",
            &["-1", "2>2"],
        ),
        (
            "update or replace t set a = 3, b = 3 where id = 2",
            &["-3", "2>2"],
        ),
        (
            "update or replace t set id = 1 where id = 2",
            &["-1", "2>1"],
        ),
        (
            "update or replace t set rowid = 1 where id = 2",
            &["-1", "2>1"],
        ),
        // What is skipped or refused makes no event, also later.
        ("insert or ignore into t values (9, 'x', 9, 9)", &[]),
        (
            "insert or ignore into t values (9, 'x', 9, 9); delete from t where id = 1",
            &["-1"],
        ),
        (
            "insert or ignore into t values (1, 'q', 9, 9); insert into t values (8, 'new', 8, 8)",
            &["+8"],
        ),
        (
            "insert or ignore into t values (1, 'q', 9, 9); delete from t where id = 1;
             insert into t values (1, 'new', 8, 8)",
            &["-1", "+1"],
        ),
        (
            "insert or ignore into t values (9, 'x', 9, 9); update t set id = 8 where id = 1;
             insert into t values (1, 'new', 8, 8)",
            &["1>8", "+1"],
        ),
        (
            "insert or ignore into t values (9, 'x', 9, 9), (8, 'new', 8, 8)",
            &["+8"],
        ),
        ("update or ignore t set u = 'x' where id = 2", &[]),
        ("insert or abort into t values (9, 'x', 9, 9)", &[]),
        ("insert into t values (9, 'x', 9, 9)", &[]),
        // An upsert is an update of the row that was there.
        (
            "insert into t values (9, 'x', 9, 9) on conflict (u) do update set a = 7",
            &["1>1"],
        ),
        (
            "insert into t values (9, 'x', 9, 9) on conflict (u) do update set id = 7",
            &["1>7"],
        ),
        (
            "insert into t values (9, 'x', 9, 9) on conflict do nothing",
            &[],
        ),
    ] {
        assert_eq!(
            events_of(TABLE, ROWS, statement).await,
            expected,
            "{statement}"
        );
    }
}

/// Several rows removed at once come in no particular order.
#[tokio::test]
async fn several_rows_removed_at_once() {
    for (statement, expected) in [
        (
            "insert or replace into t values (9, 'x', 2, 2)",
            &["+9", "-1", "-2"][..],
        ),
        (
            "insert or replace into t values (3, 'x', 2, 2)",
            &["+3", "-1", "-2", "-3"],
        ),
    ] {
        for rows in [
            ROWS,
            "insert into t values (3, 'z', 3, 3), (2, 'y', 2, 2), (1, 'x', 1, 1)",
        ] {
            let lab = Lab::new().await;
            let app = lab.app();
            app.execute_batch(&format!("{TABLE}; {rows}")).unwrap();
            lab.trigger(&everything("t")).await;
            app.execute_batch(statement).unwrap();
            let mut seen: Vec<String> = lab
                .log()
                .await
                .iter()
                .map(|logged| {
                    let (sign, row) = match (&logged.event.old, &logged.event.new) {
                        (Some(old), None) => ("-", old),
                        (_, Some(new)) => ("+", new),
                        (None, None) => panic!("an event without rows"),
                    };
                    format!("{sign}{}", &row.get()[6..7])
                })
                .collect();
            assert!(seen.last().unwrap().starts_with('+'));
            seen.sort();
            assert_eq!(seen, expected, "{statement}");
        }
    }
}

#[tokio::test]
async fn other_kinds_of_tables() {
    // Without rowid, with a collation; partial indexes; no key at all; unique generated columns.
    for (table, rows, statement, expected) in [
        (
            "create table t (k text primary key collate nocase, v) without rowid",
            "insert into t values ('a', 1), ('b', 2)",
            "replace into t values ('A', 3); update or replace t set k = 'B' where k = 'a'",
            &["-a", "+A", "-b", "A>B"][..],
        ),
        (
            "create table t (k text primary key, v)",
            "insert into t values ('a', 1), ('b', 2)",
            "replace into t values ('a', 3); replace into t (rowid, k, v) values (2, 'c', 1)",
            &["-a", "+a", "-b", "+c"],
        ),
        (
            "create table t (k, v); create unique index i on t (k collate nocase) where v = 1",
            "insert into t values ('x', 1), ('x', 0)",
            "insert or replace into t values ('X', 0), ('X', 1)",
            &["+X", "-x", "+X"],
        ),
        (
            "create table t (a)",
            "insert into t values (1), (1)",
            "insert or replace into t values (1); update t set a = 2; delete from t",
            &["+1", "1>2", "1>2", "1>2", "-2", "-2", "-2"],
        ),
        (
            "create table t (k integer primary key, v text, g text as (lower(v)) unique)",
            "insert into t (k, v) values (1, 'X'), (2, 'y')",
            "update or replace t set v = 'x' where k = 2; replace into t (k, v) values (3, 'X')",
            &["-1", "2>2", "-2", "+3"],
        ),
        (
            "create table t (a integer, b integer, v, primary key (a, b)) without rowid",
            "insert into t values (1, 1, 1), (2, 1, 1)",
            "replace into t values (1, 1, 2), (3, 1, 1)",
            &["-1", "+1", "+3"],
        ),
    ] {
        assert_eq!(
            events_of(table, rows, statement).await,
            expected,
            "{statement}"
        );
    }
}

/// A table may already have a row where SQLite's placeholder for a missing rowid points.
#[tokio::test]
async fn a_row_with_the_key_minus_one_is_not_taken_for_replaced() {
    let found = events_of(
        "create table t (id integer primary key, a)",
        "insert into t values (-1, 'x')",
        "insert into t (a) values ('y'); insert into t (a) values ('z'); \
         replace into t values (-1, 'q')",
    )
    .await;
    assert_eq!(found, ["+0", "+1", "--1", "+-1"]);
}
