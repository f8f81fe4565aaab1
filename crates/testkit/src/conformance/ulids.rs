//! ULID transactions, and feeds that are ordered by ULIDs.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use changefeed_core::{
    After, Content, Cursor, Feed, Kind, Page, Severity, ShardId, Source, Store, TableName, Ulid,
    UlidOptions, Uuid, seek_consumer,
};
use tokio::task::JoinSet;

use crate::backend::{Backend, is_woken, name, read_all};
use crate::ulids::{FEED, UlidWrite, feed_of_events};

/// The feed `events` (38, two shards) on its table.
async fn events(backend: &dyn Backend) -> (Arc<dyn Store>, Feed) {
    let store = backend.installed().await;
    let ulid = backend.words().ulid_type;
    backend
        .session()
        .await
        .run(&format!(
            "create table event (shard int not null, ulid {ulid} not null, note text not null, \
             primary key (shard, ulid))"
        ))
        .await;
    let feed = store.create_feed(&feed_of_events(2)).await.unwrap();
    assert_eq!(store.feeds().await.unwrap(), std::slice::from_ref(&feed));
    (store, feed)
}

async fn write<const N: usize>(backend: &dyn Backend, shard: i32, notes: [&str; N]) -> Vec<Ulid> {
    backend
        .write_ulids(UlidOptions::new(FEED, shard), UlidWrite::committed(notes))
        .await
        .unwrap()
}

/// ULIDs and notes of a shard.
async fn notes(store: &dyn Store, feed: &Feed, shard: i16) -> Vec<(Ulid, String)> {
    read_all(store, feed, shard, 3)
        .await
        .into_iter()
        .map(|change| {
            assert_eq!(change.change_id, None);
            let Cursor::Ulid(ulid) = change.cursor else {
                panic!("no ULID: {:?}", change.cursor);
            };
            let row: serde_json::Value =
                serde_json::from_str(change.content.row().unwrap().get()).unwrap();
            assert_eq!(row["shard"], shard);
            (ulid, row["note"].as_str().unwrap().to_owned())
        })
        .collect()
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap().as_millis()).unwrap()
}

/// In several transactions, with small pages.
pub async fn rows_are_read_in_the_order_of_their_ulids(backend: Arc<dyn Backend>) {
    let (store, feed) = events(&*backend).await;
    let mut expected = Vec::new();
    for round in 0..5 {
        let words = [format!("{round} a"), format!("{round} b")];
        let given = write(&*backend, 0, [&words[0], &words[1]]).await;
        expected.extend(given.into_iter().zip(words));
    }
    assert_eq!(notes(&*store, &feed, 0).await, expected);
    assert!(expected.windows(2).all(|pair| pair[0].0 < pair[1].0));
    assert_eq!(notes(&*store, &feed, 1).await, []);
}

/// `first`, `last`, a ULID, a time.
pub async fn every_place_to_begin(backend: Arc<dyn Backend>) {
    let (store, feed) = events(&*backend).await;
    let at = |time| UlidOptions {
        time_hint: Some(time),
        ..UlidOptions::new(FEED, 0)
    };
    let begin = now() - 1_000_000;
    let mut given = Vec::new();
    for (n, note) in ["a", "b", "c"].into_iter().enumerate() {
        let time = begin + 1000 * n as u64;
        let write = UlidWrite::committed([note]);
        let ulids = backend.write_ulids(at(time), write).await.unwrap();
        assert_eq!(ulids[0].time(), time);
        given.extend(ulids);
    }
    let from = async |after| {
        let page = store.read(&feed, ShardId(0), after, 10).await.unwrap();
        let cursors: Vec<Cursor> = page.changes.iter().map(|c| c.cursor).collect();
        (cursors, page.next)
    };
    let ulids =
        |from: usize| -> Vec<Cursor> { given[from..].iter().map(|u| Cursor::Ulid(*u)).collect() };
    let newest = Cursor::Ulid(given[2]);
    assert_eq!(from(After::First).await, (ulids(0), newest));
    assert_eq!(from(After::Last).await, (vec![], newest));
    for (n, ulid) in given.iter().enumerate() {
        let after = After::Cursor(Cursor::Ulid(*ulid));
        assert_eq!(from(after).await.0, ulids(n + 1));
        let time = begin + 1000 * n as u64;
        assert_eq!(from(After::Time(time)).await.0, ulids(n), "at its time");
        assert_eq!(from(After::Time(time + 1)).await.0, ulids(n + 1));
        assert_eq!(from(After::Time(time - 1)).await.0, ulids(n));
    }
    assert_eq!(from(After::Time(0)).await.0, ulids(0));
    assert_eq!(from(After::Time(u64::MAX)).await.0, vec![]);
    // A shard without rows has a last place as well, from which nothing is missed.
    let page = store
        .read(&feed, ShardId(1), After::Last, 10)
        .await
        .unwrap();
    let later = write(&*backend, 1, ["first of its shard"]).await;
    let page = store
        .read(&feed, ShardId(1), page.next.into(), 10)
        .await
        .unwrap();
    assert_eq!(page.next, Cursor::Ulid(later[0]));
}

/// Promise 5.
pub async fn a_page_read_twice_and_an_empty_page_keep_their_promises(backend: Arc<dyn Backend>) {
    let (store, feed) = events(&*backend).await;
    let given = write(&*backend, 0, ["a", "b", "c"]).await;
    let after = After::Cursor(Cursor::Ulid(given[0]));
    let before = store.read(&feed, ShardId(0), after, 10).await.unwrap();
    write(&*backend, 0, ["d"]).await;
    let again = store.read(&feed, ShardId(0), after, 10).await.unwrap();
    assert_eq!(again.changes.len(), 3);
    for (a, b) in before.changes.iter().zip(&again.changes) {
        assert_eq!((a.cursor, &a.content), (b.cursor, &b.content));
        assert_ne!(a.content, Content::Gone);
    }
    let Page { changes, next, .. } = store
        .read(&feed, ShardId(0), again.next.into(), 10)
        .await
        .unwrap();
    assert!(changes.is_empty());
    assert_eq!(next, again.next);
    for limit in [0, 10_001] {
        let error = store.read(&feed, ShardId(0), after, limit).await;
        assert_eq!(error.unwrap_err().kind(), Kind::Invalid);
    }
    let error = store.read(&feed, ShardId(2), after, 10).await;
    assert_eq!(error.unwrap_err().kind(), Kind::NotFound);
}

/// Promise 4, in so far as it applies.
pub async fn what_was_rolled_back_never_appears(backend: Arc<dyn Backend>) {
    let (store, feed) = events(&*backend).await;
    let before = write(&*backend, 0, ["before"]).await;
    let options = UlidOptions::new(FEED, 0);
    backend
        .write_ulids(options, UlidWrite::rolled_back(["no", "nor this"]))
        .await
        .unwrap();
    let after = write(&*backend, 0, ["after"]).await;
    let expected = [
        (before[0], "before".to_owned()),
        (after[0], "after".to_owned()),
    ];
    assert_eq!(notes(&*store, &feed, 0).await, expected);
}

/// A transaction is an instant.
pub async fn one_transaction_has_one_time(backend: Arc<dyn Backend>) {
    events(&*backend).await;
    let began = now();
    let given = write(&*backend, 0, ["a", "b", "c"]).await;
    assert!(given.windows(2).all(|pair| pair[0] < pair[1]));
    assert!(given.iter().all(|ulid| ulid.time() == given[0].time()));
    assert!((began..=now()).contains(&given[0].time()));
    // So that counting from here never overflows.
    assert_eq!(given[0].low() >> 62 & 1, 0);
}

/// The clock of whoever writes does not matter.
pub async fn time_stands_still_or_goes_back_and_ulids_grow(backend: Arc<dyn Backend>) {
    let (store, feed) = events(&*backend).await;
    let start = now() - 1_000_000;
    let mut newest: Option<Ulid> = None;
    for (step, expected) in [
        (5000, 5000),
        (5000, 5000),
        (4000, 5000),
        (0, 5000),
        (5001, 5001),
        (5000, 5001),
    ] {
        let options = UlidOptions {
            time_hint: Some(start + step),
            ..UlidOptions::new(FEED, 0)
        };
        let write = UlidWrite::committed(["x", "y"]);
        for ulid in backend.write_ulids(options, write).await.unwrap() {
            assert!(newest.is_none_or(|before| before < ulid));
            assert_eq!(ulid.time(), start + expected);
            newest = Some(ulid);
        }
    }
    assert_eq!(notes(&*store, &feed, 0).await.len(), 12);
}

/// The shard waits there for the clock, and orders all the same.
pub async fn a_time_in_the_future_is_kept(backend: Arc<dyn Backend>) {
    events(&*backend).await;
    let future = now() + 30_000;
    let options = UlidOptions {
        time_hint: Some(future),
        ..UlidOptions::new(FEED, 0)
    };
    let write_at = |options| backend.write_ulids(options, UlidWrite::committed(["x"]));
    let first = write_at(options.clone()).await.unwrap();
    let second = write_at(UlidOptions::new(FEED, 0)).await.unwrap();
    assert_eq!((first[0].time(), second[0].time()), (future, future));
    assert!(first < second);
    // A day ahead, and beyond 48 bits, where there is no time.
    for time in [now() + 86_400_000, 1 << 50] {
        let beyond = UlidOptions {
            time_hint: Some(time),
            ..options.clone()
        };
        let error = write_at(beyond).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
    }
    let third = write_at(UlidOptions::new(FEED, 0)).await.unwrap();
    assert!(second < third);
    assert_eq!(third[0].time(), future);
}

/// The operator may allow hints that are further ahead; `doctor` shows the shards that are there.
pub async fn a_shard_that_is_far_ahead_is_shown(backend: Arc<dyn Backend>) {
    let (store, _) = events(&*backend).await;
    let ahead = async || {
        let findings = store.capture_findings().await.unwrap();
        let mut found = findings.into_iter();
        found.find(|finding| finding.message.contains("ahead of the database's clock"))
    };
    assert_eq!(ahead().await, None);
    let limit = backend.words().our("ulid_limit");
    let session = backend.session().await;
    session
        .run(&format!("update {limit} set ahead_milliseconds = 90000000"))
        .await;
    let options = UlidOptions {
        time_hint: Some(now() + 86_400_000),
        ..UlidOptions::new(FEED, 3)
    };
    let write = UlidWrite::committed(["x"]);
    backend.write_ulids(options, write).await.unwrap();
    assert_eq!(ahead().await, None);
    session
        .run(&format!("update {limit} set ahead_milliseconds = 60000"))
        .await;
    let found = ahead().await.unwrap();
    assert_eq!(found.severity, Severity::Warning);
    assert!(found.subject.ends_with("shard 3"), "{}", found.subject);
}

/// The lower half of a ULID never wraps around: the next one was the smallest of its time.
pub async fn a_shard_that_runs_short_moves_to_the_next_millisecond(backend: Arc<dyn Backend>) {
    events(&*backend).await;
    let time = now() + 30_000;
    let hint = UlidOptions {
        time_hint: Some(time),
        ..UlidOptions::new(FEED, 0)
    };
    let write = |options| backend.write_ulids(options, UlidWrite::committed(["x"]));
    let first = write(hint).await.unwrap()[0];
    let state = backend.words().our("shard_ulid");
    // As many were given as fit but for two.
    let session = backend.session().await;
    session
        .run(&format!("update {state} set ulid_low = -2"))
        .await;
    let second = write(UlidOptions::new(FEED, 0)).await.unwrap()[0];
    assert!(first < second, "{first} {second}");
    assert_eq!(second.time(), time + 1);
    let third = write(UlidOptions::new(FEED, 0)).await.unwrap()[0];
    assert!(second < third, "{second} {third}");
    assert_eq!(third.time(), time + 1);
}

/// Only the pair of feed and shard matters.
pub async fn shards_and_feeds_are_independent(backend: Arc<dyn Backend>) {
    events(&*backend).await;
    let future = now() + 50_000;
    let options = UlidOptions {
        time_hint: Some(future),
        ..UlidOptions::new(FEED, 0)
    };
    let write = || UlidWrite::committed(["x"]);
    backend.write_ulids(options, write()).await.unwrap();
    for (feed, shard) in [(FEED, 1), (FEED, -7), (Uuid::from_u128(1), 0)] {
        let options = UlidOptions::new(feed, shard);
        let given = backend.write_ulids(options, write()).await.unwrap();
        assert!(
            given[0].time() < future,
            "{feed}/{shard} follows another shard"
        );
    }
}

/// Promises 3 and 6, without faults.
pub async fn writers_in_parallel_take_turns(backend: Arc<dyn Backend>) {
    let (store, feed) = events(&*backend).await;
    let mut writers = JoinSet::new();
    for writer in 0..8 {
        let backend = Arc::clone(&backend);
        writers.spawn(async move {
            let mut newest = Ulid::MIN;
            for n in 0..10 {
                let note = format!("{writer} {n}");
                let given = write(&*backend, 0, [&note, &note]).await;
                // What was committed before this began comes before it.
                assert!(newest < given[0] && given[0] < given[1]);
                newest = given[1];
            }
        });
    }
    let (mut seen, mut after) = (Vec::new(), After::First);
    loop {
        while let Some(ended) = writers.try_join_next() {
            ended.unwrap();
        }
        let over = writers.is_empty();
        let page = store.read(&feed, ShardId(0), after, 7).await.unwrap();
        seen.extend(page.changes.iter().map(|c| c.cursor));
        after = page.next.into();
        if page.changes.is_empty() {
            if over {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    assert_eq!(seen.len(), 160);
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(read_all(&*store, &feed, 0, 1000).await.len(), 160);
}

/// Neither a row nor an error.
pub async fn an_empty_transaction_moves_nothing(backend: Arc<dyn Backend>) {
    let (store, feed) = events(&*backend).await;
    write(&*backend, 0, []).await;
    assert_eq!(notes(&*store, &feed, 0).await, []);
    let one = write(&*backend, 0, ["one"]).await;
    write(&*backend, 0, []).await;
    let two = write(&*backend, 0, ["two"]).await;
    assert!(one < two);
}

/// In another process as well as here.
pub async fn a_reader_is_woken_by_a_commit(backend: Arc<dyn Backend>) {
    let (store, feed) = events(&*backend).await;
    let mut waiter = store.listen(&feed, ShardId(0));
    let mut after = After::First;
    for round in 0..5 {
        // News of before may still be under way: only a look that finds nothing counts.
        loop {
            waiter.look();
            let page = store.read(&feed, ShardId(0), after, 10).await.unwrap();
            after = page.next.into();
            if page.changes.is_empty() {
                break;
            }
        }
        write(&*backend, 0, ["news"]).await;
        assert!(is_woken(&mut waiter).await, "round {round} woke nobody");
    }
    // Whoever comes when nobody has waited for a while is woken too.
    drop(waiter);
    let mut waiter = store.listen(&feed, ShardId(1));
    waiter.look();
    write(&*backend, 1, ["news"]).await;
    assert!(is_woken(&mut waiter).await);
}

/// In both directions.
pub async fn a_cursor_of_the_other_kind_is_refused(backend: Arc<dyn Backend>) {
    let (store, events) = events(&*backend).await;
    let given = write(&*backend, 0, ["a"]).await;
    let error = store
        .read(&events, ShardId(0), Cursor::Number(5).into(), 10)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert_eq!(
        error.to_string(),
        "cursor 5 does not belong to feed 'events'"
    );
    let (store, numbers) = backend.feed(37, 1).await;
    let after = Cursor::Ulid(given[0]).into();
    let error = store.read(&numbers, ShardId(0), after, 10).await;
    assert_eq!(error.unwrap_err().kind(), Kind::Invalid);
}

/// Backfill and trim, with a sentence.
pub async fn what_needs_numbers_is_refused(backend: Arc<dyn Backend>) {
    let (store, feed) = events(&*backend).await;
    write(&*backend, 0, ["a"]).await;
    let backfill = store.backfill(&feed, 10).await.unwrap_err();
    let trim = store
        .trim(&feed, Duration::ZERO.into(), 10)
        .await
        .unwrap_err();
    for (error, done) in [(backfill, "backfilled"), (trim, "trimmed")] {
        assert_eq!(error.kind(), Kind::Invalid);
        let said = error.to_string();
        assert!(
            said.starts_with("feed 'events' is ordered by ULIDs")
                && said.ends_with(&format!("so it cannot be {done}")),
            "{said}"
        );
    }
    assert_eq!(notes(&*store, &feed, 0).await.len(), 1);
    // A sweep has nothing to do with it, and no harm is done.
    backend.settle(&*store).await;
    assert_eq!(notes(&*store, &feed, 0).await.len(), 1);
}

/// And is told how far behind it is.
pub async fn a_consumer_keeps_a_ulid(backend: Arc<dyn Backend>) {
    let (store, feed) = events(&*backend).await;
    let given = write(&*backend, 0, ["a", "b"]).await;
    let consumer = "indexer".parse().unwrap();
    for ulid in given {
        let cursor = Cursor::Ulid(ulid);
        seek_consumer(&*store, &consumer, &feed, ShardId(0), cursor)
            .await
            .unwrap();
        let kept = store.consumer_cursor(&consumer, &feed, ShardId(0)).await;
        assert_eq!(kept.unwrap(), Some(cursor));
        let all = store.consumers().await.unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].cursor, all[0].shard), (cursor, ShardId(0)));
        assert!(all[0].lag_changes >= 0 && all[0].lag_ms >= 0);
    }
    assert_eq!(store.drop_consumer(&consumer, &feed).await.unwrap(), 1);
}

/// What `status` shows.
pub async fn the_state_of_a_shard_is_its_newest_ulid(backend: Arc<dyn Backend>) {
    let (store, feed) = events(&*backend).await;
    let options = UlidOptions {
        time_hint: Some(now() - 60_000),
        ..UlidOptions::new(FEED, 1)
    };
    let given = backend
        .write_ulids(options, UlidWrite::committed(["a", "b"]))
        .await
        .unwrap();
    let states = store.shard_states(&feed).await.unwrap();
    assert_eq!(states.len(), 2);
    assert_eq!(states[0].last, Cursor::Ulid(Ulid::MIN));
    assert_eq!(states[1].last, Cursor::Ulid(given[1]));
    assert!(states.iter().all(|s| s.pending == 0));
    assert!((60_000..120_000).contains(&states[1].since_ms));
}

/// With the reason, and nothing is made.
pub async fn a_table_that_cannot_be_a_ulid_feed_is_refused(backend: Arc<dyn Backend>) {
    let (store, made) = events(&*backend).await;
    for (table, shard, ulid, kind) in [
        ("nosuch", "shard", "ulid", Kind::NotFound),
        ("event", "nosuch", "ulid", Kind::NotFound),
        ("event", "shard", "nosuch", Kind::NotFound),
        ("event", "note", "ulid", Kind::Invalid),
        ("event", "shard", "note", Kind::Invalid),
    ] {
        let mut new = feed_of_events(1);
        new.id = None;
        new.name = name("other");
        new.source = Some(Source::Ulid {
            feed: FEED,
            table: TableName::unqualified(table),
            shard_column: shard.into(),
            ulid_column: ulid.into(),
        });
        let error = store.create_feed(&new).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{table} {shard} {ulid}: {error}");
    }
    assert_eq!(store.feeds().await.unwrap(), [made]);
}

/// They are the application's.
pub async fn a_feed_of_ulids_can_be_dropped_and_leaves_its_rows(backend: Arc<dyn Backend>) {
    let (store, feed) = events(&*backend).await;
    let first = write(&*backend, 0, ["a"]).await;
    store.drop_feed(&feed).await.unwrap();
    assert_eq!(store.feeds().await.unwrap(), []);
    // Writing needs no declaration, and goes on where it was.
    let second = write(&*backend, 0, ["b"]).await;
    assert!(first < second);
    let feed = store.create_feed(&feed_of_events(1)).await.unwrap();
    assert_eq!(notes(&*store, &feed, 0).await.len(), 2);
    // Uninstalling leaves them too.
    store.uninstall().await.unwrap();
    let session = backend.session().await;
    assert_eq!(session.number("select count(*) from event").await, 2);
}

/// A rollback is no incident.
pub async fn nobody_has_disappeared(backend: Arc<dyn Backend>) {
    let (store, _) = events(&*backend).await;
    write(&*backend, 0, ["a"]).await;
    let options = UlidOptions::new(FEED, 0);
    backend
        .write_ulids(options, UlidWrite::rolled_back(["b"]))
        .await
        .unwrap();
    assert_eq!(store.incidents().await.unwrap(), []);
}
