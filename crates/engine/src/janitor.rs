//! The janitor: removes old events of triggers whose definition asks for it. One instance at a
//! time, a batch at a time, with a pause in between, so that deliveries do not notice.

use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{Remedy, Result, Store};
use tokio_util::sync::CancellationToken;

use crate::describe;

/// How often there is a round.
const EVERY: Duration = Duration::from_secs(60);
/// Events that one statement removes, and the pause after it.
const BATCH: usize = 1000;
const PAUSE: Duration = Duration::from_millis(50);

/// Cleans up until told to stop.
pub async fn run_janitor(
    store: Arc<dyn Store>,
    owner: String,
    shutdown: CancellationToken,
) -> Result<()> {
    loop {
        match round(&*store, &owner, &shutdown).await {
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

async fn round(store: &dyn Store, owner: &str, shutdown: &CancellationToken) -> Result<()> {
    for trigger in store.triggers().await? {
        let Some(what) = trigger.definition.delivery.clean_up else {
            continue;
        };
        // Held while it works, so that two do not do the same at once; nothing depends on it.
        let Some(lease) = store.lease("clean-up/events", owner, EVERY).await? else {
            return Ok(());
        };
        let mut removed = 0;
        loop {
            let cleaned = store.clean_up_events(Some(&trigger), what, BATCH).await?;
            removed += cleaned.events;
            if !cleaned.more || shutdown.is_cancelled() {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        if removed > 0 {
            tracing::info!(trigger = %trigger.definition.name, events = removed, "cleaned up");
        }
        store.release(&lease).await?;
    }
    Ok(())
}
