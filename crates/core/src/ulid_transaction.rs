//! What a ULID transaction is asked for, and how its ULIDs are counted.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use uuid::Uuid;

use crate::{Error, Result, Ulid, UlidState};

/// One shard of one feed of ULID transactions. Their order is that in which a transaction locks them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UlidShard {
    /// The feed: a UUID from the application's source code.
    pub feed: Uuid,
    /// The shard; only the pair of feed and shard matters.
    pub shard: i32,
}

impl fmt::Display for UlidShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "feed {} shard {}", self.feed, self.shard)
    }
}

/// What a ULID transaction is asked for.
#[derive(Debug, Clone)]
pub struct UlidOptions {
    /// The feed: a UUID from the application's source code.
    pub feed: Uuid,
    /// The shard; only the pair of feed and shard matters.
    pub shard: i32,
    /// What else the transaction writes to; [`UlidOptions::and`] adds one.
    pub others: Vec<UlidShard>,
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
            others: Vec::new(),
            timeout: Duration::from_secs(1),
            wait: Duration::from_secs(30),
            time_hint: None,
        }
    }

    /// The same transaction writes to this shard, too. It commits for all of its shards or for none.
    ///
    /// A client that disappears delays each of the shards that it holds, and a transaction waits for all of them: name
    /// as few as you need.
    #[must_use]
    pub fn and(mut self, feed: Uuid, shard: i32) -> Self {
        self.others.push(UlidShard { feed, shard });
        self
    }

    /// All shards, each once, in the order in which they are locked: nobody waits in a circle.
    pub fn shards(&self) -> Vec<UlidShard> {
        let (feed, shard) = (self.feed, self.shard);
        let mut all = self.others.clone();
        all.push(UlidShard { feed, shard });
        all.sort_unstable();
        all.dedup();
        all
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

    /// The next ULID.
    pub fn take_one(&mut self) -> Result<Ulid> {
        let mut one = self.take(1)?;
        one.next().ok_or_else(|| Error::invalid("no ULID is left"))
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

    /// Where the shard would stand after as many ULIDs as one transaction may give.
    pub fn reserved(&self) -> UlidState {
        self.begin.after(Self::MAX)
    }

    /// Where the shard stands after this transaction.
    pub fn after(&self) -> UlidState {
        self.begin.after(self.given)
    }
}

/// The ULIDs of all shards of one open transaction.
#[derive(Debug, Clone)]
pub struct UlidCounters {
    /// In ascending order.
    of: Vec<(UlidShard, UlidCounter)>,
}

impl UlidCounters {
    /// Counters that begin here, in ascending order of their shards.
    pub fn new(begun: impl IntoIterator<Item = (UlidShard, UlidState)>) -> Self {
        let counter = |(shard, state)| (shard, UlidCounter::new(state));
        UlidCounters {
            of: begun.into_iter().map(counter).collect(),
        }
    }

    /// The shards and their counters.
    pub fn all(&self) -> &[(UlidShard, UlidCounter)] {
        &self.of
    }

    /// The counter of a transaction that writes to one shard.
    pub fn only(&mut self) -> Result<&mut UlidCounter> {
        match &mut self.of[..] {
            [(_, counter)] => Ok(counter),
            _ => Err(Error::invalid(
                "this ULID transaction writes to several shards: name the feed and the shard of the ULID",
            )),
        }
    }

    /// The counter of this shard.
    pub fn of(&mut self, feed: Uuid, shard: i32) -> Result<&mut UlidCounter> {
        let wanted = UlidShard { feed, shard };
        let found = self.of.iter_mut().find(|(of, _)| *of == wanted);
        found.map(|(_, counter)| counter).ok_or_else(|| {
            Error::invalid(format!("{wanted} is not in this ULID transaction"))
                .advise("name it in the options that begin the transaction, or add it")
        })
    }

    /// Whether this shard may be added: only behind all others, or two transactions could wait for each other.
    pub fn may_add(&self, new: UlidShard) -> Result<()> {
        match self.of.last() {
            Some((last, _)) if *last > new => Err(Error::invalid(format!(
                "{new} comes before {last}, which this transaction has locked: shards are locked in ascending order"
            ))
            .advise("name all shards in the options that begin the transaction")),
            Some((last, _)) if *last == new => Err(Error::invalid(format!(
                "{new} is in this ULID transaction already"
            ))),
            _ => Ok(()),
        }
    }

    /// Goes on with one more, which [`UlidCounters::may_add`] has allowed.
    pub fn add(&mut self, shard: UlidShard, begin: UlidState) {
        self.of.push((shard, UlidCounter::new(begin)));
    }

    /// When the transaction happens, in milliseconds since 1970. A shard that was ahead of the clock keeps its own time;
    /// this is the latest.
    pub fn time(&self) -> u64 {
        let times = self.of.iter().map(|(_, counter)| counter.time());
        times.max().unwrap_or_default()
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
    fn shards_are_locked_in_one_order_whatever_they_were_named_in() {
        let (a, b) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let options = UlidOptions::new(b, 0).and(a, 7).and(a, -1).and(b, 0);
        let shards = options.shards();
        let order: Vec<(Uuid, i32)> = shards.iter().map(|s| (s.feed, s.shard)).collect();
        assert_eq!(order, [(a, -1), (a, 7), (b, 0)]);

        let state = UlidState::begin(None, 1000, [1; 10]).unwrap();
        let mut counters = UlidCounters::new(shards.into_iter().map(|s| (s, state)));
        assert!(counters.only().is_err(), "which one is not known");
        assert!(counters.of(a, 0).is_err(), "it is not in it");
        assert!(counters.of(a, 7).unwrap().take(1).is_ok());
        let shard = |feed, shard| UlidShard { feed, shard };
        assert!(
            counters.may_add(shard(b, -1)).is_err(),
            "behind the last only"
        );
        assert!(
            counters.may_add(shard(b, 0)).is_err(),
            "it is there already"
        );
        counters.may_add(shard(b, 1)).unwrap();
        counters.add(shard(b, 1), state);
        assert!(counters.of(b, 1).is_ok());
    }

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
