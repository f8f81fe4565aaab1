//! Subscriptions, as a library user holds them.

use std::sync::Arc;

use changefeed_core::view::SubscriptionView;
use changefeed_core::{
    After, ConsumerName, Cursor, Kind, Lane, OnRefusal, Result, ShardId, Sink, Subscription,
    SubscriptionDefinition, words,
};
use futures_util::future::try_join_all;

use super::{Changefeed, FeedHandle};
use crate::sinks::destination::Destination;
use crate::sinks::webhook::without_secrets;
use crate::subscriber::{Leases, Sinks, Subscriber};
use crate::supervisor::unique_name;
use crate::{CancellationToken, subscriber};

impl Changefeed {
    /// All subscriptions, where their shards stand, and who works on them.
    pub async fn subscriptions(&self) -> Result<Vec<SubscriptionView>> {
        let store = self.store();
        let subscriptions = store.subscriptions().await?;
        if subscriptions.is_empty() {
            return Ok(Vec::new());
        }
        let (consumers, holders) = tokio::try_join!(store.consumers(), store.lease_holders())?;
        let view = |subscription| {
            let mut view = SubscriptionView::new(subscription, &consumers, &holders);
            view.definition.sink = without_secrets(&view.definition.sink);
            if let OnRefusal::DeadLetter(sink) = &mut view.definition.on_refusal {
                *sink = without_secrets(sink);
            }
            view
        };
        Ok(subscriptions.iter().map(view).collect())
    }

    /// One of them.
    pub async fn subscription(&self, name: &ConsumerName) -> Result<SubscriptionView> {
        let all = self.subscriptions().await?;
        all.into_iter()
            .find(|view| view.definition.name == *name)
            .ok_or_else(|| words::no_subscription(name))
    }

    /// Creates a subscription; `serve` runs it. With `replace`, the one of the same name gets this definition and goes
    /// on where it is.
    pub async fn create_subscription(
        &self,
        definition: &SubscriptionDefinition,
        replace: bool,
    ) -> Result<SubscriptionView> {
        definition.validate()?;
        let feed = self.feed(definition.feed.as_str()).await?;
        definition.check_feed(feed.definition())?;
        let starts = feed.starts(definition.from).await?;
        let starts: Vec<(ShardId, Cursor)> = starts
            .into_iter()
            .filter_map(|(shard, start)| Some((shard, start?)))
            .collect();
        self.store()
            .create_subscription(definition, feed.definition(), &starts, replace)
            .await?;
        self.subscription(&definition.name).await
    }

    /// Has a subscription go on elsewhere, in one shard or in all, in a new epoch: the sink gets everything behind
    /// that place, whether or not it had it before.
    pub async fn seek_subscription(
        &self,
        name: &ConsumerName,
        shard: Option<ShardId>,
        to: After,
    ) -> Result<SubscriptionView> {
        let (subscription, feed) = self.find_subscription(name).await?;
        if let Some(shard) = shard {
            feed.definition().shard(shard)?;
        }
        for lane in lanes(&subscription, &feed, shard) {
            let cursor = start(&feed, lane.shard, to).await?;
            self.store().restart_lane(&lane, cursor).await?;
        }
        self.subscription(name).await
    }

    /// Accepts that the sink does not hold what was pushed before, and goes on behind it in a new epoch: from the
    /// stored position, or from now if that cannot be read any more.
    pub async fn reset_subscription(&self, name: &ConsumerName) -> Result<SubscriptionView> {
        let (subscription, feed) = self.find_subscription(name).await?;
        for lane in lanes(&subscription, &feed, None) {
            let known = subscription.shards.iter().find(|s| s.shard == lane.shard);
            let stored = known.and_then(|state| state.cursor);
            let from = match stored {
                Some(cursor) => match feed.read(lane.shard, After::Cursor(cursor), 1).await {
                    Ok(_) => After::Cursor(cursor),
                    Err(error) if expired(error.kind()) => After::Last,
                    Err(error) => return Err(error),
                },
                None if known.is_some_and(|state| state.stopped.is_none()) => After::First,
                None => After::Last,
            };
            let cursor = start(&feed, lane.shard, from).await?;
            self.store().restart_lane(&lane, cursor).await?;
        }
        self.subscription(name).await
    }

    async fn find_subscription(&self, name: &ConsumerName) -> Result<(Subscription, FeedHandle)> {
        let all = self.store().subscriptions().await?;
        let subscription = all
            .into_iter()
            .find(|subscription| subscription.definition.name == *name)
            .ok_or_else(|| words::no_subscription(name))?;
        let feed = self.feed(subscription.definition.feed.as_str()).await?;
        Ok((subscription, feed))
    }
}

fn expired(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::CursorExpired | Kind::CursorAhead | Kind::Recovered
    )
}

fn lanes(subscription: &Subscription, feed: &FeedHandle, only: Option<ShardId>) -> Vec<Lane> {
    let shards = feed.definition().shards.iter().map(|shard| shard.shard);
    shards
        .filter(|shard| only.is_none_or(|only| only == *shard))
        .map(|shard| Lane {
            name: subscription.definition.name.clone(),
            feed: subscription.feed_id,
            shard,
        })
        .collect()
}

/// The cursor for a place to begin at; none for the oldest change, behind which nothing may be put: rows that are
/// backfilled later come before it.
async fn start(feed: &FeedHandle, shard: ShardId, from: After) -> Result<Option<Cursor>> {
    match from {
        After::First => Ok(None),
        After::Cursor(cursor) => {
            // Refuses a cursor that no reader of this feed could have.
            feed.read(shard, from, 1).await?;
            Ok(Some(cursor))
        }
        After::Last | After::Time(_) => feed.position(shard, from).await.map(Some),
    }
}

impl FeedHandle {
    /// The cursor in each shard for a place to begin at; none for the oldest change.
    pub async fn starts(&self, from: After) -> Result<Vec<(ShardId, Option<Cursor>)>> {
        let mut starts = Vec::new();
        for shard in &self.feed.shards {
            starts.push((shard.shard, start(self, shard.shard, from).await?));
        }
        Ok(starts)
    }

    /// Pushes the changes of every shard to a sink of the program's own, until told to stop. The subscription is
    /// created if it is new, and goes on where it is otherwise; of several processes that call this, one works on each
    /// shard. [`PushTo`](crate::sinks::PushTo) makes a sink of a function.
    pub async fn subscribe(
        &self,
        name: ConsumerName,
        sink: Arc<dyn Destination>,
        shutdown: CancellationToken,
    ) -> Result<()> {
        let feed = self.feed.name.clone();
        let new = SubscriptionDefinition::new(name.clone(), feed, Sink::InProcess);
        let created = self.store.create_subscription(&new, &self.feed, &[], false);
        match created.await {
            Err(error) if error.kind() != Kind::AlreadyExists => return Err(error),
            _ => {}
        }
        let known = self.store.subscriptions().await?.into_iter();
        let definition = known
            .map(|subscription| subscription.definition)
            .find(|definition| definition.name == name)
            .ok_or_else(|| words::no_subscription(&name))?;
        let leases = Leases::start(self.store.clone(), unique_name());
        let shards = self.feed.shards.iter().map(|shard| {
            let sinks = subscriber::Sinks {
                main: sink.clone(),
                refused: None,
            };
            let definition = definition.clone();
            self.subscriber(definition, shard.shard, &leases, sinks)
                .run(shutdown.clone())
        });
        try_join_all(shards).await.map(drop)
    }

    fn subscriber(
        &self,
        definition: SubscriptionDefinition,
        shard: ShardId,
        leases: &Arc<Leases>,
        sinks: Sinks,
    ) -> Subscriber {
        let (store, feed) = (self.store.clone(), self.feed.clone());
        Subscriber::new(store, definition, feed, shard, leases.clone(), sinks)
    }
}
