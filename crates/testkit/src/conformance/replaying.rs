//! What a feed with images tells, applied to an empty table, is the table at every cursor.

use std::collections::BTreeMap;
use std::sync::Arc;

use changefeed_core::{Change, Feed, Op, Store};
use fastrand::Rng;
use serde_json::Value;

use super::telling::{ORDERS, images, images_of, json_of};
use crate::backend::{Backend, Session, read_all};

/// Tables of which one follows the other.
const CUSTOMERS: &str = "create table customers (id integer primary key)";
const THEIR_ORDERS: &str = "create table orders (id integer primary key, \
     customer_id integer references customers (id) on delete cascade on update cascade, note varchar(20))";

/// Whatever is written: after each statement, what was told so far makes the table as it is then. Every old row
/// is the one that the copy has.
pub async fn a_replay_of_images_equals_the_table_at_every_cursor(backend: Arc<dyn Backend>) {
    let (store, feed, session) = images_of(&backend, &[ORDERS], 1).await;
    replay(&backend, &*store, &feed, &*session, "1 = 1").await;
}

/// Also where another table's rows take rows along, or change them.
pub async fn a_replay_of_cascades_equals_the_table_at_every_cursor(backend: Arc<dyn Backend>) {
    let (store, feed, session) = images_of(&backend, &[CUSTOMERS, THEIR_ORDERS], 1).await;
    if let Some(keep) = backend.words().keep_foreign_keys {
        session.run(keep).await;
    }
    for id in 0..9 {
        let insert = format!("insert into customers values ({id})");
        session.run(&insert).await;
    }
    let customers = |random: &mut Rng| {
        let b = random.i32(0..9);
        Some(match random.i32(0..12) {
            0 => format!("delete from customers where id = {b}"),
            1 => format!("insert into customers values ({b})"),
            2 => format!("update customers set id = {b} + 50 where id = {b}"),
            3 => "update customers set id = id - 50 where id >= 50".to_owned(),
            4 => format!("delete from customers where id between {b} and {}", b + 3),
            _ => return None,
        })
    };
    replay_with(&backend, &*store, &feed, &*session, "1 = 1", customers).await;
}

/// Writes to `orders`, and compares what is told with the rows for which the condition is true.
pub(super) async fn replay(
    backend: &Arc<dyn Backend>,
    store: &dyn Store,
    feed: &Feed,
    session: &dyn Session,
    when: &str,
) {
    replay_with(backend, store, feed, session, when, |_| None).await;
}

/// The same, with statements of the caller's own among the others.
async fn replay_with(
    backend: &Arc<dyn Backend>,
    store: &dyn Store,
    feed: &Feed,
    session: &dyn Session,
    when: &str,
    mut own: impl FnMut(&mut Rng) -> Option<String>,
) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    let mut states = Vec::new();
    for turn in 0..120 {
        let write = match own(&mut random) {
            Some(own) => own,
            None => write(backend, session, &mut random, turn).await,
        };
        // A key that is there already fails the whole statement.
        let _ = session.execute(&write).await;
        backend.settle(store).await;
        let last = store.shard_states(feed).await.unwrap()[0].last;
        let table = format!("select id, customer_id, note from orders where {when} order by id");
        let table = session.query(&table).await.unwrap();
        states.push((last, table, write));
    }
    let mut changes = read_all(store, feed, 0, 37).await.into_iter().peekable();
    let mut copy = BTreeMap::new();
    for (last, table, write) in states {
        while let Some(change) = changes.next_if(|c| c.cursor <= last) {
            apply(&mut copy, &change, &write);
        }
        assert_eq!(texts(&copy), cells(table), "after {write}");
    }
    assert!(changes.next().is_none());
}

/// A statement, or the end of some.
async fn write(
    backend: &Arc<dyn Backend>,
    session: &dyn Session,
    random: &mut Rng,
    turn: i32,
) -> String {
    let words = backend.words();
    let (a, b) = (random.i32(0..30), random.i32(0..9));
    match random.i32(0..10) {
        0..2 => format!(
            "insert into orders select {a}, {b}, 'n{turn}' \
             where not exists (select 1 from orders where id = {a})"
        ),
        2 => format!(
            "update orders set note = 'u{turn}', customer_id = {b} where id between {a} and {}",
            a + 6
        ),
        // Keys that move into the places of each other, in one statement.
        3 => "update orders set id = id + 1000".to_owned(),
        4 => "update orders set id = id - 1000 where id >= 1000".to_owned(),
        5 => format!("delete from orders where id between {a} and {}", a + 2),
        6 => format!(
            "update orders set note = note where id between {a} and {}",
            a + 2
        ),
        7 => words
            .put_two
            .replace("{a}", &a.to_string())
            .replace("{c}", &random.i32(0..30).to_string())
            .replace("{b}", &b.to_string())
            .replace("{note}", &format!("p{turn}")),
        8 if turn % 3 == 0 => words.truncate.unwrap_or("delete from orders").to_owned(),
        _ => {
            session.run(words.begin).await;
            session.run("update orders set note = 'never'").await;
            session
                .run("delete from orders where customer_id = 3")
                .await;
            "rollback".to_owned()
        }
    }
}

/// Applies a change to a copy that has everything before it.
pub(super) fn apply(copy: &mut BTreeMap<i64, Value>, change: &Change, write: &str) {
    if change.op == Some(Op::Truncate) {
        copy.clear();
        return;
    }
    let key = json_of(change.key.as_deref())["id"].as_i64().unwrap();
    let (op, old, new, _) = images(change);
    let before = copy.remove(&key).unwrap_or(Value::Null);
    assert_eq!(before, old, "{op:?} {key} by {write}");
    assert_eq!(op == Op::Delete, new == Value::Null);
    if new != Value::Null {
        assert_eq!(new["id"], key);
        copy.insert(key, new);
    }
}

/// The rows of a copy, as the table's are compared.
pub(super) fn texts(copy: &BTreeMap<i64, Value>) -> Vec<Vec<String>> {
    let text = |row: &Value| {
        let note = row["note"].as_str().unwrap();
        vec![
            row["id"].to_string(),
            row["customer_id"].to_string(),
            note.to_owned(),
        ]
    };
    copy.values().map(text).collect()
}

pub(super) fn cells(table: Vec<Vec<Option<String>>>) -> Vec<Vec<String>> {
    let rows = table.into_iter();
    rows.map(|row| row.into_iter().map(Option::unwrap).collect())
        .collect()
}
