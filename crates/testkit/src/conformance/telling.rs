//! A captured change tells what happened, and to which row.

use std::collections::BTreeMap;
use std::sync::Arc;

use changefeed_core::{
    Change, Content, Feed, Finding, Op, Severity, Step, Store, TableName, changed,
};
use fastrand::Rng;
use serde_json::{Value, json};

use crate::backend::{Backend, Session, captured, read_all};

pub(super) const ORDERS: &str =
    "create table orders (id integer primary key, customer_id integer, note varchar(20))";

async fn orders(
    backend: &Arc<dyn Backend>,
    shards: i16,
) -> (Arc<dyn Store>, Feed, Box<dyn Session>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session.run(ORDERS).await;
    let by = (shards > 1).then_some("customer_id");
    let table = TableName::unqualified("orders");
    let feed = captured("orders", table, by, shards);
    let feed = store.create_feed(&feed).await.unwrap();
    (store, feed, session)
}

pub(super) fn json_of(raw: Option<&serde_json::value::RawValue>) -> Value {
    raw.map_or(Value::Null, |raw| serde_json::from_str(raw.get()).unwrap())
}

/// Operation, key and row of each change.
async fn told(
    backend: &Arc<dyn Backend>,
    store: &dyn Store,
    feed: &Feed,
    shard: i16,
) -> Vec<(Op, Value, Value)> {
    backend.settle(store).await;
    let tell = |change: &Change| {
        let row = match &change.content {
            Content::Row(row) => json_of(Some(row)),
            Content::Gone => Value::Null,
            other => panic!("a captured change knows its row: {other:?}"),
        };
        (change.op.unwrap(), json_of(change.key.as_deref()), row)
    };
    let changes = read_all(store, feed, shard, 1000).await;
    changes.iter().map(tell).collect()
}

/// Also of a row that is gone: a reader who keeps a copy can remove it.
pub async fn a_change_tells_its_operation_and_its_key(backend: Arc<dyn Backend>) {
    let (store, feed, session) = orders(&backend, 1).await;
    for write in [
        "insert into orders values (1, 10, 'a'), (2, 20, 'b')",
        "update orders set note = 'c' where id = 1",
        "delete from orders where id = 2",
        "insert into orders values (2, 21, 'again')",
    ] {
        session.run(write).await;
    }
    let one = json!({"id": 1, "customer_id": 10, "note": "c"});
    let two = json!({"id": 2, "customer_id": 21, "note": "again"});
    let key = |id: i32| json!({"id": id});
    assert_eq!(
        told(&backend, &*store, &feed, 0).await,
        [
            (Op::Insert, key(1), one.clone()),
            (Op::Insert, key(2), two.clone()),
            (Op::Update, key(1), one),
            // The row that has this key now is another one.
            (Op::Delete, key(2), Value::Null),
            (Op::Insert, key(2), two),
        ]
    );
}

/// And a row that moved to another shard is deleted in the one and inserted in the other.
pub async fn a_changed_key_is_a_delete_and_an_insert(backend: Arc<dyn Backend>) {
    let (store, feed, session) = orders(&backend, 2).await;
    for write in [
        "insert into orders values (1, 2, 'a')",
        "update orders set id = 7 where id = 1",
        "update orders set customer_id = 3",
        "update orders set id = 8, customer_id = 4",
    ] {
        session.run(write).await;
    }
    let ops = async |shard| -> Vec<(Op, i64)> {
        let all = told(&backend, &*store, &feed, shard).await;
        let id = |key: &Value| key["id"].as_i64().unwrap();
        all.iter().map(|(op, key, _)| (*op, id(key))).collect()
    };
    use Op::{Delete, Insert};
    assert_eq!(
        ops(0).await,
        [
            (Insert, 1),
            (Delete, 1),
            (Insert, 7),
            (Delete, 7),
            (Insert, 8)
        ]
    );
    assert_eq!(ops(1).await, [(Insert, 7), (Delete, 7)]);
}

/// Names and values, of every column of the key, in its order, whether the row is there or not.
pub async fn a_key_is_written_as_in_the_row(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session
        .run(
            "create table line (amount integer, \"it's a {key}\" varchar(40) not null, \
             price decimal(10, 2) not null, number bigint not null, \
             primary key (number, \"it's a {key}\", price))",
        )
        .await;
    let feed = captured("lines", TableName::unqualified("line"), None, 1);
    let feed = store.create_feed(&feed).await.unwrap();
    session
        .run(
            "insert into line values (1, 'quo\"te \\ ü🙂', 1.5, -9007199254740993), \
             (2, '', -12.25, 9223372036854775807)",
        )
        .await;
    let there = told(&backend, &*store, &feed, 0).await;
    for (_, key, row) in &there {
        let mut expected = row.clone();
        expected.as_object_mut().unwrap().remove("amount");
        assert_eq!(*key, expected);
        let names: Vec<&String> = key.as_object().unwrap().keys().collect();
        assert_eq!(names.len(), 3);
    }
    session.run("delete from line").await;
    let gone = told(&backend, &*store, &feed, 0).await;
    let keys = |told: &[(Op, Value, Value)]| -> Vec<Value> {
        let mut keys: Vec<Value> = told.iter().map(|(_, key, _)| key.clone()).collect();
        keys.sort_by_key(|key| key["number"].as_i64());
        keys
    };
    assert_eq!(keys(&gone[..2]), keys(&there));
    assert_eq!(keys(&gone[2..]), keys(&there));
    assert!(gone[2..].iter().all(|(op, ..)| *op == Op::Delete));
}

/// So that a reader can tell what is new from what was there.
pub async fn a_row_that_was_there_before_is_told_as_backfilled(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session.run(ORDERS).await;
    session.run("insert into orders values (1, 10, 'a')").await;
    let feed = captured("orders", TableName::unqualified("orders"), None, 1);
    let feed = store.create_feed(&feed).await.unwrap();
    session.run("insert into orders values (2, 20, 'b')").await;
    while !store.backfill(&feed, 1).await.unwrap().finished {}
    let ops: Vec<(Op, Value)> = told(&backend, &*store, &feed, 0)
        .await
        .into_iter()
        .map(|(op, key, _)| (op, key["id"].clone()))
        .collect();
    // What is written while a backfill is at work may be told twice.
    assert_eq!(ops.first(), Some(&(Op::Backfill, json!(1))));
    assert_eq!(ops.last(), Some(&(Op::Insert, json!(2))));
    assert!(
        ops[..ops.len() - 1]
            .iter()
            .all(|(op, _)| *op == Op::Backfill)
    );
}

/// A change that somebody puts into a captured feed by hand is about no row.
pub async fn a_change_of_somebodys_own_tells_nothing(backend: Arc<dyn Backend>) {
    let (store, feed, session) = orders(&backend, 1).await;
    let words = backend.words();
    session.run(&words.publish(feed.id.0, 0, 5)).await;
    backend.settle(&*store).await;
    let changes = read_all(&*store, &feed, 0, 10).await;
    assert_eq!(changes.len(), 1);
    assert!(changes[0].op.is_none() && changes[0].key.is_none());
    assert_eq!(changes[0].content, Content::Unknown);
}

/// Put under its key what is told, and remove what is deleted: the copy is the table, whatever was written.
pub async fn a_copy_that_follows_a_feed_equals_the_table(backend: Arc<dyn Backend>) {
    const SHARDS: i16 = 3;
    let (store, feed, session) = orders(&backend, SHARDS).await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    for turn in 0..120 {
        let (a, b) = (random.i32(0..40), random.i32(0..9));
        let write = match random.i32(0..7) {
            0 | 1 => format!(
                "insert into orders select {a}, {b}, 'n{turn}' where not exists (select 1 from orders where id = {a})"
            ),
            2 => format!(
                "update orders set note = 'u{turn}', customer_id = {b} where id between {a} and {}",
                a + 6
            ),
            3 => format!(
                "update orders set id = id + 100 where id between {a} and {} and not exists (select 1 from orders o where o.id = orders.id + 100)",
                a + 3
            ),
            4 => format!(
                "update orders set id = id - 100, customer_id = {b} where id - 100 between {a} and {} and not exists (select 1 from orders o where o.id = orders.id - 100)",
                a + 3
            ),
            5 => format!("delete from orders where id between {a} and {}", a + 2),
            _ => {
                session.run(backend.words().begin).await;
                session
                    .run("update orders set id = id + 1000, note = 'never'")
                    .await;
                session
                    .run("delete from orders where customer_id = 3")
                    .await;
                "rollback".to_owned()
            }
        };
        session.run(&write).await;
    }
    // A row that has moved is in the copies of two shards until both have been read to the end.
    let mut copy: BTreeMap<i64, Value> = BTreeMap::new();
    for shard in 0..SHARDS {
        let mut part: BTreeMap<i64, Value> = BTreeMap::new();
        for (op, key, row) in told(&backend, &*store, &feed, shard).await {
            let id = key["id"].as_i64().unwrap();
            match op.leaves_row() && row != Value::Null {
                true => part.insert(id, row),
                false => part.remove(&id),
            };
        }
        for (id, row) in part {
            assert_eq!(copy.insert(id, row), None, "{id} is in one shard");
        }
    }
    let text = |row: &Value| {
        let note = row["note"].as_str().unwrap();
        format!("{}/{}/{note}", row["id"], row["customer_id"])
    };
    let copy: Vec<String> = copy.values().map(text).collect();
    let table = session
        .query("select id, customer_id, note from orders order by id")
        .await
        .unwrap();
    let table: Vec<String> = table
        .iter()
        .map(|row| {
            let cells: Vec<&str> = row.iter().map(|cell| cell.as_deref().unwrap()).collect();
            cells.join("/")
        })
        .collect();
    assert_eq!(copy, table);
}

/// A feed of `orders` that keeps the row before and after.
async fn with_images(
    backend: &Arc<dyn Backend>,
    shards: i16,
) -> (Arc<dyn Store>, Feed, Box<dyn Session>) {
    images_of(backend, &[ORDERS], shards).await
}

/// The same, of a table `orders` that these statements make.
pub(super) async fn images_of(
    backend: &Arc<dyn Backend>,
    tables: &[&str],
    shards: i16,
) -> (Arc<dyn Store>, Feed, Box<dyn Session>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    for table in tables {
        session.run(table).await;
    }
    let mut new = captured(
        "orders",
        TableName::unqualified("orders"),
        (shards > 1).then_some("customer_id"),
        shards,
    );
    assert!(new.source.as_mut().unwrap().keep_images(true));
    let feed = store.create_feed(&new).await.unwrap();
    (store, feed, session)
}

/// Operation, old and new row, and the columns that differ.
pub(super) fn images(change: &Change) -> (Op, Value, Value, Vec<String>) {
    let Content::Images { old, new } = &change.content else {
        panic!("it has kept no row: {change:?}");
    };
    let differ = changed(old.as_deref(), new.as_deref());
    (
        change.op.unwrap(),
        json_of(old.as_deref()),
        json_of(new.as_deref()),
        differ,
    )
}

/// In order, without an event trigger, and as they were then.
pub async fn images_are_the_rows_before_and_after(backend: Arc<dyn Backend>) {
    let (store, feed, session) = with_images(&backend, 1).await;
    for write in [
        "insert into orders values (1, 10, 'a')",
        "update orders set note = null where id = 1",
        "update orders set id = 2, note = 'b' where id = 1",
        "delete from orders",
    ] {
        session.run(write).await;
    }
    backend.settle(&*store).await;
    let told: Vec<_> = read_all(&*store, &feed, 0, 2)
        .await
        .iter()
        .map(images)
        .collect();
    let row = |id: i32, note: Value| json!({"id": id, "customer_id": 10, "note": note});
    let none = Vec::<String>::new;
    let (a, b) = (row(1, json!("a")), row(1, Value::Null));
    let c = row(2, json!("b"));
    assert_eq!(
        told,
        [
            (Op::Insert, Value::Null, a.clone(), none()),
            (Op::Update, a, b.clone(), vec!["note".to_owned()]),
            (Op::Delete, b, Value::Null, none()),
            (Op::Insert, Value::Null, c.clone(), none()),
            (Op::Delete, c, Value::Null, none()),
        ]
    );
}

/// What came before has none, and shows the row as it is now.
pub async fn images_can_be_switched_on_and_off(backend: Arc<dyn Backend>) {
    let (store, mut feed, session) = orders(&backend, 1).await;
    session.run("insert into orders values (1, 10, 'a')").await;
    for (on, write) in [
        (true, "update orders set note = 'b'"),
        (false, "update orders set note = 'c'"),
        (true, "insert into orders values (2, 20, 'd')"),
    ] {
        assert!(feed.source.as_mut().unwrap().keep_images(on));
        let steps = [Step::ChangeFeed(feed.clone())];
        store.apply(&steps).await.unwrap();
        let feeds = store.feeds().await.unwrap();
        assert_eq!(feeds[0].source, feed.source);
        session.run(write).await;
    }
    backend.settle(&*store).await;
    let kinds: Vec<(Op, bool, String)> = read_all(&*store, &feed, 0, 100)
        .await
        .iter()
        .map(|c| {
            let kept = matches!(c.content, Content::Images { .. });
            let note = json_of(c.content.row())["note"].to_string();
            (c.op.unwrap(), kept, note)
        })
        .collect();
    let expect = |op, kept, note: &str| (op, kept, format!("{note:?}"));
    assert_eq!(
        kinds,
        [
            expect(Op::Insert, false, "c"),
            expect(Op::Update, true, "b"),
            expect(Op::Update, false, "c"),
            expect(Op::Insert, true, "d"),
        ]
    );
}

/// Rows that were there before, too.
pub async fn a_backfilled_row_has_its_image(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session.run(ORDERS).await;
    session.run("insert into orders values (1, 10, 'a')").await;
    let mut new = captured("orders", TableName::unqualified("orders"), None, 1);
    assert!(new.source.as_mut().unwrap().keep_images(true));
    let feed = store.create_feed(&new).await.unwrap();
    while !store.backfill(&feed, 10).await.unwrap().finished {}
    session.run("update orders set note = 'b'").await;
    backend.settle(&*store).await;
    let told: Vec<_> = read_all(&*store, &feed, 0, 10)
        .await
        .iter()
        .map(images)
        .collect();
    let row = |note: &str| json!({"id": 1, "customer_id": 10, "note": note});
    assert_eq!(told[0].0, Op::Backfill);
    assert_eq!((&told[0].1, &told[0].2), (&Value::Null, &row("a")));
    assert_eq!((&told[1].1, &told[1].2), (&row("a"), &row("b")));
}

/// Nobody writes to a feed whose table is gone, and readers only see that nothing comes.
pub async fn a_feed_whose_table_is_gone_is_noticed(backend: Arc<dyn Backend>) {
    let (store, feed, session) = orders(&backend, 1).await;
    let problems = async || {
        let findings = store.capture_findings().await.unwrap();
        let bad = findings
            .into_iter()
            .filter(|f| f.severity == Severity::Problem);
        bad.collect::<Vec<_>>()
    };
    assert_eq!(problems().await, []);
    session.run("drop table orders").await;
    let found = problems().await;
    let ours = |f: &&Finding| f.subject.contains(feed.name.as_str());
    assert!(
        found.iter().any(|f| ours(&f) && f.advice.is_some()),
        "{found:?}"
    );
    store.drop_feed(&feed).await.unwrap();
    assert_eq!(problems().await, []);
}
