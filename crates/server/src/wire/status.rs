//! The whole at a glance.

use changefeed_core::view::InstanceStatus;
use changefeed_core::{Finding, Incident, LeaseHolder};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Who serves, and who holds which lease.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InstanceList {
    pub(crate) instances: Vec<InstanceStatus>,
    pub(crate) leases: Vec<LeaseHolder>,
}

/// Shards that lost writers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct IncidentList {
    pub(crate) incidents: Vec<Incident>,
}

/// What `doctor` has to say.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FindingList {
    pub(crate) findings: Vec<Finding>,
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
