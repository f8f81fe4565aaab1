//! Waking readers and watches: one thread per store, however many of them wait.
//!
//! `pragma data_version` tells, in a few microseconds and without touching a page, that some
//! other connection has committed: of this process or of another. Only then the thread looks
//! which shards have moved, and wakes the readers of those, and which watches have something to do. While
//! nobody waits, it sleeps.

mod watches;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use changefeed_core::{
    Feed, FeedId, Listener, Pace, Result, ShardId, WakeHub, WakeStore, WatchPlace,
};
use rusqlite::Connection;

use crate::error::Explain;
use crate::{SqliteStore, connect};

/// Between two looks when something has just happened.
const SHORTEST: Duration = Duration::from_millis(1);
/// Between two looks when nothing happens.
const LONGEST: Duration = Duration::from_millis(10);
/// How often the thread asks whether anybody is still waiting.
const ROLL_CALL: Duration = Duration::from_secs(1);
/// How long it waits after an error before it opens the file again.
const AFTER_ERROR: Duration = Duration::from_millis(500);

/// The waking side of a store. Dropping it ends its thread.
pub(crate) struct Waker {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    path: PathBuf,
    hub: WakeHub,
    watches: WakeHub<WatchPlace>,
    /// Who waits for anything to be committed.
    commits: WakeHub<()>,
    wishes: Mutex<Wishes>,
    changed: Condvar,
}

/// What others want of the thread.
#[derive(Default)]
struct Wishes {
    stop: bool,
    look_now: bool,
    /// Somebody has begun to wait since the last roll call.
    newcomer: bool,
}

impl WakeStore for SqliteStore {
    fn listen(&self, feed: &Feed, shard: ShardId) -> Listener {
        self.inner.waker.listen(feed.id, shard)
    }

    fn listen_to_watch(&self, watch: &changefeed_core::Watch) -> Listener<WatchPlace> {
        let waker = &self.inner.waker;
        let listener = waker.shared.watches.listen(WatchPlace::from(watch));
        waker.begin();
        listener
    }

    fn listen_to_commits(&self) -> Option<Listener<()>> {
        let waker = &self.inner.waker;
        let listener = waker.shared.commits.listen(());
        waker.begin();
        Some(listener)
    }
}

impl Waker {
    pub(crate) fn new(path: &Path) -> Self {
        Waker {
            shared: Arc::new(Shared {
                path: path.to_owned(),
                hub: WakeHub::default(),
                watches: WakeHub::default(),
                commits: WakeHub::default(),
                wishes: Mutex::default(),
                changed: Condvar::new(),
            }),
            thread: Mutex::new(None),
        }
    }

    fn listen(&self, feed: FeedId, shard: ShardId) -> Listener {
        let listener = self.shared.hub.listen((feed, shard));
        self.begin();
        listener
    }

    /// Somebody is about to wait.
    fn begin(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let started = std::thread::Builder::new()
                .name("changefeed-wake".to_owned())
                .spawn(move || shared.run());
            match started {
                Ok(handle) => *thread = Some(handle),
                // The next listener tries again; readers still have their timeouts.
                Err(error) => tracing::error!(%error, "no thread to wake readers"),
            }
        }
        self.shared.wish(|wishes| wishes.newcomer = true);
    }

    /// Makes the thread look at once.
    pub(crate) fn look_now(&self) {
        self.shared.wish(|wishes| wishes.look_now = true);
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        self.shared.wish(|wishes| wishes.stop = true);
        let thread = self
            .thread
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // It ends within one look; waiting for it closes its connection before we return.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn wish(&self, make: impl FnOnce(&mut Wishes)) {
        make(&mut self.wishes.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_one();
    }

    /// The thread.
    fn run(&self) {
        while !self.stopped() {
            let failed = match Watch::open(&self.path) {
                Ok(watch) => self.watch(watch),
                Err(error) => Err(error),
            };
            if let Err(error) = failed {
                tracing::warn!(%error, "waiting readers cannot be told of changes; trying again");
                // Every waiter looks for itself: it gets the same error, or a change.
                self.hub.wake_all();
                self.watches.wake_all();
                self.commits.wake_all();
                self.sleep(AFTER_ERROR);
            }
        }
    }

    /// Looks and wakes until the store is gone.
    fn watch(&self, mut watch: Watch) -> Result<()> {
        let mut pace = Pace::new(SHORTEST, LONGEST);
        let mut roll_call = Instant::now() + ROLL_CALL;
        let mut looks = watches::Looks::default();
        while !self.stopped() {
            let wait = if watch.committed()? {
                self.commits.wake_all();
                for place in watch.moved()? {
                    self.hub.wake(&place);
                }
                let places = self.watches.watched();
                for place in looks.look(&watch.connection, places)? {
                    self.watches.wake(&place);
                }
                pace.busy()
            } else {
                pace.idle()
            };
            for place in looks.due() {
                self.watches.wake(&place);
            }
            if Instant::now() >= roll_call {
                self.sleep_while_nobody_waits();
                roll_call = Instant::now() + ROLL_CALL;
            }
            self.sleep(wait);
        }
        Ok(())
    }

    fn stopped(&self) -> bool {
        self.wishes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .stop
    }

    /// Sleeps for a while, or until there is a reason to look at once.
    fn sleep(&self, wait: Duration) {
        let wishes = self.wishes.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut wishes, _) = self
            .changed
            .wait_timeout_while(wishes, wait, |w| !w.stop && !w.look_now)
            .unwrap_or_else(PoisonError::into_inner);
        wishes.look_now = false;
    }

    fn sleep_while_nobody_waits(&self) {
        let mut wishes = self.wishes.lock().unwrap_or_else(PoisonError::into_inner);
        wishes.newcomer = false;
        drop(wishes);
        // Asked after the wish was cleared: who listens from now on wishes again.
        let nobody = self.hub.watched().is_empty()
            && self.watches.watched().is_empty()
            && self.commits.watched().is_empty();
        if !nobody {
            return;
        }
        let wishes = self.wishes.lock().unwrap_or_else(PoisonError::into_inner);
        drop(
            self.changed
                .wait_while(wishes, |w| !w.stop && !w.newcomer)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}

/// The newest number of a shard, the frontier of its backfill, and where its ULIDs stand.
type Position = (i64, Option<i64>, Option<[u8; 8]>, Option<i64>, bool);

/// A connection that only looks, and what it saw last.
struct Watch {
    connection: Connection,
    version: Option<i64>,
    seen: HashMap<(i16, i16), Position>,
}

impl Watch {
    fn open(path: &Path) -> Result<Self> {
        Ok(Watch {
            connection: connect::open_reader(path)?,
            version: None,
            seen: HashMap::new(),
        })
    }

    /// Whether somebody has committed since the last look; true the first time.
    fn committed(&mut self) -> Result<bool> {
        let version: i64 = self
            .connection
            .prepare_cached("pragma data_version")
            .and_then(|mut s| s.query_row([], |row| row.get(0)))
            .explained()?;
        Ok(self.version.replace(version) != Some(version))
    }

    /// The shards whose newest number, frontier of a backfill or ULIDs are not what they were. A
    /// shard seen for the first time counts: a reader may have begun to wait before we looked.
    fn moved(&mut self) -> Result<Vec<(FeedId, ShardId)>> {
        let installed: bool = self
            .connection
            .prepare_cached(
                "select exists (select 1 from sqlite_master where name = 'changefeed_shard_ulid')",
            )
            .and_then(|mut s| s.query_row([], |row| row.get(0)))
            .explained()?;
        if !installed {
            return Ok(Vec::new());
        }
        let mut statement = self
            .connection
            .prepare_cached(include_str!("sql/wake.sql"))
            .explained()?;
        let mut rows = statement.query([]).explained()?;
        let mut moved = Vec::new();
        while let Some(row) = rows.next().explained()? {
            let key = (row.get(0).explained()?, row.get(1).explained()?);
            let state: Position = (
                row.get(2).explained()?,
                row.get(3).explained()?,
                row.get(4).explained()?,
                row.get(5).explained()?,
                row.get(6).explained()?,
            );
            if self.seen.insert(key, state) != Some(state) {
                moved.push((FeedId(key.0), ShardId(key.1)));
            }
        }
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_because_nobody_waits_is_woken_by_the_first_who_does() {
        let waker = Waker::new(Path::new("unused"));
        let shared = Arc::clone(&waker.shared);
        // The thread that would look for news, but only the part that sleeps.
        let sleeper = std::thread::spawn(move || shared.sleep_while_nobody_waits());
        *waker.thread.lock().unwrap() = Some(sleeper);
        let _waiter = waker.listen(FeedId(1), ShardId(0));
        let sleeper = waker.thread.lock().unwrap().take().unwrap();
        sleeper.join().unwrap();
    }

    #[test]
    fn a_thread_that_sleeps_ends_with_its_store() {
        let waker = Waker::new(Path::new("unused"));
        let shared = Arc::clone(&waker.shared);
        *waker.thread.lock().unwrap() = Some(std::thread::spawn(move || {
            shared.sleep_while_nobody_waits()
        }));
        drop(waker);
    }
}
