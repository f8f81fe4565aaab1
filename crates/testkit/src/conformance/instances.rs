//! Promise 12: two instances, or twenty, do the work of one.

use std::sync::Arc;

use changefeed_core::{DEFAULT_START, FeedId, NewFeed, SweepGroup};
use tokio::task::JoinSet;

use crate::backend::{Backend, ids, name, numbers, settle};
use crate::history::Workload;

/// Both sweep at the same time while writers write.
pub async fn promise_12_two_instances_do_the_work_of_one(backend: Arc<dyn Backend>) {
    with_sweepers(backend, 2).await;
}

/// As a fleet would.
pub async fn promise_12_twenty_instances_do_the_work_of_one(backend: Arc<dyn Backend>) {
    with_sweepers(backend, 20).await;
}

async fn with_sweepers(backend: Arc<dyn Backend>, sweepers: usize) {
    let (_, feed) = backend.feed(37, 2).await;
    let workload = Workload {
        writers: 8,
        transactions: 25,
        readers: 1,
        sweepers,
        ..Workload::short()
    };
    workload.run(backend, &feed, async |_, _| {}).await;
}

/// More than any store numbers in one go.
const BACKLOG: i64 = 230_000;

/// Nothing is lost where one sweep ends and the next begins, with several at once and with new
/// changes that have lower ids arriving between them.
pub async fn a_backlog_larger_than_a_batch_is_numbered_in_order(backend: Arc<dyn Backend>) {
    const FIRST: i64 = 1_000_000;
    let (store, feed) = backend.feed(37, 1).await;
    let (session, words) = (backend.session().await, backend.words());
    session
        .run(&words.publish_range(37, 0, FIRST, BACKLOG))
        .await;
    let mut sweepers = JoinSet::new();
    for _ in 0..3 {
        let store = backend.store().await;
        sweepers.spawn(async move { settle(&*store, SweepGroup(0)).await });
    }
    for id in 0..50 {
        session.run(&words.publish(37, 0, id)).await;
    }
    while let Some(outcome) = sweepers.join_next().await {
        outcome.unwrap();
    }
    backend.settle(&*store).await;
    let all = numbers(&*store, &feed, 0).await;
    assert_eq!(all.len(), usize::try_from(BACKLOG).unwrap() + 50);
    assert!((DEFAULT_START + 1..).zip(&all).all(|(n, (m, _))| n == *m));
    let (big, small): (Vec<i64>, Vec<i64>) = all.iter().map(|c| c.1).partition(|id| *id >= FIRST);
    assert!(big.into_iter().eq(FIRST..FIRST + BACKLOG));
    assert!(small.into_iter().eq(0..50));
}

/// A quiet shard gets its number in the first sweep, however long the queue of its neighbour.
pub async fn a_hot_shard_does_not_starve_its_group(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 3).await;
    let (session, words) = (backend.session().await, backend.words());
    session.run(&words.publish_range(37, 1, 0, BACKLOG)).await;
    session.run(&words.publish(37, 0, 1_000_000)).await;
    session.run(&words.publish(37, 2, 1_000_001)).await;
    if store.needs_sweeping() {
        let report = store.sweep(SweepGroup(0)).await.unwrap();
        assert!(report.changes() < BACKLOG, "one sweep is bounded");
    }
    assert_eq!(ids(&*store, &feed, 0).await, [1_000_000]);
    assert_eq!(ids(&*store, &feed, 2).await, [1_000_001]);
    backend.settle(&*store).await;
    let state = store.shard_states(&feed).await.unwrap();
    assert_eq!(state[1].last.number().unwrap(), DEFAULT_START + BACKLOG);
}

/// A sweep of one group leaves the others alone.
pub async fn sweep_groups_are_independent(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let (session, words) = (backend.session().await, backend.words());
    let mut feeds = Vec::new();
    for id in [1, 2] {
        let new = NewFeed {
            id: Some(FeedId(id)),
            sweep_group: SweepGroup(10 * id),
            ..NewFeed::new(name(&format!("f{id}")))
        };
        feeds.push(store.create_feed(&new).await.unwrap());
        session.run(&words.publish_many(id, 0, 1..4)).await;
    }
    if !store.needs_sweeping() {
        assert_eq!(ids(&*store, &feeds[0], 0).await, [1, 2, 3]);
        return;
    }
    assert_eq!(
        store.sweep_groups().await.unwrap(),
        [SweepGroup(10), SweepGroup(20)]
    );
    assert_eq!(store.shard_states(&feeds[0]).await.unwrap()[0].pending, 3);
    let report = store.sweep(SweepGroup(20)).await.unwrap();
    assert_eq!(report.changes(), 3);
    assert_eq!(report.shards.len(), 1);
    assert_eq!(report.shards[0].feed_id, FeedId(2));
    assert!(report.max_lag_ms() >= 0);
    assert_eq!(ids(&*store, &feeds[0], 0).await, [0i64; 0]);
    assert_eq!(ids(&*store, &feeds[1], 0).await, [1, 2, 3]);
    assert_eq!(store.sweep(SweepGroup(99)).await.unwrap().changes(), 0);
    settle(&*store, SweepGroup(10)).await;
    assert_eq!(ids(&*store, &feeds[0], 0).await, [1, 2, 3]);
}
