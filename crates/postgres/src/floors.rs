//! Where a look for due events begins.
//!
//! Every event that is taken leaves a dead entry behind it in the index, at its old place, and as
//! long as somebody holds an old snapshot these entries cannot be removed: a look that begins at
//! the beginning would pass over all of them. But once a look has taken what was due up to some
//! moment, the next may begin there.
//!
//! A writer whose transaction was open for long commits events from before that moment. For them,
//! and whatever else may have been left behind, a look from the very beginning is made from time to
//! time, the less often the longer it takes. So a floor saves work, and decides nothing.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use changefeed_core::TriggerId;

/// Writers that take no longer than this are found by every look.
const MARGIN: Duration = Duration::from_secs(1);
/// How often there is a look from the beginning, at most; and how many times as long as it took
/// must pass before the next.
const THOROUGH_EVERY: Duration = Duration::from_secs(1);
const THOROUGH_SHARE: u32 = 10;

/// The floors of all triggers.
#[derive(Debug, Default)]
pub(crate) struct Floors(Mutex<HashMap<TriggerId, Floor>>);

#[derive(Debug)]
struct Floor {
    /// What was due before this moment has been taken.
    taken_before: Instant,
    /// How much earlier to begin all the same.
    margin: Duration,
    thorough_at: Instant,
}

/// A look that is about to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    asked: Instant,
    /// How many milliseconds ago it begins; none is the beginning.
    pub(crate) from_ms: Option<f64>,
}

impl Floors {
    /// Where to begin now.
    pub(crate) fn begin(&self, trigger: TriggerId) -> Look {
        let asked = Instant::now();
        let floors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from_ms = floors
            .get(&trigger)
            .filter(|floor| asked < floor.thorough_at)
            .map(|floor| asked.duration_since(floor.taken_before) + floor.margin)
            .map(|ago| ago.as_secs_f64() * 1000.0);
        Look { asked, from_ms }
    }

    /// A look has taken some events, `full` if there may be more; the last of them was overdue by
    /// so much.
    pub(crate) fn took(&self, trigger: TriggerId, look: Look, full: bool, overdue_ms: f64) {
        let overdue = Duration::try_from_secs_f64(overdue_ms / 1000.0).unwrap_or_default();
        // In a backlog nobody waits for the newest, so late writers may as well wait for the next
        // thorough look.
        let (taken_before, margin) = if full {
            let last = look.asked.checked_sub(overdue).unwrap_or(look.asked);
            (last, Duration::from_millis(1))
        } else {
            (look.asked, MARGIN)
        };
        let thorough = look.from_ms.is_none();
        let next = look.asked + THOROUGH_EVERY.max(look.asked.elapsed() * THOROUGH_SHARE);
        let mut floors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let floor = floors.entry(trigger).or_insert(Floor {
            taken_before,
            margin,
            thorough_at: next,
        });
        (floor.taken_before, floor.margin) = (taken_before, margin);
        if thorough {
            floor.thorough_at = next;
        }
    }

    /// A look has found nothing, or nobody knows: the floor stays where it is.
    pub(crate) fn found_nothing(&self, trigger: TriggerId, look: Look) {
        if look.from_ms.is_none() {
            let next = look.asked + THOROUGH_EVERY.max(look.asked.elapsed() * THOROUGH_SHARE);
            let mut floors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(floor) = floors.get_mut(&trigger) {
                floor.thorough_at = next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: TriggerId = TriggerId(1);

    #[test]
    fn the_first_look_is_thorough_and_the_next_begins_where_it_ended() {
        let floors = Floors::default();
        let first = floors.begin(T);
        assert_eq!(first.from_ms, None);
        floors.took(T, first, true, 5000.0);
        let next = floors.begin(T).from_ms.unwrap();
        assert!((5000.0..6000.0).contains(&next), "{next}");
    }

    #[test]
    fn a_look_that_took_everything_moves_the_floor_to_its_beginning() {
        let floors = Floors::default();
        floors.took(T, floors.begin(T), false, 5000.0);
        let next = floors.begin(T).from_ms.unwrap();
        assert!((1000.0..2000.0).contains(&next), "{next}");
    }

    #[test]
    fn nothing_found_moves_nothing() {
        let floors = Floors::default();
        floors.found_nothing(T, floors.begin(T));
        assert_eq!(floors.begin(T).from_ms, None);
    }
}
