//! The definitions of feeds, kept for a moment: reading a page should cost one query, not two.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use changefeed::{Changefeed, Error, Feed, FeedName, Result, ShardId};

/// How old a definition may be.
const FRESH: Duration = Duration::from_secs(1);
/// A feed that we do not know may be a new one.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// All feeds at one moment.
type All = Arc<[Arc<Feed>]>;

/// The feeds of the database.
pub(crate) struct Feeds {
    db: Changefeed,
    known: Mutex<Option<(Instant, All)>>,
    looking: tokio::sync::Mutex<()>,
}

impl Feeds {
    pub(crate) fn new(db: Changefeed) -> Self {
        Feeds {
            db,
            known: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
        }
    }

    /// Forgets what was known, because it has just been changed.
    pub(crate) fn forget(&self) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// All feeds.
    pub(crate) async fn all(&self) -> Result<All> {
        self.look(FRESH).await
    }

    /// The feed of a name.
    pub(crate) async fn feed(&self, name: &str) -> Result<Arc<Feed>> {
        if let Some(feed) = find(&self.look(FRESH).await?, name) {
            return Ok(feed);
        }
        let feeds = self.look(LOOK_AGAIN).await?;
        find(&feeds, name).ok_or_else(|| {
            Error::not_found(format!("there is no feed '{name}'"))
                .advise("GET /api/feeds shows the feeds")
        })
    }

    /// The feed of a name, which has this shard.
    pub(crate) async fn shard(&self, name: &str, shard: ShardId) -> Result<Arc<Feed>> {
        let feed = self.feed(name).await?;
        if feed.shard(shard).is_ok() {
            return Ok(feed);
        }
        let feeds = self.look(LOOK_AGAIN).await?;
        let feed = find(&feeds, name).unwrap_or(feed);
        feed.shard(shard)?;
        Ok(feed)
    }

    async fn look(&self, fresh: Duration) -> Result<All> {
        if let Some(feeds) = self.recent(fresh) {
            return Ok(feeds);
        }
        let _alone = self.looking.lock().await;
        if let Some(feeds) = self.recent(fresh) {
            return Ok(feeds);
        }
        let asked = Instant::now();
        let feeds = self.db.store().feeds().await?;
        let feeds: All = feeds.into_iter().map(Arc::new).collect();
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some((asked, feeds.clone()));
        Ok(feeds)
    }

    fn recent(&self, fresh: Duration) -> Option<All> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .as_ref()
            .filter(|(asked, _)| asked.elapsed() < fresh)
            .map(|(_, feeds)| feeds.clone())
    }
}

fn find(feeds: &[Arc<Feed>], name: &str) -> Option<Arc<Feed>> {
    let mut found = feeds.iter().filter(|f: &&Arc<Feed>| is(&f.name, name));
    found.next().cloned()
}

fn is(feed: &FeedName, name: &str) -> bool {
    feed.as_str() == name
}
