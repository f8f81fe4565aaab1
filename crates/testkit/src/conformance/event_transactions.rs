//! Capture is part of the writer's own transaction: what it says, in which order, and where else it
//! appears.

use std::sync::Arc;

use changefeed_core::{
    Content, EventTrigger, FeedBinding, NewFeed, Store, TableName, TriggerDefinition,
};
use serde_json::{Value, json};

use crate::backend::{Backend, Session, eventually_true, name, read_all};
use crate::events::{everything, key, log, raw, told, told_by};

const ORDERS: &str = "create table orders (id integer primary key, customer text, total integer)";

/// A store with one trigger on one table.
async fn scene(
    backend: &Arc<dyn Backend>,
    table: &str,
    change: impl FnOnce(&mut TriggerDefinition),
) -> (Arc<dyn Store>, Box<dyn Session>, EventTrigger) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session.run(table).await;
    let mut definition = everything("t", "orders");
    change(&mut definition);
    let trigger = store.create_trigger(&definition, false).await.unwrap();
    (store, session, trigger)
}

fn order(id: i64, customer: impl Into<Value>, total: impl Into<Value>) -> Value {
    json!({"id": id, "customer": customer.into(), "total": total.into()})
}

/// Promise 4 for events: the event is in the writer's own transaction.
pub async fn promise_4_what_was_rolled_back_makes_no_event(backend: Arc<dyn Backend>) {
    let (store, session, _) = scene(&backend, ORDERS, |_| {}).await;
    session.run(backend.words().begin).await;
    session.run("insert into orders values (1, 'a', 1)").await;
    session.run("update orders set total = 2").await;
    session.run("rollback").await;
    session.run(backend.words().begin).await;
    session.run("insert into orders values (2, 'a', 1)").await;
    session.run("savepoint s").await;
    session.run("insert into orders values (3, 'a', 1)").await;
    session.run("rollback to s").await;
    session.run("insert into orders values (4, 'a', 1)").await;
    session.run("release s").await;
    let other = backend.store().await;
    assert!(log(&*other).await.is_empty(), "nothing before the commit");
    session.run("commit").await;
    // A statement that fails half way leaves nothing either.
    assert!(
        session
            .execute("insert into orders values (5, 'a', 1), (2, 'a', 1)")
            .await
            .is_err()
    );
    assert_eq!(
        told(&*store).await,
        [
            ("INSERT", Value::Null, order(2, "a", 1)),
            ("INSERT", Value::Null, order(4, "a", 1)),
        ]
    );
}

/// Promise 11 for capture: a writer that is gone in mid-transaction has made no event.
pub async fn promise_11_a_writer_cut_off_makes_no_event(backend: Arc<dyn Backend>) {
    let (store, session, _) = scene(&backend, ORDERS, |_| {}).await;
    let doomed = backend.session().await;
    doomed.run(backend.words().begin).await;
    doomed.run("insert into orders values (1, 'a', 1)").await;
    doomed.kill().await;
    eventually_true("the row can be written by another", async || {
        session
            .execute("insert into orders values (1, 'b', 2)")
            .await
            .is_ok()
    })
    .await;
    assert_eq!(
        told(&*store).await,
        [("INSERT", Value::Null, order(1, "b", 2))]
    );
}

/// What a transaction says about itself arrives with its events, and with no others.
pub async fn session_variables_and_trace_arrive_with_the_event(backend: Arc<dyn Backend>) {
    let (store, session, _) = scene(&backend, ORDERS, |_| {}).await;
    let words = backend.words();
    let variables = "{\"x-user\":\"7\",\"roles\":[1,2]}";
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    session.run(words.begin).await;
    session.run(&words.say(variables, trace)).await;
    session.run("insert into orders values (1, 'a', 1)").await;
    session.run("update orders set total = 2").await;
    session.run(words.said).await;
    session.run("commit").await;
    // The same session, another transaction.
    session.run(words.begin).await;
    session.run("delete from orders").await;
    session.run("commit").await;
    // The trace as an object.
    session.run(words.begin).await;
    session
        .run(&words.say("{}", &format!("{{\"traceparent\":\"{trace}\"}}")))
        .await;
    session.run("insert into orders values (2, 'a', 1)").await;
    session.run(words.said).await;
    session.run("commit").await;
    let log = log(&*store).await;
    let said = |n: usize| {
        let event = &log[n].event;
        (
            event.session_variables.as_ref().map(|v| v.get().to_owned()),
            crate::events::row(event.trace_context.as_deref()),
        )
    };
    let trace = json!({"traceparent": trace});
    assert_eq!(said(0), (Some(variables.to_owned()), trace.clone()));
    assert_eq!(said(1), (Some(variables.to_owned()), trace.clone()));
    assert_eq!(said(2), (None, Value::Null));
    assert_eq!(said(3), (Some("{}".to_owned()), trace));
}

/// Each captures for itself, whatever the others do.
pub async fn triggers_on_one_table_are_independent(backend: Arc<dyn Backend>) {
    let (store, session, trigger) = scene(&backend, ORDERS, |_| {}).await;
    let mut second = everything("second", "orders");
    second.capture.payload = Some(vec!["id".into()]);
    let second = store.create_trigger(&second, false).await.unwrap();
    session.run("insert into orders values (1, 'a', 1)").await;
    store.pause_trigger(&trigger, Some("x")).await.unwrap();
    session.run("insert into orders values (2, 'b', 1)").await;
    store.drop_trigger(&trigger).await.unwrap();
    session.run("insert into orders values (3, 'c', 1)").await;
    assert_eq!(told_by(&*store, "t").await.len(), 2);
    let ids: Vec<Value> = told_by(&*store, "second")
        .await
        .into_iter()
        .map(|(_, _, new)| new)
        .collect();
    assert_eq!(ids, [json!({"id": 1}), json!({"id": 2}), json!({"id": 3})]);
    let claimed = crate::events::claim(&*store, &second, 10, "me", crate::events::LEASE).await;
    assert_eq!(claimed.len(), 3);
}

/// Ordered by change id, within a transaction and from one to the next that began after it.
pub async fn promise_3_events_are_in_the_order_of_the_changes(backend: Arc<dyn Backend>) {
    let (store, session, _) = scene(&backend, ORDERS, |_| {}).await;
    let other = backend.session().await;
    for n in 0..20 {
        let writer = if n % 2 == 0 { &session } else { &other };
        writer.run(backend.words().begin).await;
        writer
            .run(&format!("insert into orders values ({n}, 'a', 0)"))
            .await;
        writer
            .run(&format!("update orders set total = {n} + 1 where id = {n}"))
            .await;
        writer
            .run(&format!("delete from orders where id = {n}"))
            .await;
        writer.run("commit").await;
    }
    let expected: Vec<(&str, i64)> = (0..20)
        .flat_map(|n| [("INSERT", n), ("UPDATE", n), ("DELETE", n)])
        .collect();
    let found: Vec<(&str, i64)> = told(&*store)
        .await
        .into_iter()
        .map(|(op, old, new)| {
            let row = if new.is_null() { old } else { new };
            (op, row["id"].as_i64().unwrap())
        })
        .collect();
    assert_eq!(found, expected);
}

/// With a feed named, events are changes of it: by shard, in order, with op, old and new.
pub async fn an_event_also_enters_its_feed(backend: Arc<dyn Backend>) {
    const SHARDS: i16 = 3;
    let store = backend.installed().await;
    let session = backend.session().await;
    session.run(ORDERS).await;
    let feed = store
        .create_feed(&NewFeed {
            shards: SHARDS,
            ..NewFeed::new(name("events"))
        })
        .await
        .unwrap();
    let mut definition = everything("t", "orders");
    definition.capture.manual = true;
    definition.capture.feed = Some(FeedBinding {
        feed: name("events"),
        shard_by: Some("total".into()),
    });
    let trigger = store.create_trigger(&definition, false).await.unwrap();
    session
        .run("insert into orders values (1, 'a', 4), (2, 'b', 5), (3, 'c', null)")
        .await;
    session
        .run("update orders set total = 8 where id = 1")
        .await;
    session.run("delete from orders where id = 2").await;
    session.run(backend.words().begin).await;
    session.run("insert into orders values (9, 'x', 4)").await;
    session.run("rollback").await;
    store
        .invoke_trigger(&trigger, &raw("true"), key())
        .await
        .unwrap();
    backend.settle(&*store).await;
    let feed = store
        .feeds()
        .await
        .unwrap()
        .into_iter()
        .find(|f| f.id == feed.id)
        .unwrap();
    let mut in_feed = Vec::new();
    for shard in 0..SHARDS {
        let changes = read_all(&*store, &feed, shard, 100).await;
        let told: Vec<(&str, Value, Value)> = changes
            .iter()
            .map(|change| match &change.content {
                Content::Images { old, new } => (
                    change.op.unwrap().as_str(),
                    crate::events::row(old.as_deref()),
                    crate::events::row(new.as_deref()),
                ),
                other => panic!("not an event: {other:?}"),
            })
            .collect();
        in_feed.extend(changes.iter().map(|c| c.change_id.unwrap()));
        let expected = match shard {
            0 => vec![
                ("insert", Value::Null, order(3, "c", Value::Null)),
                ("manual", Value::Null, json!(true)),
            ],
            1 => vec![("insert", Value::Null, order(1, "a", 4))],
            // The new row decides, and in a delete the old one.
            _ => vec![
                ("insert", Value::Null, order(2, "b", 5)),
                ("update", order(1, "a", 4), order(1, "a", 8)),
                ("delete", order(2, "b", 5), Value::Null),
            ],
        };
        assert_eq!(told, expected, "shard {shard}");
    }
    in_feed.sort_unstable();
    let logged: Vec<i64> = log(&*store)
        .await
        .iter()
        .map(|e| e.event.change_id)
        .collect();
    assert_eq!(in_feed, logged, "the feed and the log hold the same events");
    let error = store.drop_feed(&feed).await.unwrap_err();
    assert!(error.message().contains("trigger"), "{error}");
    session.run("insert into orders values (7, 'x', 4)").await;
    store.drop_trigger(&trigger).await.unwrap();
    store.drop_feed(&feed).await.unwrap();
    session.run("insert into orders values (8, 'x', 4)").await;
}

/// A feed that is not there is made; one with a table of its own is not for events.
pub async fn the_feed_of_a_trigger_is_made_or_refused(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session.run(ORDERS).await;
    store
        .create_feed(&crate::backend::captured(
            "rows",
            TableName::unqualified("orders"),
            None,
            1,
        ))
        .await
        .unwrap();
    store
        .create_feed(&NewFeed {
            shards: 2,
            ..NewFeed::new(name("two"))
        })
        .await
        .unwrap();
    for (feed, word) in [("rows", "rows"), ("two", "shard")] {
        let mut definition = everything("t", "orders");
        definition.capture.feed = Some(FeedBinding {
            feed: name(feed),
            shard_by: None,
        });
        let error = store.create_trigger(&definition, false).await.unwrap_err();
        assert_eq!(error.kind(), changefeed_core::Kind::Invalid, "{error}");
        assert!(error.message().contains(word), "{error}");
    }
    for trigger in ["one", "other"] {
        let mut definition = everything(trigger, "orders");
        definition.capture.feed = Some(FeedBinding {
            feed: name("made"),
            shard_by: None,
        });
        store.create_trigger(&definition, false).await.unwrap();
    }
    session.run("insert into orders values (1, 'a', 1)").await;
    backend.settle(&*store).await;
    let feeds = store.feeds().await.unwrap();
    let made = feeds.iter().find(|f| f.name == name("made")).unwrap();
    assert_eq!(
        read_all(&*store, made, 0, 10).await.len(),
        2,
        "several triggers may share a feed"
    );
}
