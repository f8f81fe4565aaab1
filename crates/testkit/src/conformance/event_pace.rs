//! When events are due for the first time, how fast they go, and what is collected by key.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed_core::{EventStatus, EventTrigger, OrderBy, Redelivery, Store, Uuid, Verdict};

use crate::backend::Backend;
use crate::events::{LEASE, claim, everything, finish, log, row};

const ORDERS: &str = "create table orders (id integer primary key, total integer)";
const WINDOW: Duration = Duration::from_millis(600);

/// Claims until there is something.
async fn due(store: &dyn Store, trigger: &EventTrigger) -> Vec<changefeed_core::LeasedEvent> {
    let began = Instant::now();
    loop {
        let events = claim(store, trigger, 100, "x", LEASE).await;
        if !events.is_empty() {
            return events;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "nothing is due");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What was captured, sent by hand or backfilled waits for its first attempt, and only for that.
pub async fn an_event_waits_for_its_first_attempt(backend: Arc<dyn Backend>) {
    let (store, session) = (backend.installed().await, backend.session().await);
    session.run(ORDERS).await;
    session.run("insert into orders values (1, 0)").await;
    let mut definition = everything("t", "orders");
    definition.capture.manual = true;
    definition.delivery.delay = Some(WINDOW);
    let trigger = store.create_trigger(&definition, false).await.unwrap();
    let began = Instant::now();
    session
        .run("insert into orders values (2, 0), (3, 0)")
        .await;
    session
        .run("update orders set total = 1 where id = 2")
        .await;
    session.run("delete from orders where id = 3").await;
    store.backfill_trigger(&trigger, 10).await.unwrap();
    let payload = serde_json::value::to_raw_value(&1).unwrap();
    let key = Uuid::from_u128(7);
    store.invoke_trigger(&trigger, &payload, key).await.unwrap();
    assert!(claim(&*store, &trigger, 100, "x", LEASE).await.is_empty());
    let mut taken = due(&*store, &trigger).await;
    assert!(began.elapsed() >= WINDOW, "{:?}", began.elapsed());
    while taken.len() < 7 {
        taken.extend(due(&*store, &trigger).await);
    }
    // The next attempt waits for as long as it is told to.
    let again = Verdict::Retry {
        after: Duration::ZERO,
    };
    finish(&*store, &taken[0], again).await;
    assert_eq!(claim(&*store, &trigger, 100, "x", LEASE).await.len(), 1);
    // Without a delay everything is as before.
    definition.delivery.delay = None;
    let trigger = store.create_trigger(&definition, true).await.unwrap();
    session.run("insert into orders values (4, 0)").await;
    assert_eq!(claim(&*store, &trigger, 100, "x", LEASE).await.len(), 1);
}

/// Of the events of a key within a window the last is delivered, and the others say so.
pub async fn the_last_event_of_a_key_is_delivered_for_all(backend: Arc<dyn Backend>) {
    let (store, session) = (backend.installed().await, backend.session().await);
    session.run(ORDERS).await;
    let mut definition = everything("t", "orders");
    definition.capture.order_by = Some(OrderBy::Key);
    definition.delivery.debounce = Some(WINDOW);
    let trigger = store.create_trigger(&definition, false).await.unwrap();
    session
        .run("insert into orders values (1, 0), (2, 0)")
        .await;
    for total in 1..=3 {
        session
            .run(&format!("update orders set total = {total} where id = 1"))
            .await;
    }
    assert!(claim(&*store, &trigger, 100, "x", LEASE).await.is_empty());
    let mut taken = due(&*store, &trigger).await;
    if taken.len() < 2 {
        taken.extend(due(&*store, &trigger).await);
    }
    let news: HashMap<i64, i64> = taken
        .iter()
        .map(|e| row(e.event.new.as_deref()))
        .map(|new| (new["id"].as_i64().unwrap(), new["total"].as_i64().unwrap()))
        .collect();
    assert_eq!(news, HashMap::from([(1, 3), (2, 0)]));
    let last = taken
        .iter()
        .find(|e| row(e.event.new.as_deref())["id"] == 1)
        .unwrap();
    let logged = log(&*store).await;
    let collapsed: Vec<_> = logged
        .iter()
        .filter(|e| e.status == EventStatus::Collapsed)
        .collect();
    assert_eq!(collapsed.len(), 3, "{logged:?}");
    for event in &collapsed {
        assert_eq!(event.superseded_by, Some(last.event.change_id));
        assert_eq!((event.tries, &event.next_retry_at), (0, &None));
    }
    // What was tried is never collapsed: it fails, later ones come, and all of it is delivered in order.
    let again = Verdict::Retry {
        after: Duration::ZERO,
    };
    finish(&*store, last, again).await;
    session
        .run("update orders set total = 4 where id = 1")
        .await;
    let retried = due(&*store, &trigger).await;
    assert_eq!(retried.len(), 1);
    assert_eq!(retried[0].event.change_id, last.event.change_id);
    finish(&*store, &retried[0], Verdict::Delivered).await;
    let next = due(&*store, &trigger).await;
    assert_eq!(row(next[0].event.new.as_deref())["total"], 4);
    finish(&*store, &next[0], Verdict::Delivered).await;
    // One that was collapsed can be delivered all the same.
    let which = Redelivery::Event(collapsed[0].event.id);
    let key = Uuid::from_u128(9);
    assert_eq!(store.redeliver(&which, key).await.unwrap(), 1);
    let redelivered = claim(&*store, &trigger, 100, "x", LEASE).await;
    assert_eq!(redelivered.len(), 1);
    let now = log(&*store).await;
    let it = now
        .iter()
        .find(|e| e.event.id == collapsed[0].event.id)
        .unwrap();
    assert_eq!((it.status, it.superseded_by), (EventStatus::Pending, None));
}

/// All instances together keep a pace, and one that takes and stops holds no more of it than it has taken.
pub async fn all_instances_together_keep_a_pace(backend: Arc<dyn Backend>) {
    let (store, session) = (backend.installed().await, backend.session().await);
    session.run(ORDERS).await;
    let mut definition = everything("t", "orders");
    definition.delivery.rate = Some("20/s".parse().unwrap());
    let trigger = store.create_trigger(&definition, false).await.unwrap();
    for id in 1..=30 {
        session
            .run(&format!("insert into orders values ({id}, 0)"))
            .await;
    }
    let other = backend.store().await;
    let (began, mut taken, mut times) = (Instant::now(), 0, 0);
    while taken < 12 {
        assert!(began.elapsed() < Duration::from_secs(20), "{taken}");
        for (store, owner) in [(&store, "stopped"), (&other, "works")] {
            let some = claim(&**store, &trigger, 100, owner, LEASE).await.len();
            times += usize::from(some > 0);
            taken += some;
            // A burst of a tenth of a second, and what has come together since.
            let allowed = 2 + began.elapsed().as_millis() * 20 / 1000 + 1;
            assert!(taken as u128 <= allowed, "{taken} of {allowed}");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(began.elapsed() >= Duration::from_millis(400));
    assert!(times >= 5, "at most two at a time");
}

/// Attempts of finished events are removed apart from the events; those that say what went wrong stay.
pub async fn attempts_are_removed_apart_from_events(backend: Arc<dyn Backend>) {
    let (store, session) = (backend.installed().await, backend.session().await);
    session.run(ORDERS).await;
    let trigger = store
        .create_trigger(&everything("t", "orders"), false)
        .await
        .unwrap();
    session
        .run("insert into orders values (1, 0), (2, 0), (3, 0), (4, 0)")
        .await;
    let events = claim(&*store, &trigger, 100, "x", LEASE).await;
    let waits = Verdict::Retry {
        after: Duration::from_secs(900),
    };
    let verdicts = [
        Verdict::Delivered,
        Verdict::Delivered,
        Verdict::GiveUp,
        waits,
    ];
    for (event, verdict) in events.iter().zip(verdicts) {
        finish(&*store, event, verdict).await;
    }
    let hour = Duration::from_secs(3600);
    let cleaned = store.clean_up_attempts(None, hour, 100).await.unwrap();
    assert_eq!(cleaned.attempts, 0);
    let now = Duration::ZERO;
    let mut removed = 0;
    loop {
        let step = store
            .clean_up_attempts(Some(&trigger), now, 1)
            .await
            .unwrap();
        assert_eq!(step.events, 0);
        removed += step.attempts;
        if !step.more {
            break;
        }
    }
    assert_eq!(removed, 2);
    for (event, left) in events.iter().zip([0, 0, 1, 1]) {
        let (_, attempts) = store.event(event.event.id).await.unwrap().unwrap();
        assert_eq!(attempts.len(), left);
    }
}
