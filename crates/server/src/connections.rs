//! The connections that are open: how many there may be, and which of them is closed when another
//! one needs the room.
//!
//! Every connection is an open file, and a process without files can neither reach its database nor
//! deliver anything. So there are never more than the operator's limit on files leaves room for. When
//! all are taken, a new one replaces the one that has been idle longest; if none is idle, the new one
//! is refused. A client with a request is served, however many others only hold connections open.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use changefeed_engine::CancellationToken;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long closing a connection may take before a new one is refused instead.
const CLOSING: Duration = Duration::from_millis(200);
/// A client that has taken nothing of an answer for this long may have to make room.
const STALLED: Duration = Duration::from_secs(5);

/// All open connections.
pub(crate) struct Connections {
    most: usize,
    room: Arc<Semaphore>,
    open: Mutex<BTreeMap<u64, Arc<Life>>>,
    numbers: AtomicU64,
    began: Instant,
}

impl Connections {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        let most = most.clamp(1, u32::MAX as usize);
        Arc::new(Connections {
            most,
            room: Arc::new(Semaphore::new(most)),
            open: Mutex::default(),
            numbers: AtomicU64::new(0),
            began: Instant::now(),
        })
    }

    /// Connections that are open.
    pub(crate) fn open(&self) -> usize {
        self.most - self.room.available_permits()
    }

    /// A place for one more; `None` if all connections are in use.
    pub(crate) async fn place(self: &Arc<Self>) -> Option<Place> {
        let permit = match self.room.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                if !self.make_room() {
                    return None;
                }
                let closed = self.room.clone().acquire_owned();
                tokio::time::timeout(CLOSING, closed).await.ok()?.ok()?
            }
        };
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let life = Arc::new(Life {
            began: self.began,
            touched: AtomicU64::new(0),
            requests: AtomicUsize::new(0),
            unsent: AtomicBool::new(false),
            cut: CancellationToken::new(),
        });
        life.touch();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.insert(number, life.clone());
        drop(open);
        Some(Place {
            life,
            number,
            connections: self.clone(),
            _permit: permit,
        })
    }

    /// Closes the connection that can best be done without; says whether there was one.
    pub(crate) fn make_room(&self) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let longest = open
            .iter()
            .filter(|(_, life)| life.is_idle() || life.is_stalled())
            .min_by_key(|(_, life)| life.touched.load(Ordering::Relaxed))
            .map(|(number, _)| *number);
        match longest.and_then(|number| open.remove(&number)) {
            Some(life) => {
                life.cut.cancel();
                true
            }
            None => false,
        }
    }

    /// Waits until all are closed. No new one may come any more.
    pub(crate) async fn closed(&self) {
        let all = u32::try_from(self.most).unwrap_or(u32::MAX);
        let _ = self.room.acquire_many(all).await;
    }
}

/// A place among the connections; given back when it is dropped.
pub(crate) struct Place {
    pub(crate) life: Arc<Life>,
    number: u64,
    connections: Arc<Connections>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        let open = self.connections.open.lock();
        let mut open = open.unwrap_or_else(PoisonError::into_inner);
        open.remove(&self.number);
    }
}

/// What a connection is doing.
#[derive(Debug)]
pub(crate) struct Life {
    began: Instant,
    /// When it last began, answered or sent something, in milliseconds since `began`. What a client
    /// sends does not count, because it may send one byte at a time for ever.
    touched: AtomicU64,
    /// Requests under way, until the last byte of their answers was handed over.
    requests: AtomicUsize,
    /// Whether something waits to be sent.
    unsent: AtomicBool,
    /// Ends the connection.
    pub(crate) cut: CancellationToken,
}

impl Life {
    fn touch(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.touched.store(now, Ordering::Relaxed);
    }

    /// Whether nothing is asked and nothing is left to be sent.
    fn is_idle(&self) -> bool {
        self.requests.load(Ordering::Relaxed) == 0 && !self.unsent.load(Ordering::Relaxed)
    }

    /// Whether its client takes nothing of what is sent.
    pub(crate) fn is_stalled(&self) -> bool {
        self.unsent.load(Ordering::Relaxed) && self.quiet() > STALLED
    }

    /// Whether no request is under way.
    pub(crate) fn asks_nothing(&self) -> bool {
        self.requests.load(Ordering::Relaxed) == 0
    }

    /// How long nothing has happened.
    fn quiet(&self) -> Duration {
        let touched = Duration::from_millis(self.touched.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(touched)
    }

    /// A request begins.
    pub(crate) fn asked(self: &Arc<Self>) -> Asked {
        self.requests.fetch_add(1, Ordering::Relaxed);
        Asked(self.clone())
    }

    /// Something was sent, or could not be sent yet.
    pub(crate) fn sent(&self, everything: bool) {
        self.unsent.store(!everything, Ordering::Relaxed);
        if everything {
            self.touch();
        }
    }

    /// Everything that was written has left, or waits.
    pub(crate) fn flushed(&self, everything: bool) {
        if self.unsent.load(Ordering::Relaxed) == everything {
            self.sent(everything);
        }
    }

    /// Waits until it has been idle for this long.
    pub(crate) async fn idle_for(&self, limit: Duration) {
        loop {
            let quiet = self.quiet();
            if self.is_idle() && quiet >= limit {
                return;
            }
            let left = limit.saturating_sub(quiet);
            // One that is busy is looked at again later: its end counts from when it is over.
            let wait = if left.is_zero() { limit } else { left };
            tokio::time::sleep(wait.max(Duration::from_millis(10))).await;
        }
    }
}

/// A request under way.
pub(crate) struct Asked(Arc<Life>);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.touch();
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_longest_idle_makes_room_and_the_busy_do_not() {
        let connections = Connections::new(2);
        let first = connections.place().await.unwrap();
        let busy = first.life.asked();
        let second = connections.place().await.unwrap();
        let cut = second.life.cut.clone();
        let closing = tokio::spawn(async move {
            second.life.cut.cancelled().await;
            drop(second);
        });
        let third = connections.place().await.unwrap();
        closing.await.unwrap();
        assert!(cut.is_cancelled() && !first.life.cut.is_cancelled());
        let asked = third.life.asked();
        assert!(connections.place().await.is_none(), "all are in use");
        assert_eq!(connections.open(), 2);
        drop((busy, asked, first, third));
        assert_eq!(connections.open(), 0);
        connections.closed().await;
    }

    #[tokio::test]
    async fn a_connection_is_idle_since_its_last_answer() {
        let connections = Connections::new(1);
        let place = connections.place().await.unwrap();
        let asked = place.life.asked();
        let limit = Duration::from_millis(20);
        let idle = place.life.idle_for(limit);
        assert!(tokio::time::timeout(limit * 3, idle).await.is_err());
        drop(asked);
        place.life.sent(false);
        assert!(!place.life.is_idle());
        place.life.sent(true);
        assert!(place.life.is_idle());
    }
}
