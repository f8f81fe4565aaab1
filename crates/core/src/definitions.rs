//! What has to be done so that a database has the definitions that a file says.

use std::fmt;

use crate::{
    ConsumerName, Cursor, EventTrigger, Feed, NewFeed, ShardId, SubscriptionDefinition,
    TriggerDefinition, TriggerName, Watch, WatchName, WatchSpec,
};

/// One thing to be done. Tables are named as
/// [`find_table`](crate::DefinitionStore::find_table) names them.
#[derive(Debug, Clone)]
pub enum Step {
    /// Creates a feed.
    CreateFeed(NewFeed),
    /// Gives a feed the comment and its shards the sweep groups that it has here, and has it keep images or
    /// not. Nothing else of a feed can be changed.
    ChangeFeed(Feed),
    /// Removes a feed and everything in it.
    DropFeed(Feed),
    /// Creates an event trigger.
    CreateTrigger(TriggerDefinition),
    /// Changes the event trigger of this name; it keeps its events.
    ChangeTrigger(TriggerDefinition),
    /// Stops the deliveries of an event trigger for a reason, or lets them go on.
    PauseTrigger(TriggerName, Option<String>),
    /// Removes an event trigger; its events stay in the log.
    DropTrigger(EventTrigger),
    /// Defines a watch, or puts this definition in the place of the one that it has.
    PutWatch(WatchSpec),
    /// Removes a watch and its backlog.
    DropWatch(Watch),
    /// Defines a subscription that begins in each shard of its feed at a cursor, or with the oldest change; or changes the
    /// one of this name, which goes on where it is.
    PutSubscription(Box<SubscriptionDefinition>, Vec<(ShardId, Option<Cursor>)>),
    /// Stops pushing for a reason, or lets it go on.
    PauseSubscription(ConsumerName, Option<String>),
    /// Removes a subscription and its position.
    DropSubscription(ConsumerName),
}

impl fmt::Display for Step {
    /// The definition that this is about.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::CreateFeed(new) => write!(f, "feed '{}'", new.name),
            Step::ChangeFeed(feed) | Step::DropFeed(feed) => write!(f, "feed '{}'", feed.name),
            Step::CreateTrigger(new) | Step::ChangeTrigger(new) => {
                write!(f, "trigger '{}'", new.name)
            }
            Step::PauseTrigger(name, _) => write!(f, "trigger '{name}'"),
            Step::DropTrigger(trigger) => write!(f, "trigger '{}'", trigger.definition.name),
            Step::PutWatch(spec) => write!(f, "watch '{}'", spec.name),
            Step::DropWatch(watch) => write!(f, "watch '{}'", watch.name),
            Step::PutSubscription(definition, _) => {
                write!(f, "subscription '{}'", definition.name)
            }
            Step::PauseSubscription(name, _) | Step::DropSubscription(name) => {
                write!(f, "subscription '{name}'")
            }
        }
    }
}

impl Step {
    /// The name of the watch that this is about.
    pub fn watch(&self) -> Option<&WatchName> {
        match self {
            Step::PutWatch(spec) => Some(&spec.name),
            Step::DropWatch(watch) => Some(&watch.name),
            _ => None,
        }
    }
}
