//! How long a loop waits before it looks again: hardly at all under load, longer and longer when
//! nothing happens, so that idling costs nearly nothing.

use std::time::Duration;

/// The waiting of a polling loop. Pure: it says how long to wait, it does not wait.
#[derive(Debug, Clone)]
pub struct Pace {
    shortest: Duration,
    longest: Duration,
    current: Duration,
    quiet: u32,
}

/// Empty looks that are repeated quickly before the waiting grows: under a steady trickle the
/// next change is near.
const PATIENCE: u32 = 25;

impl Pace {
    /// A pace between the two waits.
    pub fn new(shortest: Duration, longest: Duration) -> Self {
        let longest = longest.max(shortest);
        Pace {
            shortest,
            longest,
            current: shortest,
            quiet: 0,
        }
    }

    /// Something was found: be quick again. Returns the next wait.
    pub fn busy(&mut self) -> Duration {
        self.quiet = 0;
        self.current = self.shortest;
        self.current
    }

    /// Nothing was found. Returns the next wait.
    pub fn idle(&mut self) -> Duration {
        self.quiet = self.quiet.saturating_add(1);
        if self.quiet > PATIENCE {
            self.current = (self.current * 5 / 4).min(self.longest);
        }
        self.current
    }
}

/// The waiting after errors that may pass: twice as long each time, up to a limit.
#[derive(Debug, Clone)]
pub struct Backoff {
    next: Duration,
}

impl Backoff {
    const FROM: Duration = Duration::from_millis(50);
    const UPTO: Duration = Duration::from_secs(2);

    /// How long to wait after this failure.
    pub fn failed(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(Self::UPTO);
        wait
    }

    /// Whether nothing has failed since it worked.
    pub fn is_fresh(&self) -> bool {
        self.next == Self::FROM
    }

    /// It worked: the next failure is the first again.
    pub fn worked(&mut self) {
        self.next = Self::FROM;
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff { next: Self::FROM }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn waiting_grows_when_idle_and_shrinks_at_once_when_busy() {
        let mut pace = Pace::new(Duration::from_millis(1), Duration::from_millis(40));
        for _ in 0..PATIENCE {
            assert_eq!(pace.idle(), Duration::from_millis(1));
        }
        let mut before = Duration::from_millis(1);
        for _ in 0..40 {
            let next = pace.idle();
            assert!(next >= before);
            before = next;
        }
        assert_eq!(before, Duration::from_millis(40));
        assert_eq!(pace.busy(), Duration::from_millis(1));
    }

    #[test]
    fn failures_are_waited_for_longer_and_longer_until_one_try_works() {
        let mut backoff = Backoff::default();
        let waits: Vec<Duration> = (0..8).map(|_| backoff.failed()).collect();
        assert!(
            waits
                .windows(2)
                .all(|w| w[1] == (w[0] * 2).min(Backoff::UPTO))
        );
        assert_eq!(waits.last(), Some(&Backoff::UPTO));
        backoff.worked();
        assert_eq!(backoff.failed(), Backoff::FROM);
    }

    proptest! {
        #[test]
        fn a_wait_is_never_outside_its_bounds(
            short in 1u64..100, long in 1u64..10_000, looks in prop::collection::vec(any::<bool>(), 0..200)
        ) {
            let (short, long) = (Duration::from_millis(short), Duration::from_millis(long));
            let mut pace = Pace::new(short, long);
            for found in looks {
                let wait = if found { pace.busy() } else { pace.idle() };
                prop_assert!(wait >= short && wait <= long.max(short));
            }
        }
    }
}
