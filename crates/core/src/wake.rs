//! Waking those who wait: one hub per store for readers and one for watches, any number of waiters, each
//! woken for its own place only.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::watch;

use crate::{FeedId, ShardId, Watch};

/// Where a reader waits: a shard of a feed.
pub type ShardPlace = (FeedId, ShardId);

/// Where a watch waits: the backlog of its function.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchPlace {
    /// The table.
    pub table_id: i64,
    /// The function.
    pub function_id: String,
}

impl From<&Watch> for WatchPlace {
    fn from(watch: &Watch) -> Self {
        WatchPlace {
            table_id: watch.table_id,
            function_id: watch.function_id.clone(),
        }
    }
}

type Places<P> = Mutex<HashMap<P, watch::Sender<u64>>>;

/// Where stores announce changes and others wait for them.
#[derive(Debug)]
pub struct WakeHub<P = ShardPlace> {
    places: Arc<Places<P>>,
}

impl<P> Clone for WakeHub<P> {
    fn clone(&self) -> Self {
        WakeHub {
            places: self.places.clone(),
        }
    }
}

impl<P> Default for WakeHub<P> {
    fn default() -> Self {
        WakeHub {
            places: Arc::default(),
        }
    }
}

/// Somebody who waits at a place for news.
#[derive(Debug)]
pub struct Listener<P: Eq + Hash = ShardPlace> {
    news: watch::Receiver<u64>,
    place: P,
    hub: Weak<Places<P>>,
}

impl<P: Clone + Eq + Hash> WakeHub<P> {
    /// Listens. What is announced from now on is not missed, even if the caller waits later.
    pub fn listen(&self, place: P) -> Listener<P> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let news = places
            .entry(place.clone())
            .or_insert_with(|| watch::channel(0).0)
            .subscribe();
        Listener {
            news,
            place,
            hub: Arc::downgrade(&self.places),
        }
    }

    /// Wakes the waiters of one place.
    pub fn wake(&self, place: &P) {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(news) = places.get(place) {
            news.send_modify(|n| *n = n.wrapping_add(1));
        }
    }

    /// Wakes everybody: something may have been missed.
    pub fn wake_all(&self) {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        for news in places.values() {
            news.send_modify(|n| *n = n.wrapping_add(1));
        }
    }

    /// The places that somebody has taken.
    pub fn watched(&self) -> Vec<P> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places
            .iter()
            .filter(|(_, n)| n.receiver_count() > 0)
            .map(|(place, _)| place.clone())
            .collect()
    }
}

impl<P: Eq + Hash> Listener<P> {
    /// Forgets what was announced so far: the caller is about to look.
    pub fn look(&mut self) {
        self.news.mark_unchanged();
    }

    /// Waits for an announcement after the last [`look`](Self::look).
    pub async fn news(&mut self) {
        if self.news.changed().await.is_err() {
            // The hub is gone with its store; nobody will ever announce anything again.
            std::future::pending::<()>().await;
        }
    }
}

impl<P: Eq + Hash> Drop for Listener<P> {
    fn drop(&mut self) {
        if let Some(hub) = self.hub.upgrade() {
            let mut places = hub.lock().unwrap_or_else(PoisonError::into_inner);
            if places
                .get(&self.place)
                .is_some_and(|n| n.receiver_count() <= 1)
            {
                places.remove(&self.place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn is_woken(waiter: &mut Listener) -> bool {
        tokio::time::timeout(Duration::from_millis(1), waiter.news())
            .await
            .is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_is_woken_for_its_own_shard_only() {
        let hub = WakeHub::default();
        let mut zero = hub.listen((FeedId(1), ShardId(0)));
        let mut one = hub.listen((FeedId(1), ShardId(1)));
        hub.wake(&(FeedId(1), ShardId(1)));
        assert!(!is_woken(&mut zero).await);
        assert!(is_woken(&mut one).await);
        assert!(!is_woken(&mut one).await, "news is told once");
        hub.wake_all();
        assert!(is_woken(&mut zero).await && is_woken(&mut one).await);
    }

    #[tokio::test(start_paused = true)]
    async fn news_between_look_and_wait_is_not_missed() {
        let hub = WakeHub::default();
        let mut waiter = hub.listen((FeedId(1), ShardId(0)));
        hub.wake(&(FeedId(1), ShardId(0)));
        waiter.look();
        assert!(!is_woken(&mut waiter).await, "old news was looked at");
        hub.wake(&(FeedId(1), ShardId(0)));
        assert!(is_woken(&mut waiter).await);
    }

    #[test]
    fn places_are_given_back() {
        let hub = WakeHub::default();
        let a = hub.listen((FeedId(1), ShardId(0)));
        let b = hub.listen((FeedId(1), ShardId(0)));
        drop(a);
        assert_eq!(hub.watched(), [(FeedId(1), ShardId(0))]);
        drop(b);
        assert!(hub.watched().is_empty());
        assert!(hub.places.lock().unwrap().is_empty());
    }
}
