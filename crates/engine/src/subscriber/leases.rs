//! The leases of all shards that an instance pushes, or would push.
//!
//! Each shard has a lease of its own, so that instances share the shards of a subscription. But one call renews all of
//! them, and asks for those that others have: a hundred idle subscriptions cost what one costs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use changefeed_core::{Lease, Store};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long a lease lasts. With the time between two calls this bounds a take-over below two seconds.
pub(super) const LEASE: Duration = Duration::from_millis(1400);
/// How often leases are renewed, and asked for.
const EVERY: Duration = Duration::from_millis(350);
/// An instance that has much to do lets others ask first: the longest that it waits for that.
const COURTESY: Duration = Duration::from_millis(60);
/// How many leases of others are taken at a time, so that instances which start together share them.
const MORE: usize = 16;
/// Between two such times.
const PAUSE: Duration = Duration::from_millis(15);

/// Keeps leases until it is dropped.
#[derive(Debug)]
pub struct Leases {
    inner: Arc<Inner>,
    keeper: JoinHandle<()>,
}

struct Inner {
    store: Arc<dyn Store>,
    owner: String,
    seats: Mutex<BTreeMap<String, Seat>>,
    /// Somebody asks for a lease that was not asked for before.
    asked: Notify,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

/// A lease that somebody wants or has.
struct Seat {
    held: watch::Sender<Option<Lease>>,
    /// Cancelled when a lease that was held cannot be trusted any more.
    lost: CancellationToken,
}

/// A lease that is kept until this is dropped or released.
pub(super) struct Tenure {
    inner: Arc<Inner>,
    pub(super) lease: Lease,
    pub(super) lost: CancellationToken,
}

impl Leases {
    /// Keeps leases for an instance, which has none yet.
    pub fn start(store: Arc<dyn Store>, owner: impl Into<String>) -> Arc<Self> {
        let inner = Arc::new(Inner {
            store,
            owner: owner.into(),
            seats: Mutex::default(),
            asked: Notify::new(),
        });
        let keeper = tokio::spawn(inner.clone().keep());
        Arc::new(Leases { inner, keeper })
    }

    /// Waits until this instance has a lease. Only one task asks for a name.
    pub(super) async fn take(&self, name: &str) -> Tenure {
        let lost = CancellationToken::new();
        let (held, mut granted) = watch::channel(None);
        let seat = Seat {
            held,
            lost: lost.clone(),
        };
        self.inner.seats().insert(name.to_owned(), seat);
        // Whoever stops waiting does not want the lease any more.
        let waiting = Waiting {
            inner: &self.inner,
            name,
        };
        self.inner.asked.notify_one();
        let lease = loop {
            if let Some(lease) = granted.borrow_and_update().clone() {
                break lease;
            }
            if granted.changed().await.is_err() {
                // Another task took the seat: that is against what is said above, and waits for ever.
                std::future::pending::<()>().await;
            }
        };
        std::mem::forget(waiting);
        Tenure {
            inner: self.inner.clone(),
            lease,
            lost,
        }
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

struct Waiting<'a> {
    inner: &'a Inner,
    name: &'a str,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.inner.seats().remove(self.name);
    }
}

impl Tenure {
    /// Gives the lease back. A courtesy: otherwise the next one waits until it expires.
    pub(super) async fn release(self) {
        self.inner.seats().remove(&self.lease.name);
        if let Err(error) = self.inner.store.release(&self.lease).await {
            tracing::debug!(%error, "could not give the lease back");
        }
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        self.inner.seats().remove(&self.lease.name);
    }
}

impl Inner {
    fn seats(&self) -> MutexGuard<'_, BTreeMap<String, Seat>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn keep(self: Arc<Self>) {
        loop {
            let names: Vec<String> = self.seats().keys().cloned().collect();
            if names.is_empty() {
                self.asked.notified().await;
                continue;
            }
            let taken = self.call(&names).await;
            if taken == MORE {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let working = self.seats().values().filter(|s| s.is_held()).count();
            let courtesy = Duration::from_millis(u64::try_from(working).unwrap_or(u64::MAX));
            tokio::select! {
                () = tokio::time::sleep(EVERY + courtesy.min(COURTESY)) => {}
                () = self.asked.notified() => {}
            }
        }
    }

    /// Renews and asks. Returns how many leases are new.
    async fn call(&self, names: &[String]) -> usize {
        let call = self.store.leases(names, &self.owner, LEASE, MORE);
        tokio::pin!(call);
        let answer = loop {
            tokio::select! {
                answer = &mut call => break answer,
                // The answer may come late, or never.
                () = tokio::time::sleep(EVERY) => self.give_up(),
            }
        };
        let granted = match answer {
            Ok(granted) => granted,
            Err(error) => {
                tracing::warn!(%error, "the leases of subscriptions could not be renewed; trying again");
                self.give_up();
                return 0;
            }
        };
        let (new, unwanted) = self.seat(granted);
        self.give_up();
        // It was given back while this call was on its way, and taken again: the next one must not wait for it.
        for lease in unwanted {
            if let Err(error) = self.store.release(&lease).await {
                tracing::debug!(%error, "could not give a lease back");
            }
        }
        new
    }

    /// Hands leases to those who want them. Returns how many are new, and those that nobody wants any more.
    fn seat(&self, granted: Vec<Lease>) -> (usize, Vec<Lease>) {
        let (mut new, mut unwanted) = (0, Vec::new());
        let (seats, now) = (self.seats(), Instant::now());
        for lease in granted.into_iter().filter(|lease| lease.is_trusted(now)) {
            let Some(seat) = seats.get(&lease.name) else {
                unwanted.push(lease);
                continue;
            };
            let known = seat.held.borrow().as_ref().map(|held| held.generation);
            match known {
                // Somebody else had it meanwhile.
                Some(generation) if generation != lease.generation => seat.lost.cancel(),
                Some(_) => {
                    seat.held.send_replace(Some(lease));
                }
                None => {
                    new += 1;
                    seat.held.send_replace(Some(lease));
                }
            }
        }
        (new, unwanted)
    }

    /// Says which leases cannot be trusted any more.
    fn give_up(&self) {
        let now = Instant::now();
        for seat in self.seats().values() {
            let trusted = |lease: &Lease| lease.is_trusted(now);
            if seat
                .held
                .borrow()
                .as_ref()
                .is_some_and(|held| !trusted(held))
            {
                seat.lost.cancel();
            }
        }
    }
}

impl Seat {
    fn is_held(&self) -> bool {
        self.held.borrow().is_some()
    }
}
