//! A dispatcher in the background, as `deliver` runs one.

use std::time::Duration;

use changefeed::{
    CancellationToken, Changefeed, DispatchOptions, DispatchTotals, Error, Kind, Result,
    WebhookOptions,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Who delivers the events of the measures.
const OWNER: &str = "changefeed bench";
/// How long deliveries may take before they count as lost.
const PATIENCE: Duration = Duration::from_secs(120);

/// A dispatcher that runs until it is stopped or dropped.
pub(crate) struct Delivering {
    shutdown: CancellationToken,
    totals: watch::Receiver<DispatchTotals>,
    task: JoinHandle<Result<DispatchTotals>>,
}

impl Delivering {
    /// Starts one with the defaults: 100 requests at the same time.
    pub(crate) fn start(db: &Changefeed) -> Result<Self> {
        let shutdown = CancellationToken::new();
        let (show, totals) = watch::channel(DispatchTotals::default());
        let dispatcher =
            db.webhook_dispatcher(WebhookOptions::default(), DispatchOptions::new(OWNER))?;
        let run = dispatcher.run(
            move |totals| {
                show.send_replace(*totals);
            },
            shutdown.clone(),
        );
        Ok(Delivering {
            shutdown,
            totals,
            task: tokio::spawn(run),
        })
    }

    /// Waits until so many events were delivered, and that was written down.
    pub(crate) async fn delivered(&mut self, events: u64) -> Result<()> {
        let enough = self.totals.wait_for(|totals| totals.delivered >= events);
        match tokio::time::timeout(PATIENCE, enough).await {
            Ok(Ok(_)) => Ok(()),
            // It has ended by itself, and that is only by an error.
            Ok(Err(ended)) => {
                Err(Error::new(Kind::Database, "the dispatcher gave up").caused_by(ended))
            }
            Err(_) => Err(
                Error::new(Kind::Busy, "events were not delivered within two minutes")
                    .advise("stop other instances of changefeed that deliver from this database"),
            ),
        }
    }

    /// Stops it, and returns what it has done.
    pub(crate) async fn stop(mut self) -> Result<DispatchTotals> {
        self.shutdown.cancel();
        let ended = (&mut self.task).await;
        let totals = ended
            .map_err(|e| Error::new(Kind::Database, "the dispatcher was cut off").caused_by(e))??;
        if totals.retried + totals.dead + totals.late > 0 {
            return Err(Error::new(
                Kind::Database,
                format!("not every delivery was a success: {totals:?}"),
            ));
        }
        Ok(totals)
    }
}

impl Drop for Delivering {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}
