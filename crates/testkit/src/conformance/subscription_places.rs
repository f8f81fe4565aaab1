//! Subscriptions as the database keeps them: sinks that are away, and definitions that come together with others.

use std::sync::Arc;

use changefeed_core::{ConsumerName, Kind, ShardId, Sink, Step, SubscriptionDefinition};

use super::subscriptions::{at, definition, lane};
use crate::backend::Backend;
use crate::eventually;

/// A late note of an older generation says nothing, and the beginning of a failure stays.
pub async fn a_sink_that_is_away_is_noted_under_the_generation(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 1).await;
    store
        .create_subscription(&definition(&feed), &feed, &[], false)
        .await
        .unwrap();
    let lane = lane(&feed);
    let failing = async || {
        let state = store.hold_lane(&lane, 5).await.unwrap();
        state.failing.map(|failing| failing.error)
    };
    assert_eq!(failing().await, None);
    store.note_lane(&lane, 4, Some("late")).await.unwrap();
    assert_eq!(failing().await, None);
    store.note_lane(&lane, 5, Some("away")).await.unwrap();
    assert_eq!(failing().await.as_deref(), Some("away"));
    let since = async || {
        let known = store.subscriptions().await.unwrap().remove(0);
        known.shards[0].failing.clone().unwrap().since_ms
    };
    let began = eventually("time passes", || async {
        let now = since().await;
        (now > 5).then_some(now)
    })
    .await;
    store.note_lane(&lane, 5, Some("still away")).await.unwrap();
    assert!(since().await >= began, "it began before");
    assert_eq!(failing().await.as_deref(), Some("still away"));
    store.note_lane(&lane, 4, None).await.unwrap();
    assert_eq!(failing().await.as_deref(), Some("still away"));
    store.note_lane(&lane, 5, None).await.unwrap();
    assert_eq!(failing().await, None);
}

/// Steps of `apply`: a feed and its subscription come together or not at all.
pub async fn subscriptions_are_put_and_dropped_together_with_their_feeds(
    backend: Arc<dyn Backend>,
) {
    let store = backend.installed().await;
    let mut new = changefeed_core::NewFeed::new("orders".parse().unwrap());
    new.shards = 2;
    let name: ConsumerName = "out".parse().unwrap();
    let mut definition = SubscriptionDefinition::new(name.clone(), new.name.clone(), Sink::Stdout);
    let starts = vec![(ShardId(0), None), (ShardId(1), Some(at(3)))];
    let put = |definition: &SubscriptionDefinition| {
        Step::PutSubscription(Box::new(definition.clone()), starts.clone())
    };
    let without_feed = store.apply(&[put(&definition)]).await.unwrap_err();
    assert_eq!(without_feed.kind(), Kind::NotFound, "{without_feed}");
    let unknown = Step::DropSubscription("other".parse().unwrap());
    let steps = [Step::CreateFeed(new.clone()), put(&definition), unknown];
    assert_eq!(
        store.apply(&steps).await.unwrap_err().kind(),
        Kind::NotFound
    );
    assert!(store.feeds().await.unwrap().is_empty());
    let pause = Step::PauseSubscription(name.clone(), Some("a rest".to_owned()));
    let steps = [Step::CreateFeed(new), put(&definition), pause];
    store.apply(&steps).await.unwrap();
    let known = store.subscriptions().await.unwrap().remove(0);
    assert_eq!(known.paused.as_deref(), Some("a rest"));
    let places: Vec<_> = known.shards.iter().map(|s| (s.shard, s.cursor)).collect();
    assert_eq!(places, [(ShardId(0), None), (ShardId(1), Some(at(3)))]);
    definition.batch = 3;
    let resume = Step::PauseSubscription(name.clone(), None);
    store.apply(&[put(&definition), resume]).await.unwrap();
    let known = store.subscriptions().await.unwrap().remove(0);
    assert_eq!((known.definition.batch, known.paused), (3, None));
    assert_eq!(known.shards[1].cursor, Some(at(3)));
    store.apply(&[Step::DropSubscription(name)]).await.unwrap();
    assert!(store.subscriptions().await.unwrap().is_empty());
    assert!(store.consumers().await.unwrap().is_empty());
}
