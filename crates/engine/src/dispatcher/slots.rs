//! Who may send how much at the same time.
//!
//! An instance makes a limited number of requests at once, and so does each trigger. A trigger
//! whose receiver is slow must not take every place, so a few places are kept free for every
//! other trigger, used or not.

use std::collections::HashMap;

use changefeed_core::TriggerId;

/// How many events of each trigger this instance holds.
#[derive(Debug)]
pub(super) struct Slots {
    total: usize,
    held: HashMap<TriggerId, usize>,
}

impl Slots {
    pub(super) fn new(total: usize) -> Self {
        Slots {
            total: total.max(1),
            held: HashMap::new(),
        }
    }

    pub(super) fn held(&self, trigger: TriggerId) -> usize {
        self.held.get(&trigger).copied().unwrap_or(0)
    }

    pub(super) fn take(&mut self, trigger: TriggerId) {
        *self.held.entry(trigger).or_default() += 1;
    }

    pub(super) fn give_back(&mut self, trigger: TriggerId) {
        if let Some(held) = self.held.get_mut(&trigger) {
            *held = held.saturating_sub(1);
            if *held == 0 {
                self.held.remove(&trigger);
            }
        }
    }

    /// How many more events this trigger may take, with `triggers` of them sharing the slots.
    pub(super) fn room(&self, trigger: TriggerId, limit: usize, triggers: usize) -> usize {
        let own = self.held(trigger);
        if own == 0 && limit > 0 {
            // Whatever is kept for others, and be there more triggers than places: each may have
            // one.
            return self.room_beside(trigger, limit, triggers).max(1);
        }
        self.room_beside(trigger, limit, triggers)
    }

    fn room_beside(&self, trigger: TriggerId, limit: usize, triggers: usize) -> usize {
        let own = self.held(trigger);
        let kept = self.kept_for_each(triggers);
        // What is kept for the others and not used by them.
        let others: usize = self
            .held
            .iter()
            .filter(|(other, _)| **other != trigger)
            .map(|(_, held)| *held)
            .sum();
        let quiet = triggers
            .saturating_sub(1)
            .saturating_sub(self.held.keys().filter(|t| **t != trigger).count());
        let reserved: usize = quiet * kept
            + self
                .held
                .iter()
                .filter(|(other, _)| **other != trigger)
                .map(|(_, held)| kept.saturating_sub(*held))
                .sum::<usize>();
        let free = self.total.saturating_sub(own + others + reserved);
        free.min(limit.saturating_sub(own))
    }

    pub(super) fn total(&self) -> usize {
        self.total
    }

    pub(super) fn used(&self) -> usize {
        self.held.values().sum()
    }

    /// Half of all places are kept, shared equally.
    fn kept_for_each(&self, triggers: usize) -> usize {
        (self.total / 2) / triggers.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TriggerId = TriggerId(1);
    const B: TriggerId = TriggerId(2);

    #[test]
    fn a_trigger_alone_may_use_everything() {
        let mut slots = Slots::new(100);
        assert_eq!(slots.room(A, 100, 1), 100);
        (0..100).for_each(|_| slots.take(A));
        assert_eq!(slots.room(A, 100, 1), 0);
        slots.give_back(A);
        assert_eq!(slots.room(A, 100, 1), 1);
    }

    #[test]
    fn a_slow_one_leaves_room_for_the_others() {
        let mut slots = Slots::new(100);
        assert_eq!(slots.room(A, 100, 2), 75);
        (0..75).for_each(|_| slots.take(A));
        assert_eq!(slots.room(A, 100, 2), 0);
        assert_eq!(slots.room(B, 100, 2), 25);
        (0..25).for_each(|_| slots.take(B));
        assert_eq!(slots.room(B, 100, 2), 0);
    }

    #[test]
    fn its_own_limit_holds_whatever_is_free() {
        let mut slots = Slots::new(100);
        assert_eq!(slots.room(A, 3, 1), 3);
        (0..3).for_each(|_| slots.take(A));
        assert_eq!(slots.room(A, 3, 1), 0);
    }

    #[test]
    fn with_more_triggers_than_places_each_has_one() {
        let mut slots = Slots::new(2);
        for n in 0..10 {
            let trigger = TriggerId(n);
            assert!(slots.room(trigger, 100, 10) >= 1);
            slots.take(trigger);
        }
        assert_eq!(slots.room(TriggerId(3), 100, 10), 0);
    }
}
