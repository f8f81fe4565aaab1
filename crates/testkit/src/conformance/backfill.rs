//! Existing rows get numbers below the start, while life goes on.

use std::collections::HashSet;
use std::sync::Arc;

use changefeed_core::{
    After, Content, DEFAULT_START, Feed, FeedId, Kind, NewFeed, ShardId, Source, Store, TableName,
};

use crate::backend::{Backend, Session, captured, name, read_all};

/// A table with `rows` rows from before the feed, and a feed on it.
async fn old_table(
    backend: &Arc<dyn Backend>,
    rows: i64,
    shards: i16,
) -> (Arc<dyn Store>, Feed, Box<dyn Session>) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session
        .run("create table item (id integer primary key, kind integer)")
        .await;
    if rows > 0 {
        session
            .run(&format!(
                "with recursive n(i) as (select 1 union all select i + 1 from n where i < {rows}) \
                 insert into item select i, i from n"
            ))
            .await;
    }
    let by = (shards > 1).then_some("kind");
    let feed = store
        .create_feed(&captured(
            "items",
            TableName::unqualified("item"),
            by,
            shards,
        ))
        .await
        .unwrap();
    (store, feed, session)
}

/// The `id` of each row in a shard, with its number.
async fn items(store: &dyn Store, feed: &Feed, shard: i16) -> Vec<(i64, Option<i64>)> {
    read_all(store, feed, shard, 100)
        .await
        .iter()
        .map(|change| {
            let id = match &change.content {
                Content::Row(row) => {
                    let row: serde_json::Value = serde_json::from_str(row.get()).unwrap();
                    Some(row["id"].as_i64().unwrap())
                }
                Content::Gone => None,
                Content::Unknown | Content::Images { .. } => panic!("the feed knows its rows"),
            };
            (change.cursor.number().unwrap(), id)
        })
        .collect()
}

async fn finish(store: &dyn Store, feed: &Feed, batch: usize) -> u64 {
    for _ in 0..10_000 {
        let step = store.backfill(feed, batch).await.unwrap();
        assert!(step.added <= batch as u64);
        if step.finished {
            return step.done;
        }
    }
    panic!("the backfill does not end");
}

/// In every shard, before all live changes, each row once.
pub async fn existing_rows_get_numbers_below_the_start(backend: Arc<dyn Backend>) {
    let (store, feed, session) = old_table(&backend, 100, 3).await;
    session.run("insert into item values (1000, 0)").await;
    backend.settle(&*store).await;
    let done = finish(&*store, &feed, 7).await;
    assert!(done == 100 || done == 101, "{done}");
    let mut seen = HashSet::new();
    for shard in 0..3 {
        let found = items(&*store, &feed, shard).await;
        assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0));
        let old = found.iter().filter(|(n, _)| *n <= DEFAULT_START);
        for (_, id) in old {
            let id = id.unwrap();
            assert!(seen.insert(id), "row {id} was backfilled twice");
            if id <= 100 {
                assert_eq!(id % 3, i64::from(shard));
            }
        }
    }
    assert!((1..=100).all(|id| seen.contains(&id)));
    let again = store.backfill(&feed, 10).await.unwrap();
    assert!(again.finished && again.added == 0, "{again:?}");
}

/// By another instance, after the first one died in the middle.
pub async fn a_backfill_goes_on_where_it_stopped(backend: Arc<dyn Backend>) {
    let (store, feed, _) = old_table(&backend, 60, 1).await;
    let first = store.backfill(&feed, 25).await.unwrap();
    assert_eq!((first.added, first.done, first.total), (25, 25, 60));
    assert!(!first.finished);
    drop(store);
    let other = backend.store().await;
    let second = other.backfill(&feed, 25).await.unwrap();
    assert_eq!((second.added, second.done), (25, 50));
    // A step that is cut off has happened or not, never in part.
    for micros in [10, 200, 1000] {
        let doomed = backend.store().await;
        let soon = std::time::Duration::from_micros(micros);
        let _ = tokio::time::timeout(soon, doomed.backfill(&feed, 2)).await;
    }
    finish(&*other, &feed, 25).await;
    let ids: Vec<i64> = items(&*other, &feed, 0)
        .await
        .iter()
        .map(|(_, id)| id.unwrap())
        .collect();
    let all: HashSet<i64> = ids.iter().copied().collect();
    assert_eq!((ids.len(), all.len()), (60, 60), "each row once");
}

/// Rows that are written, changed and removed while it runs are backfilled or live, or both, but
/// never neither.
pub async fn a_backfill_under_live_traffic_misses_no_row(backend: Arc<dyn Backend>) {
    let (store, feed, session) = old_table(&backend, 300, 2).await;
    let mut step = 0i64;
    loop {
        session
            .run(&format!(
                "insert into item values ({}, {step})",
                5000 + step
            ))
            .await;
        session
            .run(&format!("insert into item values ({}, {step})", -step - 1))
            .await;
        session
            .run(&format!(
                "update item set kind = kind where id = {}",
                301 - step
            ))
            .await;
        session
            .run(&format!("delete from item where id = {}", 10 * (step + 1)))
            .await;
        let done = store.backfill(&feed, 11).await.unwrap().finished;
        backend.settle(&*store).await;
        step += 1;
        if done {
            break;
        }
    }
    let mut seen = HashSet::new();
    let mut backfilled = HashSet::new();
    for shard in 0..2 {
        for (number, id) in items(&*store, &feed, shard).await {
            let Some(id) = id else { continue };
            seen.insert(id);
            if number <= DEFAULT_START {
                assert!(backfilled.insert(id), "row {id} was backfilled twice");
            }
        }
    }
    let left = session.query("select id from item").await.unwrap();
    for row in &left {
        let id: i64 = row[0].as_ref().unwrap().parse().unwrap();
        assert!(seen.contains(&id), "row {id} is in no page");
    }
    assert_eq!(seen.len(), left.len());
}

/// A reader from `first` that reads while the backfill runs sees what a reader afterwards sees.
pub async fn a_reader_during_a_backfill_skips_nothing(backend: Arc<dyn Backend>) {
    let (store, feed, session) = old_table(&backend, 80, 1).await;
    let mut after = After::First;
    let mut during = Vec::new();
    let mut finished = false;
    let mut step = 0;
    loop {
        session
            .run(&format!("insert into item values ({}, 0)", 1000 + step))
            .await;
        step += 1;
        if !finished {
            finished = store.backfill(&feed, 9).await.unwrap().finished;
        }
        backend.settle(&*store).await;
        let page = store.read(&feed, ShardId(0), after, 7).await.unwrap();
        after = page.next.into();
        let empty = page.changes.is_empty();
        during.extend(page.changes.iter().map(|c| (c.cursor, c.change_id)));
        if finished && empty {
            break;
        }
        if finished && step > 20 {
            // No more traffic, so that the reader can reach the end.
            while let Some(more) = {
                let page = store.read(&feed, ShardId(0), after, 7).await.unwrap();
                after = page.next.into();
                (!page.changes.is_empty()).then_some(page.changes)
            } {
                during.extend(more.iter().map(|c| (c.cursor, c.change_id)));
            }
            break;
        }
    }
    let afterwards: Vec<_> = read_all(&*store, &feed, 0, 1000)
        .await
        .iter()
        .map(|c| (c.cursor, c.change_id))
        .collect();
    assert_eq!(during, afterwards);
    assert!(during.len() >= 100);
}

/// Rows whose `change_id` was never published.
pub async fn a_joined_table_can_be_backfilled(backend: Arc<dyn Backend>) {
    let store = backend.installed().await;
    let (session, words) = (backend.session().await, backend.words());
    session
        .run("create table my_event (change_id bigint primary key, note text)")
        .await;
    session
        .run("insert into my_event values (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')")
        .await;
    let feed = store
        .create_feed(&NewFeed {
            id: Some(FeedId(37)),
            source: Some(Source::Joined {
                table: TableName::unqualified("my_event"),
                change_id_column: "change_id".to_owned(),
                shard_by: None,
            }),
            ..NewFeed::new(name("events"))
        })
        .await
        .unwrap();
    // One that the application publishes by itself is not published again.
    session.run(words.begin).await;
    session.run("insert into my_event values (5, 'e')").await;
    session.run(&words.publish(37, 0, 5)).await;
    session.run("commit").await;
    backend.settle(&*store).await;
    finish(&*store, &feed, 3).await;
    let found: Vec<(i64, bool)> = read_all(&*store, &feed, 0, 10)
        .await
        .iter()
        .map(|c| {
            (
                c.change_id.unwrap(),
                c.cursor.number().unwrap() <= DEFAULT_START,
            )
        })
        .collect();
    assert_eq!(
        found,
        [(1, true), (2, true), (3, true), (4, true), (5, false)]
    );
}

/// With the way out.
pub async fn a_feed_without_a_table_cannot_be_backfilled(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 1).await;
    let error = store.backfill(&feed, 10).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error:?}");
    assert!(error.message().contains("feed-37"), "{error:?}");
}

/// And what comes later is live.
pub async fn an_empty_table_is_finished_at_once(backend: Arc<dyn Backend>) {
    let (store, feed, session) = old_table(&backend, 0, 1).await;
    let step = store.backfill(&feed, 10).await.unwrap();
    assert!(step.finished && step.added == 0, "{step:?}");
    session.run("insert into item values (1, 1)").await;
    backend.settle(&*store).await;
    let found = items(&*store, &feed, 0).await;
    assert_eq!(found, [(DEFAULT_START + 1, Some(1))]);
}
