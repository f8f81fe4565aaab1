//! The subscriptions that are defined in the database: a task for each of their shards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed_core::{
    ConsumerName, Feed, Kind, Lane, LaneState, OnRefusal, Remedy, Result, ShardId, Sink, Store,
    Subscription, SubscriptionDefinition,
};
use tokio::task::JoinHandle;

use super::InstanceOptions;
use crate::observe::Meters;
use crate::sinks::{PushOptions, destination};
use crate::subscriber::{Leases, Sinks, Subscriber};
use crate::{CancellationToken, Changefeed};

/// How soon a subscription that was defined, resumed or moved while we run is run.
const LOOK_FOR_SUBSCRIPTIONS: Duration = Duration::from_secs(1);
/// How often it is looked whether a paused subscription is too far behind.
const LOOK_AT_BACKLOGS: Duration = Duration::from_secs(10);
/// How long a subscription waits that cannot run.
const PAUSE: Duration = Duration::from_secs(10);

/// Runs every subscription that is defined in the database, until told to stop.
pub(super) async fn push(
    db: &Changefeed,
    options: &InstanceOptions,
    meters: &Arc<Meters>,
    shutdown: CancellationToken,
) -> Result<()> {
    let mut running: BTreeMap<Key, Running> = BTreeMap::new();
    let leases = Leases::start(db.store().clone(), &options.name);
    let mut looked_at_backlogs: Option<Instant> = None;
    loop {
        match defined(db.store()).await {
            Ok(wanted) => {
                // What was changed, moved, paused or dropped ends what runs by it. Nothing else is started in its place
                // before it has ended: both would hold the lease of this instance.
                running.retain(|key, run| {
                    let same = wanted
                        .get(key)
                        .is_some_and(|(as_is, _)| *as_is == run.as_is);
                    if !same {
                        run.stop.cancel();
                    }
                    !run.task.is_finished()
                });
                for (key, (as_is, feed)) in wanted {
                    let (name, shard) = key.clone();
                    running.entry(key).or_insert_with(|| {
                        let stop = shutdown.child_token();
                        let run = Run {
                            store: db.store().clone(),
                            definition: as_is.0.clone(),
                            feed,
                            shard,
                            options: options.clone(),
                            meters: meters.clone(),
                            leases: leases.clone(),
                        };
                        let task = tokio::spawn(run.run(name, stop.clone()));
                        Running { as_is, stop, task }
                    });
                }
            }
            Err(error) if error.kind().remedy() == Remedy::Retry => {
                tracing::warn!(%error, "cannot look for subscriptions; trying again");
            }
            Err(error) => return Err(error),
        }
        if looked_at_backlogs.is_none_or(|looked| looked.elapsed() >= LOOK_AT_BACKLOGS) {
            looked_at_backlogs = Some(Instant::now());
            if let Err(error) = give_up_positions(db.store()).await {
                tracing::warn!(%error, "cannot look at the backlogs of subscriptions");
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = tokio::time::sleep(LOOK_FOR_SUBSCRIPTIONS) => {}
        }
    }
    for (_, run) in running {
        let _ = run.task.await;
    }
    Ok(())
}

type Key = (ConsumerName, ShardId);
/// What a task depends on: it is ended when one of these changes.
type AsIs = (SubscriptionDefinition, u32, usize);

struct Running {
    as_is: AsIs,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// What is to be run: every shard that is not stopped, of every subscription that is not paused.
async fn defined(store: &Arc<dyn Store>) -> Result<BTreeMap<Key, (AsIs, Feed)>> {
    let subscriptions = store.subscriptions().await?;
    let mut wanted = BTreeMap::new();
    if subscriptions.is_empty() {
        return Ok(wanted);
    }
    let feeds = store.feeds().await?;
    for subscription in subscriptions {
        // A program of somebody's runs those.
        let in_process = subscription.definition.sink == Sink::InProcess;
        let feed = feeds.iter().find(|feed| feed.id == subscription.feed_id);
        let Some(feed) = feed.filter(|_| subscription.paused.is_none() && !in_process) else {
            continue;
        };
        for shard in &feed.shards {
            let lane = lane_of(&subscription, shard.shard);
            if lane.stopped.is_none() {
                let as_is = (
                    subscription.definition.clone(),
                    lane.epoch,
                    feed.shards.len(),
                );
                let key = (subscription.definition.name.clone(), shard.shard);
                wanted.insert(key, (as_is, feed.clone()));
            }
        }
    }
    Ok(wanted)
}

fn lane_of(subscription: &Subscription, shard: ShardId) -> LaneState {
    let known = subscription.shards.iter().find(|lane| lane.shard == shard);
    known.cloned().unwrap_or_else(|| LaneState::new(shard))
}

/// Gives up the positions of paused and stopped subscriptions that are further behind than they may be, so that
/// retention goes on.
async fn give_up_positions(store: &Arc<dyn Store>) -> Result<()> {
    let subscriptions = store.subscriptions().await?;
    let limited = |s: &&Subscription| s.definition.max_backlog.is_some();
    if !subscriptions.iter().any(|s| limited(&s)) {
        return Ok(());
    }
    let consumers = store.consumers().await?;
    for subscription in subscriptions.iter().filter(limited) {
        let definition = &subscription.definition;
        for consumer in &consumers {
            let theirs = consumer.name == definition.name && consumer.feed == definition.feed;
            let lane = lane_of(subscription, consumer.shard);
            let idle = subscription.paused.is_some() || lane.stopped.is_some();
            let lag = u64::try_from(consumer.lag_changes).unwrap_or(0);
            if !theirs || !idle || definition.max_backlog.is_none_or(|most| lag <= most) {
                continue;
            }
            let reason = format!(
                "it did not run and was {lag} changes behind, more than its max_backlog: its position was given up. \
                 `changefeed subscription replay` sends what is kept, `reset` goes on from now"
            );
            tracing::error!(subscription = %definition.name, shard = %consumer.shard, reason, "a position was given up");
            let lane = Lane {
                name: definition.name.clone(),
                feed: subscription.feed_id,
                shard: consumer.shard,
            };
            store.stop_lane(&lane, None, &reason).await?;
        }
    }
    Ok(())
}

/// One shard of a subscription.
struct Run {
    store: Arc<dyn Store>,
    definition: SubscriptionDefinition,
    feed: Feed,
    shard: ShardId,
    options: InstanceOptions,
    meters: Arc<Meters>,
    leases: Arc<Leases>,
}

impl Run {
    /// Runs it. One that cannot run must not stop the others, so its error is only told; it is started again later.
    async fn run(self, name: ConsumerName, stop: CancellationToken) {
        let shard = self.shard;
        match self.tried(stop.clone()).await {
            Ok(()) => {}
            // It was dropped, or its feed was: that is how it is to end.
            Err(error) if error.kind() == Kind::NotFound => {
                tracing::info!(subscription = %name, %shard, %error, "a subscription has ended");
            }
            Err(error) => {
                let advice = error.advice().unwrap_or_default();
                tracing::error!(subscription = %name, %shard, %error, advice, "this subscription does not run; trying again");
                let _ = tokio::time::timeout(PAUSE, stop.cancelled()).await;
            }
        }
    }

    async fn tried(self, stop: CancellationToken) -> Result<()> {
        self.definition.check_feed(&self.feed)?;
        let may = PushOptions {
            webhooks: self.options.webhooks.clone(),
            allow_exec: self.options.allow_exec,
            allow_files: self.options.allow_files.clone(),
        };
        let sinks = Sinks {
            main: destination(&self.definition.sink, &self.definition, &may).await?,
            refused: match &self.definition.on_refusal {
                OnRefusal::DeadLetter(sink) => {
                    Some(destination(sink, &self.definition, &may).await?)
                }
                OnRefusal::Stop | OnRefusal::Park => None,
            },
        };
        Subscriber::new(
            self.store,
            self.definition,
            self.feed,
            self.shard,
            self.leases,
            sinks,
        )
        .metered(self.meters)
        .run(stop)
        .await
    }
}
