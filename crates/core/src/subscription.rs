//! A subscription at work: where each of its shards stands, and what follows from what the sink holds.

use serde::Serialize;

use crate::{ConsumerName, Cursor, Feed, FeedId, ShardId, SubscriptionDefinition};

/// A subscription as the database knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Subscription {
    /// What it pushes where.
    pub definition: SubscriptionDefinition,
    /// The feed.
    pub feed_id: FeedId,
    /// Why it is paused, if it is.
    pub paused: Option<String>,
    /// Its shards, as far as somebody has worked on them.
    pub shards: Vec<LaneState>,
}

/// One shard of a subscription.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lane {
    /// The subscription.
    pub name: ConsumerName,
    /// The feed.
    pub feed: FeedId,
    /// The shard.
    pub shard: ShardId,
}

impl Lane {
    /// The lease under which one instance works on it.
    pub fn lease(&self) -> String {
        format!("push/{}/{}", self.name, self.shard)
    }
}

/// Where a shard of a subscription stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneState {
    /// The shard.
    pub shard: ShardId,
    /// The generation of the lease of whoever works on it.
    pub generation: i64,
    /// Raised whenever a person has it begin elsewhere.
    pub epoch: u32,
    /// The position.
    pub cursor: Option<Cursor>,
    /// What the sink held of this epoch when the position was stored, if it can tell.
    pub held: Option<Cursor>,
    /// Why it was stopped, if it was.
    pub stopped: Option<String>,
    /// Changes that the sink took.
    pub sent: i64,
    /// Changes that the sink had taken and did not hold any more.
    pub lost: i64,
    /// Changes that the sink refused and that were left out.
    pub parked: i64,
    /// What the sink fails with, if it does.
    pub failing: Option<LaneFailure>,
}

/// Why a sink takes nothing.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LaneFailure {
    /// Milliseconds since it began.
    pub since_ms: i64,
    /// The last error.
    pub error: String,
}

/// Where each shard of a feed begins: at one of these cursors, or with the oldest change.
pub fn subscription_starts(
    feed: &Feed,
    starts: &[(ShardId, Cursor)],
) -> Vec<(ShardId, Option<Cursor>)> {
    let at = |shard| starts.iter().find(|(of, _)| *of == shard);
    let shards = feed.shards.iter().map(|shard| shard.shard);
    shards
        .map(|shard| (shard, at(shard).map(|(_, cursor)| *cursor)))
        .collect()
}

impl LaneState {
    /// One that nobody has worked on.
    pub fn new(shard: ShardId) -> Self {
        LaneState {
            shard,
            generation: 0,
            epoch: 0,
            cursor: None,
            held: None,
            stopped: None,
            sent: 0,
            lost: 0,
            parked: 0,
            failing: None,
        }
    }
}

/// A step of a position, and what it counts as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advance {
    /// The generation of the lease.
    pub generation: i64,
    /// The epoch.
    pub epoch: u32,
    /// Where the position is believed to be.
    pub from: Option<Cursor>,
    /// Where it goes.
    pub to: Cursor,
    /// What the sink holds now, if it can tell.
    pub held: Option<Cursor>,
    /// Changes that the sink took.
    pub sent: i64,
    /// Changes that the sink had lost.
    pub lost: i64,
    /// Why the change at `to` is parked, if it is.
    pub parked: Option<String>,
}

/// A change that the sink refused and that was left out.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ParkedChange {
    /// The shard.
    pub shard: ShardId,
    /// The epoch.
    pub epoch: u32,
    /// Its place in the shard.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub cursor: Cursor,
    /// What the sink said.
    pub reason: String,
}

/// What follows from what a sink says it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Go on from the stored position.
    AsStored,
    /// The sink has more than the position says: go on from what it has.
    Ahead(Cursor),
    /// The sink has less than it had: send again what comes after this.
    Behind(Cursor),
    /// The sink has nothing, although it had something: a person decides.
    Empty,
}

/// Compares what the sink says with what is stored. What the sink says wins. `cursor` is the position, `before` what
/// the sink held when that was stored, `now` what it holds.
pub fn reconcile(cursor: Option<Cursor>, before: Option<Cursor>, now: Option<Cursor>) -> Found {
    match (now, before) {
        (None, Some(_)) => Found::Empty,
        (None, None) => Found::AsStored,
        (Some(now), Some(before)) if now < before => Found::Behind(now),
        // What lies between was refused and left out.
        (Some(now), _) if cursor.is_none_or(|cursor| cursor < now) => Found::Ahead(now),
        _ => Found::AsStored,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_sink_says_wins() {
        let n = |n: i64| Some(Cursor::Number(n));
        let c = Cursor::Number;
        for (cursor, before, now, found) in [
            (None, None, None, Found::AsStored),
            (n(5), None, None, Found::AsStored),
            (n(5), n(5), n(5), Found::AsStored),
            // The position was not stored before a crash.
            (n(5), n(5), n(9), Found::Ahead(c(9))),
            (None, None, n(9), Found::Ahead(c(9))),
            // It lost some.
            (n(9), n(9), n(5), Found::Behind(c(5))),
            // 6 and 7 were refused and left out.
            (n(7), n(5), n(5), Found::AsStored),
            (n(7), n(5), n(6), Found::AsStored),
            (n(7), n(5), n(8), Found::Ahead(c(8))),
            (n(7), n(5), n(4), Found::Behind(c(4))),
            (n(9), n(9), None, Found::Empty),
            // A person has put it behind what an older subscription of this name left there.
            (n(9), None, n(5), Found::AsStored),
        ] {
            assert_eq!(
                reconcile(cursor, before, now),
                found,
                "{cursor:?} {before:?} {now:?}"
            );
        }
    }
}
