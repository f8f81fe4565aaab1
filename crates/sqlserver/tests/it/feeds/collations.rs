//! Columns that sort and compare in a way of their own, side by side with others.

use std::sync::Arc;

use changefeed_core::{Content, Store, TableName, WatchFrom, WatchSettings};
use changefeed_testkit::backend::{Backend, Session, SqlServerBackend, captured, read_all};
use changefeed_testkit::events::{everything, told};
use changefeed_testkit::run;
use changefeed_testkit::watching::{quick, spec, take_all};
use serde_json::{Value, json};

/// A key of two columns, and one column that compares as the database does.
const LETTERS: &str = "create table letters ( \
     code varchar(20) collate Latin1_General_BIN2 not null, \
     lang nvarchar(10) collate Latin1_General_BIN2 not null, \
     note nvarchar(40) null, primary key (code, lang))";

fn row(code: &str, note: &str) -> Value {
    json!({"code": code, "lang": "x", "note": note})
}

/// A database with that table and these rows.
async fn letters(rows: &[(&str, &str)]) -> (Arc<dyn Backend>, Arc<dyn Store>, Box<dyn Session>) {
    let backend: Arc<dyn Backend> = Arc::new(SqlServerBackend::fresh().await);
    let store = backend.installed().await;
    let session = backend.session().await;
    session.run(LETTERS).await;
    for (code, note) in rows {
        let insert = format!("insert into letters values ('{code}', N'x', N'{note}')");
        session.run(&insert).await;
    }
    (backend, store, session)
}

/// Captured, published again from where a backfill stopped, and joined to its row: `a` is not `A`.
#[test]
fn a_key_with_a_collation_of_its_own_is_captured_backfilled_and_read() {
    run(async {
        let (backend, store, session) = letters(&[("b", "1"), ("A", "2"), ("a", "3")]).await;
        let table = TableName::unqualified("letters");
        let feed = store
            .create_feed(&captured("letters", table, Some("code"), 1))
            .await
            .unwrap();
        while !store.backfill(&feed, 1).await.unwrap().finished {}
        session
            .run("update letters set note = N'4' where code = 'a'")
            .await;
        session.run("delete from letters where code = 'A'").await;
        backend.settle(&*store).await;
        let changes = read_all(&*store, &feed, 0, 10).await;
        let rows: Vec<Option<Value>> = changes
            .iter()
            .map(|change| match &change.content {
                Content::Row(row) => Some(serde_json::from_str(row.get()).unwrap()),
                Content::Gone => None,
                other => panic!("{other:?}"),
            })
            .collect();
        // In the order of the key, which is that of the bytes; then what happened.
        let (a, b) = (Some(row("a", "4")), Some(row("b", "1")));
        assert_eq!(rows, [None, a.clone(), b, a, None]);
    });
}

#[test]
fn a_table_with_two_ways_to_compare_makes_events() {
    run(async {
        let (_backend, store, session) = letters(&[("A", "1"), ("a", "2")]).await;
        let trigger = store
            .create_trigger(&everything("t", "letters"), false)
            .await
            .unwrap();
        while !store.backfill_trigger(&trigger, 1).await.unwrap().finished {}
        session
            .run("update letters set note = N'3' where code = 'a'")
            .await;
        assert_eq!(
            told(&*store).await,
            [
                ("INSERT", Value::Null, row("A", "1")),
                ("INSERT", Value::Null, row("a", "2")),
                ("UPDATE", row("a", "2"), row("a", "3")),
            ]
        );
    });
}

#[test]
fn a_watch_hands_over_every_row_of_such_a_key_once() {
    run(async {
        let (_backend, store, _session) = letters(&[("b", "1"), ("A", "2"), ("a", "3")]).await;
        let mut spec = spec("f", "letters");
        spec.from = WatchFrom::Beginning;
        let watch = store.open_watch(&spec).await.unwrap();
        let one_by_one = WatchSettings {
            batch: 1,
            ..quick()
        };
        let batches = take_all(&*store, &watch, &one_by_one).await;
        let mut rows: Vec<Value> = batches.concat().into_iter().map(|(_, row)| row).collect();
        rows.sort_by_key(ToString::to_string);
        assert_eq!(rows, [row("A", "2"), row("a", "3"), row("b", "1")]);
    });
}
