//! What a library user holds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{
    After, Backfill, Change, Condition, Consumer, ConsumerName, Cursor, Error, Feed, Incident,
    LeaseHolder, Migration, NewFeed, Page, Result, SchemaState, ShardId, ShardState, Store,
    SweepGroup, SweepReport, TableName, Trimmed, seek_consumer,
};
use changefeed_engine::{Follow, Sweeper, follow, long_poll};
use futures_util::Stream;

/// A database with change feeds. Cheap to clone.
#[derive(Clone)]
pub struct Changefeed {
    store: Arc<dyn Store>,
}

impl fmt::Debug for Changefeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changefeed").finish_non_exhaustive()
    }
}

impl Changefeed {
    /// A handle on a store that was opened by other means.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Changefeed { store }
    }

    /// The store itself.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// What is installed in the database.
    pub async fn schema(&self) -> Result<SchemaState> {
        self.store.schema().await
    }

    /// Installs our tables, or brings them up to date.
    pub async fn migrate(&self) -> Result<Migration> {
        self.store.migrate().await
    }

    /// Removes everything of ours.
    pub async fn uninstall(&self) -> Result<()> {
        self.store.uninstall().await
    }

    /// Creates a feed.
    pub async fn create_feed(&self, new: &NewFeed) -> Result<FeedHandle> {
        let feed = self.store.create_feed(new).await?;
        Ok(FeedHandle {
            store: self.store.clone(),
            feed,
        })
    }

    /// All feeds.
    pub async fn feeds(&self) -> Result<Vec<FeedHandle>> {
        let feeds = self.store.feeds().await?;
        Ok(feeds
            .into_iter()
            .map(|feed| FeedHandle {
                store: self.store.clone(),
                feed,
            })
            .collect())
    }

    /// The feed with this name.
    pub async fn feed(&self, name: &str) -> Result<FeedHandle> {
        let feeds = self.feeds().await?;
        let known: Vec<String> = feeds.iter().map(|f| f.name().to_owned()).collect();
        feeds.into_iter().find(|f| f.name() == name).ok_or_else(|| {
            Error::not_found(format!("there is no feed '{name}'")).advise(if known.is_empty() {
                "`changefeed feed create` makes one".to_owned()
            } else {
                format!("the feeds are {}", known.join(", "))
            })
        })
    }

    /// A table name as a person writes it, folded as this database folds it.
    pub fn table(&self, text: &str) -> Result<TableName> {
        TableName::parse(text, self.store.dialect().fold)
    }

    /// A column name as a person writes it, folded as this database folds it.
    pub fn column(&self, text: &str) -> Result<String> {
        TableName::parse_column(text, self.store.dialect().fold)
    }

    /// A condition in our own small language, as this database wants it written.
    pub fn condition(&self, text: &str) -> Result<String> {
        let dialect = self.store.dialect();
        Ok(Condition::parse(text, dialect.fold)?.sql(dialect))
    }

    /// Whether changes wait for a sweep, or get their number at insert.
    pub fn needs_sweeping(&self) -> bool {
        self.store.needs_sweeping()
    }

    /// Numbers what is committed, once.
    pub async fn sweep(&self, group: SweepGroup) -> Result<SweepReport> {
        self.store.sweep(group).await
    }

    /// A sweeper to run in the background; `owner` must be unique to this instance.
    pub fn sweeper(&self, group: SweepGroup, owner: impl Into<String>) -> Sweeper {
        Sweeper::new(self.store.clone(), group, owner)
    }

    /// The sweep groups that have shards.
    pub async fn sweep_groups(&self) -> Result<Vec<SweepGroup>> {
        self.store.sweep_groups().await
    }

    /// Named consumers and how far behind they are.
    pub async fn consumers(&self) -> Result<Vec<Consumer>> {
        self.store.consumers().await
    }

    /// Shards whose ULID writers had to go on without one of theirs.
    pub async fn incidents(&self) -> Result<Vec<Incident>> {
        self.store.incidents().await
    }

    /// Who sweeps what.
    pub async fn lease_holders(&self) -> Result<Vec<LeaseHolder>> {
        self.store.lease_holders().await
    }
}

/// A feed in its database. Cheap to clone.
#[derive(Clone)]
pub struct FeedHandle {
    store: Arc<dyn Store>,
    feed: Feed,
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

    /// The changes after a point, oldest first.
    pub async fn read(&self, shard: ShardId, after: After, limit: usize) -> Result<Page> {
        self.store.read(&self.feed, shard, after, limit).await
    }

    /// The next changes; waits up to `wait` if there are none yet.
    pub async fn poll(
        &self,
        shard: ShardId,
        after: After,
        limit: usize,
        wait: Duration,
    ) -> Result<Page> {
        long_poll(&*self.store, &self.feed, shard, after, limit, wait).await
    }

    /// The changes of a shard, for ever, through lost connections and restarts of the database.
    pub fn follow(
        &self,
        shard: ShardId,
        after: After,
    ) -> impl Stream<Item = Result<Change>> + Send + use<> {
        let what = Follow {
            feed: self.feed.clone(),
            shard,
            after,
            page: 1000,
        };
        follow(self.store.clone(), what)
    }

    /// The traffic of the feed's shards.
    pub async fn shard_states(&self) -> Result<Vec<ShardState>> {
        self.store.shard_states(&self.feed).await
    }

    /// Gives numbers below the start to the next rows of the feed's table.
    pub async fn backfill(&self, batch: usize) -> Result<Backfill> {
        self.store.backfill(&self.feed, batch).await
    }

    /// Removes old changes that every consumer has read, a batch at a time.
    pub async fn trim(&self, age: Duration, batch: usize) -> Result<Trimmed> {
        self.store.trim(&self.feed, age, batch).await
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
    /// another; fails with [`Kind::Moved`](crate::Kind::Moved) when another is stored. Safe to
    /// repeat when the outcome is unknown. For exactly-once effects use
    /// [`postgres::advance_consumer`](crate::postgres::advance_consumer) or
    /// [`sqlite::advance_consumer`](crate::sqlite::advance_consumer) in the transaction of the
    /// effects.
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
