//! What this instance holds: events that wait for a place, places for requests, and leases.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use changefeed_core::{Delivery, EventClaim, EventTrigger, LeasedEvent, Store, TriggerId, Wanted};
use serde_json::value::RawValue;
use tokio::sync::Notify;

use super::slots::Slots;
use crate::describe;

/// Events that are held until their outcome is written.
#[derive(Debug)]
pub(super) struct Holds {
    state: Mutex<State>,
    room: Notify,
    /// Events of a trigger that are taken at once.
    batch: usize,
    /// How long a lease is trusted after it was asked for.
    trust: Duration,
}

#[derive(Debug)]
struct State {
    slots: Slots,
    triggers: HashMap<TriggerId, Lane>,
    leases: HashMap<EventClaim, Hold>,
    /// The size of all that is held.
    bytes: usize,
    /// What waited too long here to be sure that it is still ours.
    stale: Vec<EventClaim>,
    stopping: bool,
}

#[derive(Debug)]
struct Hold {
    /// When the lease was last asked for.
    asked: Instant,
    bytes: usize,
}

impl State {
    fn forget(&mut self, claim: &EventClaim) {
        if let Some(hold) = self.leases.remove(claim) {
            self.bytes = self.bytes.saturating_sub(hold.bytes);
        }
    }
}

/// Rows are held in memory up to this size; more are taken when some were written down.
const BYTES: usize = 32 * 1024 * 1024;

fn size(event: &LeasedEvent) -> usize {
    let length = |row: &Option<Box<RawValue>>| row.as_ref().map_or(0, |r| r.get().len());
    length(&event.event.old) + length(&event.event.new)
}

/// The events of one trigger that wait for a place.
#[derive(Debug)]
struct Lane {
    trigger: Arc<EventTrigger>,
    waiting: VecDeque<LeasedEvent>,
    /// Requests that were over since the last look.
    landed: usize,
}

impl Lane {
    fn limit(&self) -> usize {
        let limit = self.trigger.definition.delivery.concurrency;
        limit.unwrap_or(Delivery::CONCURRENCY) as usize
    }
}

impl Holds {
    pub(super) fn new(concurrency: usize, batch: u32, lease: Duration) -> Self {
        Holds {
            state: Mutex::new(State {
                slots: Slots::new(concurrency),
                triggers: HashMap::new(),
                leases: HashMap::new(),
                bytes: 0,
                stale: Vec::new(),
                stopping: false,
            }),
            room: Notify::new(),
            batch: (batch as usize).max(1),
            // A tenth is left for clocks that run at different speeds.
            trust: lease.mul_f32(0.9),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The triggers that are served from now on. Returns what waits of those that are paused or
    /// not served any more: it is to be given back.
    #[must_use]
    pub(super) fn serve(&self, triggers: Vec<EventTrigger>) -> Vec<EventClaim> {
        let mut state = self.state();
        let mut before = std::mem::take(&mut state.triggers);
        for trigger in triggers {
            let mut lane = Lane {
                trigger: Arc::new(trigger),
                waiting: VecDeque::new(),
                landed: 0,
            };
            let id = lane.trigger.id;
            if lane.trigger.paused.is_none()
                && let Some(lane_before) = before.remove(&id)
            {
                (lane.waiting, lane.landed) = (lane_before.waiting, lane_before.landed);
            }
            state.triggers.insert(id, lane);
        }
        let left: Vec<EventClaim> = before
            .into_values()
            .flat_map(|lane| lane.waiting)
            .map(|event| event.claim())
            .collect();
        for claim in &left {
            state.forget(claim);
        }
        left
    }

    /// How many triggers are served.
    pub(super) fn served(&self) -> usize {
        self.state().triggers.len()
    }

    /// What there is room for. A trigger whose receiver is quick gets some more, so that the next
    /// events are here when a place is free; one that is slow does not, because another instance
    /// may be quicker.
    pub(super) fn wanted(&self) -> Vec<Wanted> {
        let mut state = self.state();
        if state.bytes >= BYTES {
            return Vec::new();
        }
        let State {
            slots, triggers, ..
        } = &mut *state;
        let count = triggers.len();
        let mut wanted = Vec::new();
        for lane in triggers.values_mut() {
            if lane.trigger.paused.is_some() {
                continue;
            }
            let room = slots.room(lane.trigger.id, lane.limit(), count);
            let ahead = lane.landed.min(2 * self.batch);
            let limit = (room + ahead)
                .saturating_sub(lane.waiting.len())
                // Where most of a batch is over before the next look, two are taken at once.
                .min(if lane.landed >= self.batch / 2 {
                    2 * self.batch
                } else {
                    self.batch
                });
            // A look for a handful is hardly cheaper than one for many.
            if limit == 0 || (limit < self.batch / 2 && !lane.waiting.is_empty()) {
                continue;
            }
            lane.landed = 0;
            wanted.push(Wanted {
                trigger: lane.trigger.id,
                limit: u32::try_from(limit).unwrap_or(u32::MAX),
                overall: lane.trigger.definition.delivery.concurrency_overall,
                ordered: lane.trigger.definition.capture.order_by.is_some(),
                debounced: lane.trigger.definition.delivery.debounce.is_some(),
                paced: lane.trigger.definition.delivery.rate.is_some(),
            });
        }
        // All together they get what there are places for and some more, so that others find
        // something to do; and nobody is always the first.
        let waiting: usize = triggers.values().map(|lane| lane.waiting.len()).sum();
        let most = (slots.total() + 2 * self.batch).saturating_sub(slots.used() + waiting);
        fastrand::shuffle(&mut wanted);
        share(&mut wanted, most);
        wanted
    }

    /// Takes events that were asked for at this moment. Returns those that cannot be served any
    /// more.
    pub(super) fn take(&self, events: Vec<LeasedEvent>, asked: Instant) -> Vec<EventClaim> {
        let mut state = self.state();
        let mut refused = Vec::new();
        for event in events {
            let claim = event.claim();
            let stopping = state.stopping;
            match state.triggers.get_mut(&event.trigger) {
                Some(lane) if !stopping => {
                    let bytes = size(&event);
                    lane.waiting.push_back(event);
                    state.leases.insert(claim, Hold { asked, bytes });
                    state.bytes += bytes;
                }
                _ => refused.push(claim),
            }
        }
        refused
    }

    /// The next event that there is a place for, with its place.
    pub(super) fn next(&self) -> Option<(LeasedEvent, Arc<EventTrigger>)> {
        let mut state = self.state();
        let state = &mut *state;
        if state.stopping {
            return None;
        }
        let count = state.triggers.len();
        // The one that has the least under way comes first.
        let lane = state
            .triggers
            .values_mut()
            .filter(|lane| {
                !lane.waiting.is_empty()
                    && state.slots.room(lane.trigger.id, lane.limit(), count) > 0
            })
            .min_by_key(|lane| state.slots.held(lane.trigger.id))?;
        while let Some(event) = lane.waiting.pop_front() {
            let hold = state.leases.get(&event.claim());
            if hold.is_some_and(|hold| hold.asked.elapsed() < self.trust) {
                state.slots.take(event.trigger);
                return Some((event, lane.trigger.clone()));
            }
            // Somebody else may have it by now.
            state.stale.push(event.claim());
            if let Some(hold) = state.leases.remove(&event.claim()) {
                state.bytes = state.bytes.saturating_sub(hold.bytes);
            }
        }
        None
    }

    /// What waited too long, to be given back.
    pub(super) fn take_stale(&self) -> Vec<EventClaim> {
        std::mem::take(&mut self.state().stale)
    }

    /// Waits until a request was over.
    pub(super) async fn room_opened(&self) {
        self.room.notified().await;
    }

    /// A request is over; its outcome is still to be written.
    pub(super) fn landed(&self, trigger: TriggerId) {
        let mut state = self.state();
        state.slots.give_back(trigger);
        if let Some(lane) = state.triggers.get_mut(&trigger) {
            lane.landed += 1;
        }
        drop(state);
        self.room.notify_one();
    }

    /// The outcomes are written: there is nothing left to hold.
    pub(super) fn written(&self, claims: impl Iterator<Item = EventClaim>) {
        let mut state = self.state();
        for claim in claims {
            state.forget(&claim);
        }
        drop(state);
        self.room.notify_one();
    }

    /// Those of these claims that this instance knows nothing of.
    pub(super) fn unknown(&self, held: Vec<EventClaim>) -> Vec<EventClaim> {
        let state = self.state();
        held.into_iter()
            .filter(|claim| !state.leases.contains_key(claim))
            .collect()
    }

    /// Begins nothing more. Returns what was taken and not begun.
    pub(super) fn stop(&self) -> Vec<EventClaim> {
        let mut state = self.state();
        state.stopping = true;
        let mut waiting = Vec::new();
        for lane in state.triggers.values_mut() {
            waiting.extend(lane.waiting.drain(..).map(|event| event.claim()));
        }
        for claim in &waiting {
            state.forget(claim);
        }
        waiting
    }

    /// Those that were last asked for before this moment.
    fn asked_before(&self, moment: Instant) -> Vec<EventClaim> {
        let state = self.state();
        let old = state.leases.iter().filter(|(_, hold)| hold.asked < moment);
        old.map(|(claim, _)| *claim).collect()
    }

    fn renewed(&self, asked: Instant, claims: &[EventClaim]) {
        let mut state = self.state();
        for claim in claims {
            if let Some(hold) = state.leases.get_mut(claim) {
                hold.asked = asked;
            }
        }
    }
}

/// Shares a number of places among all who want some: one each, or equally, and whoever comes later
/// may have to wait.
fn share(wanted: &mut Vec<Wanted>, most: usize) {
    let all: usize = wanted.iter().map(|w| w.limit as usize).sum();
    if all <= most {
        return;
    }
    wanted.truncate(most);
    let Some(each) = most.checked_div(wanted.len()) else {
        return;
    };
    for one in wanted {
        one.limit = one.limit.min(u32::try_from(each).unwrap_or(u32::MAX));
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
                    let kept: HashSet<EventClaim> = kept.into_iter().collect();
                    let lost: Vec<EventClaim> =
                        due.into_iter().filter(|c| !kept.contains(c)).collect();
                    tracing::debug!(events = lost.len(), "leases that are no longer ours");
                    holds.written(lost.into_iter());
                }
            }
            Err(error) => {
                tracing::warn!(error = %describe(&error), "leases not prolonged; trying again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(limits: &[u32]) -> Vec<Wanted> {
        let one = |(n, limit): (usize, &u32)| Wanted {
            trigger: TriggerId(i32::try_from(n).unwrap()),
            limit: *limit,
            overall: None,
            ordered: false,
            debounced: false,
            paced: false,
        };
        limits.iter().enumerate().map(one).collect()
    }

    fn shared(limits: &[u32], most: usize) -> Vec<u32> {
        let mut wanted = wanted(limits);
        share(&mut wanted, most);
        wanted.iter().map(|w| w.limit).collect()
    }

    #[test]
    fn no_more_is_asked_for_than_there_are_places() {
        assert_eq!(shared(&[50, 50], 200), [50, 50]);
        assert_eq!(shared(&[100, 100, 100], 150), [50, 50, 50]);
        assert_eq!(shared(&[100, 3], 60), [30, 3]);
        assert_eq!(shared(&[100; 300], 200), [1; 200]);
        assert_eq!(shared(&[100], 0), [0; 0]);
    }
}
