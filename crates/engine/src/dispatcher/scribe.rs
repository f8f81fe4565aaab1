//! Writes down outcomes, as many in one statement as have come together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use changefeed_core::{Backoff, Finished, Remedy, Result, Store, Verdict, crash_point};
use futures_util::future::try_join_all;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::DispatchTotals;
use super::holds::Holds;
use crate::describe;

/// Outcomes that one statement writes.
const BATCH: usize = 500;
/// Under load outcomes come quickly: it is worth waiting a moment for this many.
const WORTH_WAITING: usize = 100;
const MOMENT: Duration = Duration::from_millis(2);

/// Statements under way at the same time: while one waits for the disk, the next is prepared.
const HANDS: usize = 2;

pub(super) struct Scribe {
    store: Arc<dyn Store>,
    holds: Arc<Holds>,
    /// Ends the trying when nobody can wait any longer.
    give_up: CancellationToken,
    totals: Mutex<DispatchTotals>,
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
            totals: Mutex::default(),
        }
    }

    /// Writes until there is nobody left who could have something to write.
    pub(super) async fn run(
        self,
        unwritten: mpsc::Receiver<Finished>,
        seen: impl FnMut(&DispatchTotals) + Send + 'static,
    ) -> Result<DispatchTotals> {
        let (unwritten, seen) = (tokio::sync::Mutex::new(unwritten), Mutex::new(seen));
        try_join_all((0..HANDS).map(|_| self.hand(&unwritten, &seen))).await?;
        Ok(*self.totals())
    }

    async fn hand(
        &self,
        unwritten: &tokio::sync::Mutex<mpsc::Receiver<Finished>>,
        seen: &Mutex<impl FnMut(&DispatchTotals)>,
    ) -> Result<()> {
        let mut batch = Vec::with_capacity(BATCH);
        while take(unwritten, &mut batch).await > 0 {
            self.write(&batch).await?;
            self.holds.written(batch.iter().map(|f| f.claim));
            let totals = *self.totals();
            seen.lock().unwrap_or_else(PoisonError::into_inner)(&totals);
            batch.clear();
        }
        Ok(())
    }

    fn totals(&self) -> MutexGuard<'_, DispatchTotals> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries until it works: the outcome of a delivery is known nowhere else.
    async fn write(&self, batch: &[Finished]) -> Result<()> {
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

    fn count(&self, batch: &[Finished], late: usize) {
        if late > 0 {
            tracing::warn!(
                late,
                "attempts were over after their events had gone to others"
            );
        }
        let mut totals = self.totals();
        totals.late += u64::try_from(late).unwrap_or(0);
        for finished in batch {
            match finished.verdict {
                Verdict::Delivered => totals.delivered += 1,
                Verdict::Retry { .. } | Verdict::Pause => totals.retried += 1,
                Verdict::GiveUp => totals.dead += 1,
            }
        }
    }
}

/// Waits for outcomes and takes as many as there are. Returns how many.
async fn take(
    unwritten: &tokio::sync::Mutex<mpsc::Receiver<Finished>>,
    batch: &mut Vec<Finished>,
) -> usize {
    let mut unwritten = unwritten.lock().await;
    unwritten.recv_many(batch, BATCH).await;
    // One alone is written at once; somebody may wait for the next event of its key.
    if batch.len() > 1 && batch.len() < WORTH_WAITING {
        tokio::time::sleep(MOMENT).await;
        while batch.len() < BATCH
            && let Ok(finished) = unwritten.try_recv()
        {
            batch.push(finished);
        }
    }
    batch.len()
}
