//! Another number of shards for a feed that is in use.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use changefeed_core::{
    After, Cursor, DEFAULT_START, Feed, Kind, Page, ShardId, Sink, Store, SubscriptionDefinition,
    TableName,
};
use changefeed_engine::sinks::Files;
use changefeed_engine::{CancellationToken, Changefeed, Leases, Sinks, Subscriber};
use fastrand::Rng;
use futures_util::StreamExt;
use serde_json::Value;

use super::replaying::{apply, cells, texts};
use super::telling::ORDERS;
use crate::backend::{Backend, Session, captured, eventually_true, read_all};

/// A feed of `orders` with images, in shards by `id`.
async fn by_id(
    backend: &Arc<dyn Backend>,
    shards: i16,
) -> (Arc<dyn Store>, Feed, Box<dyn Session>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session.run(ORDERS).await;
    let orders = TableName::unqualified("orders");
    let mut new = captured("orders", orders, Some("id"), shards);
    new.source.as_mut().unwrap().keep_images(true);
    let feed = store.create_feed(&new).await.unwrap();
    (store, feed, session)
}

async fn read(store: &dyn Store, feed: &Feed, shard: i16, after: After) -> Page {
    store.read(feed, ShardId(shard), after, 100).await.unwrap()
}

/// The ids of the rows that the changes of a shard are about.
async fn told(store: &dyn Store, feed: &Feed, shard: i16) -> Vec<i64> {
    let changes = read_all(store, feed, shard, 100).await;
    let key =
        |json: &serde_json::value::RawValue| -> Value { serde_json::from_str(json.get()).unwrap() };
    let ids = changes
        .iter()
        .map(|c| key(c.key.as_ref().unwrap())["id"].as_i64());
    ids.map(Option::unwrap).collect()
}

/// What was written before is in the old shards, which say where they end; what is written then is in the new ones.
pub async fn a_feed_goes_on_in_other_shards(backend: Arc<dyn Backend>) {
    let (store, feed, session) = by_id(&backend, 2).await;
    session
        .run("insert into orders values (0, 1, 'a'), (1, 1, 'a'), (2, 1, 'a')")
        .await;
    backend.settle(&*store).await;
    assert!(!read(&*store, &feed, 0, After::First).await.closed);
    // Has no number yet, where sweeps give them.
    session
        .run("update orders set note = 'b' where id = 0")
        .await;
    let resharded = store.reshard(&feed, 3).await.unwrap();
    let seen = store.feeds().await.unwrap().remove(0);
    assert_eq!(resharded, seen);
    let shards: Vec<(i16, i16, bool)> = seen
        .shards
        .iter()
        .map(|s| (s.shard.0, s.generation, s.closed))
        .collect();
    let expected = [
        (0, 0, true),
        (1, 0, true),
        (2, 1, false),
        (3, 1, false),
        (4, 1, false),
    ];
    assert_eq!(shards, expected);
    if store.needs_sweeping() {
        let page = read(&*store, &seen, 0, After::First).await;
        assert!(!page.closed, "one more is still to come");
    }
    session
        .run("update orders set note = 'c', customer_id = 2")
        .await;
    session.run("delete from orders where id = 1").await;
    backend.settle(&*store).await;
    assert_eq!(told(&*store, &seen, 0).await, [0, 2, 0]);
    assert_eq!(told(&*store, &seen, 1).await, [1]);
    assert_eq!(told(&*store, &seen, 2).await, [0]);
    assert_eq!(told(&*store, &seen, 3).await, [1, 1]);
    assert_eq!(told(&*store, &seen, 4).await, [2]);
    for (shard, closed) in [(0, true), (1, true), (2, false), (4, false)] {
        let page = read(&*store, &seen, shard, After::First).await;
        assert_eq!(page.closed, closed, "{shard}");
        let end = read(&*store, &seen, shard, page.next.into()).await;
        assert_eq!((end.changes.len(), end.closed), (0, closed), "{shard}");
        let last = read(&*store, &seen, shard, After::Last).await;
        assert_eq!((last.next, last.closed), (page.next, closed), "{shard}");
    }
    let page = store
        .read(&seen, ShardId(0), After::First, 1)
        .await
        .unwrap();
    assert!(page.more && !page.closed);
    // A call whose answer was lost is repeated.
    assert_eq!(store.reshard(&feed, 3).await.unwrap(), seen);
    // Back to one, and everything else about the feed goes on.
    let one = store.reshard(&seen, 1).await.unwrap();
    session.run("insert into orders values (7, 1, 'd')").await;
    backend.settle(&*store).await;
    assert_eq!(told(&*store, &one, 5).await, [7]);
    assert!(read(&*store, &one, 2, After::First).await.closed);
    // Shards that never had a change are over at once, wherever somebody begins.
    let five = store.reshard(&one, 5).await.unwrap();
    let two = store.reshard(&five, 2).await.unwrap();
    let start = After::Cursor(Cursor::Number(DEFAULT_START));
    for after in [After::First, start, After::Last] {
        for (shard, closed) in [(6, true), (10, true), (11, false), (12, false)] {
            let page = read(&*store, &two, shard, after).await;
            assert_eq!(page.closed, closed, "{shard} after {after}");
        }
    }
    let one = two;
    let trimmed = store.trim(&one, Duration::ZERO.into(), 1000).await.unwrap();
    assert!(trimmed.removed > 0);
    assert!(read(&*store, &one, 0, After::First).await.closed);
    let findings = store.capture_findings().await.unwrap();
    let about = findings.iter().filter(|f| f.subject.contains("orders"));
    assert_eq!(about.count(), 0, "{findings:?}");
}

/// What it has not read is not trimmed, in the new shards either.
pub async fn a_consumer_finds_everything_in_the_new_shards(backend: Arc<dyn Backend>) {
    let (store, feed, session) = by_id(&backend, 1).await;
    session.run("insert into orders values (0, 1, 'a')").await;
    backend.settle(&*store).await;
    let me = "me".parse().unwrap();
    let end = Cursor::Number(DEFAULT_START + 1);
    let zero = ShardId(0);
    store
        .store_cursor(&me, &feed, zero, None, end)
        .await
        .unwrap();
    let feed = store.reshard(&feed, 2).await.unwrap();
    session
        .run("insert into orders values (1, 1, 'b'), (2, 1, 'b')")
        .await;
    backend.settle(&*store).await;
    while store
        .trim(&feed, Duration::ZERO.into(), 1000)
        .await
        .unwrap()
        .removed
        > 0
    {}
    for shard in [1, 2].map(ShardId) {
        let at = store.consumer_cursor(&me, &feed, shard).await.unwrap();
        assert_eq!(at, Some(Cursor::Number(DEFAULT_START)));
        let page = store.read(&feed, shard, at.unwrap().into(), 10).await;
        assert_eq!(page.unwrap().changes.len(), 1, "{shard}");
    }
}

/// With a sentence, and nothing has changed.
pub async fn only_captured_feeds_get_another_number_of_shards(backend: Arc<dyn Backend>) {
    let (store, published) = backend.feed(7, 2).await;
    let session = backend.session().await;
    session.run(ORDERS).await;
    let orders = TableName::unqualified("orders");
    let single = captured("single", orders.clone(), None, 1);
    let single = store.create_feed(&single).await.unwrap();
    session
        .run("insert into orders values (1, 1, 'a'), (2, 1, 'a')")
        .await;
    let spread = captured("spread", orders, Some("id"), 2);
    let spread = store.create_feed(&spread).await.unwrap();
    assert!(!store.backfill(&spread, 1).await.unwrap().finished);
    let before = store.feeds().await.unwrap();
    for (feed, shards, kind) in [
        (&published, 3, Kind::Invalid),
        (&single, 2, Kind::Invalid),
        (&spread, 0, Kind::Invalid),
        (&spread, i16::MAX, Kind::Busy),
        (&spread, 3, Kind::Busy),
    ] {
        let error = store.reshard(feed, shards).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
    }
    while !store.backfill(&spread, 1).await.unwrap().finished {}
    let error = store.reshard(&spread, i16::MAX).await.unwrap_err();
    assert!(error.message().contains("32767"), "{error:?}");
    assert_eq!(store.feeds().await.unwrap(), before);
    store.drop_feed(&spread).await.unwrap();
    let error = store.reshard(&spread, 3).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error:?}");
}

/// Writers write, in transactions of some length, while the number of shards is changed again and again: for each row, the
/// old row of every change is the new one of the change before, and the last ones are the table. A follower of
/// the whole feed sees the same.
pub async fn order_is_kept_for_each_row_while_shards_are_closed_under_writers(
    backend: Arc<dyn Backend>,
) {
    const ROWS: i32 = 12;
    let (store, feed, session) = by_id(&backend, 2).await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    let (stop, db) = (
        Arc::new(AtomicBool::new(false)),
        Changefeed::new(store.clone()),
    );
    let follower = db.feed("orders").await.unwrap().follow_all(After::First);
    let follower = tokio::spawn(async move {
        let mut seen = BTreeMap::new();
        let mut follower = std::pin::pin!(follower);
        let mut count = 0;
        while let Some(change) = follower.next().await {
            let (shard, change) = change.unwrap();
            // Nobody writes this but the end.
            if serde_json::to_string(&change.key)
                .unwrap()
                .contains("999999")
            {
                break;
            }
            apply(&mut seen, &change, &format!("follower of {shard}"));
            count += 1;
        }
        (seen, count)
    });
    let mut writers = Vec::new();
    for writer in 0..3 {
        let (backend, stop) = (backend.clone(), stop.clone());
        let mut random = Rng::with_seed(random.u64(..));
        writers.push(tokio::spawn(async move {
            let (session, words) = (backend.session().await, backend.words());
            let mut turn = 0;
            while !stop.load(Ordering::Relaxed) {
                turn += 1;
                // In order of the rows, so that writers do not lock each other.
                let a = random.i32(0..ROWS);
                let note = format!("{writer}-{turn}");
                let writes = [
                    format!("delete from orders where id = {a} and {turn} % 5 = 0"),
                    format!("update orders set note = '{note}' where id = {a}"),
                    format!(
                        "insert into orders select {a}, 1, '{note}' \
                         where not exists (select 1 from orders where id = {a})"
                    ),
                ];
                if session.execute(words.begin).await.is_err() {
                    continue;
                }
                let mut ended = Ok(());
                for write in &writes {
                    ended = match ended {
                        Ok(()) => session.execute(write).await,
                        failed => failed,
                    };
                }
                let end = if ended.is_ok() && turn % 7 > 0 {
                    "commit"
                } else {
                    "rollback"
                };
                let _ = session.execute(end).await;
                tokio::time::sleep(Duration::from_millis(random.u64(0..4))).await;
            }
        }));
    }
    let sweeping = async {
        while !stop.load(Ordering::Relaxed) {
            backend.settle(&*store).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let changing = async {
        for count in [3, 1, 4, 2] {
            tokio::time::sleep(Duration::from_millis(150)).await;
            eventually_true("another number of shards", async || {
                match store.reshard(&feed, count).await {
                    Ok(_) => true,
                    // Writers keep the table, or SQLite's file, busy.
                    Err(error) if error.kind() == Kind::Busy => false,
                    Err(error) => panic!("{error:?}"),
                }
            })
            .await;
        }
        tokio::time::sleep(Duration::from_millis(150)).await;
        stop.store(true, Ordering::Relaxed);
    };
    tokio::join!(sweeping, changing);
    for writer in writers {
        writer.await.unwrap();
    }
    backend.settle(&*store).await;
    let feed = store.feeds().await.unwrap().remove(0);
    let mut copy = BTreeMap::new();
    let mut count = 0;
    for (generation, shards) in feed.generations().into_iter().enumerate() {
        for shard in shards {
            let changes = read_all(&*store, &feed, shard.0, 50).await;
            for change in &changes {
                apply(
                    &mut copy,
                    change,
                    &format!("generation {generation} shard {shard}"),
                );
            }
            count += changes.len();
            let end = read(&*store, &feed, shard.0, After::Last).await;
            assert_eq!(end.closed, generation < 4, "{shard}");
        }
    }
    let table = "select id, customer_id, note from orders order by id";
    let table = session.query(table).await.unwrap();
    assert_eq!(texts(&copy), cells(table));
    assert_eq!(feed.shards.len(), 12);
    session
        .run("insert into orders values (999999, 1, 'end')")
        .await;
    backend.settle(&*store).await;
    let (seen, followed) = follower.await.unwrap();
    assert_eq!((seen, followed), (copy, count));
}

/// At once, and not when it looks again by itself.
pub async fn who_waits_for_a_shard_is_told_that_it_is_closed(backend: Arc<dyn Backend>) {
    let (store, feed, session) = by_id(&backend, 1).await;
    session.run("insert into orders values (0, 1, 'a')").await;
    backend.settle(&*store).await;
    let handle = Changefeed::new(store.clone()).feed("orders").await.unwrap();
    let after = After::Cursor(Cursor::Number(DEFAULT_START + 1));
    let waiting = handle.poll(ShardId(0), after, 10, Duration::from_secs(50));
    let changing = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        store.reshard(&feed, 2).await.unwrap();
    };
    let both = async { tokio::join!(waiting, changing).0 };
    let page = tokio::time::timeout(Duration::from_secs(30), both).await;
    let page = page.unwrap().unwrap();
    assert!(page.closed && page.changes.is_empty());
}

/// A new shard is pushed when the old ones with changes of the same rows were pushed to their ends.
pub async fn promise_13_a_subscription_keeps_the_order_of_rows(backend: Arc<dyn Backend>) {
    let (store, feed, session) = by_id(&backend, 1).await;
    session
        .run("insert into orders values (0, 1, 'a'), (1, 1, 'a')")
        .await;
    let feed = store.reshard(&feed, 2).await.unwrap();
    session.run("update orders set note = 'b'").await;
    backend.settle(&*store).await;
    let dir = tempfile::tempdir().unwrap();
    let path = |shard: &str| dir.path().join(shard).display().to_string();
    let sink = Sink::File(path("{shard}"));
    let definition = SubscriptionDefinition::new("out".parse().unwrap(), feed.name.clone(), sink);
    let db = Changefeed::new(store.clone());
    db.create_subscription(&definition, false).await.unwrap();
    let stop = CancellationToken::new();
    let start = |shard| {
        let allowed = [dir.path().to_owned()];
        let main = Files::new(&path("{shard}"), Duration::from_secs(30), &allowed).unwrap();
        let sinks = Sinks {
            main: Arc::new(main),
            refused: None,
        };
        let subscriber = Subscriber::new(
            store.clone(),
            definition.clone(),
            feed.clone(),
            ShardId(shard),
            Leases::start(store.clone(), format!("owner-{shard}")),
            sinks,
        );
        tokio::spawn(subscriber.run(stop.clone()))
    };
    let lines = |shard: i16| {
        let text = std::fs::read_to_string(path(&shard.to_string())).unwrap_or_default();
        text.lines().count()
    };
    let mut tasks = vec![start(1), start(2)];
    // Both look at their predecessor a few times.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((lines(0), lines(1), lines(2)), (0, 0, 0));
    tasks.push(start(0));
    eventually_true("everything is pushed", async || {
        (lines(0), lines(1), lines(2)) == (2, 1, 1)
    })
    .await;
    stop.cancel();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
}
