//! Writes down outcomes, as many in one statement as have come together.

use std::sync::Arc;

use changefeed_core::{Backoff, Finished, Remedy, Result, Store, Verdict, crash_point};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::DispatchTotals;
use super::holds::Holds;
use crate::describe;

/// Outcomes that one statement writes.
const BATCH: usize = 500;

pub(super) struct Scribe {
    store: Arc<dyn Store>,
    holds: Arc<Holds>,
    /// Ends the trying when nobody can wait any longer.
    give_up: CancellationToken,
    totals: DispatchTotals,
}

impl Scribe {
    pub(super) fn new(
        store: Arc<dyn Store>,
        holds: Arc<Holds>,
        give_up: CancellationToken,
    ) -> Self {
        Scribe {
            store,
            holds,
            give_up,
            totals: DispatchTotals::default(),
        }
    }

    /// Writes until there is nobody left who could have something to write.
    pub(super) async fn run(
        mut self,
        mut unwritten: mpsc::Receiver<Finished>,
        mut seen: impl FnMut(&DispatchTotals) + Send + 'static,
    ) -> Result<DispatchTotals> {
        let mut batch = Vec::with_capacity(BATCH);
        while unwritten.recv_many(&mut batch, BATCH).await > 0 {
            self.write(&batch).await?;
            self.holds.written(batch.iter().map(|f| f.claim));
            seen(&self.totals);
            batch.clear();
        }
        Ok(self.totals)
    }

    /// Tries until it works: the outcome of a delivery is known nowhere else.
    async fn write(&mut self, batch: &[Finished]) -> Result<()> {
        let mut backoff = Backoff::default();
        loop {
            crash_point("deliver.before_write");
            match self.store.finish_events(batch).await {
                Ok(late) => {
                    crash_point("deliver.after_write");
                    self.count(batch, late.len());
                    return Ok(());
                }
                Err(error) if error.kind().remedy() == Remedy::Retry => {
                    tracing::warn!(error = %describe(&error), "outcomes not written; trying again");
                }
                Err(error) => return Err(error),
            }
            tokio::select! {
                biased;
                () = self.give_up.cancelled() => {
                    tracing::warn!(
                        outcomes = batch.len(),
                        "outcomes could not be written: these events will be shown as cut off"
                    );
                    return Ok(());
                }
                () = tokio::time::sleep(backoff.failed()) => {}
            }
        }
    }

    fn count(&mut self, batch: &[Finished], late: usize) {
        if late > 0 {
            tracing::warn!(
                late,
                "attempts were over after their events had gone to others"
            );
        }
        self.totals.late += u64::try_from(late).unwrap_or(0);
        for finished in batch {
            match finished.verdict {
                Verdict::Delivered => self.totals.delivered += 1,
                Verdict::Retry { .. } | Verdict::Pause => self.totals.retried += 1,
                Verdict::GiveUp => self.totals.dead += 1,
            }
        }
    }
}
