//! Calls whose outcome the caller does not know: the answer was lost, or the database executed the
//! call late. Each of them can be repeated, and none of them undoes what happened since.

use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{
    BatchOutcome, ConsumerName, Cursor, DEFAULT_START, EventFilter, Kind, Redelivery, ShardId,
    Verdict, seek_consumer,
};

use crate::backend::Backend;
use crate::events::{
    LEASE, attempts, captured_orders, claim, everything, finish, key, log, raw, shown, told,
};
use crate::watching::{Scene, failed, ids, quick};

/// The second instance has gone on; the first one's call arrives only now.
pub async fn a_cursor_that_is_stored_late_moves_nothing_back(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 1).await;
    let (name, shard): (ConsumerName, _) = ("mailer".parse().unwrap(), ShardId(0));
    let at = |n: i64| Cursor::Number(DEFAULT_START + n);
    let move_to = |from: Option<i64>, to: i64| {
        let (store, name, feed) = (&store, &name, &feed);
        async move {
            let moved = store.store_cursor(name, feed, shard, from.map(at), at(to));
            moved.await.map_err(|error| error.kind())
        }
    };
    let stored = async || {
        let cursor = store.consumer_cursor(&name, &feed, shard).await.unwrap();
        cursor.unwrap()
    };
    assert_eq!(move_to(Some(0), 1).await, Err(Kind::Moved), "there is none");
    move_to(None, 1).await.unwrap();
    // The answer was lost, and the caller asks again.
    move_to(None, 1).await.unwrap();
    move_to(Some(1), 2).await.unwrap();
    move_to(Some(1), 2).await.unwrap();
    move_to(Some(2), 3).await.unwrap();
    for (from, to) in [(None, 1), (None, 2), (Some(1), 2), (Some(2), 1)] {
        assert_eq!(move_to(from, to).await, Err(Kind::Moved), "{from:?} {to}");
        assert_eq!(stored().await, at(3));
    }
    // Nothing new was read.
    move_to(Some(3), 3).await.unwrap();
    // A person may move it back.
    seek_consumer(&*store, &name, &feed, shard, at(1))
        .await
        .unwrap();
    assert_eq!(stored().await, at(1));
    // Forgotten, and the consumer's last call comes late: it does not come back.
    store.drop_consumer(&name, &feed).await.unwrap();
    assert_eq!(move_to(Some(1), 2).await, Err(Kind::Moved));
    assert!(store.consumers().await.unwrap().is_empty());
}

/// The claim was committed, and its answer lost. Nothing was sent, so no retry is used up and no
/// attempt is in the log.
pub async fn a_claim_that_got_no_answer_is_given_back_and_was_no_attempt(
    backend: Arc<dyn Backend>,
) {
    let columns = "id integer primary key";
    let (store, session, trigger) = captured_orders(&*backend, columns).await;
    session.run("insert into orders values (1)").await;
    session.run("insert into orders values (2)").await;
    let lost = claim(&*store, &trigger, 1, "me", LEASE).await;
    let theirs = claim(&*store, &trigger, 1, "you", LEASE).await;
    assert_eq!((lost.len(), theirs.len()), (1, 1));
    let held = async |owner: &str| store.held_events(owner, 2 * LEASE).await.unwrap();
    assert_eq!(held("me").await, [lost[0].claim()]);
    assert_eq!(held("you").await, [theirs[0].claim()]);
    assert!(held("nobody").await.is_empty());
    store.release_events(&held("me").await).await.unwrap();
    assert!(held("me").await.is_empty());
    let again = claim(&*store, &trigger, 10, "you", LEASE).await;
    assert_eq!(again.len(), 1);
    assert_eq!((again[0].attempt, again[0].cut_off), (1, 0));
    // It was given back by a call that is executed late, or twice.
    store.release_events(&[lost[0].claim()]).await.unwrap();
    finish(&*store, &again[0], Verdict::Delivered).await;
    assert_eq!(
        attempts(&*store, again[0].event.id).await,
        ["1 success 200"]
    );
    assert_eq!(
        held("you").await,
        [theirs[0].claim()],
        "what is done is not held"
    );
    // Over for a moment, but nobody has taken it yet.
    let brief = Duration::from_millis(1);
    store
        .renew_events(&[theirs[0].claim()], brief)
        .await
        .unwrap();
    assert_eq!(held("you").await, [theirs[0].claim()]);
}

/// The lease was committed, and its answer lost. The function was not called.
pub async fn a_batch_that_got_no_answer_is_given_back_and_was_no_attempt(
    backend: Arc<dyn Backend>,
) {
    let scene = Scene::new(backend).await;
    let settings = changefeed_core::WatchSettings {
        lease: LEASE,
        batch: 2,
        ..quick()
    };
    scene
        .app
        .run("insert into orders values (1, 'a'), (2, 'a'), (3, 'a')")
        .await;
    let lost = scene.take("me", &settings).await.unwrap();
    let theirs = scene.take("you", &settings).await.unwrap();
    let held = async |owner: &str| {
        let held = scene.store.held_batches(&scene.watch, owner).await.unwrap();
        let told: Vec<(i64, (i64, i64), u32)> = held
            .iter()
            .map(|b| (b.generation, b.versions, b.attempt))
            .collect();
        (held, told)
    };
    let (batches, told) = held("me").await;
    assert_eq!(told, [(lost.generation, lost.versions, 1)]);
    assert_eq!(scene.settle(&batches[0], BatchOutcome::Released).await, 2);
    assert!(held("me").await.1.is_empty());
    let again = scene.take("you", &settings).await.unwrap();
    assert_eq!((ids(&again), again.attempt), (vec![1, 2], 1));
    // Given back once more, late: they are somebody else's.
    assert_eq!(scene.settle(&batches[0], BatchOutcome::Released).await, 0);
    let (_, told) = held("you").await;
    assert_eq!(told.len(), 2);
    // Rows that wait for their next attempt are not in process.
    assert_eq!(scene.settle(&again, failed("no")).await, 2);
    let (_, told) = held("you").await;
    assert_eq!(told, [(theirs.generation, theirs.versions, 1)]);
    assert_eq!(scene.settle(&theirs, BatchOutcome::Done).await, 1);
}

/// A person's request was done, and its answer lost; or two of the same arrive together.
pub async fn an_event_by_hand_is_one_event_for_each_key(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session
        .run("create table orders (id integer primary key)")
        .await;
    let mut definition = everything("t", "orders");
    definition.capture.manual = true;
    let trigger = store.create_trigger(&definition, false).await.unwrap();
    let (first, second) = (key(), key());
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (store, trigger) = (backend.store().await, trigger.clone());
        tasks.push(tokio::spawn(async move {
            store.invoke_trigger(&trigger, &raw("1"), first).await
        }));
    }
    let mut given = Vec::new();
    for task in tasks {
        given.push(task.await.unwrap().unwrap());
    }
    given.dedup();
    assert_eq!(given.len(), 1, "{given:?}");
    let other = store.invoke_trigger(&trigger, &raw("2"), second).await;
    let again = store.invoke_trigger(&trigger, &raw("1"), first).await;
    assert_eq!(again.unwrap(), given[0]);
    assert_ne!(other.unwrap(), given[0]);
    assert_eq!(told(&*store).await.len(), 2);
}

/// It waits for its first attempt already. After an attempt it is a new wish.
pub async fn a_redelivery_that_is_repeated_changes_nothing(backend: Arc<dyn Backend>) {
    let columns = "id integer primary key";
    let (store, session, trigger) = captured_orders(&*backend, columns).await;
    session.run("insert into orders values (1)").await;
    let dead = claim(&*store, &trigger, 1, "me", LEASE).await.remove(0);
    finish(&*store, &dead, Verdict::GiveUp).await;
    let id = dead.event.id;
    let again = async || {
        store
            .redeliver(&Redelivery::Event(id), key())
            .await
            .unwrap()
    };
    assert_eq!(again().await, 1);
    let waiting = shown(&*store, id).await.0;
    assert_eq!(again().await, 1);
    let still = shown(&*store, id).await.0;
    assert_eq!(
        still.next_retry_at, waiting.next_retry_at,
        "it was not touched"
    );
    let taken = claim(&*store, &trigger, 1, "me", LEASE).await.remove(0);
    assert_eq!(taken.attempt, 1);
    // Late: it is being delivered. One that was done before is done.
    let busy = store.redeliver(&Redelivery::Event(id), key()).await;
    assert_eq!(busy.unwrap_err().kind(), Kind::Busy);
    // It is still ours.
    finish(&*store, &taken, Verdict::Delivered).await;
    assert_eq!(log(&*store).await.len(), 1);
}

/// Also after an attempt: the same key is the same wish, of one event and of many.
pub async fn a_redelivery_with_a_key_is_done_once(backend: Arc<dyn Backend>) {
    let columns = "id integer primary key";
    let (store, session, trigger) = captured_orders(&*backend, columns).await;
    session.run("insert into orders values (1), (2), (3)").await;
    let fails = async || {
        let dead = claim(&*store, &trigger, 5, "me", LEASE).await;
        for event in &dead {
            finish(&*store, event, Verdict::GiveUp).await;
        }
        dead.len()
    };
    assert_eq!(fails().await, 3);
    let id = log(&*store).await[1].event.id;
    let many = Redelivery::Matching(EventFilter {
        trigger: Some(trigger.definition.name.clone()),
        ..EventFilter::default()
    });
    let first = key();
    for again in [3, 0, 0] {
        assert_eq!(store.redeliver(&many, first).await.unwrap(), 3);
        assert_eq!(fails().await, again);
    }
    assert_eq!(store.redeliver(&many, key()).await.unwrap(), 3);
    assert_eq!(fails().await, 3);
    let one = Redelivery::Event(id);
    let second = key();
    for again in [1, 0, 0] {
        assert_eq!(store.redeliver(&one, second).await.unwrap(), 1);
        assert_eq!(fails().await, again);
    }
    // At the same time, too.
    let third = key();
    let both = tokio::join!(store.redeliver(&many, third), store.redeliver(&many, third));
    assert_eq!((both.0.unwrap(), both.1.unwrap()), (3, 3));
    assert_eq!(fails().await, 3);
}
