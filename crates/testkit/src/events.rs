//! Short words for what tests do with event triggers.

pub mod checker;
pub mod writers;

use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{
    Attempt, Capture, Delivery, EventFilter, EventId, EventTrigger, Finished, LeasedEvent,
    LoggedAttempt, LoggedEvent, Outcome, Sink, Store, TableName, TriggerDefinition, Uuid, Verdict,
    Wanted,
};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::backend::{Backend, Session};

/// Long enough that no test outlives it.
pub const LEASE: Duration = Duration::from_secs(600);

/// Over before anybody can look.
pub const NO_LEASE: Duration = Duration::ZERO;

/// A trigger that captures every insert, update and delete of a table, without a webhook.
pub fn everything(name: &str, table: &str) -> TriggerDefinition {
    TriggerDefinition {
        name: name.parse().unwrap(),
        table: TableName::unqualified(table),
        capture: Capture::everything(),
        delivery: Delivery::default(),
    }
}

/// The same, with a webhook.
pub fn to_webhook(name: &str, table: &str, url: &str) -> TriggerDefinition {
    let mut definition = everything(name, table);
    definition.delivery.sink = Sink::webhook(url);
    definition
}

/// A table `orders` with these columns, whose changes trigger `t` captures.
pub async fn captured_orders(
    backend: &dyn Backend,
    columns: &str,
) -> (Arc<dyn Store>, Box<dyn Session>, EventTrigger) {
    let (store, session) = (backend.installed().await, backend.session().await);
    session
        .run(&format!("create table orders ({columns})"))
        .await;
    let definition = everything("t", "orders");
    let trigger = store.create_trigger(&definition, false).await.unwrap();
    (store, session, trigger)
}

/// Everything in the log, oldest first.
pub async fn log(store: &dyn Store) -> Vec<LoggedEvent> {
    let mut filter = EventFilter::default();
    let mut all = Vec::new();
    loop {
        let page = store.events(&filter, 10_000).await.unwrap();
        let Some(last) = page.last() else {
            break;
        };
        filter.before = Some(last.event.change_id);
        all.extend(page);
    }
    all.reverse();
    all
}

/// A row of an event as a value; NULL if there is none.
pub fn row(row: Option<&RawValue>) -> Value {
    row.map_or(Value::Null, |r| serde_json::from_str(r.get()).unwrap())
}

/// What happened, with the row before and the row after.
pub type Told = (&'static str, Value, Value);

/// Everything that happened, oldest first.
pub async fn told(store: &dyn Store) -> Vec<Told> {
    log(store).await.iter().map(tell).collect()
}

/// What happened in one event.
pub fn tell(logged: &LoggedEvent) -> Told {
    let event = &logged.event;
    (
        event.op.as_str(),
        row(event.old.as_deref()),
        row(event.new.as_deref()),
    )
}

/// What happened according to the events of one trigger.
pub async fn told_by(store: &dyn Store, trigger: &str) -> Vec<Told> {
    log(store)
        .await
        .iter()
        .filter(|e| e.event.trigger.as_str() == trigger)
        .map(tell)
        .collect()
}

/// As many events of a trigger as its definition allows.
pub fn wanted(trigger: &EventTrigger, limit: u32) -> Wanted {
    Wanted {
        trigger: trigger.id,
        limit,
        overall: trigger.definition.delivery.concurrency_overall,
        ordered: trigger.definition.capture.order_by.is_some(),
        debounced: trigger.definition.delivery.debounce.is_some(),
        paced: trigger.definition.delivery.rate.is_some(),
    }
}

/// Takes events.
pub async fn claim(
    store: &dyn Store,
    trigger: &EventTrigger,
    limit: u32,
    owner: &str,
    lease: Duration,
) -> Vec<LeasedEvent> {
    store
        .claim_events(&[wanted(trigger, limit)], owner, lease)
        .await
        .unwrap()
}

/// An attempt that came to this.
pub fn finished(event: &LeasedEvent, verdict: Verdict) -> Finished {
    let (outcome, status) = match verdict {
        Verdict::Delivered => (Outcome::Success, 200),
        Verdict::Pause => (Outcome::Failure, 410),
        Verdict::Retry { .. } | Verdict::GiveUp => (Outcome::Failure, 503),
    };
    Finished {
        claim: event.claim(),
        attempt: Attempt {
            number: event.attempt,
            outcome,
            status: Some(status),
            request: Some(raw("{\"a\":1}")),
            response: Some(raw("{\"b\":2}")),
            error: (outcome == Outcome::Failure).then(|| format!("It answered {status}")),
            duration_ms: 5,
        },
        verdict,
    }
}

/// Finishes an event under a lease that must still count.
pub async fn finish(store: &dyn Store, event: &LeasedEvent, verdict: Verdict) {
    let late = store
        .finish_events(&[finished(event, verdict)])
        .await
        .unwrap();
    assert!(late.is_empty(), "the lease was lost");
}

/// A key for a request that is to be done once.
pub fn key() -> Uuid {
    Uuid::from_u128(fastrand::u128(..))
}

/// JSON text as it is.
pub fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

/// An event of the log with its attempts, which must be there.
pub async fn shown(store: &dyn Store, id: EventId) -> (LoggedEvent, Vec<LoggedAttempt>) {
    store.event(id).await.unwrap().expect("the event is there")
}

/// The attempts of an event as `number outcome [status] [late]`.
pub async fn attempts(store: &dyn Store, id: EventId) -> Vec<String> {
    shown(store, id)
        .await
        .1
        .iter()
        .map(|logged| {
            let attempt = &logged.attempt;
            let mut text = format!("{} {}", attempt.number, attempt.outcome.as_str());
            if let Some(status) = attempt.status {
                text.push_str(&format!(" {status}"));
            }
            if logged.late {
                text.push_str(" late");
            }
            text
        })
        .collect()
}
