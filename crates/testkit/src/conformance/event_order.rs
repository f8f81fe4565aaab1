//! Events in the order of their keys, and limits over all instances.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{
    EventFilter, EventStatus, EventTrigger, LeasedEvent, OrderBy, Redelivery, Store,
    TriggerDefinition, Verdict,
};

use crate::backend::{Backend, Session};
use crate::events::{LEASE, NO_LEASE, claim, everything, finish, finished, key, wanted};

const ORDERS: &str = "create table orders (id integer primary key, customer text, total integer)";

async fn scene(
    backend: &Arc<dyn Backend>,
    rows: i64,
    change: impl FnOnce(&mut TriggerDefinition),
) -> (Arc<dyn Store>, Box<dyn Session>, EventTrigger) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session.run(ORDERS).await;
    let mut definition = everything("t", "orders");
    change(&mut definition);
    let trigger = store.create_trigger(&definition, false).await.unwrap();
    for id in 1..=rows {
        session
            .run(&format!("insert into orders values ({id}, 'c', {id})"))
            .await;
    }
    (store, session, trigger)
}

fn ids(events: &[LeasedEvent]) -> Vec<i64> {
    events.iter().map(|e| e.event.change_id).collect()
}

/// One of each key at a time, strictly in order; other keys go their own way.
pub async fn events_of_one_key_come_one_after_the_other(backend: Arc<dyn Backend>) {
    let (store, session, trigger) = scene(&backend, 0, |d| {
        d.capture.order_by = Some(OrderBy::Column("customer".into()));
    })
    .await;
    // a1 b1 a2 b2 a3 c1
    session
        .run(
            "insert into orders values (1, 'a', 1), (2, 'b', 1), (3, 'a', 2), (4, 'b', 2), \
             (5, 'a', 3), (6, 'c', 1), (7, null, 1), (8, null, 2)",
        )
        .await;
    let tell = |events: &[LeasedEvent]| -> Vec<String> {
        let mut told: Vec<String> = events
            .iter()
            .map(|e| {
                let row = crate::events::row(e.event.new.as_deref());
                format!("{}{}", row["customer"], row["total"]).replace('"', "")
            })
            .collect();
        told.sort();
        told
    };
    let first = claim(&*store, &trigger, 10, "x", LEASE).await;
    assert_eq!(tell(&first), ["a1", "b1", "c1", "null1"]);
    let other = backend.store().await;
    assert!(claim(&*other, &trigger, 10, "y", LEASE).await.is_empty());
    for event in &first {
        let row = crate::events::row(event.event.new.as_deref());
        let verdict = match row["customer"].as_str() {
            Some("a") => Verdict::Delivered,
            // Waits for its next attempt, and its key with it.
            Some("b") => Verdict::Retry {
                after: Duration::from_secs(900),
            },
            // Given up: the key goes on.
            _ => Verdict::GiveUp,
        };
        finish(&*store, event, verdict).await;
    }
    let second = claim(&*other, &trigger, 10, "y", LEASE).await;
    assert_eq!(tell(&second), ["a2", "null2"]);
    other
        .release_events(&second.iter().map(LeasedEvent::claim).collect::<Vec<_>>())
        .await
        .unwrap();
    let third = claim(&*store, &trigger, 10, "x", NO_LEASE).await;
    assert_eq!(tell(&third), ["a2", "null2"]);
    // The lease has run out: the same ones again, not those behind them.
    let fourth = claim(&*store, &trigger, 10, "x", LEASE).await;
    assert_eq!(tell(&fourth), ["a2", "null2"]);
}

/// A key with very many events, and very many keys that wait, hide nobody.
pub async fn neither_a_hot_key_nor_waiting_keys_hide_others(backend: Arc<dyn Backend>) {
    const MANY: usize = 3000;
    // A store looks at a bounded number of keys each time.
    const LOOKS: usize = 40;
    let (store, session, trigger) = scene(&backend, 0, |d| {
        d.capture.order_by = Some(OrderBy::Column("customer".into()));
    })
    .await;
    let many = |from: usize, customer: &str| {
        format!(
            "with recursive n(i) as (select {from} union all select i + 1 from n \
             where i < {}) insert into orders select i, {customer}, i from n",
            from + MANY - 1
        )
    };
    session.run(&many(1, "'hot'")).await;
    session
        .run("insert into orders values (1000000, 'behind the hot key', 1)")
        .await;
    let found = claim(&*store, &trigger, 10, "x", LEASE).await;
    assert_eq!(found.len(), 2, "the hot key's first, and the other one");

    session.run(&many(10_000, "'waits ' || i")).await;
    let (mut waiting, mut looks) = (0, 0);
    while waiting < MANY {
        let some = claim(&*store, &trigger, 500, "x", LEASE).await;
        looks += 1;
        assert!(looks < LOOKS, "{waiting} of {MANY} after {looks} looks");
        waiting += some.len();
        let later = Verdict::Retry {
            after: Duration::from_secs(900),
        };
        let outcomes: Vec<_> = some.iter().map(|e| finished(e, later)).collect();
        assert!(store.finish_events(&outcomes).await.unwrap().is_empty());
    }
    session
        .run("insert into orders values (1000001, 'alone', 1)")
        .await;
    for look in 1.. {
        let found = claim(&*store, &trigger, 10, "x", LEASE).await;
        if let [one] = &found[..] {
            let row = crate::events::row(one.event.new.as_deref());
            assert_eq!(row["customer"], "alone");
            break;
        }
        assert!(found.is_empty());
        assert!(look < LOOKS, "{MANY} waiting keys hide one that is due");
    }
}

/// Events from before the order was asked for are delivered too, redelivered ones included.
pub async fn events_from_before_the_order_are_not_forgotten(backend: Arc<dyn Backend>) {
    let (store, session, trigger) = scene(&backend, 3, |_| {}).await;
    let held = claim(&*store, &trigger, 2, "a", LEASE).await;
    finish(&*store, &held[0], Verdict::Delivered).await;
    finish(&*store, &held[1], Verdict::GiveUp).await;
    let mut ordered = trigger.definition.clone();
    ordered.capture.order_by = Some(OrderBy::Key);
    let trigger = store.create_trigger(&ordered, true).await.unwrap();
    session.run("insert into orders values (100, 'x', 1)").await;
    let waiting = claim(&*store, &trigger, 10, "a", LEASE).await;
    assert_eq!(waiting.len(), 2);
    let one = Redelivery::Event(held[0].event.id);
    assert_eq!(store.redeliver(&one, key()).await.unwrap(), 1);
    let dead = Redelivery::Matching(EventFilter {
        status: Some(EventStatus::DeadLetter),
        ..EventFilter::default()
    });
    assert_eq!(store.redeliver(&dead, key()).await.unwrap(), 1);
    let again = claim(&*store, &trigger, 10, "a", LEASE).await;
    assert_eq!(ids(&again), ids(&held), "redelivered under the new order");
}

/// However many instances ask at the same time.
pub async fn promise_12_the_overall_limit_is_never_exceeded(backend: Arc<dyn Backend>) {
    const LIMIT: u32 = 5;
    const EVENTS: usize = 120;
    for ordered in [false, true] {
        let store = backend.installed().await;
        let session = backend.session().await;
        session.run("drop table if exists orders").await;
        session.run(ORDERS).await;
        let mut definition = everything(if ordered { "ordered" } else { "plain" }, "orders");
        definition.delivery.concurrency_overall = Some(LIMIT);
        if ordered {
            definition.capture.order_by = Some(OrderBy::Key);
        }
        let trigger = store.create_trigger(&definition, false).await.unwrap();
        for id in 0..EVENTS {
            session
                .run(&format!("insert into orders values ({id}, 'a', 1)"))
                .await;
        }
        let mut tasks = Vec::new();
        for n in 0..8 {
            let (store, trigger) = (backend.store().await, trigger.clone());
            tasks.push(tokio::spawn(async move {
                let mut done = 0;
                loop {
                    let some = claim(&*store, &trigger, 4, &format!("i{n}"), LEASE).await;
                    let states = store.trigger_states().await.unwrap();
                    let state = states
                        .iter()
                        .find(|s| s.name == trigger.definition.name)
                        .unwrap();
                    assert!(
                        state.in_flight <= i64::from(LIMIT),
                        "{} at once",
                        state.in_flight
                    );
                    if some.is_empty() && state.pending == 0 {
                        return done;
                    }
                    done += some.len();
                    let outcomes: Vec<_> = some
                        .iter()
                        .map(|e| finished(e, Verdict::Delivered))
                        .collect();
                    assert!(store.finish_events(&outcomes).await.unwrap().is_empty());
                }
            }));
        }
        let mut done = 0;
        for task in tasks {
            done += task.await.unwrap();
        }
        assert_eq!(done, EVENTS);
        // Alone, one gets exactly as many as there is room for.
        session
            .run("insert into orders select id + 1000, customer, total from orders")
            .await;
        assert_eq!(
            claim(&*store, &trigger, 100, "a", LEASE).await.len(),
            LIMIT as usize
        );
        assert!(claim(&*store, &trigger, 100, "b", LEASE).await.is_empty());
    }
}

/// One call for several triggers gives each what was asked for it.
pub async fn several_triggers_are_served_by_one_claim(backend: Arc<dyn Backend>) {
    let (store, session, plain) = scene(&backend, 0, |_| {}).await;
    let mut definition = everything("ordered", "orders");
    definition.capture.order_by = Some(OrderBy::Key);
    let ordered = store.create_trigger(&definition, false).await.unwrap();
    let mut definition = everything("capped", "orders");
    definition.delivery.concurrency_overall = Some(3);
    let capped = store.create_trigger(&definition, false).await.unwrap();
    let paused = store
        .create_trigger(&everything("paused", "orders"), false)
        .await
        .unwrap();
    store.pause_trigger(&paused, Some("x")).await.unwrap();
    for id in 0..10 {
        session
            .run(&format!("insert into orders values ({id}, 'a', 1)"))
            .await;
    }
    let all = [
        wanted(&plain, 4),
        wanted(&ordered, 20),
        wanted(&capped, 20),
        wanted(&paused, 20),
    ];
    let claimed = store.claim_events(&all, "a", LEASE).await.unwrap();
    let mut counts: HashMap<_, usize> = HashMap::new();
    for event in &claimed {
        *counts.entry(event.trigger).or_default() += 1;
    }
    assert_eq!(
        [&plain, &ordered, &capped, &paused].map(|t| counts.get(&t.id).copied().unwrap_or(0)),
        [4, 10, 3, 0]
    );
}
