//! The feed and the tables that the measures work in, and their removal.

use std::sync::Arc;

use changefeed::sqlite::{SqliteStore, rusqlite};
use changefeed::{Changefeed, Error, FeedHandle, FeedName, Kind, NewFeed, Result};

/// The name of the scratch feed.
const FEED: &str = "changefeed-bench";
/// How we know our own feed again after a run that was killed.
const COMMENT: &str = "made and removed by `changefeed bench feeds`";

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
    pub(crate) db: Changefeed,
}

impl Scratch {
    /// Opens the file, installs our tables where they are missing, and clears away what a run
    /// that was killed has left behind.
    pub(crate) async fn prepare(path: &str) -> Result<Self> {
        let store = SqliteStore::open(path).await?;
        let db = Changefeed::new(Arc::new(store.clone()));
        db.migrate().await?;
        let feeds = db.feeds().await?;
        if let Some(feed) = feeds.iter().find(|f| f.name() == FEED)
            && feed.definition().comment.as_deref() != Some(COMMENT)
        {
            return Err(Error::new(
                Kind::AlreadyExists,
                format!("the name of the scratch feed, '{FEED}', is in use by another feed"),
            )
            .advise("rename that feed, or name another database"));
        }
        let scratch = Scratch { store, db };
        scratch.clear().await?;
        scratch.run(CREATE).await?;
        Ok(scratch)
    }

    /// A new scratch feed without any history; the one before is removed.
    pub(crate) async fn feed(&self) -> Result<FeedHandle> {
        self.drop_feed().await?;
        let name: FeedName = FEED.parse()?;
        self.db
            .create_feed(&NewFeed {
                comment: Some(COMMENT.to_owned()),
                ..NewFeed::new(name)
            })
            .await
    }

    /// Removes everything of the measures.
    pub(crate) async fn remove(self) -> Result<()> {
        self.clear().await
    }

    async fn clear(&self) -> Result<()> {
        self.drop_feed().await?;
        self.run(REMOVE).await
    }

    async fn drop_feed(&self) -> Result<()> {
        let feeds = self.db.feeds().await?;
        match feeds.into_iter().find(|f| f.name() == FEED) {
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
