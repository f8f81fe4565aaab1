//! The subscriber: pushes one shard of a feed to a sink, in order.
//!
//! Of any number of instances the one that holds the shard's lease works on it. The lease does not fence the sink:
//! an instance that is stopped and wakes up may still write. So every batch is appended on the condition that
//! the sink holds what this instance knows of, and the position in the database is moved under the lease's
//! generation. What the sink says wins over the position. Nothing here knows a sink by name.

mod outcome;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use changefeed_core::{
    Advance, After, Backoff, Cursor, Error, Feed, Found, Incarnation, Kind, Lane, LaneState, Lease,
    OnRefusal, Page, Remedy, Result, ShardId, Store, SubscriptionDefinition, crash_point,
    reconcile,
};
use tokio_util::sync::CancellationToken;

use crate::describe;
use crate::observe::Meters;
use crate::sinks::Dress;
use crate::sinks::destination::{self, Appended, Destination, Held, Message};
use outcome::{Batched, Counted, Pushed, between};

/// How long a lease lasts. With the standby's poll this bounds a take-over below two seconds.
const LEASE: Duration = Duration::from_millis(1400);
/// How often a standby looks whether the lease is free.
const STANDBY: Duration = Duration::from_millis(400);
/// A waiter looks again after this time even if nobody woke it.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Where the messages of a subscription go.
#[derive(Debug, Clone)]
pub struct Sinks {
    /// The sink itself.
    pub main: Arc<dyn Destination>,
    /// Where refused messages go, if that is what the definition says.
    pub refused: Option<Arc<dyn Destination>>,
}

/// Pushes one shard.
pub struct Subscriber {
    store: Arc<dyn Store>,
    definition: SubscriptionDefinition,
    feed: Feed,
    lane: Lane,
    owner: String,
    sinks: Sinks,
    dress: Dress,
    meters: Arc<Meters>,
    /// How many shards this instance works on: who has many lets others take the next one.
    working: Arc<AtomicU64>,
}

/// Why the work on a shard ended.
enum Ended {
    /// Told to stop.
    Shutdown,
    /// Somebody else works on it, or it was moved: begin again.
    Again,
    /// A person has to do something first; that was stored.
    Stopped,
}

/// Where the loop stands.
struct Standing {
    generation: i64,
    epoch: u32,
    /// The position as it is stored.
    cursor: Option<Cursor>,
    /// What the sink holds.
    held: Held,
}

impl Subscriber {
    /// A subscriber of one shard; `owner` tells instances apart.
    pub fn new(
        store: Arc<dyn Store>,
        definition: SubscriptionDefinition,
        feed: Feed,
        shard: ShardId,
        owner: impl Into<String>,
        sinks: Sinks,
    ) -> Self {
        Subscriber {
            lane: Lane {
                name: definition.name.clone(),
                feed: feed.id,
                shard,
            },
            dress: Dress::new(&definition, &feed),
            store,
            definition,
            feed,
            owner: owner.into(),
            sinks,
            meters: Meters::new(),
            working: Arc::default(),
        }
    }

    /// Counts here.
    #[must_use]
    pub fn metered(mut self, meters: Arc<Meters>, working: Arc<AtomicU64>) -> Self {
        self.meters = meters;
        self.working = working;
        self
    }

    /// Pushes until told to stop, or until a person has to do something. Errors that may pass are waited for.
    pub async fn run(self, shutdown: CancellationToken) -> Result<()> {
        let mut backoff = Backoff::default();
        loop {
            let began = Instant::now();
            let turn = self.turn(&shutdown).await;
            // It had worked before this.
            if began.elapsed() > LEASE {
                backoff.worked();
            }
            let wait = match turn {
                Ok(Some(Ended::Shutdown | Ended::Stopped)) => return Ok(()),
                Ok(Some(Ended::Again)) => backoff.failed(),
                Ok(None) => {
                    backoff.worked();
                    let busy = self.working.load(Ordering::Relaxed).min(20);
                    STANDBY + Duration::from_millis(busy * 5)
                }
                Err(error) if error.kind().remedy() == Remedy::Retry => {
                    let (name, shard) = (&self.lane.name, self.lane.shard);
                    tracing::warn!(subscription = %name, %shard, error = %describe(&error), "pushing failed; trying again");
                    backoff.failed()
                }
                Err(error) => return Err(error),
            };
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Takes the lease and works under it. Nothing if another instance has it.
    async fn turn(&self, shutdown: &CancellationToken) -> Result<Option<Ended>> {
        let name = self.lane.lease();
        let Some(lease) = self.store.lease(&name, &self.owner, LEASE).await? else {
            return Ok(None);
        };
        let generation = lease.generation;
        let (subscription, shard) = (&self.lane.name, self.lane.shard);
        tracing::info!(%subscription, %shard, generation, "this instance pushes");
        crash_point("push.leased");
        self.working.fetch_add(1, Ordering::Relaxed);
        let ended = tokio::select! {
            ended = self.work(generation, shutdown) => ended,
            () = self.keep(lease.clone()) => Ok(Ended::Again),
        };
        self.working.fetch_sub(1, Ordering::Relaxed);
        // A courtesy: without it the next one waits until the lease expires.
        if let Err(error) = self.store.release(&lease).await {
            tracing::debug!(%error, "could not give the lease back");
        }
        match ended {
            // Another instance, or a person: begin again with what is stored now.
            Err(error) if error.kind() == Kind::Moved => {
                tracing::info!(%subscription, %shard, %error, "beginning again");
                Ok(Some(Ended::Again))
            }
            other => other.map(Some),
        }
    }

    /// Renews the lease; returns when it cannot be trusted any more.
    async fn keep(&self, mut lease: Lease) {
        loop {
            tokio::time::sleep(LEASE / 3).await;
            match self.store.lease(&lease.name, &self.owner, LEASE).await {
                Ok(Some(renewed)) if renewed.generation == lease.generation => lease = renewed,
                Ok(_) => return,
                Err(error) => {
                    tracing::debug!(%error, "the lease could not be renewed");
                    if !lease.is_trusted(Instant::now()) {
                        return;
                    }
                }
            }
        }
    }

    async fn work(&self, generation: i64, shutdown: &CancellationToken) -> Result<Ended> {
        let state = self.store.hold_lane(&self.lane, generation).await?;
        if state.stopped.is_some() {
            return Ok(Ended::Stopped);
        }
        if !self.await_parents(shutdown).await? {
            return Ok(Ended::Shutdown);
        }
        let mut backoff = Backoff::default();
        let mut incarnation = None;
        let mut state = state;
        loop {
            let Some(found) = self.resume(&state, generation, shutdown).await? else {
                return Ok(if shutdown.is_cancelled() {
                    Ended::Shutdown
                } else {
                    Ended::Stopped
                });
            };
            let pushed = self
                .push(found, &mut incarnation, &mut backoff, shutdown)
                .await?;
            match pushed {
                Pushed::Ended(ended) => return Ok(ended),
                // The sink decides how much arrived.
                Pushed::AskSink(why) => {
                    self.meters.push_failed(self.lane.name.as_str());
                    let (name, shard) = (&self.lane.name, self.lane.shard);
                    tracing::warn!(subscription = %name, %shard, why, "the sink did not take a batch; trying again");
                    let wait = backoff.failed();
                    tokio::select! {
                        () = shutdown.cancelled() => return Ok(Ended::Shutdown),
                        () = tokio::time::sleep(wait) => {}
                    }
                    state = self.store.hold_lane(&self.lane, generation).await?;
                }
            }
        }
    }

    /// Waits until the shards that this one follows were pushed to their ends, so that order is kept for each row of a feed
    /// that was resharded. False if told to stop.
    async fn await_parents(&self, shutdown: &CancellationToken) -> Result<bool> {
        let (name, feed) = (&self.lane.name, &self.feed);
        for parent in feed.parents(self.lane.shard) {
            loop {
                let cursor = self.store.consumer_cursor(name, feed, parent).await?;
                let after = cursor.map_or(After::First, After::Cursor);
                let page = self.store.read(feed, parent, after, 1).await?;
                if page.closed && page.changes.is_empty() {
                    break;
                }
                tokio::select! {
                    () = shutdown.cancelled() => return Ok(false),
                    () = tokio::time::sleep(STANDBY) => {}
                }
            }
        }
        Ok(true)
    }

    /// Asks the sink what it holds, and brings the position there. Nothing if the shard was stopped.
    async fn resume(
        &self,
        state: &LaneState,
        generation: i64,
        shutdown: &CancellationToken,
    ) -> Result<Option<Standing>> {
        let there = self.place(state.epoch);
        let mut backoff = Backoff::default();
        let held = loop {
            match self.sinks.main.resume(&there).await {
                Ok(held) => break held,
                Err(why) => {
                    self.meters.push_failed(self.lane.name.as_str());
                    let (name, shard) = (&self.lane.name, self.lane.shard);
                    tracing::warn!(subscription = %name, %shard, why, "the sink is away; trying again");
                    let wait = backoff.failed();
                    tokio::select! {
                        () = shutdown.cancelled() => return Ok(None),
                        () = tokio::time::sleep(wait) => {}
                    }
                }
            }
        };
        let mut standing = Standing {
            generation,
            epoch: state.epoch,
            cursor: state.cursor,
            held,
        };
        let found = match held {
            Held::CannotTell => Found::AsStored,
            Held::Nothing => reconcile(state.cursor, state.held, None),
            Held::Upto(mark) => reconcile(state.cursor, state.held, Some(mark.cursor)),
        };
        match found {
            Found::AsStored => {}
            Found::Ahead(cursor) => self.step(&mut standing, cursor, Counted::default()).await?,
            Found::Behind(cursor) => {
                let lost = state.cursor.map_or(0, |stored| between(cursor, stored));
                let (name, shard) = (&self.lane.name, self.lane.shard);
                tracing::error!(subscription = %name, %shard, %cursor, lost, "the sink lost changes; sending them again");
                self.meters.push_lost(self.lane.name.as_str(), lost);
                let counted = Counted {
                    lost,
                    ..Counted::default()
                };
                self.step(&mut standing, cursor, counted).await?;
            }
            Found::Empty => {
                let reason = "the sink is empty, although changes were pushed to it before: it was replaced, or \
                              emptied. `changefeed subscription reset` goes on from here, `replay` sends \
                              everything again";
                self.stop(generation, reason).await?;
                return Ok(None);
            }
        }
        Ok(Some(standing))
    }

    /// Pushes page after page. A page is read while the one before it is pushed.
    async fn push(
        &self,
        mut standing: Standing,
        incarnation: &mut Option<Incarnation>,
        backoff: &mut Backoff,
        shutdown: &CancellationToken,
    ) -> Result<Pushed> {
        let mut listener = self.store.listen(&self.feed, self.lane.shard);
        let mut after = standing.cursor.map_or(After::First, After::Cursor);
        let mut ready: Option<Page> = None;
        loop {
            if shutdown.is_cancelled() {
                return Ok(Pushed::Ended(Ended::Shutdown));
            }
            let page = match ready.take() {
                Some(page) => page,
                None => {
                    listener.look();
                    match self.read(after, incarnation).await {
                        Ok(page) => page,
                        Err(error) => return self.unreadable(&standing, error).await,
                    }
                }
            };
            if page.changes.is_empty() {
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    () = listener.news() => {}
                    () = tokio::time::sleep(LOOK_AGAIN) => {}
                }
                continue;
            }
            let every = self.definition.every;
            if !page.more && !every.is_zero() && page.changes.len() < self.limit() {
                // Collects for a while. What came meanwhile is read with the rest.
                tokio::select! {
                    () = shutdown.cancelled() => continue,
                    () = tokio::time::sleep(every) => {}
                }
                match self.read(after, incarnation).await {
                    Ok(grown) => {
                        match self.batch(&mut standing, &grown, incarnation).await? {
                            Batched::Taken(next) => ready = next,
                            Batched::Not(pushed) => return Ok(pushed),
                        }
                        after = After::Cursor(grown.next);
                    }
                    Err(error) => return self.unreadable(&standing, error).await,
                }
            } else {
                match self.batch(&mut standing, &page, incarnation).await? {
                    Batched::Taken(next) => ready = next,
                    Batched::Not(pushed) => return Ok(pushed),
                }
                after = After::Cursor(page.next);
            }
            backoff.worked();
        }
    }

    fn limit(&self) -> usize {
        let most = self.sinks.main.most().max(1);
        self.definition.batch.min(most)
    }

    async fn read(&self, after: After, known: &mut Option<Incarnation>) -> Result<Page> {
        let (feed, shard) = (&self.feed, self.lane.shard);
        let page = self.store.read(feed, shard, after, self.limit()).await?;
        page.incarnation.check(*known)?;
        *known = Some(page.incarnation);
        Ok(page)
    }

    /// Stops the shard if a person has to do something about what cannot be read.
    async fn unreadable(&self, standing: &Standing, error: Error) -> Result<Pushed> {
        match error.kind() {
            Kind::CursorExpired | Kind::CursorAhead | Kind::Recovered => {
                let reason = format!(
                    "{error}. `changefeed subscription replay` sends again what is kept, `reset` goes on from now"
                );
                self.stop(standing.generation, &reason).await?;
                Ok(Pushed::Ended(Ended::Stopped))
            }
            _ => Err(error),
        }
    }

    /// Pushes one page, and reads the next one meanwhile if there is more.
    async fn batch(
        &self,
        standing: &mut Standing,
        page: &Page,
        incarnation: &mut Option<Incarnation>,
    ) -> Result<Batched> {
        let there = self.place(standing.epoch);
        let dressed = page
            .changes
            .iter()
            .map(|change| self.dress.message(&there, change));
        let messages: Vec<Message> = dressed.collect::<Result<_>>()?;
        let next = async {
            match page.more {
                true => self.read(After::Cursor(page.next), incarnation).await.ok(),
                false => None,
            }
        };
        let (done, next) = tokio::join!(self.append(standing, &there, &messages), next);
        Ok(match done? {
            None => Batched::Taken(next),
            Some(pushed) => Batched::Not(pushed),
        })
    }

    /// Appends messages, however many refusals are among them. Nothing if all are dealt with.
    async fn append(
        &self,
        standing: &mut Standing,
        there: &destination::Lane,
        messages: &[Message],
    ) -> Result<Option<Pushed>> {
        let mut rest = messages;
        while let Some(last) = rest.last() {
            crash_point("push.before");
            let began = Instant::now();
            let appended = self.sinks.main.append(there, standing.held, rest).await;
            crash_point("push.after");
            match appended {
                Appended::All(held) => {
                    let name = self.lane.name.as_str();
                    self.meters.pushed(name, rest.len(), began.elapsed());
                    standing.held = held;
                    let counted = Counted::sent(rest.len());
                    self.step(standing, last.cursor, counted).await?;
                    return Ok(None);
                }
                Appended::Conflict => {
                    let why = "another instance has written to it".to_owned();
                    return Ok(Some(Pushed::AskSink(why)));
                }
                Appended::Unavailable(why) => return Ok(Some(Pushed::AskSink(why))),
                Appended::Refused {
                    index,
                    held,
                    reason,
                } => {
                    let Some((taken, [message, behind @ ..])) = rest.split_at_checked(index) else {
                        return Err(Error::defect(
                            "a sink refused a message that it did not get",
                        ));
                    };
                    self.meters.push_refused(self.lane.name.as_str());
                    standing.held = held;
                    if let Some(last) = taken.last() {
                        self.step(standing, last.cursor, Counted::sent(taken.len()))
                            .await?;
                    }
                    if let Some(pushed) = self.refused(standing, there, message, reason).await? {
                        return Ok(Some(pushed));
                    }
                    rest = behind;
                }
            }
        }
        Ok(None)
    }

    /// Does with a refused message what the definition says. Nothing if the shard goes on.
    async fn refused(
        &self,
        standing: &mut Standing,
        there: &destination::Lane,
        message: &Message,
        reason: String,
    ) -> Result<Option<Pushed>> {
        let (name, shard, cursor) = (&self.lane.name, self.lane.shard, message.cursor);
        match (&self.definition.on_refusal, &self.sinks.refused) {
            (OnRefusal::Park, _) => {
                tracing::warn!(subscription = %name, %shard, %cursor, reason, "a change is parked");
                let counted = Counted {
                    parked: Some(reason),
                    ..Counted::default()
                };
                self.step(standing, cursor, counted).await?;
                Ok(None)
            }
            (OnRefusal::DeadLetter(_), Some(sink)) => {
                let mut message = message.clone();
                message
                    .headers
                    .push(("changefeed-refused".to_owned(), reason));
                let held = match sink.resume(there).await {
                    Ok(held) => held,
                    Err(why) => return Ok(Some(Pushed::AskSink(why))),
                };
                // A message that is there already came before a crash.
                let there_already = matches!(held, Held::Upto(mark) if mark.cursor >= cursor);
                if !there_already {
                    match sink.append(there, held, &[message]).await {
                        Appended::All(_) => {}
                        other => {
                            let why = format!("the sink for refused messages: {other:?}");
                            return Ok(Some(Pushed::AskSink(why)));
                        }
                    }
                }
                self.step(standing, cursor, Counted::default()).await?;
                Ok(None)
            }
            _ => {
                let reason = format!(
                    "the sink refused change {cursor}: {reason}. `changefeed subscription resume` tries again, \
                     `seek` goes on behind it"
                );
                self.stop(standing.generation, &reason).await?;
                Ok(Some(Pushed::Ended(Ended::Stopped)))
            }
        }
    }

    /// Stores the position, repeating while the database is away.
    async fn step(&self, standing: &mut Standing, to: Cursor, counted: Counted) -> Result<()> {
        if standing.cursor == Some(to) {
            return Ok(());
        }
        let advance = Advance {
            generation: standing.generation,
            epoch: standing.epoch,
            from: standing.cursor,
            to,
            held: match standing.held {
                Held::Upto(mark) => Some(mark.cursor),
                Held::Nothing | Held::CannotTell => None,
            },
            sent: counted.sent,
            lost: counted.lost,
            parked: counted.parked,
        };
        let mut backoff = Backoff::default();
        loop {
            match self.store.advance_lane(&self.lane, &advance).await {
                Ok(()) => break,
                Err(error) if error.kind().remedy() == Remedy::Retry => {
                    tracing::warn!(error = %describe(&error), "a position could not be stored; trying again");
                    tokio::time::sleep(backoff.failed()).await;
                }
                Err(error) => return Err(error),
            }
        }
        crash_point("push.stored");
        standing.cursor = Some(to);
        Ok(())
    }

    async fn stop(&self, generation: i64, reason: &str) -> Result<()> {
        let (name, shard) = (&self.lane.name, self.lane.shard);
        tracing::error!(subscription = %name, %shard, reason, "a shard of a subscription is stopped");
        self.store
            .stop_lane(&self.lane, Some(generation), reason)
            .await
    }

    fn place(&self, epoch: u32) -> destination::Lane {
        destination::Lane {
            subscription: self.lane.name.to_string(),
            feed: self.feed.name.clone(),
            shard: self.lane.shard,
            epoch,
        }
    }
}
