//! One thing with everything that belongs to it.

use serde::Serialize;

use crate::{
    Consumer, EventTrigger, Feed, FeedId, FeedName, LoggedAttempt, LoggedEvent, Retention,
    ShardState, Source, TriggerState,
};

/// A feed, the traffic of its shards, and its consumers.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct FeedDetail {
    /// The application's constant for this feed.
    pub id: FeedId,
    /// Its name.
    pub name: FeedName,
    /// What somebody wrote about it.
    pub comment: Option<String>,
    /// Where the rows behind its changes are.
    pub source: Option<Source>,
    /// How long its changes are kept; null for ever.
    pub retention: Option<Retention>,
    /// Its shards.
    pub shards: Vec<ShardDetail>,
    /// Its consumers.
    pub consumers: Vec<Consumer>,
}

/// A shard and its traffic.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct ShardDetail {
    /// As the database counts it.
    #[serde(flatten)]
    pub state: ShardState,
    /// Whether waiting readers are woken.
    pub longpoll: bool,
    /// Raised by `feed reshard`: which shards are read together.
    pub generation: i16,
    /// Whether nothing is added to it any more.
    pub closed: bool,
}

impl FeedDetail {
    /// Puts together what belongs to a feed.
    pub fn new(feed: &Feed, states: Vec<ShardState>, consumers: Vec<Consumer>) -> Self {
        let of = |state: &ShardState| feed.shard(state.shard).ok();
        FeedDetail {
            id: feed.id,
            name: feed.name.clone(),
            comment: feed.comment.clone(),
            source: feed.source.clone(),
            retention: feed.retention,
            shards: states
                .into_iter()
                .map(|state| ShardDetail {
                    longpoll: of(&state).is_some_and(|s| s.longpoll),
                    generation: of(&state).map_or(0, |s| s.generation),
                    closed: of(&state).is_some_and(|s| s.closed),
                    state,
                })
                .collect(),
            consumers: consumers
                .into_iter()
                .filter(|c| c.feed == feed.name)
                .collect(),
        }
    }
}

/// An event with every attempt.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct EventDetail {
    /// The event.
    #[serde(flatten)]
    pub event: LoggedEvent,
    /// Its attempts, oldest first.
    pub attempts: Vec<LoggedAttempt>,
}

/// An event trigger and its events, without its secrets.
#[derive(Debug, Clone, Serialize)]
pub struct TriggerView {
    /// Its definition, its number, and whether it is paused.
    #[serde(flatten)]
    pub trigger: EventTrigger,
    /// Its events; null right after it was created.
    pub state: Option<TriggerState>,
}

#[cfg(feature = "openapi")]
mod openapi {
    use utoipa::openapi::{RefOr, Schema};
    use utoipa::{PartialSchema, ToSchema};

    use super::{TriggerState, TriggerView};
    use crate::TriggerDefinition;
    use crate::definition::{Schemas, merged_schema, optional};

    /// What is known of a trigger besides its definition.
    #[derive(ToSchema)]
    #[allow(dead_code, reason = "only its description is used")]
    struct Known {
        /// Its number.
        id: i32,
        /// Why it delivers nothing at present.
        paused: Option<String>,
        /// Its events.
        state: Option<TriggerState>,
    }

    /// A definition refuses other keys, so it cannot be a part of what has more.
    impl PartialSchema for TriggerView {
        fn schema() -> RefOr<Schema> {
            optional(merged_schema::<TriggerDefinition, Known>())
        }
    }

    impl ToSchema for TriggerView {
        fn schemas(schemas: &mut Schemas) {
            TriggerDefinition::schemas(schemas);
            Known::schemas(schemas);
        }
    }
}
