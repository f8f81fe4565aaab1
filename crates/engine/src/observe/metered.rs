//! A store that counts: every call of ours to the database passes here once, so that neither stores
//! nor loops know anything of metrics.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use changefeed_core::*;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use super::health::Pulse;
use super::meters::Meters;

/// Calls that may take minutes without anything being wrong.
const LONG: [&str; 4] = [
    "open_watch",
    "refresh_triggers",
    "clean_up_events",
    "clean_up_attempts",
];

/// A store, and the meters that its calls move.
pub struct Metered {
    inner: Arc<dyn Store>,
    meters: Arc<Meters>,
    /// The loop whose calls these are.
    pulse: Option<Pulse>,
    /// Room for calls at the same time, where others need room as well.
    seats: Option<Semaphore>,
    /// Whose event this instance holds: an outcome does not say.
    held: Mutex<HashMap<i64, TriggerName>>,
}

impl Metered {
    /// Counts what is asked of this store.
    pub fn around(inner: Arc<dyn Store>, meters: Arc<Meters>) -> Arc<dyn Store> {
        Metered::with(inner, meters, None, None)
    }

    /// The same for requests, which leave connections to the loops: whoever may send many of them could otherwise
    /// have every connection, and nothing would be delivered.
    pub(crate) fn for_requests(inner: Arc<dyn Store>, meters: Arc<Meters>) -> Arc<dyn Store> {
        let most = inner.connections().most;
        let seats = Semaphore::new((most - most.div_ceil(3)).max(1));
        Metered::with(inner, meters, None, Some(seats))
    }

    /// The same for a loop, which is to be seen when it gets no answers.
    pub fn in_loop(inner: Arc<dyn Store>, meters: Arc<Meters>, pulse: Pulse) -> Arc<dyn Store> {
        Metered::with(inner, meters, Some(pulse), None)
    }

    fn with(
        inner: Arc<dyn Store>,
        meters: Arc<Meters>,
        pulse: Option<Pulse>,
        seats: Option<Semaphore>,
    ) -> Arc<dyn Store> {
        Arc::new(Metered {
            inner,
            meters,
            pulse,
            seats,
            held: Mutex::default(),
        })
    }

    async fn timed<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let what = (!LONG.contains(&operation)).then(|| operation.to_owned());
        self.noted(operation, what, call).await
    }

    /// Times a call that is about one of several things of its kind.
    async fn timed_for<T>(
        &self,
        operation: &'static str,
        about: &(dyn std::fmt::Display + Sync),
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let what = format!("{operation} {about}");
        self.noted(operation, Some(what), call).await
    }

    async fn noted<T>(
        &self,
        operation: &'static str,
        what: Option<String>,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        // A call makes no other, so nobody who has a seat waits for one.
        let _seat = match &self.seats {
            Some(seats) => seats.acquire().await.ok(),
            None => None,
        };
        let pulse = self.pulse.as_ref().zip(what);
        let noted = pulse.map(|(pulse, what)| pulse.call(what));
        let began = Instant::now();
        let outcome = call.await;
        if let Some(noted) = noted {
            noted.over(outcome.as_ref().err());
        }
        let failed = outcome.as_ref().err().map(|e| format!("{:?}", e.kind()));
        self.meters.called(operation, began.elapsed(), failed);
        outcome
    }

    fn held(&self) -> MutexGuard<'_, HashMap<i64, TriggerName>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Implements a trait whose methods are passed on as they are and timed under their own name, but for
/// those that are written out.
macro_rules! passing {
    ($seam:ident { $($method:ident($($arg:ident: $of:ty),*) -> $answer:ty;)* } $($written:tt)*) => {
        #[async_trait]
        impl $seam for Metered {
            $(async fn $method(&self, $($arg: $of),*) -> Result<$answer> {
                self.timed(stringify!($method), self.inner.$method($($arg),*)).await
            })*
            $($written)*
        }
    };
}

passing! { SchemaStore {
    schema() -> SchemaState;
    migrate() -> Migration;
    uninstall() -> ();
    server_findings() -> Vec<Finding>;
} }

passing! { FeedStore {
    create_feed(new: &NewFeed) -> Feed;
    drop_feed(feed: &Feed) -> ();
    feeds() -> Vec<Feed>;
    shard_states(feed: &Feed) -> Vec<ShardState>;
    backfill(feed: &Feed, batch: usize) -> Backfill;
    reshard(feed: &Feed, shards: i16) -> Feed;
    trim(feed: &Feed, retention: Retention, batch: usize) -> Trimmed;
    erase(table: &TableName, key: &[(String, String)]) -> Erased;
    incarnation() -> Incarnation;
    recover() -> Incarnation;
}
    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }

    async fn read(&self, feed: &Feed, shard: ShardId, after: After, limit: usize) -> Result<Page> {
        let read = self.inner.read(feed, shard, after, limit);
        let page = self.timed("read", read).await?;
        self.meters.read(page.changes.len());
        Ok(page)
    }
}

passing! { SweepStore {
    sweep_groups() -> Vec<SweepGroup>;
}
    fn needs_sweeping(&self) -> bool {
        self.inner.needs_sweeping()
    }

    async fn sweep(&self, group: SweepGroup) -> Result<SweepReport> {
        let sweep = self.inner.sweep(group);
        let report = self.timed_for("sweep", &group, sweep).await?;
        let lags = report.shards.iter().map(|s| s.lag_milliseconds);
        self.meters.swept(report.changes(), lags);
        Ok(report)
    }
}

/// The group whose sweeper a lease makes.
fn swept_by(lease: &str) -> Option<&str> {
    lease.strip_prefix("sweep/")
}

passing! { LeaseStore {
    keep_time() -> Option<Duration>;
    release(lease: &Lease) -> ();
    lease_holders() -> Vec<LeaseHolder>;
    leases(names: &[String], owner: &str, ttl: Duration, more: usize) -> Vec<Lease>;
}
    async fn lease(&self, name: &str, owner: &str, ttl: Duration) -> Result<Option<Lease>> {
        if let Some(group) = swept_by(name) {
            self.meters.candidate(group, owner);
        }
        let call = self.inner.lease(name, owner, ttl);
        self.timed_for("lease", &name, call).await
    }
}

passing! { ConsumerStore {
    consumers() -> Vec<Consumer>;
    consumer_cursor(name: &ConsumerName, feed: &Feed, shard: ShardId) -> Option<Cursor>;
    store_cursor(name: &ConsumerName, feed: &Feed, shard: ShardId, from: Option<Cursor>, to: Cursor) -> ();
    drop_consumer(name: &ConsumerName, feed: &Feed) -> u64;
} }

impl WakeStore for Metered {
    fn listen(&self, feed: &Feed, shard: ShardId) -> Listener {
        self.inner.listen(feed, shard)
    }

    fn listen_to_watch(&self, watch: &Watch) -> Listener<WatchPlace> {
        self.inner.listen_to_watch(watch)
    }

    fn listen_to_commits(&self) -> Option<Listener<()>> {
        self.inner.listen_to_commits()
    }
}

passing! { SubscriptionStore {
    subscriptions() -> Vec<Subscription>;
    create_subscription(definition: &SubscriptionDefinition, feed: &Feed, starts: &[(ShardId, Cursor)], replace: bool) -> ();
    drop_subscription(name: &ConsumerName) -> ();
    pause_subscription(name: &ConsumerName, reason: Option<&str>) -> ();
    hold_lane(lane: &Lane, generation: i64) -> LaneState;
    advance_lane(lane: &Lane, advance: &Advance) -> ();
    stop_lane(lane: &Lane, generation: Option<i64>, reason: &str) -> ();
    note_lane(lane: &Lane, generation: i64, failure: Option<&str>) -> ();
    restart_lane(lane: &Lane, after: Option<Cursor>) -> u32;
    parked_changes(name: &ConsumerName, limit: usize) -> Vec<ParkedChange>;
} }

passing! { UlidStore {
    incidents() -> Vec<Incident>;
} }

passing! { TriggerStore {
    triggers() -> Vec<EventTrigger>;
    create_trigger(definition: &TriggerDefinition, replace: bool) -> EventTrigger;
    drop_trigger(trigger: &EventTrigger) -> ();
    pause_trigger(trigger: &EventTrigger, reason: Option<&str>) -> ();
    invoke_trigger(trigger: &EventTrigger, payload: &RawValue, key: Uuid) -> EventId;
    backfill_trigger(trigger: &EventTrigger, batch: usize) -> Backfill;
    refresh_triggers() -> Vec<Finding>;
    capture_findings() -> Vec<Finding>;
} }

passing! { EventStore {
    held_events(owner: &str, within: Duration) -> Vec<EventClaim>;
    renew_events(held: &[EventClaim], lease: Duration) -> Vec<EventClaim>;
    events(filter: &EventFilter, limit: usize) -> Vec<LoggedEvent>;
    event(id: EventId) -> Option<(LoggedEvent, Vec<LoggedAttempt>)>;
    redeliver(which: &Redelivery, key: Uuid) -> u64;
    clean_up_events(trigger: Option<&EventTrigger>, what: CleanUp, batch: usize) -> Cleaned;
    clean_up_attempts(trigger: Option<&EventTrigger>, after: Duration, batch: usize) -> Cleaned;
    trigger_states() -> Vec<TriggerState>;
}
    async fn claim_events(
        &self,
        wanted: &[Wanted],
        owner: &str,
        lease: Duration,
    ) -> Result<Vec<LeasedEvent>> {
        let claim = self.inner.claim_events(wanted, owner, lease);
        let events = self.timed("claim_events", claim).await?;
        let mut held = self.held();
        for event in &events {
            held.insert(event.event.change_id, event.event.trigger.clone());
        }
        drop(held);
        Ok(events)
    }

    async fn finish_events(&self, finished: &[Finished]) -> Result<Vec<EventClaim>> {
        let finish = self.inner.finish_events(finished);
        let late = self.timed("finish_events", finish).await?;
        let mut held = self.held();
        for Finished { claim, attempt, .. } in finished {
            if let Some(trigger) = held.remove(&claim.change_id) {
                let took = Duration::from_millis(u64::try_from(attempt.duration_ms).unwrap_or(0));
                self.meters.attempted(trigger.as_str(), attempt.outcome, took);
            }
        }
        drop(held);
        Ok(late)
    }

    async fn release_events(&self, released: &[EventClaim]) -> Result<()> {
        {
            let mut held = self.held();
            for claim in released {
                held.remove(&claim.change_id);
            }
        }
        self.timed("release_events", self.inner.release_events(released)).await
    }
}

passing! { WatchStore {
    open_watch(spec: &WatchSpec) -> Watch;
    watches() -> Vec<Watch>;
    watch_status(watch: &Watch, parked: usize) -> WatchStatus;
    held_batches(watch: &Watch, owner: &str) -> Vec<Batch>;
    renew(watch: &Watch, batch: &Batch, lease: Duration) -> u64;
    retry_parked(watch: &Watch, which: ParkedRows) -> u64;
    reset_watch(watch: &Watch, from: WatchFrom) -> ();
    drop_watch(watch: &Watch) -> ();
    watch_findings() -> Vec<Finding>;
}
    async fn take(&self, watch: &Watch, take: Take<'_>) -> Result<Option<Batch>> {
        let call = self.inner.take(watch, take);
        self.timed_for("take", &watch.name, call).await
    }

    async fn settle(
        &self,
        watch: &Watch,
        batch: &Batch,
        outcome: &BatchOutcome,
        settings: &WatchSettings,
    ) -> Result<Settled> {
        let settle = self.inner.settle(watch, batch, outcome, settings);
        let settled = self.timed_for("settle", &watch.name, settle).await?;
        match outcome {
            BatchOutcome::Done => self.meters.batch(watch.name.as_str(), "done", true),
            BatchOutcome::Failed { .. } => self.meters.batch(watch.name.as_str(), "failed", false),
            BatchOutcome::Released => {}
        }
        Ok(settled)
    }
}

passing! { DefinitionStore {
    find_table(table: &TableName) -> TableName;
    apply(steps: &[Step]) -> ();
} }

passing! { AccessStore {
    tokens() -> Vec<AccessToken>;
    create_token(new: &NewToken) -> AccessToken;
    revoke_token(id: &TokenId) -> bool;
} }

passing! { InstanceStore {
    announce(announcement: &Announcement, forget: Duration) -> ();
    withdraw(name: &str) -> ();
    instances() -> Vec<Instance>;
}
    fn connections(&self) -> Connections {
        self.inner.connections()
    }
}
