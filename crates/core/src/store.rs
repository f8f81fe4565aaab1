//! The seams. Each database implements these traits in files of the same names; everything
//! above speaks to `dyn Store` and asks for capabilities, never for a database's name.

use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;

use serde_json::value::RawValue;

use crate::{
    AccessToken, Advance, After, Announcement, Backfill, Batch, BatchOutcome, CleanUp, Cleaned,
    Connections, Consumer, ConsumerName, Cursor, Dialect, Erased, EventClaim, EventFilter, EventId,
    EventTrigger, Feed, FeedId, Finding, Finished, Incarnation, Incident, Instance, Lane,
    LaneState, Lease, LeaseHolder, LeasedEvent, Listener, LoggedAttempt, LoggedEvent, Migration,
    NewFeed, NewToken, Page, ParkedChange, ParkedRows, Redelivery, Result, Retention, SchemaState,
    Settled, ShardId, ShardState, Step, Subscription, SubscriptionDefinition, SweepGroup,
    TableName, Take, TokenId, TriggerDefinition, TriggerState, Trimmed, Uuid, Wanted, Watch,
    WatchFrom, WatchPlace, WatchSettings, WatchSpec, WatchStatus,
};

/// Installing and removing our tables.
#[async_trait]
pub trait SchemaStore: Send + Sync {
    /// What is installed.
    async fn schema(&self) -> Result<SchemaState>;

    /// Brings the schema to the current version; does nothing when it is there already. Safe
    /// when many instances do it at once.
    async fn migrate(&self) -> Result<Migration>;

    /// Removes everything of ours, triggers on the application's tables included.
    async fn uninstall(&self) -> Result<()>;

    /// Looks at the server, its settings, its clock and what this user may do. Nothing of ours
    /// need be installed for that.
    async fn server_findings(&self) -> Result<Vec<Finding>>;
}

/// Feeds and what is in them.
#[async_trait]
pub trait FeedStore: Send + Sync {
    /// What this database does with unquoted names, and how it wants conditions to be written.
    fn dialect(&self) -> Dialect;

    /// Creates a feed, its shards and, for a captured source, its trigger; all or nothing.
    async fn create_feed(&self, new: &NewFeed) -> Result<Feed>;

    /// Removes a feed with its shards, changes, consumers and triggers.
    async fn drop_feed(&self, feed: &Feed) -> Result<()>;

    /// Goes on with this number of shards: closes those that there are, once everything that was written to them has
    /// its number, and has the trigger write to new ones. Consumers are registered at their beginning. Waits for the
    /// transactions that write to the table. All or nothing.
    async fn reshard(&self, feed: &Feed, shards: i16) -> Result<Feed>;

    /// All feeds, by ascending id.
    async fn feeds(&self) -> Result<Vec<Feed>>;

    /// The changes after a point, oldest first.
    async fn read(&self, feed: &Feed, shard: ShardId, after: After, limit: usize) -> Result<Page>;

    /// The traffic of a feed's shards.
    async fn shard_states(&self, feed: &Feed) -> Result<Vec<ShardState>>;

    /// Gives numbers below the start to the next `batch` existing rows of the feed's table. The
    /// position is kept in the database, so that a later call goes on where this one stopped.
    async fn backfill(&self, feed: &Feed, batch: usize) -> Result<Backfill>;

    /// Removes at most about `batch` changes that are not retained any longer. Call again until nothing is
    /// removed.
    async fn trim(&self, feed: &Feed, retention: Retention, batch: usize) -> Result<Trimmed>;

    /// Empties what was kept of a row: its images in feeds, and in events that are done with the log of their attempts.
    /// What happened and when stays known. The key is given by column, its values as changes write them.
    async fn erase(&self, table: &TableName, key: &[(String, String)]) -> Result<Erased>;

    /// The life of this database.
    async fn incarnation(&self) -> Result<Incarnation>;

    /// Begins another life, after the database was restored from a backup: readers who send the one that
    /// their cursors belong to are refused, instead of missing changes or seeing others under the same numbers.
    async fn recover(&self) -> Result<Incarnation>;
}

/// What one sweep did.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SweepReport {
    /// Shards that got numbers.
    pub shards: Vec<SweptShard>,
}

/// What one sweep did to one shard.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweptShard {
    /// The feed.
    pub feed_id: FeedId,
    /// The shard.
    pub shard: ShardId,
    /// Changes numbered.
    pub change_count: i64,
    /// Milliseconds since this shard's previous sweep: a ceiling of how long a change waited.
    pub lag_milliseconds: i64,
}

impl SweepReport {
    /// Changes numbered in all shards.
    pub fn changes(&self) -> i64 {
        self.shards.iter().map(|s| s.change_count).sum()
    }

    /// Whether the sweep may have stopped at its limit of changes or time and left some over.
    /// Even a slow sweep numbers more changes than this before it stops.
    pub fn may_have_left_some(&self) -> bool {
        self.changes() >= 100
    }

    /// The largest lag of any shard.
    pub fn max_lag_ms(&self) -> i64 {
        self.shards
            .iter()
            .map(|s| s.lag_milliseconds)
            .max()
            .unwrap_or(0)
    }
}

/// Giving numbers after the commit.
#[async_trait]
pub trait SweepStore: Send + Sync {
    /// Whether changes wait for a sweep at all. Where the engine serialises writers, the number
    /// is given at insert and there is nothing to sweep.
    fn needs_sweeping(&self) -> bool;

    /// The groups that have shards.
    async fn sweep_groups(&self) -> Result<Vec<SweepGroup>>;

    /// Numbers what is committed in a group, once: one server-side call that locks, numbers and
    /// commits. Two at the same time are safe; one of them finds less to do. A call is bounded: what
    /// is left over is for the next one.
    async fn sweep(&self, group: SweepGroup) -> Result<SweepReport>;
}

/// Leases, judged by the database's clock.
#[async_trait]
pub trait LeaseStore: Send + Sync {
    /// Takes a lease that is free or expired, or renews it for the same owner. `None` while
    /// somebody else holds it.
    async fn lease(&self, name: &str, owner: &str, ttl: Duration) -> Result<Option<Lease>>;

    /// Takes or renews many leases in one call, for the same time: those that this owner has, and at most `more` that
    /// are free or expired. Returns what was granted. Somebody else holds the others, or is taking them at this moment.
    async fn leases(
        &self,
        names: &[String],
        owner: &str,
        ttl: Duration,
        more: usize,
    ) -> Result<Vec<Lease>>;

    /// Gives a lease back, if its generation is still the current one.
    async fn release(&self, lease: &Lease) -> Result<()>;

    /// Checks whether the database's clock was set back since the last check. If it was, moves leases,
    /// held events and rows, and due times back by as much. Returns the size of the step to the caller
    /// that noticed it. Safe to call concurrently; cheap when there is nothing to do.
    async fn keep_time(&self) -> Result<Option<Duration>>;

    /// Who holds what.
    async fn lease_holders(&self) -> Result<Vec<LeaseHolder>>;
}

/// Cursors of named consumers.
#[async_trait]
pub trait ConsumerStore: Send + Sync {
    /// All consumers, with their lag.
    async fn consumers(&self) -> Result<Vec<Consumer>>;

    /// Where a consumer stands; `None` if it was never seen on this shard.
    async fn consumer_cursor(
        &self,
        name: &ConsumerName,
        feed: &Feed,
        shard: ShardId,
    ) -> Result<Option<Cursor>>;

    /// Moves a consumer from the cursor that the caller believes to be stored (`None` where there
    /// is none yet) to another, in a transaction of its own. Fails with
    /// [`Kind::Moved`](crate::Kind::Moved) when another cursor is stored, so that a call which the
    /// database executes late cannot undo what was stored since. Repeating a call whose outcome is
    /// unknown is safe: it succeeds when the consumer stands at `to` already.
    ///
    /// A consumer that wants exactly-once effects moves in the transaction of its effects instead;
    /// each store crate has a function `advance_consumer` for that.
    async fn store_cursor(
        &self,
        name: &ConsumerName,
        feed: &Feed,
        shard: ShardId,
        from: Option<Cursor>,
        to: Cursor,
    ) -> Result<()>;

    /// Forgets a consumer on every shard of a feed. Returns how many cursors there were.
    async fn drop_consumer(&self, name: &ConsumerName, feed: &Feed) -> Result<u64>;
}

/// Waking those who wait for changes.
pub trait WakeStore: Send + Sync {
    /// Listens for news of a shard. All listeners of a process share one connection to the database.
    fn listen(&self, feed: &Feed, shard: ShardId) -> Listener;

    /// Listens for news of the backlog of a watch: wakes when a [take](WatchStore::take) may find something.
    /// One query serves all watches of a process. Retries that become due are not announced in time:
    /// the watch sets its own timer. If the store cannot look, it wakes several times a second.
    fn listen_to_watch(&self, watch: &Watch) -> Listener<WatchPlace>;

    /// Listens for commits: wakes when some transaction has ended, whatever it did. A hint that spares a loop with
    /// nothing to do its looks; it may be late, so that the loop still looks by itself every second. Nothing where
    /// the store is not told of commits, and loops have to look more often.
    fn listen_to_commits(&self) -> Option<Listener<()>> {
        None
    }
}

/// What can be seen of ULID transactions from outside. Beginning one is not here: it gives the
/// driver's own transaction, so each store crate has its own function for it.
#[async_trait]
pub trait UlidStore: Send + Sync {
    /// Shards whose lock was taken from a writer that disappeared.
    async fn incidents(&self) -> Result<Vec<Incident>>;
}

/// Event triggers and the database triggers that capture for them.
#[async_trait]
pub trait TriggerStore: Send + Sync {
    /// All event triggers, by name.
    async fn triggers(&self) -> Result<Vec<EventTrigger>>;

    /// Creates an event trigger and its database triggers; all or nothing. With `replace`, one of
    /// the same name is changed and keeps its events.
    async fn create_trigger(
        &self,
        definition: &TriggerDefinition,
        replace: bool,
    ) -> Result<EventTrigger>;

    /// Removes an event trigger and its database triggers. Its events stay in the log; those that
    /// were not delivered are archived.
    async fn drop_trigger(&self, trigger: &EventTrigger) -> Result<()>;

    /// Stops deliveries for this reason, or lets them go on. Capture is not affected.
    async fn pause_trigger(&self, trigger: &EventTrigger, reason: Option<&str>) -> Result<()>;

    /// Writes an event by hand, once for each `key`: a call with the key of an earlier one (of the
    /// last day) writes nothing and returns the event of that call. So a call whose outcome is
    /// unknown is repeated with its key.
    async fn invoke_trigger(
        &self,
        trigger: &EventTrigger,
        payload: &RawValue,
        key: Uuid,
    ) -> Result<EventId>;

    /// Makes events of the next `batch` existing rows. The position is kept in the database.
    async fn backfill_trigger(&self, trigger: &EventTrigger, batch: usize) -> Result<Backfill>;

    /// Makes the database triggers fit tables that were altered since, where that is safe. Returns
    /// what was done or has to be done by a person.
    async fn refresh_triggers(&self) -> Result<Vec<Finding>>;

    /// Looks for what keeps changes from being captured, and says what this database cannot
    /// capture at all.
    async fn capture_findings(&self) -> Result<Vec<Finding>>;
}

/// The event log, and what delivery needs of it.
#[async_trait]
pub trait EventStore: Send + Sync {
    /// Takes events that are due, oldest first, for the time of a lease. While it lasts nobody
    /// else gets them. An earlier attempt whose lease ran out is written down as cut off.
    async fn claim_events(
        &self,
        wanted: &[Wanted],
        owner: &str,
        lease: Duration,
    ) -> Result<Vec<LeasedEvent>>;

    /// What the database believes `owner` to hold, if its lease ends less than `within` before or
    /// after now. An owner whose claim got no answer compares this with what it knows, and gives
    /// back what it never sent: otherwise the attempt would count although there was none.
    async fn held_events(&self, owner: &str, within: Duration) -> Result<Vec<EventClaim>>;

    /// Prolongs leases. Returns those that are still held.
    async fn renew_events(&self, held: &[EventClaim], lease: Duration) -> Result<Vec<EventClaim>>;

    /// Writes down attempts and what follows from them, all in one statement. Returns those that
    /// came too late: their attempts are in the log, but decided nothing. Idempotent: the log has one
    /// row per attempt, identified by the generation, and an attempt that was logged as cut off gets its
    /// real outcome.
    async fn finish_events(&self, finished: &[Finished]) -> Result<Vec<EventClaim>>;

    /// Gives events back that were claimed but not attempted; the attempt is not counted.
    async fn release_events(&self, held: &[EventClaim]) -> Result<()>;

    /// Events of the log, newest first.
    async fn events(&self, filter: &EventFilter, limit: usize) -> Result<Vec<LoggedEvent>>;

    /// An event with all attempts, oldest first.
    async fn event(&self, id: EventId) -> Result<Option<(LoggedEvent, Vec<LoggedAttempt>)>>;

    /// Has events delivered again, from the first attempt on. Returns how many. One that waits for
    /// its first attempt already is left as it is. Idempotent by `key`: repeat a call whose outcome is
    /// unknown with the same key.
    async fn redeliver(&self, which: &Redelivery, key: Uuid) -> Result<u64>;

    /// Removes at most `batch` events of a trigger (of every trigger, dropped ones included, if
    /// none is given) with their attempts. What a consumer of the trigger's feed has not read is
    /// kept.
    async fn clean_up_events(
        &self,
        trigger: Option<&EventTrigger>,
        what: CleanUp,
        batch: usize,
    ) -> Result<Cleaned>;

    /// Removes at most `batch` attempts that are older than this, of finished events of a trigger (of every
    /// trigger if none is given). The events stay, and so do the attempts of dead letters.
    async fn clean_up_attempts(
        &self,
        trigger: Option<&EventTrigger>,
        after: Duration,
        batch: usize,
    ) -> Result<Cleaned>;

    /// How the events of each trigger stand.
    async fn trigger_states(&self) -> Result<Vec<TriggerState>>;
}

/// Changed rows for functions, in leased batches. Every method that changes something does so for
/// all rows of a batch at once, and holds nothing when it has returned.
#[async_trait]
pub trait WatchStore: Send + Sync {
    /// Lets a function watch a table: checks that this is possible, makes what is missing
    /// (tracking, leases), and registers the function if it is new. A known function goes on where it
    /// was. Its definition is replaced only if the specification allows it.
    async fn open_watch(&self, spec: &WatchSpec) -> Result<Watch>;

    /// All watches, by name.
    async fn watches(&self) -> Result<Vec<Watch>>;

    /// The status of a watch, with up to `parked` of its parked changes. Counting takes
    /// time in proportion to its backlog.
    async fn watch_status(&self, watch: &Watch, parked: usize) -> Result<WatchStatus>;

    /// Leases the next batch: rows that have to be tried again first, then new changes, oldest
    /// first. `None` when there is nothing to do.
    async fn take(&self, watch: &Watch, take: Take<'_>) -> Result<Option<Batch>>;

    /// The batches that the database believes `owner` to hold, without their rows. An owner whose
    /// take got no answer gives back those that it was never handed: otherwise the attempt would
    /// count although there was none.
    async fn held_batches(&self, watch: &Watch, owner: &str) -> Result<Vec<Batch>>;

    /// Renews the lease of a batch. Returns for how many of its rows that worked.
    async fn renew(&self, watch: &Watch, batch: &Batch, lease: Duration) -> Result<u64>;

    /// Stores the outcome of a batch. Rows that another instance holds by now are left alone.
    async fn settle(
        &self,
        watch: &Watch,
        batch: &Batch,
        outcome: &BatchOutcome,
        settings: &WatchSettings,
    ) -> Result<Settled>;

    /// Gives parked changes another round of attempts. Returns how many there were.
    async fn retry_parked(&self, watch: &Watch, which: ParkedRows) -> Result<u64>;

    /// Forgets what the function has been handed: it begins again.
    async fn reset_watch(&self, watch: &Watch, from: WatchFrom) -> Result<()>;

    /// Removes the function and what it leaves unused.
    async fn drop_watch(&self, watch: &Watch) -> Result<()>;

    /// What keeps changes from being noted or handed over.
    async fn watch_findings(&self) -> Result<Vec<Finding>>;
}

/// Subscriptions, and how far the sink of each has got in each shard. The position is the cursor of the consumer
/// that has the subscription's name.
#[async_trait]
pub trait SubscriptionStore: Send + Sync {
    /// All subscriptions, by name, with the shards that were ever worked on.
    async fn subscriptions(&self) -> Result<Vec<Subscription>>;

    /// Creates a subscription that begins in each shard at one of these cursors, or else with the oldest change; all
    /// or nothing. With `replace`, the one of the same name gets this definition and keeps its positions.
    async fn create_subscription(
        &self,
        definition: &SubscriptionDefinition,
        feed: &Feed,
        starts: &[(ShardId, Cursor)],
        replace: bool,
    ) -> Result<()>;

    /// Removes a subscription and its positions.
    async fn drop_subscription(&self, name: &ConsumerName) -> Result<()>;

    /// Stops pushing for this reason; or lets it go on, also in shards that were stopped by a refusal.
    async fn pause_subscription(&self, name: &ConsumerName, reason: Option<&str>) -> Result<()>;

    /// Says that the holder of the shard's lease works by this generation. From now on no older one can move the
    /// position. Fails with [`Kind::Moved`](crate::Kind::Moved) if a newer one was here.
    async fn hold_lane(&self, lane: &Lane, generation: i64) -> Result<LaneState>;

    /// Moves the position and counts what was done, if generation, epoch and position are what the caller
    /// believes; otherwise fails with [`Kind::Moved`](crate::Kind::Moved). Repeating a call whose outcome is unknown
    /// is safe: it succeeds without counting again.
    async fn advance_lane(&self, lane: &Lane, advance: &Advance) -> Result<()>;

    /// Stops a shard until a person resumes or resets it. With a generation, the position stays; without one it is
    /// given up, so that retention does not wait for it.
    async fn stop_lane(&self, lane: &Lane, generation: Option<i64>, reason: &str) -> Result<()>;

    /// Notes that the sink of a shard does not take anything, and why; or that it does again. Fenced by the generation:
    /// a late call changes nothing. The time of the first failure stays.
    async fn note_lane(&self, lane: &Lane, generation: i64, failure: Option<&str>) -> Result<()>;

    /// Begins a new epoch of a shard after a cursor, or with the oldest change. Returns the epoch.
    async fn restart_lane(&self, lane: &Lane, after: Option<Cursor>) -> Result<u32>;

    /// Changes that the sink refused and that were left out, newest first.
    async fn parked_changes(&self, name: &ConsumerName, limit: usize) -> Result<Vec<ParkedChange>>;
}

/// Definitions of feeds, event triggers and watches, many at once.
#[async_trait]
pub trait DefinitionStore: Send + Sync {
    /// Resolves a table name to the form that stored definitions have.
    async fn find_table(&self, table: &TableName) -> Result<TableName>;

    /// Does all of these steps, in this order, or none of them.
    async fn apply(&self, steps: &[Step]) -> Result<()>;
}

/// Access tokens of the HTTP API.
#[async_trait]
pub trait AccessStore: Send + Sync {
    /// All tokens, expired and revoked ones included, oldest first.
    async fn tokens(&self) -> Result<Vec<AccessToken>>;

    /// Creates a token.
    async fn create_token(&self, new: &NewToken) -> Result<AccessToken>;

    /// Revokes a token. Returns false if there is none or it was revoked before.
    async fn revoke_token(&self, id: &TokenId) -> Result<bool>;
}

/// What instances know of each other, and what this one uses of the database.
#[async_trait]
pub trait InstanceStore: Send + Sync {
    /// Says that an instance is there, and forgets those that were not heard of for `forget`.
    async fn announce(&self, announcement: &Announcement, forget: Duration) -> Result<()>;

    /// Says that an instance is gone.
    async fn withdraw(&self, name: &str) -> Result<()>;

    /// All instances that were heard of, by name.
    async fn instances(&self) -> Result<Vec<Instance>>;

    /// The connections of this process.
    fn connections(&self) -> Connections;
}

/// Everything a database does for us.
pub trait Store:
    SchemaStore
    + FeedStore
    + SweepStore
    + LeaseStore
    + ConsumerStore
    + WakeStore
    + UlidStore
    + TriggerStore
    + EventStore
    + WatchStore
    + SubscriptionStore
    + DefinitionStore
    + AccessStore
    + InstanceStore
{
}

impl<T> Store for T where
    T: SchemaStore
        + FeedStore
        + SweepStore
        + LeaseStore
        + ConsumerStore
        + WakeStore
        + UlidStore
        + TriggerStore
        + EventStore
        + WatchStore
        + SubscriptionStore
        + DefinitionStore
        + AccessStore
        + InstanceStore
{
}
