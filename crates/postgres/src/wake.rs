//! Waking readers: one connection per store listens, however many wait.

use std::future::poll_fn;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use changefeed_core::{FeedId, Result, ShardId, Subscription, WakeHub, WakeStore};
use tokio::task::AbortHandle;
use tokio_postgres::AsyncMessage;

use crate::PostgresStore;
use crate::error::db;

/// The channel on which every sweep announces `feed_id/shard/last number`.
const CHANNEL: &str = "changefeed";

/// The task that listens, started when the first reader waits and stopped with the store.
#[derive(Default)]
pub(crate) struct Listener(Mutex<Option<AbortHandle>>);

impl Drop for Listener {
    fn drop(&mut self) {
        let task = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = task.take() {
            task.abort();
        }
    }
}

impl WakeStore for PostgresStore {
    fn subscribe(&self, feed: FeedId, shard: ShardId) -> Subscription {
        let mut task = self
            .inner
            .listener
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(AbortHandle::is_finished) {
            let store = std::sync::Arc::downgrade(&self.inner);
            let hub = self.inner.hub.clone();
            *task = Some(
                tokio::spawn(async move {
                    while let Some(inner) = store.upgrade() {
                        let dialled = inner.target.dial().await;
                        // Only the hub is kept while listening, so that the store can be dropped.
                        drop(inner);
                        let ended = match dialled {
                            Ok((client, connection)) => listen(client, connection, &hub).await,
                            Err(error) => Err(error),
                        };
                        if let Err(error) = ended {
                            tracing::warn!(%error, "lost the connection that listens for news");
                        }
                        tokio::time::sleep(Duration::from_millis(250)).await;
                    }
                })
                .abort_handle(),
            );
        }
        self.inner.hub.subscribe(feed, shard)
    }
}

async fn listen<S>(
    client: tokio_postgres::Client,
    mut connection: tokio_postgres::Connection<tokio_postgres::Socket, S>,
    hub: &WakeHub,
) -> Result<()>
where
    S: tokio_postgres::tls::TlsStream + Unpin,
{
    let subscribe = async {
        client
            .batch_execute(&format!("listen {CHANNEL}"))
            .await
            .map_err(db)?;
        // Whatever was announced before we listened was missed: everybody looks once more.
        hub.wake_all();
        std::future::pending::<Result<()>>().await
    };
    let receive = async {
        while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(note) = message.map_err(db)? {
                match parse(note.payload()) {
                    Some((feed, shard)) => hub.wake(feed, shard),
                    None => hub.wake_all(),
                }
            }
        }
        Ok(())
    };
    tokio::select! {
        ended = subscribe => ended,
        ended = receive => ended,
    }
}

fn parse(payload: &str) -> Option<(FeedId, ShardId)> {
    let mut parts = payload.split('/');
    let feed = parts.next()?.parse().ok()?;
    let shard = parts.next()?.parse().ok()?;
    Some((feed, shard))
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
