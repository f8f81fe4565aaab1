//! What the store offers: every method takes one session and hands it to the room that knows how.
//! Nothing below has a way to the pools.

use std::time::Duration;

use async_trait::async_trait;
use changefeed_core::{
    AccessStore, AccessToken, Advance, After, Announcement, Backfill, Batch, BatchOutcome, CleanUp,
    Cleaned, Connections, Consumer, ConsumerName, ConsumerStore, Cursor, DefinitionStore, Dialect,
    Erased, EventClaim, EventFilter, EventId, EventStore, EventTrigger, Feed, FeedStore, Finding,
    Finished, Incarnation, Incident, Instance, InstanceStore, Lane, LaneState, Lease, LeaseHolder,
    LeaseStore, LeasedEvent, LoggedAttempt, LoggedEvent, Migration, MigrationStep, NewFeed,
    NewToken, Page, ParkedChange, ParkedRows, Redelivery, Result, Retention, SchemaState,
    SchemaStore, Settled, ShardId, ShardState, Step, Subscription, SubscriptionDefinition,
    SubscriptionStore, SweepGroup, SweepReport, SweepStore, TableName, Take, TokenId,
    TriggerDefinition, TriggerState, TriggerStore, Trimmed, UlidStore, Uuid, Wanted, Watch,
    WatchFrom, WatchSettings, WatchSpec, WatchStatus, WatchStore,
};
use serde_json::value::RawValue;

use crate::PostgresStore;
use crate::filter::DIALECT;
use crate::schema::MIGRATIONS;
use crate::session::{Limit, Session};

impl PostgresStore {
    /// Lends a connection to one call.
    pub(crate) async fn call<T>(
        &self,
        limit: Limit,
        act: impl AsyncFnOnce(&mut Session) -> Result<T>,
    ) -> Result<T> {
        self.inner.door.call(&self.inner.known, limit, act).await
    }

    /// What a program with these migrations does: `migrate` has its own.
    #[doc(hidden)]
    pub async fn migrate_by(&self, steps: &[MigrationStep]) -> Result<Migration> {
        let (door, known) = (&self.inner.door, &self.inner.known);
        door.forget_schema();
        door.call_anyway(known, Limit::ADMIN, async |s| s.migrate(steps).await)
            .await
    }
}

#[async_trait]
impl SchemaStore for PostgresStore {
    async fn schema(&self) -> Result<SchemaState> {
        let (door, known) = (&self.inner.door, &self.inner.known);
        door.call_anyway(known, Limit::BRIEF, async |s| s.schema().await)
            .await
    }

    async fn migrate(&self) -> Result<Migration> {
        self.migrate_by(MIGRATIONS).await
    }

    async fn uninstall(&self) -> Result<()> {
        let (door, known) = (&self.inner.door, &self.inner.known);
        let done = door
            .call_anyway(known, Limit::ADMIN, async |s| s.uninstall().await)
            .await;
        door.forget_schema();
        done
    }

    async fn server_findings(&self) -> Result<Vec<Finding>> {
        let (door, known) = (&self.inner.door, &self.inner.known);
        door.call_anyway(known, Limit::LONG, async |s| s.server_findings().await)
            .await
    }
}

#[async_trait]
impl FeedStore for PostgresStore {
    fn dialect(&self) -> Dialect {
        DIALECT
    }

    async fn create_feed(&self, new: &NewFeed) -> Result<Feed> {
        self.call(Limit::ADMIN, async |s| s.create_feed(new).await)
            .await
    }

    async fn drop_feed(&self, feed: &Feed) -> Result<()> {
        self.call(Limit::ADMIN, async |s| s.drop_feed(feed).await)
            .await
    }

    async fn reshard(&self, feed: &Feed, shards: i16) -> Result<Feed> {
        self.call(Limit::ADMIN, async |s| s.reshard(feed, shards).await)
            .await
    }

    async fn feeds(&self) -> Result<Vec<Feed>> {
        self.call(Limit::BRIEF, async |s| s.feeds().await).await
    }

    async fn read(&self, feed: &Feed, shard: ShardId, after: After, limit: usize) -> Result<Page> {
        self.call(Limit::BRIEF, async |s| {
            s.read(feed, shard, after, limit).await
        })
        .await
    }

    async fn shard_states(&self, feed: &Feed) -> Result<Vec<ShardState>> {
        self.call(Limit::LONG, async |s| s.shard_states(feed).await)
            .await
    }

    async fn backfill(&self, feed: &Feed, batch: usize) -> Result<Backfill> {
        self.call(Limit::LONG, async |s| s.backfill(feed, batch).await)
            .await
    }

    async fn trim(&self, feed: &Feed, retention: Retention, batch: usize) -> Result<Trimmed> {
        self.call(Limit::LONG, async |s| s.trim(feed, retention, batch).await)
            .await
    }

    async fn erase(&self, table: &TableName, key: &[(String, String)]) -> Result<Erased> {
        self.call(Limit::ADMIN, async |s| s.erase(table, key).await)
            .await
    }

    async fn incarnation(&self) -> Result<Incarnation> {
        self.call(Limit::BRIEF, async |s| s.incarnation().await)
            .await
    }

    async fn recover(&self) -> Result<Incarnation> {
        self.call(Limit::ADMIN, async |s| s.recover().await).await
    }
}

#[async_trait]
impl SweepStore for PostgresStore {
    fn needs_sweeping(&self) -> bool {
        true
    }

    async fn sweep_groups(&self) -> Result<Vec<SweepGroup>> {
        let (door, known) = (&self.inner.door, &self.inner.known);
        door.number(known, async |s| s.sweep_groups().await).await
    }

    async fn sweep(&self, group: SweepGroup) -> Result<SweepReport> {
        let (door, known) = (&self.inner.door, &self.inner.known);
        door.number(known, async |s| s.sweep(group).await).await
    }
}

#[async_trait]
impl LeaseStore for PostgresStore {
    async fn lease(&self, name: &str, owner: &str, ttl: Duration) -> Result<Option<Lease>> {
        let (door, known) = (&self.inner.door, &self.inner.known);
        door.number(known, async |s| s.lease(name, owner, ttl).await)
            .await
    }

    async fn leases(
        &self,
        names: &[String],
        owner: &str,
        ttl: Duration,
        more: usize,
    ) -> Result<Vec<Lease>> {
        let (door, known) = (&self.inner.door, &self.inner.known);
        door.number(known, async |s| s.leases(names, owner, ttl, more).await)
            .await
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        let (door, known) = (&self.inner.door, &self.inner.known);
        door.number(known, async |s| s.release(lease).await).await
    }

    async fn keep_time(&self) -> Result<Option<Duration>> {
        self.call(Limit::BRIEF, async |s| s.keep_time().await).await
    }

    async fn lease_holders(&self) -> Result<Vec<LeaseHolder>> {
        self.call(Limit::BRIEF, async |s| s.lease_holders().await)
            .await
    }
}

#[async_trait]
impl ConsumerStore for PostgresStore {
    async fn consumers(&self) -> Result<Vec<Consumer>> {
        self.call(Limit::LONG, async |s| s.consumers().await).await
    }

    async fn consumer_cursor(
        &self,
        name: &ConsumerName,
        feed: &Feed,
        shard: ShardId,
    ) -> Result<Option<Cursor>> {
        self.call(Limit::BRIEF, async |s| {
            s.consumer_cursor(name, feed, shard).await
        })
        .await
    }

    async fn store_cursor(
        &self,
        name: &ConsumerName,
        feed: &Feed,
        shard: ShardId,
        from: Option<Cursor>,
        to: Cursor,
    ) -> Result<()> {
        self.call(Limit::BRIEF, async |s| {
            s.store_cursor(name, feed, shard, from, to).await
        })
        .await
    }

    async fn drop_consumer(&self, name: &ConsumerName, feed: &Feed) -> Result<u64> {
        self.call(Limit::BRIEF, async |s| s.drop_consumer(name, feed).await)
            .await
    }
}

#[async_trait]
impl UlidStore for PostgresStore {
    async fn incidents(&self) -> Result<Vec<Incident>> {
        self.call(Limit::BRIEF, async |s| s.incidents().await).await
    }
}

#[async_trait]
impl TriggerStore for PostgresStore {
    async fn triggers(&self) -> Result<Vec<EventTrigger>> {
        self.call(Limit::BRIEF, async |s| s.triggers().await).await
    }

    async fn create_trigger(
        &self,
        definition: &TriggerDefinition,
        replace: bool,
    ) -> Result<EventTrigger> {
        self.call(Limit::ADMIN, async |s| {
            s.create_trigger(definition, replace).await
        })
        .await
    }

    async fn drop_trigger(&self, trigger: &EventTrigger) -> Result<()> {
        self.call(Limit::ADMIN, async |s| s.drop_trigger(trigger).await)
            .await
    }

    async fn pause_trigger(&self, trigger: &EventTrigger, reason: Option<&str>) -> Result<()> {
        self.call(Limit::BRIEF, async |s| {
            s.pause_trigger(trigger, reason).await
        })
        .await
    }

    async fn invoke_trigger(
        &self,
        trigger: &EventTrigger,
        payload: &RawValue,
        key: Uuid,
    ) -> Result<EventId> {
        self.call(Limit::BRIEF, async |s| {
            s.invoke_trigger(trigger, payload, key).await
        })
        .await
    }

    async fn backfill_trigger(&self, trigger: &EventTrigger, batch: usize) -> Result<Backfill> {
        self.call(Limit::LONG, async |s| {
            s.backfill_trigger(trigger, batch).await
        })
        .await
    }

    async fn refresh_triggers(&self) -> Result<Vec<Finding>> {
        self.call(Limit::LONG, async |s| s.refresh_triggers().await)
            .await
    }

    async fn capture_findings(&self) -> Result<Vec<Finding>> {
        let mut findings = self
            .call(Limit::LONG, async |s| s.capture_findings().await)
            .await?;
        let feeds = self.call(Limit::STEPS, async |s| s.feed_findings().await);
        findings.extend(feeds.await?);
        let ulids = self.call(Limit::LONG, async |s| s.ulid_findings().await);
        findings.extend(ulids.await?);
        let locked = self.call(Limit::LONG, async |s| s.lock_findings().await);
        findings.extend(locked.await?);
        Ok(findings)
    }
}

#[async_trait]
impl EventStore for PostgresStore {
    async fn claim_events(
        &self,
        wanted: &[Wanted],
        owner: &str,
        lease: Duration,
    ) -> Result<Vec<LeasedEvent>> {
        self.call(Limit::BRIEF, async |s| {
            s.claim_events(wanted, owner, lease).await
        })
        .await
    }

    async fn held_events(&self, owner: &str, within: Duration) -> Result<Vec<EventClaim>> {
        self.call(Limit::BRIEF, async |s| s.held_events(owner, within).await)
            .await
    }

    async fn renew_events(&self, held: &[EventClaim], lease: Duration) -> Result<Vec<EventClaim>> {
        self.call(Limit::BRIEF, async |s| s.renew_events(held, lease).await)
            .await
    }

    async fn finish_events(&self, finished: &[Finished]) -> Result<Vec<EventClaim>> {
        self.call(Limit::BRIEF, async |s| s.finish_events(finished).await)
            .await
    }

    async fn release_events(&self, held: &[EventClaim]) -> Result<()> {
        self.call(Limit::BRIEF, async |s| s.release_events(held).await)
            .await
    }

    async fn events(&self, filter: &EventFilter, limit: usize) -> Result<Vec<LoggedEvent>> {
        self.call(Limit::LONG, async |s| s.events(filter, limit).await)
            .await
    }

    async fn event(&self, id: EventId) -> Result<Option<(LoggedEvent, Vec<LoggedAttempt>)>> {
        self.call(Limit::BRIEF, async |s| s.event(id).await).await
    }

    async fn redeliver(&self, which: &Redelivery, key: Uuid) -> Result<u64> {
        self.call(Limit::ADMIN, async |s| s.redeliver(which, key).await)
            .await
    }

    async fn clean_up_events(
        &self,
        trigger: Option<&EventTrigger>,
        what: CleanUp,
        batch: usize,
    ) -> Result<Cleaned> {
        self.call(Limit::LONG, async |s| {
            s.clean_up_events(trigger, what, batch).await
        })
        .await
    }

    async fn clean_up_attempts(
        &self,
        trigger: Option<&EventTrigger>,
        after: Duration,
        batch: usize,
    ) -> Result<Cleaned> {
        self.call(Limit::LONG, async |s| {
            s.clean_up_attempts(trigger, after, batch).await
        })
        .await
    }

    async fn trigger_states(&self) -> Result<Vec<TriggerState>> {
        self.call(Limit::LONG, async |s| s.trigger_states().await)
            .await
    }
}

#[async_trait]
impl WatchStore for PostgresStore {
    async fn open_watch(&self, spec: &WatchSpec) -> Result<Watch> {
        self.call(Limit::ADMIN, async |s| s.open_watch(spec).await)
            .await
    }

    async fn watches(&self) -> Result<Vec<Watch>> {
        self.call(Limit::BRIEF, async |s| s.watches().await).await
    }

    async fn watch_status(&self, watch: &Watch, parked: usize) -> Result<WatchStatus> {
        self.call(Limit::LONG, async |s| s.watch_status(watch, parked).await)
            .await
    }

    async fn take(&self, watch: &Watch, take: Take<'_>) -> Result<Option<Batch>> {
        self.call(Limit::STEPS, async |s| s.take(watch, take).await)
            .await
    }

    async fn held_batches(&self, watch: &Watch, owner: &str) -> Result<Vec<Batch>> {
        self.call(Limit::BRIEF, async |s| s.held_batches(watch, owner).await)
            .await
    }

    async fn renew(&self, watch: &Watch, batch: &Batch, lease: Duration) -> Result<u64> {
        self.call(Limit::BRIEF, async |s| s.renew(watch, batch, lease).await)
            .await
    }

    async fn settle(
        &self,
        watch: &Watch,
        batch: &Batch,
        outcome: &BatchOutcome,
        settings: &WatchSettings,
    ) -> Result<Settled> {
        self.call(Limit::BRIEF, async |s| {
            s.settle(watch, batch, outcome, settings).await
        })
        .await
    }

    async fn retry_parked(&self, watch: &Watch, which: ParkedRows) -> Result<u64> {
        self.call(Limit::LONG, async |s| s.retry_parked(watch, which).await)
            .await
    }

    async fn reset_watch(&self, watch: &Watch, from: WatchFrom) -> Result<()> {
        self.call(Limit::ADMIN, async |s| s.reset_watch(watch, from).await)
            .await
    }

    async fn drop_watch(&self, watch: &Watch) -> Result<()> {
        self.call(Limit::ADMIN, async |s| s.drop_watch(watch).await)
            .await
    }

    async fn watch_findings(&self) -> Result<Vec<Finding>> {
        self.call(Limit::LONG, async |s| s.watch_findings().await)
            .await
    }
}

#[async_trait]
impl SubscriptionStore for PostgresStore {
    async fn subscriptions(&self) -> Result<Vec<Subscription>> {
        self.call(Limit::BRIEF, async |s| s.subscriptions().await)
            .await
    }

    async fn create_subscription(
        &self,
        definition: &SubscriptionDefinition,
        feed: &Feed,
        starts: &[(ShardId, Cursor)],
        replace: bool,
    ) -> Result<()> {
        self.call(Limit::ADMIN, async |s| {
            s.create_subscription(definition, feed, starts, replace)
                .await
        })
        .await
    }

    async fn drop_subscription(&self, name: &ConsumerName) -> Result<()> {
        self.call(Limit::ADMIN, async |s| s.drop_subscription(name).await)
            .await
    }

    async fn pause_subscription(&self, name: &ConsumerName, reason: Option<&str>) -> Result<()> {
        self.call(Limit::ADMIN, async |s| {
            s.pause_subscription(name, reason).await
        })
        .await
    }

    async fn hold_lane(&self, lane: &Lane, generation: i64) -> Result<LaneState> {
        self.call(Limit::BRIEF, async |s| s.hold_lane(lane, generation).await)
            .await
    }

    async fn advance_lane(&self, lane: &Lane, advance: &Advance) -> Result<()> {
        self.call(Limit::BRIEF, async |s| s.advance_lane(lane, advance).await)
            .await
    }

    async fn stop_lane(&self, lane: &Lane, generation: Option<i64>, reason: &str) -> Result<()> {
        self.call(Limit::BRIEF, async |s| {
            s.stop_lane(lane, generation, reason).await
        })
        .await
    }

    async fn note_lane(&self, lane: &Lane, generation: i64, failure: Option<&str>) -> Result<()> {
        self.call(Limit::BRIEF, async |s| {
            s.note_lane(lane, generation, failure).await
        })
        .await
    }

    async fn restart_lane(&self, lane: &Lane, after: Option<Cursor>) -> Result<u32> {
        self.call(Limit::ADMIN, async |s| s.restart_lane(lane, after).await)
            .await
    }

    async fn parked_changes(&self, name: &ConsumerName, limit: usize) -> Result<Vec<ParkedChange>> {
        self.call(Limit::BRIEF, async |s| s.parked_changes(name, limit).await)
            .await
    }
}

#[async_trait]
impl DefinitionStore for PostgresStore {
    async fn find_table(&self, table: &TableName) -> Result<TableName> {
        self.call(Limit::BRIEF, async |s| s.find_table(table).await)
            .await
    }

    async fn apply(&self, steps: &[Step]) -> Result<()> {
        self.call(Limit::ADMIN, async |s| s.apply(steps).await)
            .await
    }
}

#[async_trait]
impl AccessStore for PostgresStore {
    async fn tokens(&self) -> Result<Vec<AccessToken>> {
        self.call(Limit::BRIEF, async |s| s.tokens().await).await
    }

    async fn create_token(&self, new: &NewToken) -> Result<AccessToken> {
        self.call(Limit::BRIEF, async |s| s.create_token(new).await)
            .await
    }

    async fn revoke_token(&self, id: &TokenId) -> Result<bool> {
        self.call(Limit::BRIEF, async |s| s.revoke_token(id).await)
            .await
    }
}

#[async_trait]
impl InstanceStore for PostgresStore {
    async fn announce(&self, announcement: &Announcement, forget: Duration) -> Result<()> {
        self.call(Limit::BRIEF, async |s| {
            s.announce(announcement, forget).await
        })
        .await
    }

    async fn withdraw(&self, name: &str) -> Result<()> {
        self.call(Limit::BRIEF, async |s| s.withdraw(name).await)
            .await
    }

    async fn instances(&self) -> Result<Vec<Instance>> {
        self.call(Limit::BRIEF, async |s| s.instances().await).await
    }

    fn connections(&self) -> Connections {
        let status = self.inner.door.work.status();
        Connections {
            most: status.max_size,
            open: status.size,
            idle: status.available,
            waiting: status.waiting,
        }
    }
}
