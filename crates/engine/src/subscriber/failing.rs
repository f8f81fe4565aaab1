//! Whether what the database says about a sink is still so.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the error of a sink that stays away is written down anew.
const AGAIN: Duration = Duration::from_secs(10);
/// A failure that passes before this is not worth writing down.
const SOON: Duration = Duration::from_millis(200);

/// What is known about a sink.
#[derive(Debug, Default)]
pub(super) struct Failing {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// When it began to fail.
    since: Option<Instant>,
    /// When that was last written down, if it was.
    written: Option<Instant>,
}

impl Failing {
    /// What the instance before wrote down.
    pub(super) fn taken_over(&self, failing: bool) {
        let now = Instant::now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.since = failing.then_some(now);
        known.written = failing.then_some(now);
    }

    /// Whether it is to be written down that the sink fails, or that it works.
    pub(super) fn is_news(&self, fails: bool) -> bool {
        self.is_news_at(fails, Instant::now())
    }

    fn is_news_at(&self, fails: bool, now: Instant) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !fails {
            known.since = None;
            return known.written.take().is_some();
        }
        let since = *known.since.get_or_insert(now);
        let due = match known.written {
            None => now.duration_since(since) >= SOON,
            Some(written) => now.duration_since(written) >= AGAIN,
        };
        if due {
            known.written = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_that_lasts_is_written_down_now_and_then_and_once_that_it_is_over() {
        let (failing, began) = (Failing::default(), Instant::now());
        let at = |millis| began + Duration::from_millis(millis);
        assert!(!failing.is_news_at(false, at(0)));
        assert!(!failing.is_news_at(true, at(0)), "it may pass at once");
        assert!(!failing.is_news_at(false, at(50)));
        assert!(!failing.is_news_at(true, at(100)));
        assert!(failing.is_news_at(true, at(300)));
        assert!(!failing.is_news_at(true, at(5_000)));
        assert!(failing.is_news_at(true, at(10_300)));
        assert!(failing.is_news_at(false, at(10_400)));
        assert!(!failing.is_news_at(false, at(10_500)));
        failing.taken_over(true);
        assert!(failing.is_news(false), "another instance wrote it down");
    }
}
