//! The definitions of feeds, kept for a moment: reading a page should cost one query, not two.

use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{Error, Feed, ShardId};
use changefeed_engine::Changefeed;
use futures_util::FutureExt;

use crate::kept::{Failed, Kept};

/// How old a definition may be.
const FRESH: Duration = Duration::from_secs(1);
/// A feed that we do not know may be a new one.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// All feeds at one moment.
type All = Arc<[Arc<Feed>]>;

/// The feeds of the database.
pub(crate) struct Feeds(Kept<All>);

impl Feeds {
    pub(crate) fn new(db: Changefeed) -> Self {
        let look = move || {
            let store = db.store().clone();
            async move {
                let feeds = store.feeds().await?;
                Ok(feeds.into_iter().map(Arc::new).collect())
            }
            .boxed()
        };
        Feeds(Kept::new(look, None))
    }

    /// Forgets what was known, because it has just been changed.
    pub(crate) fn forget(&self) {
        self.0.forget();
    }

    /// All feeds.
    pub(crate) async fn all(&self) -> Result<All, Failed> {
        self.0.get(FRESH).await
    }

    /// The feed of a name.
    pub(crate) async fn feed(&self, name: &str) -> Result<Arc<Feed>, Failed> {
        if let Some(feed) = find(&self.0.get(FRESH).await?, name) {
            return Ok(feed);
        }
        let feeds = self.0.get(LOOK_AGAIN).await?;
        find(&feeds, name).ok_or_else(|| {
            let error = Error::not_found(format!("there is no feed '{name}'"))
                .advise("GET /api/feeds shows the feeds");
            Arc::new(error)
        })
    }

    /// The feed of a name, which has this shard.
    pub(crate) async fn shard(&self, name: &str, shard: ShardId) -> Result<Arc<Feed>, Failed> {
        let feed = self.feed(name).await?;
        if feed.shard(shard).is_ok() {
            return Ok(feed);
        }
        let feeds = self.0.get(LOOK_AGAIN).await?;
        let feed = find(&feeds, name).unwrap_or(feed);
        feed.shard(shard).map_err(Arc::new)?;
        Ok(feed)
    }
}

fn find(feeds: &[Arc<Feed>], name: &str) -> Option<Arc<Feed>> {
    feeds.iter().find(|f| f.name.as_str() == name).cloned()
}
