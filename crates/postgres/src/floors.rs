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
//!
//! All moments are the database's, in microseconds since 1970.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use changefeed_core::TriggerId;

/// Writers that take no longer than this are found by every look.
const MARGIN_MICROS: i64 = 1_000_000;
/// How often there is a look from the beginning, at most; and how many times as long as it took
/// must pass before the next.
const THOROUGH_EVERY: Duration = Duration::from_secs(1);
const THOROUGH_SHARE: u32 = 10;

/// The floors of all triggers.
#[derive(Debug, Default)]
pub(crate) struct Floors(Mutex<HashMap<TriggerId, Floor>>);

#[derive(Debug)]
struct Floor {
    from: i64,
    thorough_at: Instant,
}

/// A look that is about to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    asked: Instant,
    /// Where it begins; none is the beginning.
    pub(crate) from: Option<i64>,
}

/// What a look has taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Took {
    /// When the last of the events was due.
    pub(crate) last_due: i64,
    /// When the look was made.
    pub(crate) now: i64,
    /// Whether there may be more.
    pub(crate) full: bool,
}

impl Took {
    /// Everything that was due, were it nothing at all.
    pub(crate) fn everything(now: i64) -> Self {
        Took {
            last_due: now,
            now,
            full: false,
        }
    }
}

impl Floors {
    /// Where to begin now.
    pub(crate) fn begin(&self, trigger: TriggerId) -> Look {
        let asked = Instant::now();
        let floors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from = floors
            .get(&trigger)
            .filter(|floor| asked < floor.thorough_at)
            .map(|floor| floor.from);
        Look { asked, from }
    }

    /// A look is over. One that has taken nothing moves no floor, unless it is sure that there was
    /// nothing: another instance may have been at it.
    pub(crate) fn end(&self, trigger: TriggerId, look: Look, took: Option<Took>) {
        let next = look.asked + THOROUGH_EVERY.max(look.asked.elapsed() * THOROUGH_SHARE);
        let from = took.map(|took| match took.full {
            // In a backlog nobody waits for the newest, so late writers may as well wait for the
            // next thorough look.
            true => took.last_due,
            false => took.now - MARGIN_MICROS,
        });
        let mut floors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (floors.get_mut(&trigger), from) {
            (Some(floor), from) => {
                floor.from = from.unwrap_or(floor.from);
                if look.from.is_none() {
                    floor.thorough_at = next;
                }
            }
            (None, Some(from)) => {
                let thorough_at = next;
                floors.insert(trigger, Floor { from, thorough_at });
            }
            (None, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: TriggerId = TriggerId(1);

    fn took(full: bool) -> Option<Took> {
        Some(Took {
            last_due: 5_000_000,
            now: 9_000_000,
            full,
        })
    }

    #[test]
    fn the_first_look_is_thorough_and_the_next_begins_where_it_ended() {
        let floors = Floors::default();
        let first = floors.begin(T);
        assert_eq!(first.from, None);
        floors.end(T, first, took(true));
        assert_eq!(floors.begin(T).from, Some(5_000_000));
    }

    #[test]
    fn a_look_that_took_everything_moves_the_floor_almost_to_its_moment() {
        let floors = Floors::default();
        floors.end(T, floors.begin(T), took(false));
        assert_eq!(floors.begin(T).from, Some(8_000_000));
    }

    #[test]
    fn a_look_that_is_not_sure_moves_nothing() {
        let floors = Floors::default();
        floors.end(T, floors.begin(T), None);
        assert_eq!(floors.begin(T).from, None);
        floors.end(T, floors.begin(T), took(true));
        floors.end(T, floors.begin(T), None);
        assert_eq!(floors.begin(T).from, Some(5_000_000));
    }
}
