//! `changefeed deliver`

use changefeed::{
    CancellationToken, Changefeed, DispatchOptions, DispatchTotals, Result, require_current,
};

use crate::args::Deliver;
use crate::commands::serve::instance;
use crate::connect;
use crate::output::Out;
use crate::signals;

pub(crate) async fn run(database: &str, args: Deliver, out: &mut Out) -> Result<()> {
    let db = connect(database).await?;
    require_current(db.schema().await?)?;
    let shutdown = signals::shutdown()?;
    out.say("delivering events until stopped")?;
    let totals = deliver(&db, &args, &instance(), shutdown).await?;
    if out.is_json() {
        return out.object(&totals);
    }
    out.line(format!(
        "{} delivered, {} attempts to be repeated, {} given up",
        totals.delivered, totals.retried, totals.dead
    ))
}

/// Delivers events and cleans up after them, until told to stop.
pub(crate) async fn deliver(
    db: &Changefeed,
    args: &Deliver,
    owner: &str,
    shutdown: CancellationToken,
) -> Result<DispatchTotals> {
    let options = DispatchOptions {
        batch: args.event_batch,
        fetch_interval: args.fetch_interval,
        lease: args.lease,
        concurrency: args.concurrency as usize,
        grace: args.grace,
        ..DispatchOptions::new(owner)
    };
    let webhooks = args.webhooks()?;
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
            let ended = db.clean_up_on_schedule(owner, stop.clone()).await;
            stop.cancel();
            ended
        }
    );
    cleaned.and(totals)
}
