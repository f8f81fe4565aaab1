//! Feeds made from a table: the application's writes become changes, without the application
//! knowing.

use std::sync::Arc;

use changefeed_core::{
    Change, Content, Feed, Kind, Severity, ShardValue, Store, TableName, shard_of,
};
use serde_json::{Value, json};

use crate::backend::{Backend, Session, captured, ids, read_all};

const ORDERS: &str = "create table orders (id integer primary key, customer_id integer, note text)";

async fn orders(
    backend: &Arc<dyn Backend>,
    shards: i16,
) -> (Arc<dyn Store>, Feed, Box<dyn Session>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session.run(ORDERS).await;
    let by = (shards > 1).then_some("customer_id");
    let feed = store
        .create_feed(&captured(
            "orders",
            TableName::unqualified("orders"),
            by,
            shards,
        ))
        .await
        .unwrap();
    (store, feed, session)
}

/// The rows of a shard: JSON, or null for one that is gone.
async fn rows(
    backend: &Arc<dyn Backend>,
    store: &dyn Store,
    feed: &Feed,
    shard: i16,
) -> Vec<Value> {
    backend.settle(store).await;
    read_all(store, feed, shard, 1000)
        .await
        .iter()
        .map(row)
        .collect()
}

fn row(change: &Change) -> Value {
    match &change.content {
        Content::Row(row) => serde_json::from_str(row.get()).unwrap(),
        Content::Gone => Value::Null,
        Content::Unknown | Content::Images { .. } => panic!("a captured change knows its row"),
    }
}

/// One change each; the row is its newest state, and a deleted one is gone.
pub async fn inserts_updates_and_deletes_become_changes(backend: Arc<dyn Backend>) {
    let (store, feed, session) = orders(&backend, 1).await;
    session
        .run("insert into orders values (1, 10, 'a'), (2, 20, null)")
        .await;
    let one = json!({"id": 1, "customer_id": 10, "note": "a"});
    let two = json!({"id": 2, "customer_id": 20, "note": null});
    assert_eq!(rows(&backend, &*store, &feed, 0).await, [one, two.clone()]);
    session
        .run("update orders set note = 'b' where id = 1")
        .await;
    let one = json!({"id": 1, "customer_id": 10, "note": "b"});
    assert_eq!(
        rows(&backend, &*store, &feed, 0).await,
        [one.clone(), two.clone(), one.clone()]
    );
    session.run("delete from orders where id = 2").await;
    assert_eq!(
        rows(&backend, &*store, &feed, 0).await,
        [one.clone(), Value::Null, one, Value::Null]
    );
}

/// The change is in the application's own transaction.
pub async fn a_rolled_back_write_publishes_nothing(backend: Arc<dyn Backend>) {
    let (store, feed, session) = orders(&backend, 1).await;
    session.run(backend.words().begin).await;
    session.run("insert into orders values (1, 10, 'a')").await;
    session.run("update orders set note = 'b'").await;
    session.run("rollback").await;
    session.run("insert into orders values (2, 10, 'c')").await;
    let found = rows(&backend, &*store, &feed, 0).await;
    assert_eq!(found, [json!({"id": 2, "customer_id": 10, "note": "c"})]);
}

/// Each with its own shards, none in the way of another.
pub async fn several_feeds_from_one_table(backend: Arc<dyn Backend>) {
    let (store, one, session) = orders(&backend, 1).await;
    let table = TableName::unqualified("orders");
    let four = store
        .create_feed(&captured(
            "by-customer",
            table.clone(),
            Some("customer_id"),
            4,
        ))
        .await
        .unwrap();
    let notes = store
        .create_feed(&captured("by-note", table, Some("note"), 2))
        .await
        .unwrap();
    session
        .run("insert into orders values (1, 6, 'a'), (2, 7, 'b')")
        .await;
    assert_eq!(rows(&backend, &*store, &one, 0).await.len(), 2);
    assert_eq!(rows(&backend, &*store, &four, 2).await[0]["id"], 1);
    assert_eq!(rows(&backend, &*store, &four, 3).await[0]["id"], 2);
    let by_note = rows(&backend, &*store, &notes, 0).await.len()
        + rows(&backend, &*store, &notes, 1).await.len();
    assert_eq!(by_note, 2);
    store.drop_feed(&one).await.unwrap();
    session.run("delete from orders where id = 1").await;
    assert_eq!(
        rows(&backend, &*store, &four, 2).await,
        [Value::Null, Value::Null]
    );
}

/// Integers modulo, text by the hash, the same on every database.
pub async fn the_shard_is_that_of_the_documented_formula(backend: Arc<dyn Backend>) {
    const SHARDS: i16 = 7;
    let (store, by_number, session) = orders(&backend, SHARDS).await;
    let table = TableName::unqualified("orders");
    let by_text = store
        .create_feed(&captured("by-note", table, Some("note"), SHARDS))
        .await
        .unwrap();
    let long = "x".repeat(300);
    let rows = [
        (1, 0, "alice"),
        (2, -1, "bob"),
        (3, 6, "ç"),
        (4, -2_147_483_648, "customer-1"),
        (5, 2_147_483_647, ""),
        (6, 13, "it''s"),
        (7, -7, "日本語🙂"),
        (8, 8, long.as_str()),
    ];
    for (id, customer, note) in rows {
        session
            .run(&format!(
                "insert into orders values ({id}, {customer}, '{note}')"
            ))
            .await;
    }
    backend.settle(&*store).await;
    for (id, customer, note) in rows {
        let note = note.replace("''", "'");
        for (feed, value) in [
            (&by_number, ShardValue::Integer(customer)),
            (&by_text, ShardValue::Text(&note)),
        ] {
            let shard = shard_of(value, SHARDS);
            let found = read_all(&*store, feed, shard, 100).await;
            assert!(
                found.iter().any(|change| row(change)["id"] == id),
                "{value:?} is not in shard {shard} of {}",
                feed.name
            );
        }
    }
}

/// And when the value changes, the change is told where the row was and where it is.
pub async fn a_row_without_a_shard_value_goes_to_shard_0(backend: Arc<dyn Backend>) {
    let (store, feed, session) = orders(&backend, 4).await;
    session
        .run("insert into orders values (1, null, 'a')")
        .await;
    assert_eq!(rows(&backend, &*store, &feed, 0).await.len(), 1);
    session.run("update orders set customer_id = 5").await;
    assert_eq!(
        rows(&backend, &*store, &feed, 0).await.len(),
        2,
        "readers of the shard it left are told"
    );
    assert_eq!(rows(&backend, &*store, &feed, 1).await.len(), 1);
}

/// Whatever a name contains, it is quoted.
pub async fn names_that_need_quotes(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    let names = [
        ("order", "group"),
        ("weird]name", "co]lumn"),
        ("UPPER case", "MiXed"),
        ("quo\"te", "col\"umn"),
        ("it's", "col'umn"),
        ("back`tick", "new\nline"),
        ("$dollar$ %s {}", "{table} $1"),
        ("{feed} $capture$", "$capture$ {new_key}"),
        ("ünïcode 🙂", "日本"),
    ];
    for (number, (table, column)) in names.into_iter().enumerate() {
        let quote = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let (table_sql, column_sql) = (quote(table), quote(column));
        session
            .run(&format!(
                "create table {table_sql} ({column_sql} text primary key, {} integer)",
                quote(&format!("{column} 2"))
            ))
            .await;
        let feed = store
            .create_feed(&captured(
                &format!("f{number}"),
                TableName::unqualified(table),
                Some(column),
                2,
            ))
            .await
            .unwrap_or_else(|e| panic!("{table}: {e:?}"));
        session
            .run(&format!("insert into {table_sql} values ('k', 5)"))
            .await;
        session
            .run(&format!("update {table_sql} set {column_sql} = 'k'"))
            .await;
        let shard = shard_of(ShardValue::Text("k"), 2);
        let found = rows(&backend, &*store, &feed, shard).await;
        let mut expected = serde_json::Map::new();
        let seen = if backend.words().keeps_case {
            column.to_owned()
        } else {
            column.to_lowercase()
        };
        expected.insert(seen.clone(), json!("k"));
        expected.insert(format!("{seen} 2"), json!(5));
        assert_eq!(found, [json!(expected), json!(expected)], "{table}");
        let backfill = store.backfill(&feed, 10).await;
        assert!(backfill.is_ok(), "{table}: {backfill:?}");
    }
}

/// Where a trigger names its columns, `doctor` says that writes fail, and whoever refreshes
/// triggers makes it anew. Elsewhere writes go on as if nothing had happened.
pub async fn a_renamed_key_is_followed(backend: Arc<dyn Backend>) {
    let (store, feed, session) = orders(&backend, 1).await;
    session.run("insert into orders values (1, 10, 'a')").await;
    session
        .run("alter table orders rename column id to number")
        .await;
    let problems = async || {
        let findings = store.capture_findings().await.unwrap();
        let bad = findings.iter().filter(|f| f.severity == Severity::Problem);
        bad.map(|f| f.subject.clone()).collect::<Vec<_>>()
    };
    if !backend.words().triggers_survive_renames {
        assert_eq!(problems().await, ["feed orders"]);
        let write = session.execute("insert into orders values (2, 20, 'b')");
        assert!(write.await.is_err(), "a stale trigger fails the write");
        store.refresh_triggers().await.unwrap();
    }
    assert_eq!(problems().await, [""; 0]);
    assert!(store.refresh_triggers().await.unwrap().is_empty());
    session.run("insert into orders values (3, 30, 'c')").await;
    backend.settle(&*store).await;
    assert_eq!(ids(&*store, &feed, 0).await.len(), 2);
    if !backend.words().triggers_survive_renames {
        let found = rows(&backend, &*store, &feed, 0).await;
        let expected = |id, by, note| json!({"number": id, "customer_id": by, "note": note});
        assert_eq!(found, [expected(1, 10, "a"), expected(3, 30, "c")]);
    }
}

/// Keys of several columns, of text, and of both.
pub async fn composite_and_text_keys(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session
        .run(
            "create table line (order_id integer, product text, amount integer, \
             primary key (product, order_id))",
        )
        .await;
    let feed = store
        .create_feed(&captured("lines", TableName::unqualified("line"), None, 1))
        .await
        .unwrap();
    session
        .run(
            "insert into line values (1, 'a', 10), (1, 'b\"c', 20), (2, 'a', 30), \
             (2, '1', 40), (1, '', 50)",
        )
        .await;
    session
        .run("update line set amount = 31 where order_id = 2 and product = 'a'")
        .await;
    session
        .run("delete from line where order_id = 1 and product = 'a'")
        .await;
    let amounts: Vec<Value> = rows(&backend, &*store, &feed, 0)
        .await
        .iter()
        .map(|row| row["amount"].clone())
        .collect();
    let expected = [
        Value::Null,
        json!(20),
        json!(31),
        json!(40),
        json!(50),
        json!(31),
        Value::Null,
    ];
    assert_eq!(amounts, expected);
}

/// Readers who keep a copy must be able to remove what is no longer there.
pub async fn a_changed_primary_key_shows_the_old_row_gone_and_the_new_one_there(
    backend: Arc<dyn Backend>,
) {
    let (store, feed, session) = orders(&backend, 1).await;
    session.run("insert into orders values (1, 10, 'a')").await;
    session.run("update orders set id = 2 where id = 1").await;
    let found = rows(&backend, &*store, &feed, 0).await;
    let new = json!({"id": 2, "customer_id": 10, "note": "a"});
    assert_eq!(found, [Value::Null, Value::Null, new]);
}

/// What JSON can hold, and what it has to write as text.
pub async fn rows_come_with_every_type_of_value(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session
        .run(
            "create table kinds (id integer primary key, big bigint, ratio double precision, \
             words text, absent text)",
        )
        .await;
    let feed = store
        .create_feed(&captured("kinds", TableName::unqualified("kinds"), None, 1))
        .await
        .unwrap();
    session
        .run(
            "insert into kinds values \
             (1, 9007199254740993, 0.1, 'tab\tquote\"back\\slash/', null), \
             (2, -9223372036854775807, 1.5, '日本語🙂', '')",
        )
        .await;
    let found = rows(&backend, &*store, &feed, 0).await;
    assert_eq!(
        found,
        [
            json!({"id": 1, "big": 9007199254740993i64, "ratio": 0.1,
                   "words": "tab\tquote\"back\\slash/", "absent": null}),
            json!({"id": 2, "big": -9223372036854775807i64, "ratio": 1.5,
                   "words": "日本語🙂", "absent": ""}),
        ]
    );
}

/// Its changes could not be told apart.
pub async fn a_table_without_a_primary_key_is_refused(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session.run("create table loose (note text)").await;
    let error = store
        .create_feed(&captured("f", TableName::unqualified("loose"), None, 1))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error:?}");
    assert!(error.message().contains("loose"), "{error:?}");
    assert!(error.message().contains("primary key"), "{error:?}");
    assert!(store.feeds().await.unwrap().is_empty());
}

/// Nothing is ever written to it.
pub async fn a_view_is_refused(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session.run(ORDERS).await;
    session
        .run("create view recent as select * from orders where id > 5")
        .await;
    let error = store
        .create_feed(&captured("f", TableName::unqualified("recent"), None, 1))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error:?}");
    assert!(error.message().contains("recent"), "{error:?}");
    assert!(error.message().contains("view"), "{error:?}");
    assert!(store.feeds().await.unwrap().is_empty());
}

/// Also in the middle of its life, and for the next feed on it.
pub async fn a_dropped_feed_leaves_the_table_writable(backend: Arc<dyn Backend>) {
    let (store, feed, session) = orders(&backend, 2).await;
    session.run("insert into orders values (1, 1, 'a')").await;
    store.drop_feed(&feed).await.unwrap();
    session.run("insert into orders values (2, 2, 'b')").await;
    session.run("update orders set note = 'c'").await;
    session.run("delete from orders where id = 1").await;
    let again = store
        .create_feed(&captured(
            "orders",
            TableName::unqualified("orders"),
            None,
            1,
        ))
        .await
        .unwrap();
    session.run("insert into orders values (3, 3, 'd')").await;
    let found = rows(&backend, &*store, &again, 0).await;
    assert_eq!(found, [json!({"id": 3, "customer_id": 3, "note": "d"})]);
}

/// Row by row, in order of the statement's rows.
pub async fn many_rows_in_one_statement_are_one_change_each(backend: Arc<dyn Backend>) {
    let (store, feed, session) = orders(&backend, 1).await;
    session
        .run(
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < 500) \
             insert into orders select i, i, 'x' from n",
        )
        .await;
    session.run("update orders set note = 'y'").await;
    session.run("delete from orders where id > 400").await;
    backend.settle(&*store).await;
    let changes = ids(&*store, &feed, 0).await;
    assert_eq!(changes.len(), 500 + 500 + 100);
    let mut unique = changes.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), changes.len(), "every change has its own id");
}
