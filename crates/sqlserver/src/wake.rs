//! Waking readers and watches: the server announces nothing, so one look per few milliseconds, however many
//! wait, finds the shards whose end has moved, and another the watches that have something to do.

mod watches;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use changefeed_core::{
    Error, Feed, FeedId, Listener, Pace, Result, ShardId, ShardPlace, WakeStore, Watch, WatchPlace,
};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::row::Cells;
use crate::session::{Limit, Session};
use crate::{Inner, SqlServerStore};

/// Waits between two looks, when something happens and when nothing does.
const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(40);

/// The task that looks, started when it is first needed and stopped with the store.
#[derive(Default)]
pub(crate) struct Prober {
    task: Mutex<Option<AbortHandle>>,
    newcomer: Arc<Notify>,
}

impl Drop for Prober {
    fn drop(&mut self) {
        let task = self.task.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = task.take() {
            task.abort();
        }
    }
}

impl WakeStore for SqlServerStore {
    fn listen(&self, feed: &Feed, shard: ShardId) -> Listener {
        let listener = self.inner.known.hub.listen((feed.id, shard));
        self.begin_probing();
        listener
    }

    fn listen_to_watch(&self, watch: &Watch) -> Listener<WatchPlace> {
        let listener = (self.inner.known.watches).listen(WatchPlace::from(watch));
        self.begin_probing();
        listener
    }
}

impl SqlServerStore {
    /// Somebody is about to wait.
    fn begin_probing(&self) {
        let prober = &self.inner.prober;
        let mut task = prober.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(AbortHandle::is_finished) {
            let probing = probe(Arc::downgrade(&self.inner), prober.newcomer.clone());
            *task = Some(tokio::spawn(probing).abort_handle());
        }
        prober.newcomer.notify_one();
    }
}

type Ends = HashMap<ShardPlace, String>;

/// Looks until the store is gone, and not at all while nobody waits.
async fn probe(store: Weak<Inner>, newcomer: Arc<Notify>) {
    let mut pace = Pace::new(SHORTEST, LONGEST);
    let mut known = Ends::new();
    let mut watches = watches::States::new();
    loop {
        let Some(inner) = store.upgrade() else { return };
        let shards = inner.known.hub.watched();
        let places = inner.known.watches.watched();
        if shards.is_empty() && places.is_empty() {
            known.clear();
            watches.clear();
            drop(inner);
            newcomer.notified().await;
            continue;
        }
        let looked = async {
            let read = !shards.is_empty() && look(&inner, shards, &mut known).await?;
            let work = !places.is_empty() && watches::look(&inner, &places, &mut watches).await?;
            Ok::<_, Error>(read || work)
        };
        let wait = match looked.await {
            Ok(true) => pace.busy(),
            Ok(false) => pace.idle(),
            Err(error) => {
                tracing::warn!(%error, "cannot look for news");
                inner.known.hub.wake_all();
                inner.known.watches.wake_all();
                Duration::from_millis(250)
            }
        };
        drop(inner);
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = newcomer.notified() => {}
        }
    }
}

/// Looks where the shards end, and wakes the readers of those that have moved. Returns whether there were any.
async fn look(inner: &Inner, shards: Vec<ShardPlace>, known: &mut Ends) -> Result<bool> {
    let ends = ends(inner).await?;
    let mut moved = false;
    for place in shards {
        let end = ends.get(&place).cloned().unwrap_or_default();
        let before = known.insert(place, end.clone());
        // One that was not looked at before may have missed something.
        if before.is_none_or(|before| before != end) {
            inner.known.hub.wake(&place);
            moved = true;
        }
    }
    Ok(moved)
}

/// The end of every shard.
async fn ends(inner: &Inner) -> Result<Ends> {
    let look = async |session: &mut Session| {
        let ends = include_str!("sql/ends.sql");
        session.connection.query(ends, &[]).await
    };
    let rows = inner.door.call(&inner.known, Limit::BRIEF, look).await?;
    rows.iter()
        .map(|row| {
            let place = (FeedId(row.take(0)?), ShardId(row.take(1)?));
            Ok((place, row.text(2)?))
        })
        .collect()
}
