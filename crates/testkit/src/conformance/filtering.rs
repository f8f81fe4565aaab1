//! Feeds that show some rows or some columns of a table.

use std::sync::Arc;

use changefeed_core::{Content, Feed, Kind, Op, Source, Store, TableName};
use serde_json::{Value, json};

use super::replaying::replay;
use super::telling::{ORDERS, images};
use crate::backend::{Backend, Session, captured, read_all};

/// A feed of `orders` with this condition and these columns.
async fn filtered(
    backend: &Arc<dyn Backend>,
    before: &[&str],
    when: Option<&str>,
    columns: Option<&[&str]>,
) -> (Arc<dyn Store>, Feed, Box<dyn Session>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session.run(ORDERS).await;
    for sql in before {
        session.run(sql).await;
    }
    let new = changefeed_core::NewFeed {
        source: Some(Source::Captured {
            table: TableName::unqualified("orders"),
            shard_by: None,
            images: false,
            when: when.map(str::to_owned),
            columns: columns.map(|all| all.iter().map(|c| (*c).to_owned()).collect()),
        }),
        ..captured("orders", TableName::unqualified("orders"), None, 1)
    };
    let feed = store.create_feed(&new).await.unwrap();
    assert!(feed.source.as_ref().unwrap().keeps_images());
    assert_eq!(store.feeds().await.unwrap()[0].source, feed.source);
    (store, feed, session)
}

/// Operation, key, old and new.
async fn told(
    backend: &Arc<dyn Backend>,
    store: &dyn Store,
    feed: &Feed,
) -> Vec<(Op, Value, Value, Value)> {
    backend.settle(store).await;
    let changes = read_all(store, feed, 0, 100).await;
    let tell = |change: &changefeed_core::Change| {
        let (op, old, new, _) = images(change);
        assert!(matches!(change.content, Content::Images { .. }));
        let key = serde_json::from_str(change.key.as_ref().unwrap().get()).unwrap();
        (op, key, old, new)
    };
    changes.iter().map(tell).collect()
}

/// A row that stops matching is a delete, one that begins to match an insert.
pub async fn a_row_comes_and_goes_with_the_condition(backend: Arc<dyn Backend>) {
    let when = "note in ('in', 'also in') and customer_id > 5";
    let (store, feed, session) = filtered(&backend, &[], Some(when), None).await;
    for write in [
        "insert into orders values (1, 10, 'out'), (2, 20, 'in'), (3, 5, 'in'), (4, 40, null)",
        "update orders set note = 'in' where id = 1",
        "update orders set note = 'also in' where id = 1",
        "update orders set customer_id = 1 where id = 1",
        "update orders set customer_id = 2 where id = 1",
        "update orders set id = 7 where id = 2",
        "update orders set id = 8, note = 'out' where id = 7",
        "update orders set id = 9, note = 'in' where id = 8",
        "delete from orders where id = 3",
        "delete from orders where id = 9",
    ] {
        session.run(write).await;
    }
    let row = |id: i64, customer: i64, note: &str| json!({"id": id, "customer_id": customer, "note": note});
    let key = |id: i64| json!({ "id": id });
    let none = || Value::Null;
    let expected = vec![
        (Op::Insert, key(2), none(), row(2, 20, "in")),
        (Op::Insert, key(1), none(), row(1, 10, "in")),
        (Op::Update, key(1), row(1, 10, "in"), row(1, 10, "also in")),
        (Op::Delete, key(1), row(1, 10, "also in"), none()),
        (Op::Delete, key(2), row(2, 20, "in"), none()),
        (Op::Insert, key(7), none(), row(7, 20, "in")),
        (Op::Delete, key(7), row(7, 20, "in"), none()),
        (Op::Insert, key(9), none(), row(9, 20, "in")),
        (Op::Delete, key(9), row(9, 20, "in"), none()),
    ];
    assert_eq!(told(&backend, &*store, &feed).await, expected);
}

/// Whatever is written.
pub async fn a_replay_of_a_filtered_feed_equals_its_rows(backend: Arc<dyn Backend>) {
    let when = "customer_id in (1, 2, 5, 6) and note <> 'u7'";
    let (store, feed, session) = filtered(&backend, &[], Some(when), None).await;
    replay(&backend, &*store, &feed, &*session, when).await;
}

/// And what changes nothing else is no change of the feed.
pub async fn columns_that_are_left_out_are_not_told(backend: Arc<dyn Backend>) {
    let (store, feed, session) = filtered(&backend, &[], None, Some(&["id", "note"])).await;
    for write in [
        "insert into orders values (1, 10, 'a')",
        "update orders set customer_id = 11 where id = 1",
        "update orders set customer_id = 12, note = null where id = 1",
        "update orders set note = null where id = 1",
        "update orders set note = 'A' where id = 1",
        "update orders set note = 'a' where id = 1",
        "delete from orders where id = 1",
    ] {
        session.run(write).await;
    }
    let row = |note: Value| json!({"id": 1, "note": note});
    let (a, big, null) = (row(json!("a")), row(json!("A")), row(Value::Null));
    let found: Vec<_> = told(&backend, &*store, &feed)
        .await
        .into_iter()
        .map(|(op, _, old, new)| (op, old, new))
        .collect();
    let expected = vec![
        (Op::Insert, Value::Null, a.clone()),
        (Op::Update, a.clone(), null.clone()),
        (Op::Update, null, big.clone()),
        (Op::Update, big, a.clone()),
        (Op::Delete, a, Value::Null),
    ];
    assert_eq!(found, expected);
}

/// Also where whole batches have none.
pub async fn a_filtered_backfill_has_the_rows_of_the_feed(backend: Arc<dyn Backend>) {
    let rows: Vec<String> = (1..=20)
        .map(|id| format!("({id}, {}, 'n')", if id == 3 || id > 17 { 1 } else { 0 }))
        .collect();
    let insert = format!("insert into orders values {}", rows.join(", "));
    let columns: &[&str] = &["customer_id"];
    let (store, feed, _) =
        filtered(&backend, &[&insert], Some("customer_id = 1"), Some(columns)).await;
    while !store.backfill(&feed, 4).await.unwrap().finished {}
    let found = told(&backend, &*store, &feed).await;
    let expected: Vec<_> = [3, 18, 19, 20]
        .into_iter()
        .map(|id| {
            let image = json!({"customer_id": 1});
            (Op::Backfill, json!({ "id": id }), Value::Null, image)
        })
        .collect();
    assert_eq!(found, expected);
}

/// With a sentence, and nothing is left of it.
pub async fn a_filter_that_does_not_fit_is_refused(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    backend.session().await.run(ORDERS).await;
    for (when, columns) in [
        (Some("nothing = 1"), None),
        (Some("new.note = 'a'"), None),
        (Some("lower(note) = 'a'"), None),
        (Some(""), None),
        (None, Some(vec!["nothing".to_owned()])),
        (None, Some(vec![])),
    ] {
        let mut new = captured("orders", TableName::unqualified("orders"), None, 1);
        new.source = Some(Source::Captured {
            table: TableName::unqualified("orders"),
            shard_by: None,
            images: true,
            when: when.map(str::to_owned),
            columns: columns.clone(),
        });
        let error = store.create_feed(&new).await.unwrap_err();
        let kind = error.kind();
        assert!(
            matches!(kind, Kind::Invalid | Kind::NotFound),
            "{when:?} {columns:?}: {error:?}"
        );
        assert!(store.feeds().await.unwrap().is_empty());
    }
}
