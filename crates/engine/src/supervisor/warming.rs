//! Connections that are ready before somebody asks for a page. The first page of a connection pays for opening it, and
//! on a server that reads every statement anew in each session, seconds more.

use std::time::Duration;

use changefeed_core::{After, Feed, Result};

use crate::Changefeed;

/// As many connections: those that a few readers at a time use.
const AT_ONCE: usize = 3;
/// Every feed may have a statement of its own. The first ones, so that a start never takes long.
const FEEDS: usize = 32;
/// The first look for news takes no longer than this, or is not waited for.
const LOOK: Duration = Duration::from_secs(10);

/// Reads the beginning of each feed, on several connections at once, and has the store look for news once. Whatever
/// goes wrong here shows where it is needed.
pub(super) async fn warm_up(db: &Changefeed) {
    if let Err(error) = try_warm_up(db).await {
        tracing::debug!(%error, "connections could not be warmed up");
    }
}

async fn try_warm_up(db: &Changefeed) -> Result<()> {
    let store = db.store();
    let mut feeds = store.feeds().await?;
    feeds.truncate(FEEDS);
    let pages = (0..AT_ONCE).map(|_| first_pages(db, &feeds));
    let look = async {
        let first = feeds.first().and_then(|f| Some((f, f.shards.first()?)));
        if let Some((feed, shard)) = first {
            let mut news = store.listen(feed, shard.shard);
            let _ = tokio::time::timeout(LOOK, news.news()).await;
        }
    };
    let (read, ()) = tokio::join!(futures_util::future::join_all(pages), look);
    read.into_iter().collect()
}

async fn first_pages(db: &Changefeed, feeds: &[Feed]) -> Result<()> {
    for feed in feeds {
        if let Some(shard) = feed.shards.first() {
            db.store().read(feed, shard.shard, After::First, 1).await?;
        }
    }
    Ok(())
}
