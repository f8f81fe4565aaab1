//! Short words for what tests do with event triggers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use changefeed_core::{
    Attempt, Capture, Delivery, EventFilter, EventStore, EventTrigger, Finished, LeasedEvent,
    LoggedEvent, Outcome, TableName, TriggerDefinition, TriggerStore, Uuid, Verdict, Wanted,
};
use changefeed_sqlite::SqliteStore;

use crate::support::Lab;

pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// A definition that captures everything.
pub(crate) fn everything(table: &str) -> TriggerDefinition {
    TriggerDefinition {
        name: "all".parse().unwrap(),
        table: TableName::unqualified(table),
        capture: Capture::everything(),
        delivery: Delivery::default(),
    }
}

impl Lab {
    pub(crate) async fn trigger(&self, definition: &TriggerDefinition) -> EventTrigger {
        self.store.create_trigger(definition, false).await.unwrap()
    }

    /// All events, oldest first.
    pub(crate) async fn log(&self) -> Vec<LoggedEvent> {
        let filter = EventFilter::default();
        let mut events = self.store.events(&filter, 1_000_000).await.unwrap();
        events.reverse();
        events
    }

    /// All events, oldest first, as `OP old > new`.
    pub(crate) async fn events(&self) -> Vec<String> {
        self.log().await.iter().map(told).collect()
    }

    pub(crate) async fn claim(&self, trigger: &EventTrigger, limit: u32) -> Vec<LeasedEvent> {
        claim(&self.store, &wanted(trigger, limit), LEASE).await
    }
}

pub(crate) fn told(logged: &LoggedEvent) -> String {
    let row = |row: &Option<Box<serde_json::value::RawValue>>| {
        row.as_ref().map_or("-".to_owned(), |r| r.get().to_owned())
    };
    let event = &logged.event;
    format!(
        "{} {} > {}",
        event.op.as_str(),
        row(&event.old),
        row(&event.new)
    )
}

pub(crate) fn wanted(trigger: &EventTrigger, limit: u32) -> Wanted {
    Wanted {
        trigger: trigger.id,
        limit,
        overall: None,
        ordered: trigger.definition.capture.order_by.is_some(),
        debounced: trigger.definition.delivery.debounce.is_some(),
        paced: trigger.definition.delivery.rate.is_some(),
    }
}

pub(crate) async fn claim(
    store: &SqliteStore,
    wanted: &Wanted,
    lease: Duration,
) -> Vec<LeasedEvent> {
    store
        .claim_events(std::slice::from_ref(wanted), "me", lease)
        .await
        .unwrap()
}

/// What came of an attempt.
pub(crate) fn finished(event: &LeasedEvent, verdict: Verdict) -> Finished {
    let (outcome, status) = match verdict {
        Verdict::Delivered => (Outcome::Success, 200),
        Verdict::Pause => (Outcome::Failure, 410),
        Verdict::Retry { .. } | Verdict::GiveUp => (Outcome::Failure, 500),
    };
    Finished {
        claim: event.claim(),
        attempt: Attempt {
            number: event.attempt,
            outcome,
            status: Some(status),
            request: None,
            response: None,
            error: (outcome == Outcome::Failure).then(|| format!("It answered {status}")),
            duration_ms: 5,
        },
        verdict,
    }
}

/// A key for a request that is to be done once.
pub(crate) fn key() -> Uuid {
    static LAST: AtomicU64 = AtomicU64::new(0);
    Uuid::from_u128(u128::from(LAST.fetch_add(1, Ordering::Relaxed)))
}
