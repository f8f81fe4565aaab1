//! The whole at a glance.

use serde::Serialize;

use super::SubscriptionView;
use crate::{
    Connections, Consumer, ConsumerName, FeedId, FeedName, Finding, Incarnation, Incident,
    Instance, LeaseHolder, ShardState, TableName, TriggerState, WatchStatus,
};

/// Feeds, consumers, triggers, watches, instances, leases and incidents at one moment.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Default, Serialize)]
pub struct Status {
    /// The version of the program.
    pub version: String,
    /// The instance that answers; empty on the command line.
    pub instance: String,
    /// When this was read from the database, in RFC 3339; null before the first time.
    pub sampled_at: Option<String>,
    /// Milliseconds since then.
    pub age_ms: u64,
    /// The database.
    pub database: Database,
    /// The feeds, by id.
    pub feeds: Vec<FeedStatus>,
    /// The consumers of all feeds.
    pub consumers: Vec<Consumer>,
    /// The event triggers, by name.
    pub triggers: Vec<TriggerStatus>,
    /// The watches, by name.
    pub watches: Vec<WatchOverview>,
    /// The subscriptions, by name.
    pub subscriptions: Vec<SubscriptionStatus>,
    /// The running instances.
    pub instances: Vec<InstanceStatus>,
    /// Who holds which lease.
    pub leases: Vec<LeaseHolder>,
    /// Shards that lost ULID writers.
    pub incidents: Vec<Incident>,
    /// What of `doctor`'s findings should be looked at, worst first: warnings and problems; null if nobody has
    /// looked yet.
    pub findings: Option<Vec<Finding>>,
}

/// Whether the database answers.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Default, Serialize)]
pub struct Database {
    /// Whether it could be read the last time.
    pub reachable: bool,
    /// Why not.
    pub error: Option<String>,
    /// The connections of the instance that answers.
    pub connections: Connections,
    /// Which life of the database this is, as pages say it.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub incarnation: Option<Incarnation>,
}

/// The traffic of a feed.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct FeedStatus {
    /// Its name.
    pub name: FeedName,
    /// Its number.
    pub id: FeedId,
    /// Changes per second; null for feeds of ULIDs, and when it was read only once.
    pub rate: Option<f64>,
    /// Committed changes without a number.
    pub pending: i64,
    /// The longest lag of its shards.
    pub lag_ms: i64,
    /// Its shards.
    pub shards: Vec<ShardStatus>,
    /// Why its state could not be read.
    pub error: Option<String>,
}

/// The traffic of a shard.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct ShardStatus {
    /// As the database counts it.
    #[serde(flatten)]
    pub state: ShardState,
    /// For how long changes have been waiting for their number, as far as it was seen.
    pub lag_ms: i64,
    /// Changes per second.
    pub rate: Option<f64>,
}

/// The state of an event trigger.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct TriggerStatus {
    /// Its events.
    #[serde(flatten)]
    pub state: TriggerState,
    /// The table.
    pub table: TableName,
    /// Why it delivers nothing at present.
    pub paused: Option<String>,
    /// Successful attempts per second.
    pub success_rate: Option<f64>,
    /// Failed attempts per second.
    pub failure_rate: Option<f64>,
    /// Successful attempts of the instances that run now.
    pub success: u64,
    /// Their failed ones.
    pub failure: u64,
}

/// The state of a watch, and what the running instances have done for it.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct WatchOverview {
    /// As the database counts it.
    #[serde(flatten)]
    pub status: WatchStatus,
    /// Batches that were processed by the instances that run now.
    pub success: u64,
    /// Their failed ones.
    pub failure: u64,
}

/// How a subscription gets on.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct SubscriptionStatus {
    /// Its name.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub name: ConsumerName,
    /// Its feed.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub feed: FeedName,
    /// `running`, `failing`, `waiting` for an instance, `paused` or `stopped`.
    pub state: &'static str,
    /// Messages per second that its sink has taken; null before a second look.
    pub rate: Option<f64>,
    /// Messages that its sink has taken.
    pub sent: i64,
    /// Changes that it has not pushed yet.
    pub lag_changes: i64,
    /// Milliseconds since the oldest of these got its number.
    pub lag_ms: i64,
    /// Milliseconds since the sink of one of its shards began to take nothing.
    pub failing_ms: Option<i64>,
    /// Shards that a person has to see to.
    pub stopped_shards: usize,
}

impl SubscriptionStatus {
    /// What is shown of a subscription at a glance; `before` is how many messages its sink had taken some seconds ago.
    pub fn new(view: &SubscriptionView, before: Option<(i64, f64)>) -> Self {
        let sent: i64 = view.shards.iter().map(|shard| shard.sent).sum();
        let failing = view
            .shards
            .iter()
            .filter_map(|shard| shard.failing.as_ref());
        SubscriptionStatus {
            name: view.definition.name.clone(),
            feed: view.definition.feed.clone(),
            state: view.state,
            rate: before.map(|(then, seconds)| (sent - then).max(0) as f64 / seconds),
            sent,
            lag_changes: view.lag_changes,
            lag_ms: view.lag_ms,
            failing_ms: failing.map(|failing| failing.since_ms).max(),
            stopped_shards: view
                .shards
                .iter()
                .filter(|shard| shard.stopped.is_some())
                .count(),
        }
    }
}

/// A running instance, and the leases that it holds.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct InstanceStatus {
    /// What it says about itself.
    #[serde(flatten)]
    pub instance: Instance,
    /// The names of its leases.
    pub leases: Vec<String>,
}
