//! The whole at a glance, for whoever looks at it without a server: `changefeed top`.

use std::collections::VecDeque;
use std::time::Duration;

use crate::Changefeed;
use changefeed_core::Result;
use changefeed_core::view::Status;

use super::samples::{Sample, look};

/// The time over which rates are computed. Instances announce their counts every few seconds, so that a
/// shorter time would show nothing, and then everything at once.
const WINDOW: Duration = Duration::from_secs(15);

/// Looks at a database again and again.
#[derive(Debug, Default)]
pub struct Looks {
    /// Oldest first; one of them is older than the window, as soon as there is one.
    samples: VecDeque<Sample>,
}

impl Looks {
    /// Looks once more. There are no rates at the first look.
    pub async fn look(&mut self, db: &Changefeed) -> Result<Status> {
        while self.samples.get(1).is_some_and(|s| s.age() > WINDOW) {
            self.samples.pop_front();
        }
        let sample = look(db, None, self.samples.back(), self.samples.front()).await?;
        let mut status = sample.status.clone();
        status.version = env!("CARGO_PKG_VERSION").to_owned();
        status.sampled_at = Some(humantime::format_rfc3339_millis(sample.at).to_string());
        status.database.reachable = true;
        status.database.connections = db.store().connections();
        self.samples.push_back(sample);
        Ok(status)
    }
}
