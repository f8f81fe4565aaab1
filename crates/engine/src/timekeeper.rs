//! Notices when the database's clock was set back. Whoever works with leases or due times looks from
//! time to time; the store does what has to be done, once, whoever looks first.

use std::time::{Duration, Instant};

use changefeed_core::Store;

use crate::describe;

/// How often a loop looks.
const EVERY: Duration = Duration::from_secs(10);

/// When to look next.
pub(crate) struct Timekeeper {
    next: Instant,
}

impl Timekeeper {
    pub(crate) fn new() -> Self {
        Timekeeper {
            next: Instant::now(),
        }
    }

    /// Looks if it is time to. Nothing depends on whether it worked.
    pub(crate) async fn look(&mut self, store: &dyn Store) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + EVERY;
        match store.keep_time().await {
            Ok(None) => {}
            Ok(Some(step)) => tracing::warn!(
                "the database's clock was set back by {step:?}; what was due or held is brought back"
            ),
            Err(error) => {
                tracing::warn!(error = %describe(&error), "the clock could not be looked at");
            }
        }
    }
}
