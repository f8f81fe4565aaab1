//! The feed and the tables that the measures work in, and their removal.

use std::sync::Arc;

use changefeed::sqlite::{SqliteStore, rusqlite};
use changefeed::{Changefeed, Error, FeedHandle, Kind, Result};

use crate::scratch::{Place, ScratchFeed};

const CREATE: &str = "
create table changefeed_bench_row (id integer primary key, change_id integer, payload text);
create table changefeed_bench_bare (id integer primary key, change_id integer, payload text);
";
const REMOVE: &str = "
drop table if exists changefeed_bench_row;
drop table if exists changefeed_bench_bare;
";

/// Everything that the measures share.
pub(crate) struct Scratch {
    pub(crate) store: SqliteStore,
    pub(crate) feed: ScratchFeed,
}

impl Place for Scratch {
    async fn prepare(path: &str) -> Result<Self> {
        let store = SqliteStore::open(path).await?;
        let feed = ScratchFeed::prepare(Changefeed::new(Arc::new(store.clone()))).await?;
        let scratch = Scratch { store, feed };
        scratch.clear().await?;
        scratch.run(CREATE).await?;
        Ok(scratch)
    }

    async fn version(&self) -> Result<String> {
        Ok(format!("SQLite {}", rusqlite::version()))
    }

    async fn caveats(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    async fn remove(self) -> Result<()> {
        self.clear().await
    }
}

impl Scratch {
    /// A new scratch feed without any history; the one before is removed.
    pub(crate) async fn new_feed(&self) -> Result<FeedHandle> {
        self.drop_feed().await?;
        self.feed.create(1).await
    }

    async fn clear(&self) -> Result<()> {
        self.drop_feed().await?;
        self.run(REMOVE).await
    }

    async fn drop_feed(&self) -> Result<()> {
        match self.feed.existing().await? {
            Some(feed) => feed.drop_feed().await,
            None => Ok(()),
        }
    }

    pub(crate) async fn run(&self, statements: &'static str) -> Result<()> {
        let connection = self.store.connection()?;
        blocking(move || connection.execute_batch(statements).map_err(db)).await
    }
}

/// Runs blocking work off the runtime's own threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(answer) => answer,
        Err(failed) => Err(Error::new(Kind::Database, "a measure was cut off").caused_by(failed)),
    }
}

/// What the engine says, as an error of ours.
pub(crate) fn db(error: rusqlite::Error) -> Error {
    Error::new(Kind::Database, error.to_string()).caused_by(error)
}
