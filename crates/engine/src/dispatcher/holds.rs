//! What this instance holds: events whose lease is ours, and places for requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use changefeed_core::{EventClaim, LeasedEvent, Store, TriggerId};
use tokio::sync::Notify;

use super::slots::Slots;
use crate::describe;

/// Events that are being delivered or whose outcome is not written yet.
#[derive(Debug)]
pub(super) struct Holds {
    state: Mutex<State>,
    room: Notify,
}

#[derive(Debug)]
struct State {
    slots: Slots,
    /// When the lease was last asked for.
    leases: HashMap<EventClaim, Instant>,
}

impl Holds {
    pub(super) fn new(concurrency: usize) -> Self {
        Holds {
            state: Mutex::new(State {
                slots: Slots::new(concurrency),
                leases: HashMap::new(),
            }),
            room: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn room(&self, trigger: TriggerId, limit: usize, triggers: usize) -> usize {
        self.state().slots.room(trigger, limit, triggers)
    }

    /// Waits until a request was over.
    pub(super) async fn room_opened(&self) {
        self.room.notified().await;
    }

    pub(super) fn take(&self, event: &LeasedEvent, asked: Instant) {
        let mut state = self.state();
        state.slots.take(event.trigger);
        state.leases.insert(event.claim(), asked);
    }

    /// A request is over; its outcome is still to be written.
    pub(super) fn landed(&self, trigger: TriggerId) {
        self.state().slots.give_back(trigger);
        self.room.notify_one();
    }

    /// The outcomes are written: there is nothing left to hold.
    pub(super) fn written(&self, claims: impl Iterator<Item = EventClaim>) {
        let mut state = self.state();
        for claim in claims {
            state.leases.remove(&claim);
        }
    }

    /// Those that were last asked for before this moment.
    fn asked_before(&self, moment: Instant) -> Vec<EventClaim> {
        let state = self.state();
        let old = state.leases.iter().filter(|(_, asked)| **asked < moment);
        old.map(|(claim, _)| *claim).collect()
    }

    fn renewed(&self, asked: Instant, claims: &[EventClaim]) {
        let mut state = self.state();
        for claim in claims {
            if let Some(since) = state.leases.get_mut(claim) {
                *since = asked;
            }
        }
    }
}

/// Prolongs leases when a third of them has passed, for as long as it runs.
pub(super) async fn renew(store: Arc<dyn Store>, holds: Arc<Holds>, lease: Duration) {
    let mut tick = tokio::time::interval(lease / 6);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let now = Instant::now();
        let Some(third) = now.checked_sub(lease / 3) else {
            continue;
        };
        let due = holds.asked_before(third);
        if due.is_empty() {
            continue;
        }
        match store.renew_events(&due, lease).await {
            Ok(kept) => {
                holds.renewed(now, &kept);
                if kept.len() < due.len() {
                    // Their outcome will be written as late; the new owner's counts.
                    let lost: Vec<EventClaim> =
                        due.into_iter().filter(|c| !kept.contains(c)).collect();
                    tracing::warn!(
                        events = lost.len(),
                        "other instances have taken over events that this one is delivering"
                    );
                    holds.written(lost.into_iter());
                }
            }
            Err(error) => {
                tracing::warn!(error = %describe(&error), "leases not prolonged; trying again");
            }
        }
    }
}
