//! What a ULID transaction is asked for, and how its ULIDs are counted.

use std::time::Duration;

use serde::Serialize;
use uuid::Uuid;

use crate::{Error, Result, Ulid, UlidState};

/// What a ULID transaction is asked for.
#[derive(Debug, Clone)]
pub struct UlidOptions {
    /// The feed: a UUID from the application's source code.
    pub feed: Uuid,
    /// The shard; only the pair of feed and shard matters.
    pub shard: i32,
    /// Silence after which a holder is judged dead.
    pub timeout: Duration,
    /// How long to queue behind living holders.
    pub wait: Duration,
    /// When the transaction happens, in milliseconds since 1970; now, unless given. A time before
    /// that of the shard's newest ULID is raised to it. One that is more than a minute ahead of the database's
    /// clock is refused (`ulid_limit` in the database says how much more).
    pub time_hint: Option<u64>,
}

impl UlidOptions {
    /// A transaction with every default: a timeout of 1 s, a wait of 30 s.
    pub fn new(feed: Uuid, shard: i32) -> Self {
        UlidOptions {
            feed,
            shard,
            timeout: Duration::from_secs(1),
            wait: Duration::from_secs(30),
            time_hint: None,
        }
    }

    /// Checks what can be checked without a database.
    pub fn validate(&self) -> Result<()> {
        if self.timeout < Duration::from_millis(10) {
            return Err(Error::invalid(
                "the timeout of a ULID transaction must be at least 10 ms",
            ));
        }
        Ok(())
    }

    /// When the transaction happens, by the database's clock and by how far a hint may be ahead of it.
    pub fn time(&self, now: u64, ahead: u64) -> Result<u64> {
        match self.time_hint {
            Some(hint) if hint > now.saturating_add(ahead) => Err(Error::invalid(format!(
                "the time hint {hint} (milliseconds since 1970) is more than {ahead} ms ahead of the \
                 database's clock"
            ))
            .advise(
                "check the clock of the client; the limit is `ahead_milliseconds` in the table ulid_limit",
            )),
            Some(hint) => Ok(hint),
            None => Ok(now),
        }
    }
}

/// The ULIDs of one open transaction.
#[derive(Debug, Clone)]
pub struct UlidCounter {
    begin: UlidState,
    given: u64,
}

impl UlidCounter {
    /// ULIDs that a client counts by itself in one transaction. Those made by SQL in the same
    /// transaction come after them. With 2^62 to spend this leaves room for millions of
    /// transactions in one millisecond.
    pub const MAX: u64 = 1 << 36;

    /// A counter that begins here.
    pub fn new(begin: UlidState) -> Self {
        UlidCounter { begin, given: 0 }
    }

    /// When the transaction happens, in milliseconds since 1970: the time of all its ULIDs.
    pub fn time(&self) -> u64 {
        self.begin.time
    }

    /// The next ULIDs, in order.
    pub fn take(&mut self, count: u64) -> Result<impl Iterator<Item = Ulid> + use<>> {
        let first = self.given;
        let last = first
            .checked_add(count)
            .filter(|n| *n <= Self::MAX)
            .ok_or_else(|| {
                Error::invalid(format!("one transaction gives at most {} ULIDs", Self::MAX))
            })?;
        self.given = last;
        let begin = self.begin;
        Ok((first..last).map(move |n| begin.nth(n)))
    }

    /// Where the shard stands after this transaction.
    pub fn after(&self) -> UlidState {
        self.begin.after(self.given)
    }
}

/// How often the writers of a shard had to go on without one of theirs.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Incident {
    /// The feed.
    pub feed: Uuid,
    /// The shard.
    pub shard: i32,
    /// How many times its lock was burned.
    pub count: i64,
    /// Milliseconds since the last time.
    pub since_ms: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ulids_are_counted_without_gaps_or_repeats() {
        let begin = UlidState::begin(None, 1000, [1; 10]).unwrap();
        let mut counter = UlidCounter::new(begin);
        let mut all: Vec<Ulid> = counter.take(1).unwrap().collect();
        all.extend(counter.take(1000).unwrap());
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(all[0], begin.nth(0));
        assert_eq!(counter.after().nth(0), begin.nth(1001));
        assert!(counter.take(UlidCounter::MAX).is_err());
        assert_eq!(
            counter.take(1).unwrap().next(),
            Some(begin.nth(1001)),
            "nothing was used up"
        );
    }
}
