//! Named consumers, whose cursors are kept in the database.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::name::check_name;
use crate::{
    After, ConsumerStore, Cursor, Error, Feed, FeedId, FeedName, Kind, Page, Result, ShardId, Store,
};

/// A consumer's name: `[a-zA-Z0-9_-]+`, at most 100 characters.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ConsumerName(String);

impl ConsumerName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Wraps a name that the database returned, without checking it.
    pub fn trusted(name: String) -> Self {
        ConsumerName(name)
    }

    /// The error for a caller who wants to move this consumer when the stored cursor is not the
    /// one that it starts from.
    pub fn moved(&self, shard: ShardId) -> Error {
        Error::new(
            Kind::Moved,
            format!(
                "the cursor of consumer '{self}' on shard {shard} is not where it was: \
                 somebody else moved it, or dropped the consumer"
            ),
        )
        .advise("roll back, and go on from the cursor that is stored now")
    }
}

impl fmt::Display for ConsumerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ConsumerName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        check_name("consumer name", text, 100).map(ConsumerName)
    }
}

/// A consumer's place in one shard, and how far behind it is.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct Consumer {
    /// Its name.
    pub name: ConsumerName,
    /// The feed it reads.
    pub feed: FeedName,
    /// The shard this cursor belongs to.
    pub shard: ShardId,
    /// What it has read.
    pub cursor: Cursor,
    /// Numbered changes that it has not read yet.
    pub lag_changes: i64,
    /// Milliseconds since the oldest of these got its number; 0 when there is none. Accurate to
    /// about a second.
    pub lag_ms: i64,
    /// Whether what comes after the cursor was trimmed already: the consumer will get the error
    /// "cursor expired".
    pub expired: bool,
    /// Milliseconds since the cursor was last stored.
    pub idle_ms: i64,
}

/// The next page of a consumer, and where it stood when it was read: what moving it on needs.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Taken {
    /// The consumer.
    pub consumer: ConsumerName,
    /// The feed.
    pub feed: FeedId,
    /// The shard.
    pub shard: ShardId,
    /// Where it stands; nowhere before its first page is done.
    pub from: Option<Cursor>,
    /// What comes next.
    pub page: Page,
}

impl Taken {
    /// Reads the next page of a consumer; a new one begins with the oldest change.
    pub async fn read(
        store: &dyn Store,
        consumer: &ConsumerName,
        feed: &Feed,
        shard: ShardId,
        limit: usize,
    ) -> Result<Self> {
        let from = store.consumer_cursor(consumer, feed, shard).await?;
        let after = from.map_or(After::First, After::Cursor);
        Ok(Taken {
            page: store.read(feed, shard, after, limit).await?,
            consumer: consumer.clone(),
            feed: feed.id,
            shard,
            from,
        })
    }

    /// Where the consumer goes when this page is done; nowhere if there was nothing in it. A new consumer
    /// of an empty feed must not be put behind rows that are backfilled later.
    pub fn to(&self) -> Option<Cursor> {
        (!self.page.changes.is_empty()).then_some(self.page.next)
    }
}

/// Moves a consumer deliberately, wherever it stands: for a person who wants it to go on elsewhere.
/// A consumer itself says where it came from, with [`ConsumerStore::store_cursor`].
///
/// This looks where it stands and moves it from there, so that a call which the database executes
/// late, after somebody else has moved the consumer, changes nothing.
pub async fn seek_consumer<S: ConsumerStore + ?Sized>(
    store: &S,
    name: &ConsumerName,
    feed: &Feed,
    shard: ShardId,
    to: Cursor,
) -> Result<()> {
    let from = store.consumer_cursor(name, feed, shard).await?;
    store.store_cursor(name, feed, shard, from, to).await
}
