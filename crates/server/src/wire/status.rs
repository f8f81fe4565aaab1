//! The whole at a glance.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::feeds::ConsumerOut;

/// Feeds, consumers, triggers, watches, instances, leases and incidents as of the last sample.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct Status {
    pub(crate) version: String,
    /// The instance that answers.
    pub(crate) instance: String,
    /// When the sample was taken; none before the first.
    pub(crate) sampled_at: Option<String>,
    /// Milliseconds since then.
    pub(crate) age_ms: u64,
    pub(crate) database: DatabaseOut,
    pub(crate) feeds: Vec<FeedStatus>,
    pub(crate) consumers: Vec<ConsumerOut>,
    pub(crate) triggers: Vec<TriggerStatus>,
    pub(crate) watches: Vec<WatchBacklog>,
    pub(crate) instances: Vec<InstanceOut>,
    pub(crate) leases: Vec<LeaseOut>,
    pub(crate) incidents: Vec<IncidentOut>,
}

/// How the database is doing.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct DatabaseOut {
    /// Whether the last sample could be taken.
    pub(crate) reachable: bool,
    /// Why not.
    pub(crate) error: Option<String>,
    pub(crate) connections: ConnectionsOut,
}

/// The connections of the instance that answers.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct ConnectionsOut {
    pub(crate) most: usize,
    pub(crate) open: usize,
    pub(crate) idle: usize,
    pub(crate) waiting: usize,
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
pub(crate) struct FeedStatus {
    pub(crate) feed: String,
    pub(crate) id: i16,
    /// Changes per second over the last step; none for feeds of ULIDs, and before the second sample.
    pub(crate) rate: Option<f64>,
    /// Changes that wait for their number.
    pub(crate) pending: i64,
    /// The longest lag of its shards.
    pub(crate) lag_ms: i64,
    pub(crate) shards: Vec<ShardStatus>,
    /// Why its state could not be read.
    pub(crate) error: Option<String>,
}

/// The traffic of a shard.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct ShardStatus {
    pub(crate) shard: i16,
    pub(crate) sweep_group: i16,
    /// The newest number given, or the newest ULID written.
    pub(crate) last: String,
    pub(crate) pending: i64,
    /// Milliseconds since that number or ULID was given.
    pub(crate) since_ms: i64,
    /// For how long changes have been waiting for their number, as far as samples have seen.
    pub(crate) lag_ms: i64,
    pub(crate) rate: Option<f64>,
}

/// How a trigger is doing.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct TriggerStatus {
    pub(crate) trigger: String,
    pub(crate) table: String,
    pub(crate) paused: Option<String>,
    pub(crate) pending: i64,
    pub(crate) in_flight: i64,
    pub(crate) dead: i64,
    pub(crate) overdue_ms: Option<i64>,
    /// Successful attempts per second over the last step.
    pub(crate) success_rate: Option<f64>,
    /// Failed attempts per second over the last step.
    pub(crate) failure_rate: Option<f64>,
    /// Successful attempts of the instances that are there now.
    pub(crate) success: u64,
    /// Their failed ones.
    pub(crate) failure: u64,
}

/// How a watch is doing.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct WatchBacklog {
    pub(crate) watch: String,
    pub(crate) table: String,
    pub(crate) unprocessed: i64,
    pub(crate) leased: i64,
    pub(crate) parked: i64,
    pub(crate) last_error: Option<String>,
    pub(crate) idle_ms: Option<i64>,
    pub(crate) suggested_workers: i64,
    /// Batches that the instances that are there now have handed over.
    pub(crate) success: u64,
    /// Batches that failed.
    pub(crate) failure: u64,
}

/// An instance of `changefeed serve`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct InstanceOut {
    pub(crate) name: String,
    /// `sweep`, `deliver`, `watch`, `http`.
    pub(crate) roles: Vec<String>,
    pub(crate) address: Option<String>,
    pub(crate) version: String,
    pub(crate) up_ms: i64,
    pub(crate) seen_ms: i64,
    /// The leases that it holds.
    pub(crate) leases: Vec<String>,
}

/// Who holds a lease.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct LeaseOut {
    pub(crate) name: String,
    pub(crate) owner: String,
    /// How often it has changed hands.
    pub(crate) generation: i64,
    /// Milliseconds until it expires; negative when it has.
    pub(crate) expires_in_ms: i64,
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
pub(crate) struct IncidentOut {
    #[schema(format = Uuid)]
    pub(crate) feed: String,
    pub(crate) shard: i32,
    pub(crate) count: i64,
    pub(crate) since_ms: i64,
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
}

/// One thing that must be as it should.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CheckOut {
    pub(crate) check: String,
    pub(crate) ok: bool,
    pub(crate) error: Option<String>,
}
