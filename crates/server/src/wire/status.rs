//! The whole at a glance.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::feeds::ConsumerOut;

/// Feeds, consumers, triggers, watches, instances, leases and incidents as of the last sample.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct Status {
    /// The version of the program.
    pub version: String,
    /// The instance that answers.
    pub instance: String,
    /// When the sample was taken; none before the first.
    pub sampled_at: Option<String>,
    /// Milliseconds since then.
    pub age_ms: u64,
    /// How the database is doing.
    pub database: DatabaseOut,
    /// The feeds, by id.
    pub feeds: Vec<FeedStatus>,
    /// The consumers of all feeds.
    pub consumers: Vec<ConsumerOut>,
    /// The event triggers, by name.
    pub triggers: Vec<TriggerStatus>,
    /// The watches, by name.
    pub watches: Vec<WatchBacklog>,
    /// The instances that were heard of.
    pub instances: Vec<InstanceOut>,
    /// Who holds which lease.
    pub leases: Vec<LeaseOut>,
    /// Shards that lost writers.
    pub incidents: Vec<IncidentOut>,
}

/// How the database is doing.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct DatabaseOut {
    /// Whether the last sample could be taken.
    pub reachable: bool,
    /// Why not.
    pub error: Option<String>,
    /// The connections of the instance that answers.
    pub connections: ConnectionsOut,
}

/// The connections of the instance that answers.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct ConnectionsOut {
    /// How many there may be.
    pub most: usize,
    /// How many there are.
    pub open: usize,
    /// How many of them nobody uses.
    pub idle: usize,
    /// How many callers wait for one.
    pub waiting: usize,
}

impl From<changefeed::Connections> for ConnectionsOut {
    fn from(c: changefeed::Connections) -> Self {
        ConnectionsOut {
            most: c.most,
            open: c.open,
            idle: c.idle,
            waiting: c.waiting,
        }
    }
}

/// The traffic of a feed.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct FeedStatus {
    /// The feed.
    pub feed: String,
    /// Its number.
    pub id: i16,
    /// Changes per second over the last step; none for feeds of ULIDs, and before the second sample.
    pub rate: Option<f64>,
    /// Changes that wait for their number.
    pub pending: i64,
    /// The longest lag of its shards.
    pub lag_ms: i64,
    /// Its shards.
    pub shards: Vec<ShardStatus>,
    /// Why its state could not be read.
    pub error: Option<String>,
}

/// The traffic of a shard.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct ShardStatus {
    /// The shard.
    pub shard: i16,
    /// The group whose sweeper numbers it.
    pub sweep_group: i16,
    /// The newest number given, or the newest ULID written.
    pub last: String,
    /// What waits.
    pub pending: i64,
    /// Milliseconds since that number or ULID was given.
    pub since_ms: i64,
    /// For how long changes have been waiting for their number, as far as samples have seen.
    pub lag_ms: i64,
    /// Changes per second over the last step.
    pub rate: Option<f64>,
}

/// How a trigger is doing.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct TriggerStatus {
    /// Its name.
    pub trigger: String,
    /// The table.
    pub table: String,
    /// Why it delivers nothing at present.
    pub paused: Option<String>,
    /// What waits.
    pub pending: i64,
    /// Events that are being delivered.
    pub in_flight: i64,
    /// Events that were given up.
    pub dead: i64,
    /// Milliseconds that the oldest event is overdue.
    pub overdue_ms: Option<i64>,
    /// Successful attempts per second over the last step.
    pub success_rate: Option<f64>,
    /// Failed attempts per second over the last step.
    pub failure_rate: Option<f64>,
    /// Successful attempts of the instances that are there now.
    pub success: u64,
    /// Their failed ones.
    pub failure: u64,
}

/// How a watch is doing.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct WatchBacklog {
    /// Its name.
    pub watch: String,
    /// The table.
    pub table: String,
    /// Changed rows that were not processed yet.
    pub unprocessed: i64,
    /// Those of them that an instance holds.
    pub leased: i64,
    /// Changed rows that were given up.
    pub parked: i64,
    /// The last error of a row that waits or is parked.
    pub last_error: Option<String>,
    /// Milliseconds since an instance last looked.
    pub idle_ms: Option<i64>,
    /// How many workers this backlog is good for.
    pub suggested_workers: i64,
    /// Batches that the instances that are there now have handed over.
    pub success: u64,
    /// Batches that failed.
    pub failure: u64,
}

/// An instance of `changefeed serve`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct InstanceOut {
    /// Its name.
    pub name: String,
    /// `sweep`, `deliver`, `watch`, `http`.
    pub roles: Vec<String>,
    /// Where its HTTP server listens.
    pub address: Option<String>,
    /// The version of the program.
    pub version: String,
    /// Milliseconds since it was started.
    pub up_ms: i64,
    /// Milliseconds since it was last heard of.
    pub seen_ms: i64,
    /// The leases that it holds.
    pub leases: Vec<String>,
}

/// Who holds a lease.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct LeaseOut {
    /// Its name.
    pub name: String,
    /// Who holds it.
    pub owner: String,
    /// How often it has changed hands.
    pub generation: i64,
    /// Milliseconds until it expires; negative when it has.
    pub expires_in_ms: i64,
}

impl From<changefeed::LeaseHolder> for LeaseOut {
    fn from(h: changefeed::LeaseHolder) -> Self {
        LeaseOut {
            name: h.name,
            owner: h.owner,
            generation: h.generation,
            expires_in_ms: h.expires_in_ms,
        }
    }
}

/// A shard whose ULID writers had to go on without one of theirs.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct IncidentOut {
    /// The feed.
    #[schema(format = Uuid)]
    pub feed: String,
    /// The shard.
    pub shard: i32,
    /// How often.
    pub count: i64,
    /// Milliseconds since the last time.
    pub since_ms: i64,
}

impl From<changefeed::Incident> for IncidentOut {
    fn from(i: changefeed::Incident) -> Self {
        IncidentOut {
            feed: i.feed.to_string(),
            shard: i.shard,
            count: i.count,
            since_ms: i.since_ms,
        }
    }
}

/// Who serves, and who holds which lease.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InstanceList {
    pub(crate) instances: Vec<InstanceOut>,
    pub(crate) leases: Vec<LeaseOut>,
}

/// Shards that lost writers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct IncidentList {
    pub(crate) incidents: Vec<IncidentOut>,
}

/// What `doctor` has to say.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FindingList {
    pub(crate) findings: Vec<FindingOut>,
}

/// What there is to say about one thing.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FindingOut {
    /// `ok`, `note`, `warning` or `problem`.
    pub(crate) severity: String,
    pub(crate) subject: String,
    pub(crate) message: String,
    pub(crate) advice: Option<String>,
}

/// Who asks.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionOut {
    /// What this caller may do.
    pub(crate) scopes: Vec<String>,
    /// Whether a token is needed at all.
    pub(crate) token_needed: bool,
}

/// Which series.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SeriesQuery {
    /// Only this kind, for example `feed_rate`.
    pub(crate) kind: Option<String>,
    /// Only of this name.
    pub(crate) name: Option<String>,
    /// Only so many values of each, the newest; all that are kept unless given.
    #[param(minimum = 1, maximum = 720)]
    pub(crate) last: Option<usize>,
}

/// The last hour.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SeriesList {
    /// The time between two values.
    pub(crate) step_ms: u64,
    /// When the last value of every series was taken; none before the first.
    pub(crate) end: Option<String>,
    /// Values that are kept at most.
    pub(crate) length: usize,
    pub(crate) series: Vec<SeriesOut>,
}

/// One line of a chart.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SeriesOut {
    /// `feed_rate`, `feed_pending`, `consumer_lag`, `trigger_success_rate`, `trigger_failure_rate`,
    /// `trigger_pending`, `watch_unprocessed`.
    pub(crate) kind: String,
    /// The feed, `FEED/CONSUMER`, the trigger or the watch.
    pub(crate) name: String,
    /// Oldest first.
    pub(crate) values: Vec<Option<f32>>,
}

/// Whether this instance should get requests.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReadyOut {
    pub(crate) ready: bool,
    pub(crate) checks: Vec<CheckOut>,
    /// What stands still although this instance works: no other instance would do better.
    pub(crate) degraded: Vec<String>,
}

/// One thing that must be as it should.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CheckOut {
    pub(crate) check: String,
    pub(crate) ok: bool,
    pub(crate) error: Option<String>,
}
