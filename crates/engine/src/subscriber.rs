//! The subscriber: pushes one shard of a feed to a sink, in order.
//!
//! Of any number of instances the one that holds the shard's lease works on it. The lease does not fence the sink:
//! an instance that is stopped and wakes up may still write. So every batch is appended on the condition that
//! the sink holds what this instance knows of, and the position in the database is moved under the lease's
//! generation. What the sink says wins over the position. Nothing here knows a sink by name.

mod failing;
mod filter;
mod leases;
mod outcome;
mod push;

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed_core::{
    After, Backoff, Cursor, Feed, Found, Kind, Lane, LaneState, Remedy, Result, ShardId, Store,
    SubscriptionDefinition, crash_point, reconcile,
};
use tokio_util::sync::CancellationToken;

use crate::describe;
use crate::observe::Meters;
use crate::sinks::Dress;
use crate::sinks::destination::{self, Destination, Held};
use failing::Failing;
use filter::Filter;
use leases::LEASE;
pub use leases::Leases;
use outcome::{Counted, Pending, Pushed, between};
use push::Reading;

/// How often it is looked whether the shards before this one were pushed to their ends.
const PARENTS: Duration = Duration::from_millis(400);
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
    leases: Arc<Leases>,
    sinks: Sinks,
    dress: Dress,
    meters: Arc<Meters>,
    failing: Failing,
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
    /// A step that the sink has taken and that is not stored yet.
    pending: Option<Pending>,
}

impl Standing {
    fn new(state: &LaneState, held: Held) -> Self {
        Standing {
            generation: state.generation,
            epoch: state.epoch,
            cursor: state.cursor,
            held,
            pending: None,
        }
    }
}

impl Subscriber {
    /// A subscriber of one shard. All of an instance share its leases.
    pub fn new(
        store: Arc<dyn Store>,
        definition: SubscriptionDefinition,
        feed: Feed,
        shard: ShardId,
        leases: Arc<Leases>,
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
            leases,
            sinks,
            meters: Meters::new(),
            failing: Failing::default(),
        }
    }

    /// Counts here.
    #[must_use]
    pub fn metered(mut self, meters: Arc<Meters>) -> Self {
        self.meters = meters;
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
                Ok(Ended::Shutdown | Ended::Stopped) => return Ok(()),
                Ok(Ended::Again) => backoff.failed(),
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

    /// Waits for the lease and works under it.
    async fn turn(&self, shutdown: &CancellationToken) -> Result<Ended> {
        let name = self.lane.lease();
        let tenure = tokio::select! {
            biased;
            () = shutdown.cancelled() => return Ok(Ended::Shutdown),
            tenure = self.leases.take(&name) => tenure,
        };
        let generation = tenure.lease.generation;
        let (subscription, shard) = (&self.lane.name, self.lane.shard);
        tracing::info!(%subscription, %shard, generation, "this instance pushes");
        crash_point("push.leased");
        let ended = tokio::select! {
            ended = self.work(generation, shutdown) => ended,
            () = tenure.lost.cancelled() => Ok(Ended::Again),
        };
        tenure.release().await;
        match ended {
            // Another instance, or a person: begin again with what is stored now.
            Err(error) if error.kind() == Kind::Moved => {
                tracing::info!(%subscription, %shard, %error, "beginning again");
                Ok(Ended::Again)
            }
            other => other,
        }
    }

    async fn work(&self, generation: i64, shutdown: &CancellationToken) -> Result<Ended> {
        let state = self.store.hold_lane(&self.lane, generation).await?;
        if state.stopped.is_some() {
            return Ok(Ended::Stopped);
        }
        self.failing.taken_over(state.failing.is_some());
        if !self.await_parents(shutdown).await? {
            return Ok(Ended::Shutdown);
        }
        let mut reading = Reading {
            filter: Filter::new(&self.definition, self.store.dialect().fold)?,
            incarnation: None,
        };
        let mut backoff = Backoff::default();
        let mut state = state;
        loop {
            let Some(found) = self.resume(&state, shutdown).await? else {
                return Ok(if shutdown.is_cancelled() {
                    Ended::Shutdown
                } else {
                    Ended::Stopped
                });
            };
            let pushed = self
                .push(found, &mut reading, &mut backoff, shutdown)
                .await?;
            match pushed {
                Pushed::Ended(ended) => return Ok(ended),
                // The sink decides how much arrived.
                Pushed::AskSink(why) => {
                    self.meters.push_failed(self.lane.name.as_str());
                    let (name, shard) = (&self.lane.name, self.lane.shard);
                    tracing::warn!(subscription = %name, %shard, why, "the sink did not take a batch; trying again");
                    let wait = backoff.failed();
                    self.note(generation, Some(&why)).await;
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
                    () = tokio::time::sleep(PARENTS) => {}
                }
            }
        }
        Ok(true)
    }

    /// Asks the sink what it holds, and brings the position there. Nothing if the shard was stopped.
    async fn resume(
        &self,
        state: &LaneState,
        shutdown: &CancellationToken,
    ) -> Result<Option<Standing>> {
        let generation = state.generation;
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
                    self.note(generation, Some(&why)).await;
                    tokio::select! {
                        () = shutdown.cancelled() => return Ok(None),
                        () = tokio::time::sleep(wait) => {}
                    }
                }
            }
        };
        let mut standing = Standing::new(state, held);
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

    fn place(&self, epoch: u32) -> destination::Lane {
        destination::Lane {
            subscription: self.lane.name.to_string(),
            feed: self.feed.name.clone(),
            shard: self.lane.shard,
            epoch,
        }
    }
}
