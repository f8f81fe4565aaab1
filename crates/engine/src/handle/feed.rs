//! A feed, as a library user holds it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{
    After, Backfill, Backoff, Change, ConsumerName, Cursor, Feed, Incarnation, Page, Remedy,
    Result, Retention, ShardId, ShardState, Store, Trimmed, seek_consumer,
};
use futures_util::stream::{self, Stream, StreamExt, TryStreamExt, select_all};

use super::ConsumerHandle;
use crate::{CancellationToken, Follower, ShardPages, follow};

/// A feed in its database. Cheap to clone.
#[derive(Clone)]
pub struct FeedHandle {
    pub(super) store: Arc<dyn Store>,
    pub(super) feed: Feed,
    pub(super) incarnation: Option<Incarnation>,
}

/// Shards that are read at the same time, after those before were read to their ends.
#[derive(Debug, Clone)]
pub struct Generation {
    /// The feed as it was when these were found.
    pub feed: FeedHandle,
    /// The shards.
    pub shards: Vec<ShardId>,
    /// Whether they were made after somebody began to read.
    pub is_later: bool,
}

impl Generation {
    /// Where somebody begins in these shards who wanted to begin at a point of the feed.
    pub fn begin(&self, after: After) -> After {
        match self.is_later {
            // All of it is to come.
            true => After::First,
            false => after,
        }
    }
}

impl fmt::Debug for FeedHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FeedHandle").field(&self.feed).finish()
    }
}

impl FeedHandle {
    /// The feed's definition.
    pub fn definition(&self) -> &Feed {
        &self.feed
    }

    /// The feed's name.
    pub fn name(&self) -> &str {
        self.feed.name.as_str()
    }

    /// The same feed, read only in this life of the database: the one of the page that the cursors are from, if
    /// they were kept outside of it. In another one, reading fails with
    /// [`Kind::Recovered`](changefeed_core::Kind::Recovered).
    #[must_use]
    pub fn expecting(mut self, incarnation: Option<Incarnation>) -> Self {
        self.incarnation = incarnation;
        self
    }

    /// The changes after a point, oldest first.
    pub async fn read(&self, shard: ShardId, after: After, limit: usize) -> Result<Page> {
        let page = self.store.read(&self.feed, shard, after, limit).await?;
        page.incarnation.check(self.incarnation)?;
        Ok(page)
    }

    /// The next changes; waits up to `wait` if there are none yet.
    pub async fn poll(
        &self,
        shard: ShardId,
        after: After,
        limit: usize,
        wait: Duration,
    ) -> Result<Page> {
        let pages = self.pages(shard, limit);
        let mut follower = Follower::new(pages, after).expecting(self.incarnation);
        follower
            .poll(wait, &CancellationToken::new(), || Ok(()))
            .await
    }

    /// The changes of a shard, for ever, through lost connections and restarts of the database. The stream ends only
    /// when the number of shards was changed and everything was read: the feed goes on in other shards.
    pub fn follow(
        &self,
        shard: ShardId,
        after: After,
    ) -> impl Stream<Item = Result<Change>> + Send + use<> {
        follow(self.pages(shard, 1000), after, self.incarnation)
    }

    fn pages(&self, shard: ShardId, limit: usize) -> ShardPages {
        ShardPages {
            store: self.store.clone(),
            feed: self.feed.clone(),
            shard,
            limit,
        }
    }

    /// The changes of all shards, for ever: in order within each shard, as they come between shards. When the
    /// number of shards is changed, it goes on in the new ones as soon as all of the old ones were read.
    pub fn follow_all(
        &self,
        after: After,
    ) -> impl Stream<Item = Result<(ShardId, Change)>> + Send + use<> {
        let generations = self.clone().generations();
        let followed = generations.map_ok(move |generation| {
            let after = generation.begin(after);
            let shards = generation.shards.iter().map(|shard| {
                let shard = *shard;
                let changes = generation.feed.follow(shard, after);
                Box::pin(changes.map(move |change| Ok((shard, change?))))
            });
            select_all(shards)
        });
        followed.try_flatten()
    }

    /// The shards in the order in which they are to be read, generation by generation. What is asked for after the last
    /// one comes when the number of shards was changed: ask when the shards of all before were read to their ends.
    pub fn generations(self) -> impl Stream<Item = Result<Generation>> + Send + use<> {
        let newest = self.feed.shards.iter().map(|s| s.generation).max();
        stream::try_unfold((self, None), move |(mut feed, last)| async move {
            let mut pause = Backoff::default();
            loop {
                let all = feed.feed.shards.iter().map(|s| s.generation);
                if let Some(number) = all.filter(|g| last.is_none_or(|last| *g > last)).min() {
                    let shards = feed.feed.shards.iter();
                    let shards = shards.filter(|s| s.generation == number);
                    let generation = Generation {
                        shards: shards.map(|s| s.shard).collect(),
                        feed: feed.clone(),
                        is_later: Some(number) > newest,
                    };
                    return Ok(Some((generation, (feed, Some(number)))));
                }
                match feed.store.feeds().await {
                    Ok(all) => match all.into_iter().find(|f| f.id == feed.feed.id) {
                        Some(found) if found != feed.feed => {
                            feed.feed = found;
                            continue;
                        }
                        Some(_) => {}
                        None => return Ok(None),
                    },
                    Err(error) if error.kind().remedy() == Remedy::Human => return Err(error),
                    Err(_) => {}
                }
                tokio::time::sleep(pause.failed()).await;
            }
        })
    }

    /// A consumer of a shard, which keeps its place in the database.
    pub fn consumer(&self, name: ConsumerName, shard: ShardId) -> ConsumerHandle {
        ConsumerHandle {
            feed: self.clone(),
            name,
            shard,
        }
    }

    /// The traffic of the feed's shards.
    pub async fn shard_states(&self) -> Result<Vec<ShardState>> {
        self.store.shard_states(&self.feed).await
    }

    /// Goes on with this number of shards: see [`reshard`](changefeed_core::FeedStore::reshard). Followers of the
    /// old ones end when they have read everything.
    pub async fn reshard(self, shards: i16) -> Result<FeedHandle> {
        let feed = self.store.reshard(&self.feed, shards).await?;
        Ok(FeedHandle { feed, ..self })
    }

    /// Gives numbers below the start to the next rows of the feed's table.
    pub async fn backfill(&self, batch: usize) -> Result<Backfill> {
        self.store.backfill(&self.feed, batch).await
    }

    /// Removes old changes that every consumer has read, a batch at a time.
    pub async fn trim(&self, retention: impl Into<Retention>, batch: usize) -> Result<Trimmed> {
        let retention = retention.into();
        retention.validate()?;
        self.store.trim(&self.feed, retention, batch).await
    }

    /// The cursor that stands for a point: what is read after it is what is read after that point,
    /// however much later. A new consumer stores it before it waits for its first change.
    pub async fn position(&self, shard: ShardId, after: After) -> Result<Cursor> {
        if let After::Cursor(cursor) = after {
            return Ok(cursor);
        }
        let page = self.read(shard, after, 1).await?;
        Ok(match page.changes.first().map(|change| change.cursor) {
            Some(Cursor::Number(first)) => Cursor::Number(first - 1),
            _ => page.next,
        })
    }

    /// Where a consumer stands.
    pub async fn consumer_cursor(
        &self,
        name: &ConsumerName,
        shard: ShardId,
    ) -> Result<Option<Cursor>> {
        self.store.consumer_cursor(name, &self.feed, shard).await
    }

    /// Moves a consumer from the cursor that it believes to be stored (`None` the first time) to
    /// another; fails with [`Kind::Moved`](changefeed_core::Kind::Moved) when another is stored. Safe to
    /// repeat when the outcome is unknown. For exactly-once effects use
    /// the store's `advance_consumer` in the transaction of the effects.
    pub async fn store_cursor(
        &self,
        name: &ConsumerName,
        shard: ShardId,
        from: Option<Cursor>,
        to: Cursor,
    ) -> Result<()> {
        self.store
            .store_cursor(name, &self.feed, shard, from, to)
            .await
    }

    /// Moves a consumer deliberately, wherever it stands.
    pub async fn seek(&self, name: &ConsumerName, shard: ShardId, to: Cursor) -> Result<()> {
        seek_consumer(&*self.store, name, &self.feed, shard, to).await
    }

    /// Forgets a consumer.
    pub async fn drop_consumer(&self, name: &ConsumerName) -> Result<u64> {
        self.store.drop_consumer(name, &self.feed).await
    }

    /// Removes the feed and everything in it.
    pub async fn drop_feed(self) -> Result<()> {
        self.store.drop_feed(&self.feed).await
    }
}
