//! Instances: which processes serve, and what each has done since it was started.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How attempts at something ended, since an instance was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tally {
    /// Those that worked.
    pub success: u64,
    /// Those that did not.
    pub failure: u64,
}

impl Tally {
    /// What was added since an earlier look; an instance that was started again begins at 0.
    pub fn since(self, earlier: Tally) -> Tally {
        let added = |now: u64, then: u64| if now >= then { now - then } else { now };
        Tally {
            success: added(self.success, earlier.success),
            failure: added(self.failure, earlier.failure),
        }
    }
}

/// What an instance has done since it was started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tallies {
    /// Attempts to deliver, by event trigger.
    pub triggers: BTreeMap<String, Tally>,
    /// Batches handed over, by watch.
    pub watches: BTreeMap<String, Tally>,
}

/// What an instance says about itself.
#[derive(Debug, Clone)]
pub struct Announcement {
    /// Its name; unique to it.
    pub name: String,
    /// What it does: `sweep`, `deliver`, `watch`, `push`, `http`.
    pub roles: Vec<String>,
    /// Where its HTTP server listens.
    pub address: Option<String>,
    /// The version of the program.
    pub version: String,
    /// What it has done so far.
    pub tallies: Tallies,
}

/// An instance as all others see it.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct Instance {
    /// Its name.
    pub name: String,
    /// What it does.
    pub roles: Vec<String>,
    /// Where its HTTP server listens.
    pub address: Option<String>,
    /// The version of the program.
    pub version: String,
    /// Milliseconds since it was started.
    pub up_ms: i64,
    /// Milliseconds since it was last heard of.
    pub seen_ms: i64,
    /// What it has done so far.
    #[serde(skip)]
    pub tallies: Tallies,
}

/// The connections to the database that a process has.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Connections {
    /// How many there may be.
    pub most: usize,
    /// How many there are.
    pub open: usize,
    /// How many of them nobody uses.
    pub idle: usize,
    /// How many callers wait for one.
    pub waiting: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_that_was_started_again_does_not_count_backwards() {
        let (then, now) = (
            Tally {
                success: 10,
                failure: 3,
            },
            Tally {
                success: 4,
                failure: 5,
            },
        );
        let added = now.since(then);
        assert_eq!((added.success, added.failure), (4, 2));
    }
}
