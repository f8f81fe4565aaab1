//! Where the changes of a subscription go: the seam between the loop that pushes and the brokers.
//!
//! A lease cannot fence a sink: an instance that is stopped, loses its lease and wakes up still writes. So a batch is
//! appended on the condition that the sink's newest message is the one that the pusher knows of, wherever the
//! sink can compare.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use changefeed_core::{Cursor, FeedName, ShardId};

/// One shard of a subscription. Each has a place of its own in the sink, in which order is kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lane {
    /// The name of the subscription.
    pub subscription: String,
    /// The feed.
    pub feed: FeedName,
    /// The shard.
    pub shard: ShardId,
    /// Raised by a replay, so that the sink does not take old messages for repetitions.
    pub epoch: u32,
}

/// One change, dressed for a sink.
#[derive(Debug, Clone)]
pub struct Message {
    /// Its place in the shard.
    pub cursor: Cursor,
    /// Idempotency key: subscription, shard, epoch and cursor.
    pub id: String,
    /// Messages with the same key stay in order where a sink spreads a shard.
    pub key: String,
    /// The subject, topic or routing key, if the subscription has a template for it.
    pub subject: Option<String>,
    /// Headers, in sinks that have some.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
}

/// What a sink holds of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// The sink cannot be asked: the stored cursor decides, and messages come at least once.
    CannotTell,
    /// Nothing.
    Nothing,
    /// Everything up to this mark.
    Upto(Mark),
}

/// The newest message of a lane in a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Its cursor.
    pub cursor: Cursor,
    /// What the sink compares when the next batch is appended.
    pub token: u64,
}

/// What became of a batch.
#[derive(Debug)]
pub enum Appended {
    /// All of it is in the sink, durably as far as the sink says; the next batch comes after this.
    All(Held),
    /// Somebody else has written since: ask where the sink is.
    Conflict,
    /// The sink will never take the message at this index. Those before it are in the sink, none after it.
    Refused {
        /// Which one.
        index: usize,
        /// What the sink holds now.
        held: Held,
        /// Why.
        reason: String,
    },
    /// Nobody knows how much of it arrived: wait, and ask where the sink is.
    Unavailable(String),
}

/// A sink that keeps the order of what is appended to a lane.
#[async_trait]
pub trait Destination: Send + Sync + fmt::Debug {
    /// What the sink holds of a lane. An error says that it is away.
    async fn resume(&self, lane: &Lane) -> Result<Held, String>;

    /// Appends a batch after what the sink is believed to hold. Not called twice at the same time for one lane.
    async fn append(&self, lane: &Lane, after: Held, batch: &[Message]) -> Appended;

    /// The most messages of one batch.
    fn most(&self) -> usize {
        1000
    }
}
