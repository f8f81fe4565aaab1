//! Subscriptions.

use changefeed_core::ShardId;
use changefeed_core::view::SubscriptionView;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// All subscriptions.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SubscriptionList {
    pub(crate) subscriptions: Vec<SubscriptionView>,
}

/// Where to go on.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SeekIn {
    /// `beginning`, `now`, a cursor, or a time.
    pub(crate) to: String,
    /// Only in this shard.
    #[serde(default)]
    #[schema(value_type = Option<i16>)]
    pub(crate) shard: Option<ShardId>,
}
