//! Retention: what is old and read by everybody may go.

use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{
    After, Cursor, DEFAULT_START, Feed, FeedId, Kind, NewFeed, Retention, ShardId, Step, Store,
};
use changefeed_engine::{CancellationToken, run_trimmer};

use crate::backend::{Backend, numbers};
use crate::eventually;

fn at(n: i64) -> Cursor {
    Cursor::Number(DEFAULT_START + n)
}

async fn with_twenty(backend: &Arc<dyn Backend>) -> (Arc<dyn Store>, Feed) {
    let (store, feed) = backend.feed(37, 1).await;
    let session = backend.session().await;
    session
        .run(&backend.words().publish_range(37, 0, 1, 20))
        .await;
    backend.settle(&*store).await;
    (store, feed)
}

/// Trims until so many are gone; ages are known to about a second.
async fn trim_until(store: &dyn Store, feed: &Feed, left: usize) {
    eventually(&format!("{left} changes are left"), || async {
        store.trim(feed, Duration::ZERO.into(), 1000).await.unwrap();
        (numbers(store, feed, 0).await.len() == left).then_some(())
    })
    .await;
}

/// Nobody is registered, so age alone decides.
pub async fn what_every_consumer_has_read_can_be_trimmed(backend: Arc<dyn Backend>) {
    let (store, feed) = with_twenty(&backend).await;
    for (name, n) in [("slow", 12), ("fast", 20)] {
        let name = name.parse().unwrap();
        store
            .store_cursor(&name, &feed, ShardId(0), None, at(n))
            .await
            .unwrap();
    }
    trim_until(&*store, &feed, 8).await;
    let kept = numbers(&*store, &feed, 0).await;
    assert_eq!(kept[0], (DEFAULT_START + 13, 13));
    store
        .drop_consumer(&"slow".parse().unwrap(), &feed)
        .await
        .unwrap();
    trim_until(&*store, &feed, 0).await;
}

/// However old it is; and the report says who holds it back.
pub async fn what_a_consumer_has_not_read_is_kept(backend: Arc<dyn Backend>) {
    let (store, feed) = with_twenty(&backend).await;
    store
        .store_cursor(&"slow".parse().unwrap(), &feed, ShardId(0), None, at(5))
        .await
        .unwrap();
    trim_until(&*store, &feed, 15).await;
    let held = eventually("the report names who holds it back", || async {
        let trimmed = store
            .trim(&feed, Duration::ZERO.into(), 1000)
            .await
            .unwrap();
        assert_eq!(trimmed.removed, 0);
        (!trimmed.held_back_by.is_empty()).then_some(trimmed.held_back_by)
    })
    .await;
    assert_eq!(held.len(), 1);
    assert!(held[0].contains("slow"), "{held:?}");
    assert_eq!(numbers(&*store, &feed, 0).await.len(), 15);
}

/// By the time they got their number.
pub async fn what_is_younger_than_the_age_is_kept(backend: Arc<dyn Backend>) {
    let (store, feed) = with_twenty(&backend).await;
    let hour = Duration::from_secs(3600);
    assert_eq!(
        store.trim(&feed, hour.into(), 1000).await.unwrap().removed,
        0
    );
    assert_eq!(numbers(&*store, &feed, 0).await.len(), 20);
}

/// An error, never a silent jump.
pub async fn a_cursor_behind_the_trimmed_part_is_expired(backend: Arc<dyn Backend>) {
    let (store, feed) = with_twenty(&backend).await;
    store
        .store_cursor(&"c".parse().unwrap(), &feed, ShardId(0), None, at(10))
        .await
        .unwrap();
    trim_until(&*store, &feed, 10).await;
    for behind in [Cursor::Number(0), at(0), at(9)] {
        let error = store
            .read(&feed, ShardId(0), behind.into(), 10)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::CursorExpired, "{error:?}");
        assert!(error.message().contains("expired"), "{error:?}");
        assert!(error.message().contains(&behind.to_string()), "{error:?}");
    }
    let page = store
        .read(&feed, ShardId(0), at(10).into(), 100)
        .await
        .unwrap();
    assert_eq!(page.changes.len(), 10);
    // A consumer that comes late with what it has read is not refused here (the command and HTTP read
    // first), but everybody can see that it has lost something.
    let late = "late".parse().unwrap();
    store
        .store_cursor(&late, &feed, ShardId(0), None, at(9))
        .await
        .unwrap();
    for known in store.consumers().await.unwrap() {
        assert_eq!(known.expired, known.name == late, "{known:?}");
    }
    // What was trimmed cannot come back under its number.
    let words = backend.words();
    let again = words.publish_old(37, 0, 999, DEFAULT_START - 1);
    assert!(backend.session().await.execute(&again).await.is_err());
}

/// Not at a number that nobody can read any more.
pub async fn first_begins_at_the_oldest_change_that_is_kept(backend: Arc<dyn Backend>) {
    let (store, feed) = with_twenty(&backend).await;
    store
        .store_cursor(&"c".parse().unwrap(), &feed, ShardId(0), None, at(15))
        .await
        .unwrap();
    trim_until(&*store, &feed, 5).await;
    let page = store
        .read(&feed, ShardId(0), After::First, 2)
        .await
        .unwrap();
    let found: Vec<Cursor> = page.changes.iter().map(|c| c.cursor).collect();
    assert_eq!(found, [at(16), at(17)]);
}

/// A trimmed shard forgets its changes, not its numbers.
pub async fn numbers_go_on_after_everything_was_trimmed(backend: Arc<dyn Backend>) {
    let (store, feed) = with_twenty(&backend).await;
    trim_until(&*store, &feed, 0).await;
    let session = backend.session().await;
    let empty = store
        .read(&feed, ShardId(0), After::First, 10)
        .await
        .unwrap();
    assert_eq!(empty.next, at(20));
    let last = store
        .read(&feed, ShardId(0), at(20).into(), 10)
        .await
        .unwrap();
    assert!(last.changes.is_empty());
    session.run(&backend.words().publish(37, 0, 21)).await;
    backend.settle(&*store).await;
    assert_eq!(numbers(&*store, &feed, 0).await, [(DEFAULT_START + 21, 21)]);
}

/// Call again until nothing is removed.
pub async fn trimming_in_small_batches_ends(backend: Arc<dyn Backend>) {
    let (store, feed) = with_twenty(&backend).await;
    let steps = std::sync::Mutex::new(Vec::new());
    eventually("everything is trimmed", || async {
        let trimmed = store.trim(&feed, Duration::ZERO.into(), 6).await.unwrap();
        let mut steps = steps.lock().unwrap();
        steps.push(trimmed.removed);
        (steps.iter().sum::<u64>() == 20).then_some(())
    })
    .await;
    let steps = steps.into_inner().unwrap();
    assert!(steps.iter().all(|removed| *removed <= 6), "{steps:?}");
    let after = store.trim(&feed, Duration::ZERO.into(), 6).await.unwrap();
    assert_eq!(after.removed, 0);
}

/// It held the trim back for ever; now it is told that it has missed something.
pub async fn a_consumer_that_is_gone_holds_nothing_back_for_ever(backend: Arc<dyn Backend>) {
    let (store, feed) = with_twenty(&backend).await;
    let gone = "gone".parse().unwrap();
    store
        .store_cursor(&gone, &feed, ShardId(0), None, at(5))
        .await
        .unwrap();
    let hour = Duration::from_secs(3600);
    let keeping = |unread| Retention {
        trim_after: Duration::ZERO,
        trim_unread_after: Some(unread),
    };
    let trimmed = eventually("what it has read is gone", || async {
        let trimmed = store.trim(&feed, keeping(hour), 1000).await.unwrap();
        let left = numbers(&*store, &feed, 0).await.len();
        assert!(left >= 15, "{left}");
        (left == 15 && !trimmed.held_back_by.is_empty()).then_some(trimmed)
    })
    .await;
    assert!(trimmed.held_back_by[0].starts_with("gone"), "{trimmed:?}");
    eventually("nothing is held back", || async {
        let trimmed = store.trim(&feed, keeping(Duration::ZERO), 7).await.unwrap();
        assert!(trimmed.removed <= 7);
        numbers(&*store, &feed, 0).await.is_empty().then_some(())
    })
    .await;
    let refused = store
        .read(&feed, ShardId(0), After::Cursor(at(5)), 10)
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), Kind::CursorExpired);
    let consumers = store.consumers().await.unwrap();
    assert!(consumers[0].expired, "{consumers:?}");
}

/// The times are kept with the feed, and a running instance goes by them.
pub async fn a_feed_is_trimmed_by_itself(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let days = |n: u64| Duration::from_secs(n * 86400);
    let retention = Retention {
        trim_after: days(30),
        trim_unread_after: Some(days(90)),
    };
    let new = NewFeed {
        id: Some(FeedId(37)),
        retention: Some(retention),
        ..NewFeed::new(crate::backend::name("kept"))
    };
    let mut feed = store.create_feed(&new).await.unwrap();
    assert_eq!(feed.retention, Some(retention));
    assert_eq!(store.feeds().await.unwrap()[0], feed);
    feed.retention = Some(Retention {
        trim_after: Duration::ZERO,
        trim_unread_after: None,
    });
    let change = Step::ChangeFeed(feed.clone());
    store.apply(&[change]).await.unwrap();
    assert_eq!(store.feeds().await.unwrap()[0], feed);
    let session = backend.session().await;
    let words = backend.words();
    session.run(&words.publish_range(37, 0, 1, 20)).await;
    backend.settle(&*store).await;
    // A mark of its age is made at the latest a second after a number.
    eventually("they are old", || async {
        let stop = CancellationToken::new();
        stop.cancel();
        let once = run_trimmer(store.clone(), "tester".to_owned(), stop);
        once.await.unwrap();
        numbers(&*store, &feed, 0).await.is_empty().then_some(())
    })
    .await;
    feed.retention = None;
    store.apply(&[Step::ChangeFeed(feed)]).await.unwrap();
    assert_eq!(store.feeds().await.unwrap()[0].retention, None);
}
