//! Watches.

use changefeed::{Parked, WatchDefinition, WatchStatus};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::ms;

/// All watches.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WatchList {
    pub(crate) watches: Vec<WatchOut>,
}

/// A watch and how it is doing.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WatchOut {
    name: String,
    table: String,
    /// 16 hexadecimal digits, from the name.
    function_id: String,
    /// The table with the function's backlog and leases.
    leases_table: String,
    /// Whether `serve` runs it; otherwise a program that uses the library does.
    served: bool,
    webhook: Option<String>,
    exec: Option<String>,
    secret_env: Option<String>,
    batch: usize,
    interval_ms: u64,
    lease_ms: u64,
    renewal_ms: u64,
    attempts: u32,
    with_version: bool,
    with_columns: bool,
    /// Changed rows that were not processed yet, those in process included.
    unprocessed: i64,
    /// Those of them that an instance holds.
    leased: i64,
    /// Changed rows that were given up.
    parked: i64,
    last_error: Option<String>,
    /// Every change up to this version is processed.
    last_sync_version: String,
    /// Milliseconds since an instance last looked.
    idle_ms: Option<i64>,
    /// How many workers this backlog is good for.
    suggested_workers: i64,
    /// Changes that were given up, oldest first, as many as were asked for.
    parked_changes: Vec<ParkedOut>,
}

impl From<WatchStatus> for WatchOut {
    fn from(status: WatchStatus) -> Self {
        let served = status.watch.definition.is_some();
        let definition = status.watch.definition.unwrap_or_default();
        let settings = definition.settings();
        WatchOut {
            name: status.watch.name.to_string(),
            table: status.watch.table.to_string(),
            function_id: status.watch.function_id,
            leases_table: status.watch.leases_table,
            served,
            webhook: definition.webhook.as_deref().map(shown),
            exec: definition.exec,
            secret_env: definition.secret_env,
            batch: settings.batch,
            interval_ms: ms(settings.interval),
            lease_ms: ms(settings.lease),
            renewal_ms: ms(settings.renewal),
            attempts: settings.attempts,
            with_version: definition.with_version,
            with_columns: definition.with_columns,
            unprocessed: status.unprocessed,
            leased: status.leased,
            parked: status.parked,
            last_error: status.last_error,
            last_sync_version: status.last_sync_version.to_string(),
            idle_ms: status.idle_ms,
            suggested_workers: status.suggested_workers,
            parked_changes: status
                .parked_changes
                .into_iter()
                .map(ParkedOut::from)
                .collect(),
        }
    }
}

/// An address without its password and its parameters.
fn shown(webhook: &str) -> String {
    let delivery = changefeed::Delivery {
        webhook: Some(changefeed::Setting::Value(webhook.to_owned())),
        ..changefeed::Delivery::default()
    };
    match changefeed::without_secrets(&delivery).webhook {
        Some(changefeed::Setting::Value(url)) => url,
        _ => String::new(),
    }
}

/// A change that was given up.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ParkedOut {
    /// The row's key.
    #[schema(value_type = serde_json::Value)]
    key: Box<RawValue>,
    /// `insert`, `update` or `delete`.
    operation: String,
    version: String,
    attempts: i64,
    error: Option<String>,
    /// Milliseconds since it was parked.
    since_ms: i64,
}

impl From<Parked> for ParkedOut {
    fn from(parked: Parked) -> Self {
        ParkedOut {
            key: parked.key,
            operation: parked.operation.to_string(),
            version: parked.version.to_string(),
            attempts: parked.attempts,
            error: parked.error,
            since_ms: parked.since_ms,
        }
    }
}

/// How many given-up changes to show.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WatchQuery {
    /// 100 unless given.
    #[param(maximum = 1000)]
    pub(crate) parked: Option<usize>,
}

/// A watch that `serve` runs.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewWatchIn {
    #[schema(pattern = "^[a-zA-Z0-9_-]+$", min_length = 1, max_length = 100)]
    pub(crate) name: String,
    /// The table, as in SQL.
    #[schema(min_length = 1)]
    pub(crate) table: String,
    /// The address that each batch is posted to.
    #[schema(
        pattern = "^https?://[A-Za-z0-9.-]+(:[0-9]{1,4})?(/[!-~]*)?$",
        max_length = 2000
    )]
    pub(crate) webhook: String,
    /// The environment variable with the secret that signs the requests.
    #[serde(default)]
    #[schema(pattern = "^[A-Za-z_][A-Za-z0-9_]*$")]
    pub(crate) secret_env: Option<String>,
    /// Rows in a batch at most.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 10000)]
    pub(crate) batch: Option<usize>,
    /// How long a failed batch waits for its next attempt.
    #[serde(default)]
    #[schema(minimum = 10, maximum = 86_400_000)]
    pub(crate) interval_ms: Option<u64>,
    /// How long rows stay with an instance that is not heard of.
    #[serde(default)]
    #[schema(minimum = 40, maximum = 86_400_000)]
    pub(crate) lease_ms: Option<u64>,
    /// How often a lease is renewed; a quarter of the lease unless given.
    #[serde(default)]
    #[schema(minimum = 10, maximum = 43_200_000)]
    pub(crate) renewal_ms: Option<u64>,
    /// How often a change is tried before it is parked.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1000)]
    pub(crate) attempts: Option<u32>,
    /// How many waiting changes one worker is good for; 1000 unless given.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1_000_000_000)]
    pub(crate) max_changes_per_worker: Option<u32>,
    /// Add its version to each change.
    #[serde(default)]
    pub(crate) with_version: bool,
    /// Add the changed columns to each update.
    #[serde(default)]
    pub(crate) with_columns: bool,
    #[serde(default)]
    pub(crate) from: FromText,
}

impl NewWatchIn {
    pub(crate) fn definition(&self) -> WatchDefinition {
        WatchDefinition {
            exec: None,
            webhook: Some(self.webhook.clone()),
            secret_env: self.secret_env.clone(),
            granted_env: Vec::new(),
            batch: self.batch,
            interval_ms: self.interval_ms,
            lease_ms: self.lease_ms,
            renewal_ms: self.renewal_ms.or(self.lease_ms.map(|lease| lease / 4)),
            attempts: self.attempts,
            max_changes_per_worker: self.max_changes_per_worker,
            with_version: self.with_version,
            with_columns: self.with_columns,
        }
    }
}

/// Where a function begins.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromText {
    /// With the changes from now on.
    #[default]
    Now,
    /// With every row that is there already.
    Beginning,
}

impl From<FromText> for changefeed::WatchFrom {
    fn from(from: FromText) -> Self {
        match from {
            FromText::Now => changefeed::WatchFrom::Now,
            FromText::Beginning => changefeed::WatchFrom::Beginning,
        }
    }
}

/// Where to begin again.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResetIn {
    #[serde(default)]
    pub(crate) from: FromText,
}

/// How many parked changes are tried again.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RetriedOut {
    pub(crate) retried: u64,
}
