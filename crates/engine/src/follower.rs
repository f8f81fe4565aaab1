//! Following a shard: pages as they come, waiting without polling in between.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{
    After, Backoff, Change, Error, Feed, Incarnation, Listener, Page, Remedy, Result, ShardId,
    Store,
};
use futures_util::stream::{self, Stream};
use tokio::time::Instant;

use crate::CancellationToken;

/// A waiter looks again after this time even if nobody woke it. Nothing relies on it; it bounds
/// the harm of a bug.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Where the pages of a shard come from.
pub trait Pages: Send + Sync {
    /// A page, in whatever form its reader wants it.
    type Page: Send;
    /// What reading fails with.
    type Error: Borrow<Error> + From<Error> + Send;

    /// Takes a place where news of the shard is announced.
    fn listen(&self) -> Listener;

    /// Reads the changes after a point.
    fn read(&self, after: After) -> impl Future<Output = Result<Self::Page, Self::Error>> + Send;

    /// What a page means that was read after this point.
    fn next(&self, page: &Self::Page, after: After) -> Next;

    /// Reading failed and is tried again: for the log, where that is not told once for many readers.
    fn failed(&self, _error: &Error) {}
}

/// What a page means for its follower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Next {
    /// Whether the page has changes.
    pub changes: bool,
    /// Where to go on.
    pub after: After,
    /// The life of the database that it was read in; none if it was not read.
    pub incarnation: Option<Incarnation>,
    /// Whether nothing will ever come after it.
    pub closed: bool,
}

/// Follows a shard, page by page.
#[derive(Debug)]
pub struct Follower<P> {
    pages: P,
    after: After,
    incarnation: Option<Incarnation>,
    closed: bool,
    listener: Listener,
    backoff: Backoff,
}

impl<P: Pages> Follower<P> {
    /// Nothing is read yet, but news from now on is not missed.
    pub fn new(pages: P, after: After) -> Self {
        Follower {
            listener: pages.listen(),
            pages,
            after,
            incarnation: None,
            closed: false,
            backoff: Backoff::default(),
        }
    }

    /// Goes on only in this life of the database; otherwise in that of the first page.
    #[must_use]
    pub fn expecting(mut self, incarnation: Option<Incarnation>) -> Self {
        self.incarnation = incarnation;
        self
    }

    /// Where it goes on. "From now on" is a place as soon as somebody has looked.
    pub fn after(&self) -> After {
        self.after
    }

    /// Where its pages come from.
    pub fn pages(&self) -> &P {
        &self.pages
    }

    /// Reads once. Returns the page, and what it means.
    pub async fn look(&mut self) -> Result<(P::Page, Next), P::Error> {
        // Before reading: news that comes while we read must not be forgotten.
        self.listener.look();
        let page = self.pages.read(self.after).await?;
        let next = self.pages.next(&page, self.after);
        if let Some(incarnation) = next.incarnation {
            incarnation.check(self.incarnation)?;
            self.incarnation = Some(incarnation);
        }
        self.after = next.after;
        self.closed = next.closed;
        Ok((page, next))
    }

    /// The next page that has changes, however long it takes: through lost connections and restarts of
    /// the database. None when the shard is closed and everything was read. Fails only when a person has to do
    /// something.
    pub async fn next(&mut self) -> Result<Option<P::Page>, P::Error> {
        loop {
            if self.closed {
                return Ok(None);
            }
            match self.look().await {
                Ok((page, next)) => {
                    self.backoff.worked();
                    if next.changes {
                        return Ok(Some(page));
                    }
                    if next.closed {
                        continue;
                    }
                    // Times out in silence: see LOOK_AGAIN.
                    let _ = tokio::time::timeout(LOOK_AGAIN, self.listener.news()).await;
                }
                Err(error) => {
                    let known: &Error = error.borrow();
                    if known.kind().remedy() == Remedy::Human {
                        return Err(error);
                    }
                    self.pages.failed(known);
                    tokio::time::sleep(self.backoff.failed()).await;
                }
            }
        }
    }

    /// The next page; if it has no changes, waits for some until the deadline, or until told to stop.
    /// `waits` is asked before the first wait.
    pub async fn poll<E: From<P::Error>>(
        &mut self,
        wait: Duration,
        stop: &CancellationToken,
        mut waits: impl FnMut() -> Result<(), E>,
    ) -> Result<P::Page, E> {
        let deadline = Instant::now() + wait;
        let mut waited = false;
        loop {
            let (page, next) = self.look().await?;
            let over = next.changes || next.closed;
            if over || Instant::now() >= deadline || stop.is_cancelled() {
                return Ok(page);
            }
            if !std::mem::replace(&mut waited, true) {
                waits()?;
            }
            let until = deadline.min(Instant::now() + LOOK_AGAIN);
            tokio::select! {
                () = self.listener.news() => {}
                () = tokio::time::sleep_until(until) => {}
                () = stop.cancelled() => return Ok(page),
            }
        }
    }
}

/// The pages of a shard as the store reads them.
#[derive(Clone)]
pub struct ShardPages {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The feed.
    pub feed: Feed,
    /// The shard.
    pub shard: ShardId,
    /// How many changes to read at a time.
    pub limit: usize,
}

impl std::fmt::Debug for ShardPages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.feed.name, self.shard)
    }
}

impl Pages for ShardPages {
    type Page = Page;
    type Error = Error;

    fn listen(&self) -> Listener {
        self.store.listen(&self.feed, self.shard)
    }

    async fn read(&self, after: After) -> Result<Page> {
        let (feed, shard) = (&self.feed, self.shard);
        self.store.read(feed, shard, after, self.limit).await
    }

    fn next(&self, page: &Page, after: After) -> Next {
        Next {
            changes: !page.changes.is_empty(),
            after: page.go_on(after),
            incarnation: Some(page.incarnation),
            closed: page.closed,
        }
    }

    fn failed(&self, error: &Error) {
        tracing::warn!(%error, feed = %self.feed.name, "reading failed; trying again");
    }
}

/// The changes of a shard, for ever or until it is closed: see [`Follower::next`].
pub fn follow(
    pages: ShardPages,
    after: After,
    incarnation: Option<Incarnation>,
) -> impl Stream<Item = Result<Change>> + Send + use<> {
    let follower = Follower::new(pages, after).expecting(incarnation);
    stream::unfold(Some((follower, VecDeque::new())), |following| async move {
        let (mut follower, mut ready) = following?;
        if ready.is_empty() {
            match follower.next().await {
                Ok(page) => ready.extend(page?.changes),
                Err(error) => return Some((Err(error), None)),
            }
        }
        let change = ready.pop_front()?;
        Some((Ok(change), Some((follower, ready))))
    })
}
