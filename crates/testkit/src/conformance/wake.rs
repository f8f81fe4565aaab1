//! Waiting for news.

use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{After, BatchOutcome, ShardId};
use tokio::task::JoinSet;

use crate::backend::{Backend, is_woken};
use crate::watching::{Scene, quick, spec, take, take_all};

/// Another process writes and sweeps; this one only waits.
pub async fn a_waiter_is_woken_by_a_commit_of_another_instance(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 1).await;
    let other = backend.store().await;
    let (session, words) = (backend.session().await, backend.words());
    let mut waiter = store.listen(&feed, ShardId(0));
    for id in 1..=3 {
        waiter.look();
        let page = store
            .read(&feed, ShardId(0), After::First, 10)
            .await
            .unwrap();
        assert_eq!(page.changes.len(), id - 1);
        let id = i64::try_from(id).unwrap();
        session.run(&words.publish(37, 0, id)).await;
        backend.settle(&*other).await;
        assert!(is_woken(&mut waiter).await, "change {id} woke nobody");
    }
}

/// A busy neighbour costs a waiting reader nothing.
pub async fn a_waiter_is_woken_for_its_own_shard_only(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 2).await;
    let (session, words) = (backend.session().await, backend.words());
    let mut zero = store.listen(&feed, ShardId(0));
    let mut one = store.listen(&feed, ShardId(1));
    // News that came before the connection for waiting was ready may be told to everybody; from
    // the first specific news on it must be specific.
    session.run(&words.publish(37, 0, 1)).await;
    session.run(&words.publish(37, 1, 2)).await;
    backend.settle(&*store).await;
    assert!(is_woken(&mut zero).await && is_woken(&mut one).await);
    for id in 10..20 {
        zero.look();
        one.look();
        session.run(&words.publish(37, 1, id)).await;
        backend.settle(&*store).await;
        assert!(is_woken(&mut one).await);
        // Whoever was to be woken by this has been: the news of one commit comes together.
        let quiet = tokio::time::timeout(Duration::from_millis(20), zero.news()).await;
        if quiet.is_err() {
            return;
        }
        // Tolerated while late news of the first changes may still arrive.
        assert!(id < 15, "the waiter of shard 0 is woken by shard 1");
    }
}

/// The order of a careful reader: look, read, wait.
pub async fn news_between_look_and_wait_is_not_missed(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 1).await;
    let (session, words) = (backend.session().await, backend.words());
    for id in 1..=20i64 {
        let mut waiter = store.listen(&feed, ShardId(0));
        waiter.look();
        let before = store
            .read(&feed, ShardId(0), After::Last, 1)
            .await
            .unwrap()
            .next;
        session.run(&words.publish(37, 0, id)).await;
        backend.settle(&*store).await;
        assert!(is_woken(&mut waiter).await, "change {id} was missed");
        let page = store
            .read(&feed, ShardId(0), before.into(), 10)
            .await
            .unwrap();
        assert_eq!(page.changes.len(), 1);
    }
}

/// In one process, on one store.
pub async fn a_thousand_waiters_are_all_woken(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 4).await;
    let (session, words) = (backend.session().await, backend.words());
    let mut waiters = JoinSet::new();
    for n in 0..1000i16 {
        let mut waiter = store.listen(&feed, ShardId(n % 4));
        let (store, feed) = (Arc::clone(&store), feed.clone());
        waiters.spawn(async move {
            loop {
                waiter.look();
                let page = store
                    .read(&feed, ShardId(n % 4), After::First, 1)
                    .await
                    .unwrap();
                if let Some(change) = page.changes.first() {
                    return change.change_id.unwrap();
                }
                waiter.news().await;
            }
        });
    }
    for shard in 0..4i16 {
        session
            .run(&words.publish(37, shard, i64::from(shard)))
            .await;
    }
    backend.settle(&*store).await;
    let mut sum = 0;
    while let Some(id) = waiters.join_next().await {
        sum += id.unwrap();
    }
    assert_eq!(sum, 250 * (1 + 2 + 3));
}

/// The order of a worker: look, take, wait. Whatever is committed after the take wakes it, whoever moves it.
pub async fn a_watch_is_woken_by_every_change_of_its_table(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let other = scene.backend.store().await;
    let also = scene.store.open_watch(&spec("g", "orders")).await.unwrap();
    let mut waiter = scene.store.listen_to_watch(&scene.watch);
    for id in 1..=10 {
        waiter.look();
        assert!(scene.take("me", &quick()).await.is_none());
        let insert = format!("insert into orders values ({id}, 'x')");
        scene.app.run(&insert).await;
        if id % 2 == 0 {
            // Another instance moves the change, for the other function and for this one.
            assert!(take(&*other, &also, "other", &quick()).await.is_some());
        }
        assert!(is_woken(&mut waiter).await, "change {id} woke nobody");
        waiter.look();
        let batch = scene.take("me", &quick()).await;
        let batch = batch.expect("what it was woken for");
        scene.settle(&batch, BatchOutcome::Done).await;
    }
    // Nobody changes anything, but a change that has failed has to be tried again.
    scene.app.run("delete from orders where id = 1").await;
    let batch = scene.take("me", &quick()).await.unwrap();
    let error = "not now".to_owned();
    scene.settle(&batch, BatchOutcome::Failed { error }).await;
    let again = async {
        loop {
            waiter.look();
            if let Some(batch) = scene.take("me", &quick()).await {
                return batch;
            }
            waiter.news().await;
        }
    };
    let again = tokio::time::timeout(Duration::from_secs(60), again).await;
    assert_eq!(again.expect("it is tried again").attempt, 2);
}

/// A busy neighbour costs an idle watch nothing, nor does a table that nobody watches.
pub async fn a_watch_is_woken_by_its_own_table_only(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    for table in ["busy", "stranger"] {
        let create = format!("create table {table} (id integer primary key, note text)");
        scene.app.run(&create).await;
    }
    let busy = scene.store.open_watch(&spec("g", "busy")).await.unwrap();
    let mut waiter = scene.store.listen_to_watch(&scene.watch);
    let mut neighbour = scene.store.listen_to_watch(&busy);
    // Not every time, but again and again: while the store could not look in time, everybody is woken.
    for id in 1..1000 {
        waiter.look();
        neighbour.look();
        for table in ["stranger", "busy"] {
            let insert = format!("insert into {table} values ({id}, 'x')");
            scene.app.run(&insert).await;
        }
        // The news of one look comes together, and in the next round at the latest.
        assert!(is_woken(&mut neighbour).await, "change {id} woke nobody");
        take_all(&*scene.store, &busy, &quick()).await;
        let quiet = tokio::time::timeout(Duration::from_millis(20), waiter.news()).await;
        if quiet.is_err() {
            return;
        }
    }
    panic!("an idle watch is woken by the changes of other tables");
}
