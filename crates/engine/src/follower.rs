//! Following a shard: pages as they come, waiting without polling in between.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{
    After, Backoff, Change, Error, Feed, Page, Remedy, Result, ShardId, Store, Subscription,
};
use futures_util::stream::{self, Stream};
use tokio::time::Instant;

/// A waiter looks again after this time even if nobody woke it. Nothing relies on it; it bounds
/// the harm of a bug.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Reads the next page; if there is nothing, waits up to `wait` for something to come.
pub async fn long_poll(
    store: &dyn Store,
    feed: &Feed,
    shard: ShardId,
    after: After,
    limit: usize,
    wait: Duration,
) -> Result<Page> {
    let mut subscription = store.subscribe(feed, shard);
    let deadline = Instant::now() + wait;
    let mut after = after;
    loop {
        // Before reading: news that comes while we read must not be forgotten.
        subscription.look();
        let page = store.read(feed, shard, after, limit).await?;
        if !page.changes.is_empty() || Instant::now() >= deadline {
            return Ok(page);
        }
        if after == After::Last {
            // "From now on" means from when it was said, not from each look.
            after = After::Cursor(page.next);
        }
        let until = deadline.min(Instant::now() + LOOK_AGAIN);
        tokio::select! {
            () = subscription.news() => {}
            () = tokio::time::sleep_until(until) => {}
        }
    }
}

/// What to follow.
#[derive(Debug, Clone)]
pub struct Follow {
    /// The feed.
    pub feed: Feed,
    /// The shard.
    pub shard: ShardId,
    /// Where to begin.
    pub after: After,
    /// How many changes to read at a time.
    pub page: usize,
}

/// The changes of a shard, for ever. The stream goes on through lost connections and restarts of
/// the database; it ends with an error only when a person has to do something.
pub fn follow(store: Arc<dyn Store>, what: Follow) -> impl Stream<Item = Result<Change>> + Send {
    let subscription = store.subscribe(&what.feed, what.shard);
    let follower = Follower {
        store,
        what,
        subscription,
        ready: VecDeque::new(),
        backoff: Backoff::default(),
    };
    stream::unfold(Some(follower), |follower| async move {
        let mut follower = follower?;
        match follower.next().await {
            Ok(change) => Some((Ok(change), Some(follower))),
            Err(error) => Some((Err(error), None)),
        }
    })
}

struct Follower {
    store: Arc<dyn Store>,
    what: Follow,
    subscription: Subscription,
    ready: VecDeque<Change>,
    backoff: Backoff,
}

impl Follower {
    async fn next(&mut self) -> Result<Change> {
        loop {
            if let Some(change) = self.ready.pop_front() {
                return Ok(change);
            }
            self.subscription.look();
            let Follow {
                feed,
                shard,
                after,
                page,
            } = &self.what;
            match self.store.read(feed, *shard, *after, *page).await {
                Ok(page) => {
                    self.backoff.worked();
                    if !(page.changes.is_empty() && self.what.after == After::First) {
                        self.what.after = After::Cursor(page.next);
                    }
                    self.ready.extend(page.changes);
                    if self.ready.is_empty() {
                        // Times out in silence: see LOOK_AGAIN.
                        let _ = tokio::time::timeout(LOOK_AGAIN, self.subscription.news()).await;
                    }
                }
                Err(error) => self.recover(error).await?,
            }
        }
    }

    /// Waits before another try, or gives the error back if trying again cannot help.
    async fn recover(&mut self, error: Error) -> Result<()> {
        if error.kind().remedy() == Remedy::Human {
            return Err(error);
        }
        tracing::warn!(%error, feed = %self.what.feed.name, "reading failed; trying again");
        tokio::time::sleep(self.backoff.failed()).await;
        Ok(())
    }
}
