//! Delivering events, and cleaning up after them.

use changefeed_core::Result;

use crate::sinks::webhook::WebhookOptions;
use crate::{CancellationToken, Changefeed, DispatchOptions, DispatchTotals};

/// Delivers the events of every trigger that has a webhook and removes old ones, until told to stop.
pub async fn deliver(
    db: &Changefeed,
    webhooks: WebhookOptions,
    options: DispatchOptions,
    shutdown: CancellationToken,
) -> Result<DispatchTotals> {
    let owner = options.owner.clone();
    // Whichever ends first with an error ends the other.
    let stop = shutdown.child_token();
    let deliveries = db.webhook_dispatcher(webhooks, options)?;
    let (totals, cleaned) = tokio::join!(
        async {
            let ended = deliveries.run(|_| {}, stop.clone()).await;
            stop.cancel();
            ended
        },
        async {
            let ended = db.clean_up_on_schedule(&owner, stop.clone()).await;
            stop.cancel();
            ended
        }
    );
    cleaned.and(totals)
}
