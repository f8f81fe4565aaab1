//! The dispatcher: takes events that are due, has them delivered, and writes down what became of
//! them. Any number of instances share the work.
//!
//! Four things go on at the same time: this loop looks for as many events as there is room for,
//! each event is delivered by a task of its own, the [scribe] writes outcomes, many in one
//! statement, and the [holder](holds) prolongs leases. Whatever an instance has in memory may be
//! lost: an event that it held is free again when its lease has run out.

mod holds;
mod scribe;
mod slots;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use changefeed_core::{
    Attempt, Backoff, Delivery, Error, EventTrigger, Finished, LeasedEvent, MAX_CUT_OFF, Pace,
    Remedy, Result, Severity, Store, Verdict, crash_point,
};
use futures_util::FutureExt;
use holds::Holds;
use scribe::Scribe;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::describe;
use crate::sinks::Sent;
use crate::timekeeper::Timekeeper;
use crate::traces;

/// Where events go.
#[async_trait]
pub trait Deliverer: Send + Sync + 'static {
    /// Whether it can deliver the events of this trigger. Those that nobody here can deliver are
    /// left to other instances; an error is logged, and they are left as well.
    fn serves(&self, trigger: &EventTrigger) -> Result<bool>;

    /// Delivers one event, once. Returns within the trigger's timeout.
    async fn deliver(&self, trigger: &EventTrigger, event: &LeasedEvent) -> Sent;
}

/// How a dispatcher works.
#[derive(Debug, Clone)]
pub struct DispatchOptions {
    /// Tells instances apart; must be unique to this one. After the database has failed, an instance
    /// gives back what is held in its name and it does not know of.
    pub owner: String,
    /// Most events of one trigger that are claimed at a time; twice as many while deliveries are
    /// fast.
    pub batch: u32,
    /// Longest wait between two polls for events.
    pub fetch_interval: Duration,
    /// How long an event is held at a time; renewed while it is needed.
    pub lease: Duration,
    /// Requests at the same time.
    pub concurrency: usize,
    /// How long deliveries under way may take when the dispatcher is stopped.
    pub grace: Duration,
}

impl DispatchOptions {
    /// The defaults, for an instance of this name.
    pub fn new(owner: impl Into<String>) -> Self {
        DispatchOptions {
            owner: owner.into(),
            batch: 100,
            fetch_interval: Duration::from_secs(1),
            lease: Duration::from_secs(30),
            concurrency: Delivery::CONCURRENCY as usize,
            grace: Duration::from_secs(60),
        }
    }
}

/// What a dispatcher has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct DispatchTotals {
    /// Events delivered.
    pub delivered: u64,
    /// Attempts that failed and will be repeated.
    pub retried: u64,
    /// Events given up.
    pub dead: u64,
    /// Attempts that were over too late to count.
    pub late: u64,
}

/// The wait between two looks under load. A look costs about a fifth of a millisecond.
const SHORTEST: Duration = Duration::from_millis(4);
/// The wait after a commit of somebody that brought nothing for us: others may commit very often.
const LONGEST_AFTER_NEWS: Duration = Duration::from_millis(16);
/// How old the definitions may be that this instance works by.
const DEFINITIONS_FOR: Duration = Duration::from_secs(1);
/// How often altered tables are looked for.
const REFRESH_EVERY: Duration = Duration::from_secs(30);
/// How often events are looked for that a failed call may have claimed.
const DOUBT_LOOK: Duration = Duration::from_secs(1);
/// Outcomes that may wait to be written before deliveries wait for them.
const UNWRITTEN: usize = 2000;

/// A dispatcher of one instance.
pub struct Dispatcher {
    store: Arc<dyn Store>,
    deliverer: Arc<dyn Deliverer>,
    options: DispatchOptions,
    holds: Arc<Holds>,
    definitions_until: Instant,
    refresh_at: Instant,
    timekeeper: Timekeeper,
    /// Complaints that were logged already.
    said: Vec<String>,
    doubt: Option<Doubt>,
}

/// A call failed, and nobody knows whether the database did it, or will do it late: it may believe
/// that we hold events that we do not know of.
struct Doubt {
    since: Instant,
    until: Instant,
    look_at: Instant,
}

impl Dispatcher {
    /// A dispatcher that gives events to this deliverer.
    pub fn new(
        store: Arc<dyn Store>,
        deliverer: Arc<dyn Deliverer>,
        options: DispatchOptions,
    ) -> Self {
        let now = Instant::now();
        Dispatcher {
            holds: Arc::new(Holds::new(
                options.concurrency,
                options.batch,
                options.lease,
            )),
            store,
            deliverer,
            options,
            definitions_until: now,
            refresh_at: now,
            timekeeper: Timekeeper::new(),
            said: Vec::new(),
            doubt: None,
        }
    }

    /// Delivers until told to stop. `seen` is shown the totals whenever outcomes were written.
    /// Ends early only with an error that a person has to mend.
    pub async fn run(
        mut self,
        seen: impl FnMut(&DispatchTotals) + Send + 'static,
        shutdown: CancellationToken,
    ) -> Result<DispatchTotals> {
        let (outcomes, unwritten) = mpsc::channel(UNWRITTEN);
        let flights = Flights {
            tasks: TaskTracker::new(),
            cut_off: CancellationToken::new(),
            outcomes,
        };
        // Goes on when everything else has stopped, until all is written.
        let give_up = CancellationToken::new();
        let scribe = Scribe::new(self.store.clone(), self.holds.clone(), give_up.clone());
        let mut scribe = tokio::spawn(scribe.run(unwritten, seen));
        let renewing = tokio::spawn(holds::renew(
            self.store.clone(),
            self.holds.clone(),
            self.options.lease,
        ));

        let ended = tokio::select! {
            ended = self.look(&flights, &shutdown) => ended,
            // It ends early only with an error.
            ended = &mut scribe => {
                renewing.abort();
                return ended.map_err(|e| task_lost(&e))?;
            }
        };

        if self.doubt.is_some()
            && let Err(error) = self.give_back_unknown().await
        {
            tracing::warn!(error = %describe(&error), "events not given back");
        }
        let unsent = self.holds.stop();
        if !unsent.is_empty()
            && let Err(error) = self.store.release_events(&unsent).await
        {
            // They are free again when their leases have run out.
            tracing::warn!(error = %describe(&error), "events not given back");
        }
        flights.tasks.close();
        if tokio::time::timeout(self.options.grace, flights.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                deliveries = flights.tasks.len(),
                "still under way after {:?}; they are cut off",
                self.options.grace
            );
            flights.cut_off.cancel();
            flights.tasks.wait().await;
        }
        drop(flights);
        // A database that cannot be reached now will show them as cut off.
        let patience = tokio::spawn({
            let give_up = give_up.clone();
            async move {
                tokio::time::sleep(Duration::from_secs(5)).await;
                give_up.cancel();
            }
        });
        let totals = scribe.await.map_err(|e| task_lost(&e))?;
        patience.abort();
        renewing.abort();
        ended.and(totals)
    }

    /// Looks for events and starts their deliveries, until told to stop.
    async fn look(&mut self, flights: &Flights, shutdown: &CancellationToken) -> Result<()> {
        let mut pace = Pace::new(SHORTEST, self.options.fetch_interval);
        let mut backoff = Backoff::default();
        let mut commits = self.store.listen_to_commits();
        let mut patience = Duration::ZERO;
        loop {
            if let Some(commits) = &mut commits {
                commits.look();
            }
            let looked = Instant::now();
            let wait = match self.turn(flights).await {
                Ok(Turn::Found { full: true }) => {
                    backoff.worked();
                    pace.busy();
                    Duration::ZERO
                }
                Ok(Turn::Found { full: false }) => {
                    backoff.worked();
                    patience = Duration::ZERO;
                    pace.busy()
                }
                Ok(Turn::Nothing) => {
                    backoff.worked();
                    pace.idle()
                }
                Ok(Turn::NoRoom) => self.options.fetch_interval,
                Err(error) => {
                    self.begin_doubt();
                    if error.kind().remedy() != Remedy::Retry {
                        return Err(error);
                    }
                    tracing::warn!(error = %describe(&error), "no look for events; trying again");
                    backoff.failed()
                }
            };
            let told = async {
                match &mut commits {
                    Some(commits) => commits.news().await,
                    // A store that cannot tell.
                    None => std::future::pending().await,
                }
                tokio::time::sleep_until((looked + patience).into()).await;
            };
            let waits_for_news = wait > SHORTEST && backoff.is_fresh();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                () = told, if waits_for_news => {
                    patience = (patience * 2).clamp(SHORTEST, LONGEST_AFTER_NEWS);
                }
                () = self.holds.room_opened(), if wait == self.options.fetch_interval => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn turn(&mut self, flights: &Flights) -> Result<Turn> {
        let now = Instant::now();
        if now >= self.refresh_at {
            if let Err(error) = self.follow_tables().await {
                // Capture goes on as it is, and so do deliveries.
                self.say(format!(
                    "altered tables could not be looked for: {}",
                    describe(&error)
                ));
            }
            self.refresh_at = now + REFRESH_EVERY;
        }
        if now >= self.definitions_until {
            self.load_definitions().await?;
            self.definitions_until = Instant::now() + DEFINITIONS_FOR;
        }
        self.timekeeper.look(&*self.store).await;
        if self.doubt.as_ref().is_some_and(|d| now >= d.look_at) {
            self.give_back_unknown().await?;
        }
        let stale = self.holds.take_stale();
        if !stale.is_empty() {
            self.store.release_events(&stale).await?;
        }
        let wanted = self.holds.wanted();
        if wanted.is_empty() {
            return Ok(match self.holds.served() {
                0 => Turn::Nothing,
                _ => Turn::NoRoom,
            });
        }
        let asked = Instant::now();
        let events = self
            .store
            .claim_events(&wanted, &self.options.owner, self.options.lease)
            .await?;
        if events.is_empty() {
            self.start_waiting(flights);
            return Ok(Turn::Nothing);
        }
        crash_point("deliver.claimed");
        let full = wanted.iter().any(|w| {
            let got = events.iter().filter(|e| e.trigger == w.trigger).count();
            got >= w.limit as usize
        });
        let refused = self.holds.take(events, asked);
        if !refused.is_empty() {
            self.store.release_events(&refused).await?;
        }
        self.start_waiting(flights);
        Ok(Turn::Found { full })
    }

    fn begin_doubt(&mut self) {
        let now = Instant::now();
        let since = self.doubt.as_ref().map_or(now, |doubt| doubt.since);
        self.doubt = Some(Doubt {
            since,
            // What is done later than this is lost: its attempt will be shown as cut off.
            until: now + self.options.lease,
            look_at: now,
        });
    }

    /// Gives back what the database believes us to hold and we do not know of: it was never sent.
    /// By name and generation, so that this, done late, cannot take anything from anybody. Nothing
    /// is claimed meanwhile: claims are made by the loop that calls this.
    async fn give_back_unknown(&mut self) -> Result<()> {
        let Some(doubt) = &mut self.doubt else {
            return Ok(());
        };
        let now = Instant::now();
        let within = now.duration_since(doubt.since) + 2 * self.options.lease;
        let held = self.store.held_events(&self.options.owner, within).await?;
        let unknown = self.holds.unknown(held);
        if !unknown.is_empty() {
            tracing::info!(
                events = unknown.len(),
                "claimed by a call that got no answer; given back"
            );
            self.store.release_events(&unknown).await?;
        }
        doubt.look_at = now + DOUBT_LOOK;
        if now >= doubt.until {
            self.doubt = None;
        }
        Ok(())
    }

    fn start_waiting(&self, flights: &Flights) {
        while let Some((event, trigger)) = self.holds.next() {
            flights.start(event, trigger, self.deliverer.clone(), self.holds.clone());
        }
    }

    async fn load_definitions(&mut self) -> Result<()> {
        let mut served = Vec::new();
        for trigger in self.store.triggers().await? {
            match self.deliverer.serves(&trigger) {
                Ok(true) => served.push(trigger),
                Ok(false) => {}
                Err(error) => self.say(format!(
                    "trigger '{}' is not served here: {error}",
                    trigger.definition.name
                )),
            }
        }
        let left = self.holds.serve(served);
        if !left.is_empty() {
            self.store.release_events(&left).await?;
        }
        Ok(())
    }

    /// Makes capture fit tables that were altered, and says what a person has to do.
    async fn follow_tables(&mut self) -> Result<()> {
        for finding in self.store.refresh_triggers().await? {
            let advice = finding
                .advice
                .map_or_else(String::new, |a| format!(" ({a})"));
            let message = format!("{}: {}{advice}", finding.subject, finding.message);
            if finding.severity == Severity::Ok {
                tracing::info!("{message}");
            } else {
                self.say(message);
            }
        }
        Ok(())
    }

    /// Complains once.
    fn say(&mut self, complaint: String) {
        if !self.said.contains(&complaint) {
            tracing::warn!("{complaint}");
            self.said.push(complaint);
        }
    }
}

enum Turn {
    Found { full: bool },
    Nothing,
    NoRoom,
}

/// The deliveries under way.
struct Flights {
    tasks: TaskTracker,
    /// Ends those that take too long when the dispatcher is stopped.
    cut_off: CancellationToken,
    outcomes: mpsc::Sender<Finished>,
}

impl Flights {
    /// Delivers an event, and whatever else waits when it is done.
    fn start(
        &self,
        mut event: LeasedEvent,
        mut trigger: Arc<EventTrigger>,
        deliverer: Arc<dyn Deliverer>,
        holds: Arc<Holds>,
    ) {
        let (cut_off, outcomes) = (self.cut_off.clone(), self.outcomes.clone());
        self.tasks.spawn(async move {
            loop {
                let finished = attempt(&*deliverer, &trigger, &event, &cut_off).await;
                crash_point("deliver.sent");
                // Fails only when the scribe has given up, and then there is nobody to tell.
                let _ = outcomes.send(finished).await;
                holds.landed(event.trigger);
                match holds.next() {
                    Some(next) => (event, trigger) = next,
                    None => break,
                }
            }
        });
    }
}

async fn attempt(
    deliverer: &dyn Deliverer,
    trigger: &EventTrigger,
    event: &LeasedEvent,
    cut_off: &CancellationToken,
) -> Finished {
    let span = traces::delivery(trigger, event);
    let sent = tokio::select! {
        biased;
        sent = deliver(deliverer, trigger, event).instrument(span.clone()) => sent,
        () = cut_off.cancelled() => Sent::cut_off(event.attempt),
    };
    traces::ended(&span, &sent.attempt);
    let retry = &trigger.definition.delivery.retry;
    let verdict = if event.cut_off > MAX_CUT_OFF {
        Verdict::GiveUp
    } else {
        retry.judge(sent.answer, event.failed_before(), fastrand::f64())
    };
    tell(trigger, event, &sent.attempt, verdict);
    Finished {
        claim: event.claim(),
        attempt: sent.attempt,
        verdict,
    }
}

/// An attempt that failed is in the log of the event; the log of the instance tells where to look.
fn tell(trigger: &EventTrigger, event: &LeasedEvent, attempt: &Attempt, verdict: Verdict) {
    let (trigger, event) = (&trigger.definition.name, event.event.id);
    let error = attempt
        .error
        .as_deref()
        .unwrap_or("the receiver refused it");
    match verdict {
        Verdict::Delivered => {}
        Verdict::Retry { .. } | Verdict::Pause => {
            tracing::warn!(%trigger, %event, attempt = attempt.number, error, "a delivery failed; trying again");
        }
        Verdict::GiveUp => tracing::error!(
            %trigger, %event, attempt = attempt.number, error,
            "an event became a dead letter; `changefeed event redeliver` tries it again"
        ),
    }
}

async fn deliver(deliverer: &dyn Deliverer, trigger: &EventTrigger, event: &LeasedEvent) -> Sent {
    if event.cut_off > MAX_CUT_OFF {
        return Sent::failed(
            event.attempt,
            format!(
                "given up: {} attempts were cut off, so the event itself is suspected",
                event.cut_off
            ),
        );
    }
    // A handler that panics must not keep its event for ever.
    match AssertUnwindSafe(deliverer.deliver(trigger, event))
        .catch_unwind()
        .await
    {
        Ok(sent) => sent,
        Err(_) => Sent::failed(event.attempt, "the handler panicked".to_owned()),
    }
}

fn task_lost(error: &tokio::task::JoinError) -> Error {
    Error::new(
        changefeed_core::Kind::Database,
        format!("a task of the dispatcher was lost: {error}"),
    )
}
