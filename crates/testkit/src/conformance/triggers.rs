//! Event triggers as definitions: making, replacing, pausing and removing them, and what is
//! refused.

use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{
    CleanUp, EventStatus, FeedBinding, Growth, Header, Kind, OrderBy, Retry, Setting, Severity,
    Sink, Store, TableName, TriggerDefinition, TriggerName, Updates, Verdict, Webhook,
};
use serde_json::json;

use crate::backend::{Backend, Session, name};
use crate::events::{LEASE, claim, everything, finish, key, log, raw, told, wanted};

const ORDERS: &str = "create table orders (id integer primary key, customer text, total integer)";

async fn orders(backend: &Arc<dyn Backend>) -> (Arc<dyn Store>, Box<dyn Session>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session.run(ORDERS).await;
    (store, session)
}

/// A definition in which nothing is left out.
fn full() -> TriggerDefinition {
    let mut full = everything("Full-1_x", "orders");
    full.capture.update = Updates::Of(vec!["customer".into(), "total".into()]);
    full.capture.payload = Some(vec!["id".into(), "total".into()]);
    full.capture.condition = Some("new.total > 10 or old.total > 10".into());
    full.capture.order_by = Some(OrderBy::Column("customer".into()));
    full.capture.feed = Some(FeedBinding {
        feed: name("order-events"),
        shard_by: Some("total".into()),
    });
    full.capture.manual = true;
    full.delivery.sink = Sink::Webhook(Webhook {
        headers: vec![Header {
            name: "X-Key".into(),
            value: Setting::FromEnv("ORDERS_KEY".into()),
        }],
        secrets_from_env: vec!["NEW".into(), "OLD".into()],
        ..Webhook::new(Setting::FromEnv("ORDERS_HOOK".into()))
    });
    full.delivery.format = changefeed_core::Format::CloudeventsBinary;
    full.delivery.retry = Retry {
        num_retries: 7,
        interval: Duration::from_millis(1500),
        timeout: Duration::from_secs(5),
        growth: Growth::Exponential {
            cap: Duration::from_secs(60),
        },
        final_statuses: vec![400, 422],
        max_retry_after: Duration::from_secs(120),
    };
    full.delivery.concurrency = Some(3);
    full.delivery.concurrency_overall = Some(5);
    full.delivery.clean_up = Some(CleanUp {
        after: Duration::from_secs(3600),
        dead_letters: true,
    });
    full
}

/// Every instance that looks sees what one of them was told, in the order of the names.
pub async fn a_definition_is_kept_whole_and_seen_by_every_instance(backend: Arc<dyn Backend>) {
    let (store, _) = orders(&backend).await;
    let made = store.create_trigger(&full(), false).await.unwrap();
    store
        .create_trigger(&everything("another", "orders"), false)
        .await
        .unwrap();
    let other = backend.store().await;
    let seen = other.triggers().await.unwrap();
    let names: Vec<&str> = seen.iter().map(|t| t.definition.name.as_str()).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    assert_eq!(names, sorted);
    let found = seen.iter().find(|t| t.id == made.id).unwrap();
    assert_eq!(found, &made);
    assert_eq!(made.definition.capture, full().capture);
    assert_eq!(made.definition.delivery, full().delivery);
    assert_eq!(made.definition.table.name, "orders");
    assert_eq!(made.paused, None);
}

/// A name is taken once, unless the trigger is to be replaced.
pub async fn a_trigger_name_is_taken_once(backend: Arc<dyn Backend>) {
    let (store, session) = orders(&backend).await;
    let definition = everything("orders", "orders");
    store.create_trigger(&definition, false).await.unwrap();
    let error = store.create_trigger(&definition, false).await.unwrap_err();
    assert_eq!(error.kind(), Kind::AlreadyExists, "{error}");
    assert!(error.message().contains("'orders'"), "{error}");
    assert!(error.advice().unwrap().contains("replace"), "{error}");
    session.run("insert into orders values (1, 'a', 1)").await;
    assert_eq!(told(&*store).await.len(), 1, "nothing was doubled");
}

/// The pattern of the seed, by whichever way a name gets into the database.
pub async fn names_that_no_trigger_may_have_are_refused(backend: Arc<dyn Backend>) {
    for bad in ["", "1a", "_a", "-a", "a b", "a.b", "ä", "a'b", "a;b"] {
        assert!(bad.parse::<TriggerName>().is_err(), "{bad}");
    }
    let (store, session) = orders(&backend).await;
    let longest = format!("x{}", "-_9Z".repeat(24));
    let made = store
        .create_trigger(&everything(&longest, "orders"), false)
        .await
        .unwrap();
    session.run("insert into orders values (1, 'a', 1)").await;
    assert_eq!(log(&*store).await[0].event.trigger.as_str(), longest);
    assert_eq!(claim(&*store, &made, 1, "me", LEASE).await.len(), 1);
}

/// The events that wait are the new definition's; what it captures from now on as well.
pub async fn a_replaced_trigger_keeps_its_events_and_its_pause(backend: Arc<dyn Backend>) {
    let (store, session) = orders(&backend).await;
    let before = store
        .create_trigger(&everything("orders", "orders"), false)
        .await
        .unwrap();
    session.run("insert into orders values (1, 'a', 1)").await;
    store.pause_trigger(&before, Some("a visit")).await.unwrap();
    let mut definition = everything("orders", "orders");
    definition.capture.update = Updates::Ignored;
    definition.capture.payload = Some(vec!["id".into()]);
    let after = store.create_trigger(&definition, true).await.unwrap();
    assert_eq!(after.id, before.id);
    assert_eq!(after.paused.as_deref(), Some("a visit"));
    session
        .run("insert into orders values (2, 'b', 1); update orders set total = 2")
        .await;
    assert_eq!(
        told(&*store).await,
        [
            (
                "INSERT",
                json!(null),
                json!({"id": 1, "customer": "a", "total": 1})
            ),
            ("INSERT", json!(null), json!({"id": 2})),
        ]
    );
    store.pause_trigger(&after, None).await.unwrap();
    assert_eq!(claim(&*store, &after, 10, "me", LEASE).await.len(), 2);
    // With `replace` it need not have been there.
    store
        .create_trigger(&everything("new", "orders"), true)
        .await
        .unwrap();
    assert_eq!(store.triggers().await.unwrap().len(), 2);
}

/// It leaves the table that it watched alone from then on.
pub async fn a_trigger_may_move_to_another_table(backend: Arc<dyn Backend>) {
    let (store, session) = orders(&backend).await;
    session
        .run("create table other (n integer primary key)")
        .await;
    let before = store
        .create_trigger(&everything("t", "orders"), false)
        .await
        .unwrap();
    let after = store
        .create_trigger(&everything("t", "other"), true)
        .await
        .unwrap();
    assert_eq!(before.id, after.id);
    session
        .run("insert into orders values (1, 'a', 1); insert into other values (2)")
        .await;
    assert_eq!(
        told(&*store).await,
        [("INSERT", json!(null), json!({"n": 2}))]
    );
    let event = &log(&*store).await[0].event;
    assert_eq!(event.table.name, "other");
}

/// Nothing is handed out while it is paused, and nothing is missed.
pub async fn a_paused_trigger_captures_and_delivers_nothing(backend: Arc<dyn Backend>) {
    let (store, session) = orders(&backend).await;
    let trigger = store
        .create_trigger(&everything("orders", "orders"), false)
        .await
        .unwrap();
    session.run("insert into orders values (1, 'a', 1)").await;
    store.pause_trigger(&trigger, Some("why")).await.unwrap();
    let seen = &store.triggers().await.unwrap()[0];
    assert_eq!(seen.paused.as_deref(), Some("why"));
    session.run("insert into orders values (2, 'a', 1)").await;
    assert!(claim(&*store, &trigger, 10, "me", LEASE).await.is_empty());
    store.pause_trigger(&trigger, None).await.unwrap();
    assert_eq!(store.triggers().await.unwrap()[0].paused, None);
    assert_eq!(claim(&*store, &trigger, 10, "me", LEASE).await.len(), 2);
}

/// What was not delivered is archived and stays; the table is the application's again, and the
/// name is free.
pub async fn a_dropped_trigger_leaves_its_events(backend: Arc<dyn Backend>) {
    let (store, session) = orders(&backend).await;
    let definition = everything("orders", "orders");
    let trigger = store.create_trigger(&definition, false).await.unwrap();
    session
        .run("insert into orders values (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
        .await;
    let held = claim(&*store, &trigger, 2, "me", LEASE).await;
    finish(&*store, &held[0], Verdict::Delivered).await;
    store.drop_trigger(&trigger).await.unwrap();
    assert!(store.triggers().await.unwrap().is_empty());
    let left = store
        .claim_events(&[wanted(&trigger, 10)], "you", LEASE)
        .await;
    assert!(left.unwrap().is_empty());
    let renewed = store.renew_events(&[held[1].claim()], LEASE).await.unwrap();
    assert!(renewed.is_empty(), "nobody holds what is archived");
    // The attempt that was under way is over: in the log, but too late to decide.
    let late = store
        .finish_events(&[crate::events::finished(&held[1], Verdict::Delivered)])
        .await
        .unwrap();
    assert_eq!(late, [held[1].claim()]);
    let statuses: Vec<EventStatus> = log(&*store).await.iter().map(|e| e.status).collect();
    assert_eq!(
        statuses,
        [
            EventStatus::Delivered,
            EventStatus::Archived,
            EventStatus::Archived
        ]
    );
    session.run("update orders set total = 5").await;
    session.run("delete from orders").await;
    assert_eq!(log(&*store).await.len(), 3);
    let error = store.drop_trigger(&trigger).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
    let error = store.pause_trigger(&trigger, None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
    // The name may be used again; the old events are not the new trigger's.
    let again = store.create_trigger(&definition, false).await.unwrap();
    assert_ne!(again.id, trigger.id);
    session.run("insert into orders values (4, 'd', 4)").await;
    assert_eq!(claim(&*store, &again, 10, "me", LEASE).await.len(), 1);
}

/// Refused with the name of what is missing, and nothing is left behind.
pub async fn what_is_not_there_is_named_and_nothing_is_made(backend: Arc<dyn Backend>) {
    let (store, session) = orders(&backend).await;
    session
        .run("create view v as select * from orders; create table bare (a integer)")
        .await;
    type Spoil = fn(&mut TriggerDefinition);
    let spoils: [(Spoil, Kind, &str); 9] = [
        (
            |d| d.table = TableName::unqualified("missing"),
            Kind::NotFound,
            "missing",
        ),
        (
            |d| d.capture.update = Updates::Of(vec!["id".into(), "nope".into()]),
            Kind::NotFound,
            "nope",
        ),
        (
            |d| d.capture.payload = Some(vec!["nope".into()]),
            Kind::NotFound,
            "nope",
        ),
        (
            |d| d.capture.order_by = Some(OrderBy::Column("nope".into())),
            Kind::NotFound,
            "nope",
        ),
        (
            |d| {
                d.capture.feed = Some(FeedBinding {
                    feed: name("f"),
                    shard_by: Some("nope".into()),
                });
            },
            Kind::NotFound,
            "nope",
        ),
        (
            |d| d.table = TableName::unqualified("v"),
            Kind::Invalid,
            "view",
        ),
        (
            |d| {
                d.table = TableName::unqualified("bare");
                d.capture.order_by = Some(OrderBy::Key);
            },
            Kind::Invalid,
            "no primary key",
        ),
        (
            |d| d.capture.condition = Some("new.nope = 1".into()),
            Kind::Invalid,
            "condition",
        ),
        (
            |d| d.capture.condition = Some("true); drop table orders; --".into()),
            Kind::Invalid,
            "condition",
        ),
    ];
    for (spoil, kind, word) in spoils {
        let mut definition = everything("t", "orders");
        spoil(&mut definition);
        let error = store.create_trigger(&definition, false).await.unwrap_err();
        // A column that a condition names may be found missing as such.
        let missing = error.kind() == Kind::NotFound && error.message().contains("nope");
        assert!(error.kind() == kind || missing, "{word}: {error}");
        assert!(error.message().contains(word) || missing, "{word}: {error}");
        assert!(store.triggers().await.unwrap().is_empty(), "{word}");
    }
    session.run("insert into orders values (1, 'a', 1)").await;
    assert!(log(&*store).await.is_empty());
    assert!(
        store.feeds().await.unwrap().is_empty(),
        "a feed was left behind"
    );
}

/// Replaced by something that makes no sense, it stays what it was.
pub async fn a_replacement_that_is_refused_changes_nothing(backend: Arc<dyn Backend>) {
    let (store, session) = orders(&backend).await;
    let kept = store
        .create_trigger(&everything("t", "orders"), false)
        .await
        .unwrap();
    let mut definition = everything("t", "orders");
    definition.capture.condition = Some("new.nope = 1".into());
    store.create_trigger(&definition, true).await.unwrap_err();
    assert_eq!(store.triggers().await.unwrap(), [kept]);
    session.run("insert into orders values (1, 'a', 1)").await;
    assert_eq!(log(&*store).await.len(), 1);
}

/// By hand, where that is allowed: the payload as it was given.
pub async fn an_event_by_hand(backend: Arc<dyn Backend>) {
    let (store, session) = orders(&backend).await;
    let mut definition = everything("t", "orders");
    let strict = store.create_trigger(&definition, false).await.unwrap();
    let error = store
        .invoke_trigger(&strict, &raw("{}"), key())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    assert!(error.message().contains("by hand"), "{error}");
    definition.capture.manual = true;
    definition.capture.order_by = Some(OrderBy::Key);
    let trigger = store.create_trigger(&definition, true).await.unwrap();
    let payload = "{\"b\": 12345678901234567890, \"a\":[1.0,\"é\\u0000\"]}";
    let id = store
        .invoke_trigger(&trigger, &raw(payload), key())
        .await
        .unwrap();
    session.run("insert into orders values (1, 'a', 1)").await;
    let events = log(&*store).await;
    assert_eq!(events[0].event.id, id);
    assert_eq!(events[0].event.op.as_str(), "MANUAL");
    assert!(events[0].event.old.is_none());
    assert_eq!(events[0].event.new.as_ref().unwrap().get(), payload);
    let held = claim(&*store, &trigger, 10, "me", LEASE).await;
    assert_eq!(held.len(), 2, "an event by hand waits for no key");
    store.drop_trigger(&trigger).await.unwrap();
    let error = store
        .invoke_trigger(&trigger, &raw("{}"), key())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
}

/// A trigger that only people fire needs no database trigger, and is none the worse for it.
pub async fn a_trigger_for_events_by_hand_alone(backend: Arc<dyn Backend>) {
    let (store, session) = orders(&backend).await;
    let mut definition = everything("t", "orders");
    definition.capture.insert = false;
    definition.capture.update = Updates::Ignored;
    definition.capture.delete = false;
    definition.capture.manual = true;
    let trigger = store.create_trigger(&definition, false).await.unwrap();
    session.run("insert into orders values (1, 'a', 1)").await;
    assert!(log(&*store).await.is_empty());
    store
        .invoke_trigger(&trigger, &raw("1"), key())
        .await
        .unwrap();
    assert_eq!(told(&*store).await, [("MANUAL", json!(null), json!(1))]);
    let bad: Vec<_> = store
        .refresh_triggers()
        .await
        .unwrap()
        .into_iter()
        .chain(store.capture_findings().await.unwrap())
        .filter(|f| f.severity > Severity::Note)
        .collect();
    assert!(bad.is_empty(), "{bad:?}");
}

/// Twenty instances that create the same trigger: one succeeds, and everything is captured once.
pub async fn promise_12_twenty_instances_create_one_trigger(backend: Arc<dyn Backend>) {
    let (store, session) = orders(&backend).await;
    let mut tasks = Vec::new();
    for _ in 0..20 {
        let backend = Arc::clone(&backend);
        tasks.push(tokio::spawn(async move {
            let definition = everything("t", "orders");
            backend
                .store()
                .await
                .create_trigger(&definition, false)
                .await
        }));
    }
    let mut made = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok(_) => made += 1,
            Err(error) => assert_eq!(error.kind(), Kind::AlreadyExists, "{error}"),
        }
    }
    assert_eq!(made, 1);
    session.run("insert into orders values (1, 'a', 1)").await;
    assert_eq!(log(&*store).await.len(), 1);
}

/// Nothing of ours is left on the application's tables.
pub async fn uninstalling_takes_the_triggers_along(backend: Arc<dyn Backend>) {
    let (store, session) = orders(&backend).await;
    store.create_trigger(&full(), false).await.unwrap();
    store
        .create_trigger(&everything("t", "orders"), false)
        .await
        .unwrap();
    session.run("insert into orders values (1, 'a', 20)").await;
    assert_eq!(log(&*store).await.len(), 2);
    store.uninstall().await.unwrap();
    session
        .run("insert into orders values (2, 'b', 1); update orders set total = 2; delete from orders")
        .await;
    store.migrate().await.unwrap();
    assert!(store.triggers().await.unwrap().is_empty());
    assert!(log(&*store).await.is_empty());
}
