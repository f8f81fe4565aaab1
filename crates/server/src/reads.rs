//! Reading for many: whoever wants the same page at the same time shares one query.
//!
//! A thousand readers who wait at the end of a shard are woken together and all ask for the same
//! page. The first one's query runs; those who come while it runs wait for the *next* one, which begins
//! when it is over. So nobody gets an answer that is older than their question, which is all that the
//! promises about reading need, and a thousand questions are two queries.
//!
//! Queries at the same time are few, so that readers leave connections to the loops.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use changefeed_core::{After, Error, Feed, FeedId, Kind, Listener, ShardId};
use changefeed_engine::{Changefeed, Next, Pages};
use tokio::sync::{Semaphore, oneshot};

use crate::app::App;
use crate::pages::Encoded;
use crate::problem::Problem;

/// Queries for pages at the same time.
const QUERIES: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    feed: FeedId,
    shard: ShardId,
    after: After,
    limit: usize,
}

type Outcome = Result<Arc<Encoded>, Arc<Error>>;
type Waiters = Vec<oneshot::Sender<Outcome>>;

/// The queries under way. A key that is here has one that runs; its waiters want the next.
#[derive(Clone)]
pub(crate) struct Reads {
    db: Changefeed,
    running: Arc<Mutex<HashMap<Key, Waiters>>>,
    seats: Arc<Semaphore>,
}

impl Reads {
    pub(crate) fn new(db: Changefeed) -> Self {
        Reads {
            db,
            running: Arc::default(),
            seats: Arc::new(Semaphore::new(QUERIES)),
        }
    }

    /// The changes after a point, as they are now or a moment later.
    pub(crate) async fn read(
        &self,
        feed: &Feed,
        shard: ShardId,
        after: After,
        limit: usize,
    ) -> Outcome {
        let key = Key {
            feed: feed.id,
            shard,
            after,
            limit,
        };
        let (answer, answered) = oneshot::channel();
        {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            match running.get_mut(&key) {
                Some(next) => next.push(answer),
                None => {
                    running.insert(key, Vec::new());
                    // A task of its own, so that one who goes away does not take the query along.
                    tokio::spawn(self.clone().run(feed.clone(), key, vec![answer]));
                }
            }
        }
        answered.await.unwrap_or_else(|_| {
            Err(Arc::new(Error::new(
                Kind::Unavailable,
                "the query was cut off",
            )))
        })
    }

    async fn run(self, feed: Feed, key: Key, mut waiters: Waiters) {
        let mut place = Place {
            reads: &self,
            key,
            taken: true,
        };
        loop {
            // Nobody may be left who wants to know.
            if waiters.iter().any(|w| !w.is_closed()) {
                let outcome = self.query(&feed, key).await;
                for waiter in waiters {
                    let _ = waiter.send(outcome.clone());
                }
            }
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            match running.get_mut(&key) {
                Some(next) if !next.is_empty() => waiters = std::mem::take(next),
                _ => {
                    running.remove(&key);
                    place.taken = false;
                    return;
                }
            }
        }
    }

    async fn query(&self, feed: &Feed, key: Key) -> Outcome {
        let _seat = self.seats.acquire().await;
        let page = self
            .db
            .store()
            .read(feed, key.shard, key.after, key.limit)
            .await;
        page.map(|page| Arc::new(Encoded::new(&page, key.after)))
            .map_err(Arc::new)
    }
}

/// The pages of a shard, shared by all who read the same.
pub(crate) struct SharedPages {
    pub(crate) app: Arc<App>,
    pub(crate) feed: Arc<Feed>,
    pub(crate) shard: ShardId,
    pub(crate) limit: usize,
}

impl Pages for SharedPages {
    type Page = Arc<Encoded>;
    type Error = Arc<Error>;

    fn listen(&self) -> Listener {
        self.app.db.store().listen(&self.feed, self.shard)
    }

    async fn read(&self, after: After) -> Outcome {
        let (feed, shard) = (&self.feed, self.shard);
        self.app.reads.read(feed, shard, after, self.limit).await
    }

    fn next(&self, page: &Arc<Encoded>, _: After) -> Next {
        Next {
            changes: !page.is_empty(),
            after: page.next(),
            incarnation: page.incarnation(),
            closed: page.is_closed(),
        }
    }
}

/// Gives the place up also when a query panics: those who wait for the next one get an error instead
/// of waiting for ever.
struct Place<'a> {
    reads: &'a Reads,
    key: Key,
    taken: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.taken {
            let running = self.reads.running.lock();
            running
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&self.key);
        }
    }
}

impl From<Arc<Error>> for Problem {
    fn from(error: Arc<Error>) -> Self {
        Problem::from(&*error)
    }
}
