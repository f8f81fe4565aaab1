//! A subscription as people see it.

use serde::Serialize;

use crate::{
    Consumer, Cursor, LaneFailure, LaneState, LeaseHolder, OnRefusal, ShardId, Subscription,
    SubscriptionDefinition,
};

/// A subscription, where each of its shards stands, and who works on it.
#[derive(Debug, Clone, Serialize)]
pub struct SubscriptionView {
    /// Its definition.
    #[serde(flatten)]
    pub definition: SubscriptionDefinition,
    /// `running`, `failing`, `waiting` for an instance, `paused` or `stopped`.
    pub state: &'static str,
    /// Why it is paused, if it is.
    pub paused: Option<String>,
    /// Changes that it has not pushed yet.
    pub lag_changes: i64,
    /// Milliseconds since the oldest of these got its number.
    pub lag_ms: i64,
    /// Its shards.
    pub shards: Vec<SubscriptionShard>,
}

/// A shard of a subscription.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct SubscriptionShard {
    /// The shard.
    pub shard: ShardId,
    /// `running`, `failing` where its sink takes nothing, `waiting` for an instance, `paused` or `stopped`.
    pub state: &'static str,
    /// Since when its sink takes nothing, and why.
    pub failing: Option<LaneFailure>,
    /// Why it was stopped, if it was.
    pub stopped: Option<String>,
    /// The instance that works on it.
    pub owner: Option<String>,
    /// Part of message ids; raised by seek, replay and reset.
    pub epoch: u32,
    /// Everything up to here was pushed.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub cursor: Option<Cursor>,
    /// Changes that it has not pushed yet; null if it has no position.
    pub lag_changes: Option<i64>,
    /// Milliseconds since the oldest of these got its number.
    pub lag_ms: Option<i64>,
    /// Whether what comes next was trimmed already.
    pub expired: bool,
    /// Changes that the sink took.
    pub sent: i64,
    /// Changes that the sink had taken and lost. They were sent again.
    pub lost: i64,
    /// Changes that the sink refused and that were left out.
    pub parked: i64,
}

impl SubscriptionView {
    /// Puts together what belongs to a subscription.
    pub fn new(
        subscription: &Subscription,
        consumers: &[Consumer],
        holders: &[LeaseHolder],
    ) -> Self {
        let paused = subscription.paused.is_some();
        let shard = |lane: &LaneState| shard(subscription, lane, consumers, holders);
        let shards: Vec<SubscriptionShard> = subscription.shards.iter().map(shard).collect();
        let any = |state: &str| shards.iter().any(|shard| shard.state == state);
        let state = match () {
            () if paused => "paused",
            () if any("stopped") => "stopped",
            () if any("failing") => "failing",
            () if any("running") => "running",
            () => "waiting",
        };
        SubscriptionView {
            definition: without_secrets(&subscription.definition),
            state,
            paused: subscription.paused.clone(),
            lag_changes: shards.iter().filter_map(|s| s.lag_changes).sum(),
            lag_ms: shards.iter().filter_map(|s| s.lag_ms).max().unwrap_or(0),
            shards,
        }
    }
}

fn shard(
    subscription: &Subscription,
    lane: &LaneState,
    consumers: &[Consumer],
    holders: &[LeaseHolder],
) -> SubscriptionShard {
    let definition = &subscription.definition;
    let lease = crate::Lane {
        name: definition.name.clone(),
        feed: subscription.feed_id,
        shard: lane.shard,
    }
    .lease();
    let consumer = consumers.iter().find(|consumer| {
        consumer.name == definition.name
            && consumer.feed == definition.feed
            && consumer.shard == lane.shard
    });
    let owner = holders
        .iter()
        .find(|holder| holder.name == lease && holder.expires_in_ms > 0)
        .map(|holder| holder.owner.clone());
    let works = owner.is_some() && lane.stopped.is_none() && subscription.paused.is_none();
    SubscriptionShard {
        shard: lane.shard,
        state: match () {
            () if lane.stopped.is_some() => "stopped",
            () if subscription.paused.is_some() => "paused",
            () if owner.is_some() && lane.failing.is_some() => "failing",
            () if owner.is_some() => "running",
            () => "waiting",
        },
        failing: lane.failing.clone().filter(|_| works),
        stopped: lane.stopped.clone(),
        owner,
        epoch: lane.epoch,
        cursor: lane.cursor,
        lag_changes: consumer.map(|c| c.lag_changes),
        lag_ms: consumer.map(|c| c.lag_ms),
        expired: consumer.is_some_and(|c| c.expired),
        sent: lane.sent,
        lost: lane.lost,
        parked: lane.parked,
    }
}

/// A definition that can be shown: passwords of brokers are replaced. What a webhook must not show is known where
/// webhooks are.
fn without_secrets(definition: &SubscriptionDefinition) -> SubscriptionDefinition {
    let mut shown = definition.clone();
    shown.sink = shown.sink.without_password();
    if let OnRefusal::DeadLetter(sink) = &mut shown.on_refusal {
        *sink = sink.without_password();
    }
    shown
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for SubscriptionView {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        crate::definition::optional(crate::definition::merged_schema::<
            SubscriptionDefinition,
            ViewKeys,
        >())
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for SubscriptionView {
    fn schemas(schemas: &mut crate::definition::Schemas) {
        SubscriptionDefinition::schemas(schemas);
        ViewKeys::schemas(schemas);
    }
}

#[cfg(feature = "openapi")]
#[derive(utoipa::ToSchema)]
#[allow(dead_code, reason = "only described")]
struct ViewKeys {
    /// `running`, `failing`, `waiting` for an instance, `paused` or `stopped`.
    state: String,
    /// Why it is paused, if it is.
    paused: Option<String>,
    /// Changes that it has not pushed yet.
    lag_changes: i64,
    /// Milliseconds since the oldest of these got its number.
    lag_ms: i64,
    /// Its shards.
    shards: Vec<SubscriptionShard>,
}
