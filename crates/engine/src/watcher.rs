//! The watcher: leases batches of changed rows and hands them to a function.
//!
//! Any number of watchers share the work of one function; what is whose is decided by leases in
//! the database. While the function runs its leases are renewed. If that fails, the function is
//! cancelled before the leases can expire: its future is dropped. What it did until then may be
//! done again by whoever gets the rows next.

mod handled;

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use changefeed_core::{
    Backoff, Batch, BatchFormat, BatchOutcome, Part, Remedy, Result, RowChange, RowFilter,
    RowSieve, Settled, Store, Take, Watch, WatchSettings, crash_point,
};
pub use handled::Handled;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::timekeeper::Timekeeper;
use crate::{describe, traces};

/// The pause after a look that found nothing: an instance that is woken by changes that others take leaves them time.
const SHORTEST: Duration = Duration::from_millis(2);
/// How long to wait for news. This much later somebody looks who was not told of it; it is also how
/// often an idle watch shows that it is there and makes sure that its table is what it was.
const LONGEST: Duration = Duration::from_secs(10);
/// How often batches are looked for that a failed call may have leased.
const DOUBT_LOOK: Duration = Duration::from_secs(5);
/// How long a running function may go on after we were told to stop.
const GRACE: Duration = Duration::from_secs(10);

/// What gets the batches.
#[async_trait]
pub trait WatchFunction: Send + Sync {
    /// Processes a batch. An error, in one sentence, is kept with its rows; so are those of single rows, which
    /// are then tried again without the others. The future is dropped when the lease of the rows is lost.
    async fn call(&self, batch: &Batch) -> Result<Handled, String>;
}

/// A closure on rows as the database wrote them.
pub struct Closure<F>(pub F);

#[async_trait]
impl<F, Fut, R> WatchFunction for Closure<F>
where
    F: Fn(Vec<RowChange>) -> Fut + Send + Sync,
    Fut: Future<Output = Result<R, String>> + Send,
    R: Into<Handled>,
{
    async fn call(&self, batch: &Batch) -> Result<Handled, String> {
        (self.0)(batch.changes.clone()).await.map(Into::into)
    }
}

/// What a watcher has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct WatchTotals {
    /// Batches handed over.
    pub batches: u64,
    /// Changes in them.
    pub changes: u64,
    /// Batches that failed.
    pub failed: u64,
}

/// One instance of a function.
pub struct Watcher {
    store: Arc<dyn Store>,
    watch: Watch,
    settings: WatchSettings,
    /// Which of the changes the function is handed; all where there is none.
    sieve: Option<RowSieve>,
    owner: String,
    totals: WatchTotals,
    timekeeper: Timekeeper,
    doubt: Option<Doubt>,
    /// When the next of the batches that have failed here is tried again. With what others hold there
    /// is time: the store tells that there is something.
    again: Option<Instant>,
}

/// A call failed, and nobody knows whether the database did it, or will do it late: there may be a
/// batch that is leased to us and that we do not know of.
struct Doubt {
    until: Instant,
    look_at: Instant,
    /// Batches that the function was called with and that could not be settled.
    unsettled: Vec<i64>,
}

/// How a call ended.
enum Ended {
    /// By itself.
    Returned(Result<Handled, String>),
    /// Its lease could not be kept.
    Lost(String),
    /// We were told to stop.
    Stopped,
}

impl Watcher {
    /// A watcher; `owner` tells instances apart and must be unique to this one: after the database has
    /// failed, it gives back what is leased in its name and it does not know of.
    pub fn new(
        store: Arc<dyn Store>,
        watch: Watch,
        settings: WatchSettings,
        owner: impl Into<String>,
    ) -> Self {
        Watcher {
            store,
            watch,
            settings,
            sieve: None,
            owner: owner.into(),
            totals: WatchTotals::default(),
            timekeeper: Timekeeper::new(),
            doubt: None,
            again: None,
        }
    }

    /// Hands over only what a filter lets through, and the rows as they were before where the format says so. What
    /// it does not let through is done with.
    pub fn filter(mut self, filter: &RowFilter, format: BatchFormat) -> Result<Self> {
        let sieve = filter.sieve(self.store.dialect().fold, format)?;
        self.sieve = Some(sieve).filter(|sieve| !sieve.is_open());
        Ok(self)
    }

    /// Hands batches to the function until told to stop. Ends early only with an error that a
    /// person has to mend.
    pub async fn run(
        mut self,
        function: &dyn WatchFunction,
        shutdown: CancellationToken,
    ) -> Result<WatchTotals> {
        self.settings.validate()?;
        tracing::info!(
            watch = %self.watch.name, table = %self.watch.table, leases = %self.watch.leases_table,
            "watching"
        );
        let mut news = self.store.listen_to_watch(&self.watch);
        let mut backoff = Backoff::default();
        while !shutdown.is_cancelled() {
            self.timekeeper.look(&*self.store).await;
            // What comes after this is not missed, whether the take sees it or not.
            news.look();
            let looked = Instant::now();
            // An await inside `turn` is never cut off: what was leased is settled.
            let wait = match self.turn(function, &shutdown).await {
                Ok(true) => {
                    backoff.worked();
                    continue;
                }
                Ok(false) => {
                    backoff.worked();
                    tokio::time::sleep(SHORTEST).await;
                    tokio::select! {
                        () = news.news() => {}
                        () = tokio::time::sleep(self.at_most()) => {}
                        () = shutdown.cancelled() => {}
                    }
                    let pause = self
                        .settings
                        .polling_interval
                        .saturating_sub(looked.elapsed());
                    let _ = tokio::time::timeout(pause, shutdown.cancelled()).await;
                    continue;
                }
                Err(error) if error.kind().remedy() == Remedy::Retry => {
                    tracing::warn!(watch = %self.watch.name, error = %describe(&error), "watching failed; trying again");
                    backoff.failed()
                }
                Err(error) => return Err(error),
            };
            let _ = tokio::time::timeout(wait, shutdown.cancelled()).await;
        }
        Ok(self.totals)
    }

    /// How long nothing has to be done without news.
    fn at_most(&self) -> Duration {
        let now = Instant::now();
        let look_at = self.doubt.as_ref().map(|doubt| doubt.look_at);
        [self.again, look_at]
            .into_iter()
            .flatten()
            .map(|at| at.saturating_duration_since(now))
            .fold(LONGEST, Duration::min)
    }

    /// What was done so far.
    pub fn totals(&self) -> WatchTotals {
        self.totals
    }

    /// One batch, if there is one; returns whether there was.
    pub async fn turn(
        &mut self,
        function: &dyn WatchFunction,
        shutdown: &CancellationToken,
    ) -> Result<bool> {
        self.give_back_unknown().await?;
        // What is due by now is for this take.
        self.again = self.again.filter(|at| *at > Instant::now());
        let take = Take {
            owner: &self.owner,
            settings: &self.settings,
        };
        let taken = self.store.take(&self.watch, take).await;
        if taken.is_err() {
            self.begin_doubt(None);
        }
        let Some(batch) = taken? else {
            return Ok(false);
        };
        crash_point("watch.before");
        let handed = match &self.sieve {
            Some(sieve) => Cow::Owned(Batch {
                changes: sieve.sift(&batch),
                ..batch.part(Part::Whole)
            }),
            None => Cow::Borrowed(&batch),
        };
        let outcomes = match self.call(function, &batch, &handed, shutdown).await {
            Ended::Returned(Ok(handled)) => handled.outcomes(&batch, &handed),
            Ended::Returned(Err(error)) | Ended::Lost(error) => Err(error),
            Ended::Stopped => Ok(vec![(Part::Whole, BatchOutcome::Released)]),
        };
        crash_point("watch.after");
        let outcomes =
            outcomes.unwrap_or_else(|error| vec![(Part::Whole, BatchOutcome::Failed { error })]);
        self.totals.batches += 1;
        self.totals.changes += handed.changes.len() as u64;
        let settled = self.store_outcomes(&batch, &outcomes).await;
        if settled.is_err() {
            self.begin_doubt(Some(batch.generation));
        }
        let settled = settled?;
        if settled.parked > 0 {
            tracing::error!(
                watch = %self.watch.name, rows = settled.parked,
                "changes were parked after their last attempt; `changefeed watch retry` tries them again"
            );
        }
        if settled.rows < batch.changes.len() as u64 {
            tracing::warn!(
                watch = %self.watch.name, rows = batch.changes.len() as u64 - settled.rows,
                "another instance holds rows of this batch by now"
            );
        }
        crash_point("watch.settled");
        Ok(true)
    }

    /// Stores what became of the parts of a batch.
    async fn store_outcomes(
        &mut self,
        batch: &Batch,
        outcomes: &[(Part, BatchOutcome)],
    ) -> Result<Settled> {
        let failures = outcomes.iter().filter_map(|(part, outcome)| match outcome {
            BatchOutcome::Failed { error } => Some((part, error)),
            _ => None,
        });
        let mut has_failed = false;
        for (part, error) in failures {
            let rows = match part {
                Part::Only(versions) => versions.len(),
                _ => batch.changes.len(),
            };
            tracing::warn!(
                watch = %self.watch.name, rows, of = batch.changes.len(), attempt = batch.attempt, error,
                "a batch failed"
            );
            has_failed = true;
        }
        self.totals.failed += u64::from(has_failed);
        let mut all = Settled::default();
        for (n, (part, outcome)) in outcomes.iter().enumerate() {
            if n > 0 {
                crash_point("watch.part");
            }
            let settled = match part {
                Part::Whole => self.settle(batch, outcome).await?,
                part => self.settle(&batch.part(part.clone()), outcome).await?,
            };
            all.rows += settled.rows;
            all.parked += settled.parked;
        }
        if has_failed {
            let at = Instant::now() + self.settings.wait_after(batch.attempt);
            self.again = Some(self.again.map_or(at, |before| before.min(at)));
        }
        Ok(all)
    }

    fn begin_doubt(&mut self, unsettled: Option<i64>) {
        let now = Instant::now();
        let doubt = self.doubt.get_or_insert_with(|| Doubt {
            until: now,
            look_at: now,
            unsettled: Vec::new(),
        });
        // What is leased later than this is lost: its attempt counts.
        doubt.until = now + self.settings.lease;
        doubt.look_at = now;
        doubt.unsettled.extend(unsettled);
    }

    /// Gives back batches that were leased by a take which got no answer: the function was not
    /// called with them. By generation, so that this, done late, takes nothing from anybody.
    /// Nothing is taken meanwhile, so whatever else was leased to us is settled.
    async fn give_back_unknown(&mut self) -> Result<()> {
        let now = Instant::now();
        let Some(doubt) = &mut self.doubt else {
            return Ok(());
        };
        if now < doubt.look_at {
            return Ok(());
        }
        let held = self.store.held_batches(&self.watch, &self.owner).await?;
        for batch in held {
            if doubt.unsettled.contains(&batch.generation) {
                continue;
            }
            let outcome = BatchOutcome::Released;
            let released = self
                .store
                .settle(&self.watch, &batch, &outcome, &self.settings)
                .await?;
            tracing::info!(
                watch = %self.watch.name, rows = released.rows,
                "leased by a call that got no answer; given back"
            );
        }
        doubt.look_at = now + DOUBT_LOOK;
        if now >= doubt.until {
            self.doubt = None;
        }
        Ok(())
    }

    /// Calls the function and keeps its leases meanwhile.
    async fn call(
        &self,
        function: &dyn WatchFunction,
        batch: &Batch,
        handed: &Batch,
        shutdown: &CancellationToken,
    ) -> Ended {
        // A tenth is left for clocks that run at different speeds.
        let trusted = |asked: Instant| asked + self.settings.lease.mul_f32(0.9);
        let mut trusted_until = trusted(batch.asked);
        if Instant::now() >= trusted_until {
            // That counts as an attempt, so that the next ones are with fewer rows.
            return Ended::Lost("not called: its lease was over before its rows were read".into());
        }
        if handed.changes.is_empty() {
            return Ended::Returned(Ok(Handled::all()));
        }
        let span = traces::batch(&self.watch, handed.changes.len(), batch.attempt);
        let call = async {
            function
                .call(handed)
                .await
                .inspect_err(|why| traces::failed(&tracing::Span::current(), why))
        };
        let mut call = std::pin::pin!(call.instrument(span));
        let mut renew_at = batch.asked + self.settings.renewal;
        let stopped = async {
            shutdown.cancelled().await;
            tokio::time::sleep(GRACE).await;
        };
        let mut stopped = std::pin::pin!(stopped);
        loop {
            tokio::select! {
                biased;
                returned = &mut call => return Ended::Returned(returned),
                () = tokio::time::sleep_until(trusted_until.into()) => break,
                () = &mut stopped => return Ended::Stopped,
                () = tokio::time::sleep_until(renew_at.into()) => {}
            }
            let asked = Instant::now();
            let renewal = self.store.renew(&self.watch, batch, self.settings.lease);
            // The function goes on while we ask.
            let renewed = tokio::select! {
                biased;
                returned = &mut call => return Ended::Returned(returned),
                () = tokio::time::sleep_until(trusted_until.into()) => break,
                renewed = renewal => renewed,
            };
            match renewed {
                Ok(rows) if rows >= batch.changes.len() as u64 => {
                    trusted_until = trusted(asked);
                    renew_at = asked + self.settings.renewal;
                }
                Ok(_) => {
                    return Ended::Lost(
                        "cancelled: another instance holds these rows by now".into(),
                    );
                }
                Err(error) => {
                    tracing::warn!(watch = %self.watch.name, error = %describe(&error), "a lease was not renewed; trying again");
                    renew_at = Instant::now() + (self.settings.renewal / 4).min(SECOND);
                }
            }
        }
        Ended::Lost("cancelled: its lease could not be renewed in time".into())
    }

    /// Stores the outcome of a batch; tries again for as long as the lease may last.
    async fn settle(&self, batch: &Batch, outcome: &BatchOutcome) -> Result<Settled> {
        let until = Instant::now() + self.settings.lease.min(GRACE);
        let mut backoff = Backoff::default();
        loop {
            let settled = self
                .store
                .settle(&self.watch, batch, outcome, &self.settings)
                .await;
            match settled {
                Err(error) if error.kind().remedy() == Remedy::Retry && Instant::now() < until => {
                    tracing::warn!(watch = %self.watch.name, error = %describe(&error), "a batch was not settled; trying again");
                    tokio::time::sleep(backoff.failed()).await;
                }
                other => return other,
            }
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);
