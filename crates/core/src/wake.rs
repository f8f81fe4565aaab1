//! Waking readers: one hub per store, any number of waiters, each woken for its own shard only.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::watch;

use crate::{FeedId, ShardId};

type Key = (FeedId, ShardId);

/// Where stores announce news and readers wait for it.
#[derive(Debug, Clone, Default)]
pub struct WakeHub {
    shards: Arc<Mutex<HashMap<Key, watch::Sender<u64>>>>,
}

/// A reader's place at the hub.
#[derive(Debug)]
pub struct Subscription {
    news: watch::Receiver<u64>,
    key: Key,
    hub: Weak<Mutex<HashMap<Key, watch::Sender<u64>>>>,
}

impl WakeHub {
    /// Takes a place for one shard. News announced from now on is not missed, even when the
    /// reader waits later.
    pub fn subscribe(&self, feed: FeedId, shard: ShardId) -> Subscription {
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        let news = shards
            .entry((feed, shard))
            .or_insert_with(|| watch::channel(0).0)
            .subscribe();
        Subscription {
            news,
            key: (feed, shard),
            hub: Arc::downgrade(&self.shards),
        }
    }

    /// Wakes the readers of one shard.
    pub fn wake(&self, feed: FeedId, shard: ShardId) {
        let shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(news) = shards.get(&(feed, shard)) {
            news.send_modify(|n| *n = n.wrapping_add(1));
        }
    }

    /// Wakes everybody: something may have been missed.
    pub fn wake_all(&self) {
        let shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        for news in shards.values() {
            news.send_modify(|n| *n = n.wrapping_add(1));
        }
    }

    /// The shards somebody waits for.
    pub fn watched(&self) -> Vec<(FeedId, ShardId)> {
        let shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        shards
            .iter()
            .filter(|(_, n)| n.receiver_count() > 0)
            .map(|(key, _)| *key)
            .collect()
    }
}

impl Subscription {
    /// Forgets the news so far: the reader is about to look.
    pub fn look(&mut self) {
        self.news.mark_unchanged();
    }

    /// Waits until there is news that came after the last [`look`](Self::look).
    pub async fn news(&mut self) {
        if self.news.changed().await.is_err() {
            // The hub is gone with its store; nobody will ever announce anything again.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(hub) = self.hub.upgrade() {
            let mut shards = hub.lock().unwrap_or_else(PoisonError::into_inner);
            if shards
                .get(&self.key)
                .is_some_and(|n| n.receiver_count() <= 1)
            {
                shards.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn is_woken(waiter: &mut Subscription) -> bool {
        tokio::time::timeout(Duration::from_millis(1), waiter.news())
            .await
            .is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_is_woken_for_its_own_shard_only() {
        let hub = WakeHub::default();
        let mut zero = hub.subscribe(FeedId(1), ShardId(0));
        let mut one = hub.subscribe(FeedId(1), ShardId(1));
        hub.wake(FeedId(1), ShardId(1));
        assert!(!is_woken(&mut zero).await);
        assert!(is_woken(&mut one).await);
        assert!(!is_woken(&mut one).await, "news is told once");
        hub.wake_all();
        assert!(is_woken(&mut zero).await && is_woken(&mut one).await);
    }

    #[tokio::test(start_paused = true)]
    async fn news_between_look_and_wait_is_not_missed() {
        let hub = WakeHub::default();
        let mut waiter = hub.subscribe(FeedId(1), ShardId(0));
        hub.wake(FeedId(1), ShardId(0));
        waiter.look();
        assert!(!is_woken(&mut waiter).await, "old news was looked at");
        hub.wake(FeedId(1), ShardId(0));
        assert!(is_woken(&mut waiter).await);
    }

    #[test]
    fn places_are_given_back() {
        let hub = WakeHub::default();
        let a = hub.subscribe(FeedId(1), ShardId(0));
        let b = hub.subscribe(FeedId(1), ShardId(0));
        drop(a);
        assert_eq!(hub.watched(), [(FeedId(1), ShardId(0))]);
        drop(b);
        assert!(hub.watched().is_empty());
        assert!(hub.shards.lock().unwrap().is_empty());
    }
}
