//! A consumer, as a library user holds it.

use changefeed_core::{ConsumerName, Cursor, Result, ShardId, Taken};

use super::FeedHandle;

/// A named reader of a shard whose cursor is in the database. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ConsumerHandle {
    pub(super) feed: FeedHandle,
    pub(super) name: ConsumerName,
    pub(super) shard: ShardId,
}

impl ConsumerHandle {
    /// Its name.
    pub fn name(&self) -> &ConsumerName {
        &self.name
    }

    /// The next changes, which stay the next until they are [done](Self::done), or until their effects
    /// are committed together with the cursor: see `consume` in the modules of the databases, which
    /// gives exactly-once effects.
    pub async fn next(&self, limit: usize) -> Result<Taken> {
        let feed = &self.feed;
        Taken::read(&*feed.store, &self.name, &feed.feed, self.shard, limit).await
    }

    /// These changes are done. A consumer that is killed before this gets them again: at least once. Fails with
    /// [`Kind::Moved`](changefeed_core::Kind::Moved) when somebody else has moved the consumer.
    pub async fn done(&self, taken: &Taken) -> Result<()> {
        let Some(to) = taken.to() else {
            return Ok(());
        };
        self.feed
            .store_cursor(&self.name, self.shard, taken.from, to)
            .await
    }

    /// Where it stands; nowhere before its first page is done.
    pub async fn cursor(&self) -> Result<Option<Cursor>> {
        self.feed.consumer_cursor(&self.name, self.shard).await
    }

    /// Moves it deliberately, wherever it stands.
    pub async fn seek(&self, to: Cursor) -> Result<()> {
        self.feed.seek(&self.name, self.shard, to).await
    }
}
