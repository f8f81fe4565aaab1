//! Waking readers: one connection per store listens for sweeps, however many readers wait, and
//! one look per few milliseconds finds committed ULID transactions, which announce nothing: a
//! `NOTIFY` in a writer's transaction would make all writers of the database queue.

mod watches;

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use changefeed_core::{
    Error, Feed, FeedId, Kind, Listener, Pace, Result, ShardId, Source, Uuid, WakeHub, WakeStore,
    Watch, WatchPlace,
};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio_postgres::AsyncMessage;

pub(crate) use watches::WatchProber;

use crate::error::db;
use crate::row::Cells;
use crate::session::{Limit, Session};
use crate::{Inner, PostgresStore};

/// The channel on which every sweep announces `feed_id/shard/last number`.
const CHANNEL: &str = "changefeed";
/// Waits between two looks for ULIDs, when something happens and when nothing does.
const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(40);

/// The time between two looks at shards with `longpoll = false`, of which sweeps announce nothing.
const UNANNOUNCED: Duration = Duration::from_secs(1);

/// After how many of these the session that listens is asked whether it still does, and how long it may take to answer. One
/// whose server process was stopped would otherwise be silent for ever, and so would its readers.
const PULSE: u64 = 3;
const ANSWER: Duration = Duration::from_secs(5);
/// How long a new one may take: each server of a URL that names several may be away.
const DIAL: Duration = Duration::from_secs(60);

/// The time between two looks on a hot standby.
const STANDBY: Duration = Duration::from_millis(500);

/// A background task that is started when it is first needed and stopped with the store.
#[derive(Default)]
struct Task(Mutex<Option<AbortHandle>>);

impl Task {
    fn ensure(&self, spawn: impl FnOnce() -> AbortHandle) {
        let mut task = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(AbortHandle::is_finished) {
            *task = Some(spawn());
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let task = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = task.take() {
            task.abort();
        }
    }
}

/// The task that listens for sweeps.
#[derive(Default)]
pub(crate) struct Ear(Task);

/// The task that looks for ULIDs, and which feed stands behind the ULIDs of which.
#[derive(Default)]
pub(crate) struct Prober {
    task: Task,
    feeds: Mutex<HashMap<FeedId, Uuid>>,
    newcomer: Arc<Notify>,
}

impl WakeStore for PostgresStore {
    fn listen(&self, feed: &Feed, shard: ShardId) -> Listener {
        let store = Arc::downgrade(&self.inner);
        let listener = self.inner.known.hub.listen((feed.id, shard));
        if let Some(Source::Ulid { feed: ulids, .. }) = &feed.source {
            let prober = &self.inner.prober;
            prober
                .feeds
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(feed.id, *ulids);
            let newcomer = prober.newcomer.clone();
            prober
                .task
                .ensure(|| tokio::spawn(probe(store, newcomer)).abort_handle());
            prober.newcomer.notify_one();
        } else {
            self.inner
                .ear
                .0
                .ensure(|| tokio::spawn(listen(store)).abort_handle());
        }
        listener
    }

    fn listen_to_watch(&self, watch: &Watch) -> Listener<WatchPlace> {
        self.listen_to(WatchPlace::from(watch))
    }

    fn listen_to_commits(&self) -> Option<Listener<()>> {
        Some(self.hear_commits())
    }
}

/// Listens until the store is gone, on a new connection whenever the old one breaks.
async fn listen(store: Weak<Inner>) {
    while let Some(inner) = store.upgrade() {
        let dialled = within(DIAL, inner.door.target.dial()).await;
        let hub = inner.known.hub.clone();
        // Only the hub is kept while listening, so that the store can be dropped.
        drop(inner);
        let ended = match dialled {
            Ok((client, connection)) => receive(client, connection, &hub).await,
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            tracing::warn!(%error, "lost the connection that listens for news");
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

async fn receive<S>(
    client: tokio_postgres::Client,
    mut connection: tokio_postgres::Connection<tokio_postgres::Socket, S>,
    hub: &WakeHub,
) -> Result<()>
where
    S: tokio_postgres::tls::TlsStream + Unpin,
{
    let listen = async {
        tell(&client, "set search_path = pg_catalog, pg_temp").await?;
        if answered(in_recovery(&client)).await? {
            return poll(&client, hub).await;
        }
        tell(&client, &format!("listen {CHANNEL}")).await?;
        // Whatever was announced before we listened was missed: everybody looks once more.
        hub.wake_all();
        let mut unannounced = Positions::new(Announced::No);
        for look in 1u64.. {
            tokio::time::sleep(UNANNOUNCED).await;
            match unannounced.look(&client, hub).await {
                // Whoever may not see where shards stand can still be told.
                Err(error) if error.kind() != Kind::Permission => return Err(error),
                _ => {}
            }
            if look % PULSE == 0 {
                // Repeating it is harmless, and says what the session is for.
                tell(&client, &format!("listen {CHANNEL}")).await?;
            }
        }
        Ok(())
    };
    let receive = async {
        while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(note) = message.map_err(db)? {
                match parse(note.payload()) {
                    Some(place) => hub.wake(&place),
                    None => hub.wake_all(),
                }
            }
        }
        Ok(())
    };
    tokio::select! {
        ended = listen => ended,
        ended = receive => ended,
    }
}

/// What the server answers, if it does so in time.
async fn answered<T>(answer: impl Future<Output = Result<T>>) -> Result<T> {
    within(ANSWER, answer).await
}

async fn within<T>(limit: Duration, answer: impl Future<Output = Result<T>>) -> Result<T> {
    let late = || format!("no answer of the database for {} seconds", limit.as_secs());
    tokio::time::timeout(limit, answer)
        .await
        .unwrap_or_else(|_| Err(Error::new(Kind::Unavailable, late())))
}

async fn tell(client: &tokio_postgres::Client, sql: &str) -> Result<()> {
    answered(async { client.batch_execute(sql).await.map_err(db) }).await
}

async fn in_recovery(client: &tokio_postgres::Client) -> Result<bool> {
    let row = client
        .query_one("select pg_catalog.pg_is_in_recovery()", &[])
        .await
        .map_err(db)?;
    row.take(0)
}

/// A hot standby cannot listen: looks where the shards stand that somebody waits for, until it becomes a
/// primary.
async fn poll(client: &tokio_postgres::Client, hub: &WakeHub) -> Result<()> {
    let mut positions = Positions::new(Announced::Any);
    while answered(in_recovery(client)).await? {
        positions.look(client, hub).await?;
        tokio::time::sleep(STANDBY).await;
    }
    Ok(())
}

/// Which shards are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Announced {
    Any,
    /// Those of which sweeps announce nothing.
    No,
}

/// Where the shards stand that somebody waits for, as far as it was seen.
struct Positions {
    announced: Announced,
    seen: HashMap<(FeedId, ShardId), String>,
}

impl Positions {
    fn new(announced: Announced) -> Self {
        Positions {
            announced,
            seen: HashMap::new(),
        }
    }

    /// Wakes those who wait for a shard that has moved.
    async fn look(&mut self, client: &tokio_postgres::Client, hub: &WakeHub) -> Result<()> {
        let watched = hub.watched();
        let mut feeds: Vec<i16> = watched.iter().map(|(feed, _)| feed.0).collect();
        feeds.sort_unstable();
        feeds.dedup();
        if feeds.is_empty() {
            return Ok(());
        }
        let look = include_str!("sql/shard_positions.sql");
        let unannounced = self.announced == Announced::No;
        let rows = answered(async {
            let answer = client.query(look, &[&feeds, &unannounced]).await;
            answer.map_err(db)
        });
        for row in rows.await? {
            let place = (FeedId(row.take(0)?), ShardId(row.take(1)?));
            let position: String = row.take(2)?;
            // One seen for the first time counts: a reader may have begun to wait before.
            if self.seen.insert(place, position.clone()) != Some(position) {
                hub.wake(&place);
            }
        }
        Ok(())
    }
}

fn parse(payload: &str) -> Option<(FeedId, ShardId)> {
    let mut parts = payload.split('/');
    let feed = parts.next()?.parse().ok()?;
    let shard = parts.next()?.parse().ok()?;
    Some((feed, shard))
}

/// Where a shard's ULIDs stand.
type Position = (Vec<u8>, i64);

/// Looks for committed ULIDs while somebody waits for them.
async fn probe(store: Weak<Inner>, newcomer: Arc<Notify>) {
    let mut pace = Pace::new(SHORTEST, LONGEST);
    let mut seen: HashMap<(Uuid, i32), Position> = HashMap::new();
    while let Some(inner) = store.upgrade() {
        let feeds = inner.prober.watched(&inner.known.hub);
        if feeds.is_empty() {
            drop(inner);
            newcomer.notified().await;
            continue;
        }
        let store = PostgresStore { inner };
        let news = store
            .call(Limit::BRIEF, async |s| look(s, &feeds, &mut seen).await)
            .await;
        // Not kept while waiting, so that the store can be dropped.
        drop(store);
        let wait = match news {
            Ok(true) => pace.busy(),
            Ok(false) => pace.idle(),
            Err(error) => {
                tracing::warn!(%error, "cannot look for ULIDs; trying again");
                Duration::from_millis(500)
            }
        };
        tokio::time::sleep(wait).await;
    }
}

impl Prober {
    /// The feeds somebody waits for; forgets the others.
    fn watched(&self, hub: &WakeHub) -> HashMap<FeedId, Uuid> {
        let mut feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
        // Asked under the lock: every waiter in `feeds` listened before.
        let watched = hub.watched();
        feeds.retain(|feed, _| watched.iter().any(|(id, _)| id == feed));
        feeds.clone()
    }
}

/// One look for all who wait. Returns whether there was anything new.
async fn look(
    session: &Session,
    feeds: &HashMap<FeedId, Uuid>,
    seen: &mut HashMap<(Uuid, i32), Position>,
) -> Result<bool> {
    let ids: Vec<Uuid> = feeds.values().copied().collect();
    let statement = session
        .prepare_cached(
            "select feed_id, shard_id, ulid_high, ulid_low from changefeed.shard_ulid \
             where feed_id = any($1)",
        )
        .await
        .map_err(db)?;
    let mut news = false;
    for row in session.query(&statement, &[&ids]).await.map_err(db)? {
        let (ulids, shard): (Uuid, i32) = (row.take(0)?, row.take(1)?);
        let position: Position = (row.take(2)?, row.take(3)?);
        // A shard seen for the first time counts: a reader may have begun to wait before.
        if seen.insert((ulids, shard), position.clone()) == Some(position) {
            continue;
        }
        news = true;
        let Ok(shard) = i16::try_from(shard) else {
            continue;
        };
        for (feed, _) in feeds.iter().filter(|(_, id)| **id == ulids) {
            session.known.hub.wake(&(*feed, ShardId(shard)));
        }
    }
    Ok(news)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_names_feed_and_shard() {
        assert_eq!(
            parse("37/-2/2000000000000001"),
            Some((FeedId(37), ShardId(-2)))
        );
        assert_eq!(parse("something else"), None);
    }
}
