//! Watches.

use changefeed_core::{WatchFrom, WatchStatus};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// All watches.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WatchList {
    pub(crate) watches: Vec<WatchStatus>,
}

/// How many parked changes to show.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WatchQuery {
    /// 100 unless given.
    #[param(maximum = 1000)]
    pub(crate) parked: Option<usize>,
}

/// Where to begin again.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResetIn {
    #[serde(default)]
    pub(crate) from: WatchFrom,
}

/// Which parked changes to try again.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetryIn {
    /// Only the one that is shown with this version; all unless given.
    #[serde(default)]
    #[schema(pattern = "^[0-9]{1,19}$")]
    pub(crate) version: Option<String>,
}

/// How many parked changes are tried again.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RetriedOut {
    pub(crate) retried: u64,
}
