//! The janitors: one removes old events of triggers, the other old changes of feeds, whose definition asks for it. One
//! instance at a time, a batch at a time, with a pause in between, so that nobody notices.

use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{Cleaned, Remedy, Result, Store};
use tokio_util::sync::CancellationToken;

use crate::describe;

/// How often there is a round.
const EVERY: Duration = Duration::from_secs(60);
/// Events or changes that one statement removes, and the pause after it.
const BATCH: usize = 1000;
const PAUSE: Duration = Duration::from_millis(50);

/// Cleans up after events until told to stop.
pub async fn run_janitor(
    store: Arc<dyn Store>,
    owner: String,
    shutdown: CancellationToken,
) -> Result<()> {
    rounds(Work::Events, store, owner, shutdown).await
}

/// Trims feeds until told to stop.
pub async fn run_trimmer(
    store: Arc<dyn Store>,
    owner: String,
    shutdown: CancellationToken,
) -> Result<()> {
    rounds(Work::Feeds, store, owner, shutdown).await
}

/// What is cleaned up.
#[derive(Debug, Clone, Copy)]
enum Work {
    Events,
    Feeds,
}

async fn rounds(
    work: Work,
    store: Arc<dyn Store>,
    owner: String,
    shutdown: CancellationToken,
) -> Result<()> {
    loop {
        let done = match work {
            Work::Events => clean_up(&*store, &owner, &shutdown).await,
            Work::Feeds => trim(&*store, &owner, &shutdown).await,
        };
        match done {
            Ok(()) => {}
            Err(error) if error.kind().remedy() == Remedy::Retry => {
                tracing::warn!(error = %describe(&error), "no clean-up; trying again later");
            }
            Err(error) => return Err(error),
        }
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

async fn trim(store: &dyn Store, owner: &str, shutdown: &CancellationToken) -> Result<()> {
    for feed in store.feeds().await? {
        let Some(retention) = feed.retention else {
            continue;
        };
        // Held while it works, so that two do not do the same at once; nothing depends on it.
        let Some(lease) = store.lease("clean-up/feeds", owner, EVERY).await? else {
            return Ok(());
        };
        let mut removed = 0;
        loop {
            let trimmed = match store.trim(&feed, retention, BATCH).await {
                Ok(trimmed) => trimmed,
                // It was dropped, or is one that cannot be trimmed: no reason to keep the others.
                Err(error) if error.kind().remedy() == Remedy::Human => {
                    tracing::warn!(feed = %feed.name, error = %describe(&error), "it is not trimmed");
                    break;
                }
                Err(error) => return Err(error),
            };
            removed += trimmed.removed;
            if trimmed.removed == 0 || shutdown.is_cancelled() {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        if removed > 0 {
            tracing::info!(feed = %feed.name, changes = removed, "trimmed");
        }
        store.release(&lease).await?;
    }
    Ok(())
}

async fn clean_up(store: &dyn Store, owner: &str, shutdown: &CancellationToken) -> Result<()> {
    let dead = crate::listening::remove_dead(store, owner).await?;
    if dead > 0 {
        tracing::info!(listeners = dead, "removed what killed listeners had left");
    }
    for trigger in store.triggers().await? {
        let delivery = &trigger.definition.delivery;
        let (what, logs_after) = (delivery.clean_up, delivery.clean_up_logs_after);
        if what.is_none() && logs_after.is_none() {
            continue;
        }
        // Held while it works, so that two do not do the same at once; nothing depends on it.
        let Some(lease) = store.lease("clean-up/events", owner, EVERY).await? else {
            return Ok(());
        };
        let mut removed = Cleaned {
            more: true,
            ..Cleaned::default()
        };
        while removed.more && !shutdown.is_cancelled() {
            removed.more = false;
            if let Some(what) = what {
                removed.add(store.clean_up_events(Some(&trigger), what, BATCH).await?);
            }
            if let Some(after) = logs_after {
                removed.add(
                    store
                        .clean_up_attempts(Some(&trigger), after, BATCH)
                        .await?,
                );
            }
            tokio::time::sleep(PAUSE).await;
        }
        if removed.events + removed.attempts > 0 {
            let (events, attempts) = (removed.events, removed.attempts);
            tracing::info!(trigger = %trigger.definition.name, events, attempts, "cleaned up");
        }
        store.release(&lease).await?;
    }
    Ok(())
}
