//! The sweeper: of any number of instances, one numbers the changes of a group.
//!
//! Who that is, is decided by a lease, and a sweep is one server-side call, so that an instance
//! that dies or freezes holds nothing: another one takes over when the lease has expired. If the
//! frozen one wakes up in the middle of a sweep, that is merely another sweep.

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed_core::{
    Backoff, Lease, Listener, Pace, Remedy, Result, Store, SweepGroup, SweepReport, crash_point,
};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::describe;

/// How long a lease lasts. With the standby's poll this bounds a take-over well below two seconds,
/// also on a busy machine.
const LEASE: Duration = Duration::from_millis(1000);
/// How often a standby looks whether the lease is free.
const STANDBY: Duration = Duration::from_millis(200);
/// Waits between two sweeps, under load and when idle. They are kept also where the store tells of commits: those
/// may be commits of others.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(40);
/// How long nothing may be told before an idle sweeper looks all the same: what a lost wake-up costs.
const UNTOLD: Duration = Duration::from_secs(1);

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
    /// What tells of commits, while this one sweeps and has nothing to do.
    commits: Option<Listener<()>>,
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
            commits: None,
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
            if let Some(commits) = &mut self.commits {
                // What is told from now on may be too late for this sweep.
                commits.look();
            }
            // An await inside `turn` is never cut off: a sweep that was sent is waited for.
            let mut rest = Duration::ZERO;
            let wait = match self.turn().await {
                Ok(Turn::Swept(report)) => {
                    backoff.worked();
                    if report.shards.is_empty() {
                        let wait = pace.idle();
                        if wait > SHORTEST {
                            rest = self.rest();
                        }
                        wait
                    } else {
                        seen(&report);
                        pace.busy()
                    }
                }
                Ok(Turn::StandBy) => {
                    self.commits = None;
                    STANDBY
                }
                Err(error) if error.kind().remedy() == Remedy::Retry => {
                    tracing::warn!(group = %self.group, error = %describe(&error), "sweep failed; trying again");
                    backoff.failed()
                }
                Err(error) => break Err(error),
            };
            let told = async {
                tokio::time::sleep(wait).await;
                if let Some(commits) = &mut self.commits {
                    // Nothing is told any more once the time is over, so it is not an error.
                    drop(tokio::time::timeout(rest, commits.news()).await);
                }
            };
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break Ok(()),
                () = told => {}
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

    /// How long to wait to be told of a commit after a sweep that found nothing: no longer than until the lease is to
    /// be renewed, and not at all where nobody tells.
    fn rest(&mut self) -> Duration {
        if self.commits.is_none() {
            // What was committed since the sweep is not told: another sweep comes first.
            self.commits = self.store.listen_to_commits();
            return Duration::ZERO;
        }
        let renewal = (self.lease.as_ref()).map(|l| l.renews_in(Instant::now()));
        renewal.unwrap_or_default().min(UNTOLD)
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
