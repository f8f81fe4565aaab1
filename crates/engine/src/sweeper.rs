//! The sweeper: of any number of instances, one numbers the changes of a group.
//!
//! Who that is, is decided by a lease, and a sweep is one server-side call, so that an instance
//! that dies or freezes holds nothing: another one takes over when the lease has expired. If the
//! frozen one wakes up in the middle of a sweep, that is merely another sweep.

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed_core::{
    Backoff, Lease, Pace, Remedy, Result, Store, SweepGroup, SweepReport, crash_point,
};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::describe;

/// How long a lease lasts. With the standby's poll this bounds a take-over well below two seconds,
/// also on a busy machine.
const LEASE: Duration = Duration::from_millis(1000);
/// How often a standby looks whether the lease is free.
const STANDBY: Duration = Duration::from_millis(200);
/// Waits between two sweeps, under load and when idle.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(40);

/// What a sweeper has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SweepTotals {
    /// Changes numbered.
    pub changes: i64,
    /// The largest lag seen, in milliseconds.
    pub lag_ms: i64,
    /// Sweeps made.
    pub iterations: u64,
}

impl SweepTotals {
    /// Adds one sweep.
    pub fn add(&mut self, report: &SweepReport) {
        self.changes += report.changes();
        self.lag_ms = self.lag_ms.max(report.max_lag_ms());
        self.iterations += 1;
    }
}

/// A sweeper of one group.
pub struct Sweeper {
    store: Arc<dyn Store>,
    group: SweepGroup,
    owner: String,
    lease: Option<Lease>,
    totals: SweepTotals,
}

impl Sweeper {
    /// A sweeper; `owner` tells instances apart and must be unique to this one.
    pub fn new(store: Arc<dyn Store>, group: SweepGroup, owner: impl Into<String>) -> Self {
        Sweeper {
            store,
            group,
            owner: owner.into(),
            lease: None,
            totals: SweepTotals::default(),
        }
    }

    /// Sweeps until told to stop. `seen` is shown every sweep that found something. Ends early
    /// only with an error that a person has to mend.
    pub async fn run(
        mut self,
        mut seen: impl FnMut(&SweepReport),
        shutdown: CancellationToken,
    ) -> Result<SweepTotals> {
        let mut pace = Pace::new(SHORTEST, LONGEST);
        let mut backoff = Backoff::default();
        let ended = loop {
            // An await inside `turn` is never cut off: a sweep that was sent is waited for.
            let wait = match self.turn().await {
                Ok(Turn::Swept(report)) => {
                    backoff.worked();
                    if report.shards.is_empty() {
                        pace.idle()
                    } else {
                        seen(&report);
                        pace.busy()
                    }
                }
                Ok(Turn::StandBy) => STANDBY,
                Err(error) if error.kind().remedy() == Remedy::Retry => {
                    tracing::warn!(group = %self.group, error = %describe(&error), "sweep failed; trying again");
                    backoff.failed()
                }
                Err(error) => break Err(error),
            };
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break Ok(()),
                () = tokio::time::sleep(wait) => {}
            }
        };
        if let Some(lease) = self.lease.take() {
            // A courtesy: without it the next one waits until the lease expires.
            if let Err(error) = self.store.release(&lease).await {
                tracing::debug!(%error, "could not give the lease back");
            }
        }
        ended.map(|()| self.totals)
    }

    async fn turn(&mut self) -> Result<Turn> {
        if !self.leads().await? {
            return Ok(Turn::StandBy);
        }
        crash_point("sweep.before");
        let report = self.store.sweep(self.group).await?;
        crash_point("sweep.after");
        self.totals.add(&report);
        Ok(Turn::Swept(report))
    }

    /// Whether this instance holds the lease, renewing or taking it when it is time.
    async fn leads(&mut self) -> Result<bool> {
        let now = Instant::now();
        let trusted = self.lease.as_ref().is_some_and(|l| l.is_trusted(now));
        if trusted && self.lease.as_ref().is_some_and(|l| !l.wants_renewal(now)) {
            return Ok(true);
        }
        let led = self.lease.as_ref().map(|l| l.generation);
        let name = format!("sweep/{}", self.group);
        self.lease = self.store.lease(&name, &self.owner, LEASE).await?;
        match (led, self.lease.as_ref().map(|l| l.generation)) {
            (Some(_), None) => tracing::info!(group = %self.group, "another instance sweeps now"),
            (before, Some(generation)) if before != Some(generation) => {
                tracing::info!(group = %self.group, generation, "this instance sweeps");
                crash_point("sweep.leased");
            }
            _ => {}
        }
        Ok(self.lease.is_some())
    }
}

enum Turn {
    Swept(SweepReport),
    StandBy,
}
