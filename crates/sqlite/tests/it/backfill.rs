//! Existing rows get numbers below the start.

use changefeed_core::{After, Cursor, DEFAULT_START, FeedStore, Kind, NewFeed, ShardId};

use crate::support::{Lab, captured};

const BASE: i64 = DEFAULT_START - 1_000_000_000_000_000;

#[tokio::test]
async fn every_row_gets_one_number_across_restarts_and_live_writes() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch(
        "create table t (a text, b integer, v integer, primary key (a, b));
         with recursive n (n) as (values (1) union all select n + 1 from n where n < 1000)
         insert into t select 'k' || (n % 7), n, 0 from n;",
    )
    .unwrap();
    let feed = lab.captured("t", Some("b"), 3).await;
    let mut steps = 0;
    loop {
        // A new instance each time, as after a crash, and an application that goes on writing.
        let store = lab.other().await;
        let step = store.backfill(&feed, 130).await.unwrap();
        steps += 1;
        assert_eq!(step.total, 1000);
        app.execute("update t set v = v + 1 where b = ?1", [steps])
            .unwrap();
        if step.finished {
            assert_eq!(step.done, 1000);
            break;
        }
        assert_eq!(step.added, 130);
        assert_eq!(step.done, 130 * u64::try_from(steps).unwrap());
    }
    let again = lab.store.backfill(&feed, 10).await.unwrap();
    assert_eq!((again.added, again.done, again.finished), (0, 1000, true));
    let mut keys = Vec::new();
    for shard in 0..3 {
        let numbers = lab.numbers(&feed, shard).await;
        let old: Vec<i64> = numbers
            .iter()
            .map(|c| c.0)
            .filter(|n| *n <= DEFAULT_START)
            .collect();
        let expected: Vec<i64> = (BASE + 1..).take(old.len()).collect();
        assert_eq!(old, expected);
        let count: i64 = app
            .query_row(
                "select count(distinct quote(key1) || quote(key2)) from changefeed_numbered \
                 where shard = ?1 and change_sequence_number <= ?2",
                (shard, DEFAULT_START),
                |row| row.get(0),
            )
            .unwrap();
        assert_eq!(usize::try_from(count).unwrap(), old.len(), "no row twice");
        keys.extend(old);
        assert!(!lab.rows(&feed, shard).await.contains(&"gone".to_owned()));
    }
    assert_eq!(keys.len(), 1000);
}

#[tokio::test]
async fn a_reader_of_old_numbers_does_not_jump_over_what_is_still_to_come() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch(
        "create table t (id integer primary key); insert into t values (1), (2), (3)",
    )
    .unwrap();
    let feed = lab.captured("t", None, 1).await;
    app.execute_batch("insert into t values (10)").unwrap();
    let live = lab.page(&feed, 0, After::Last, 10).await.next;
    assert_eq!(lab.store.backfill(&feed, 2).await.unwrap().added, 2);
    let page = lab.page(&feed, 0, After::First, 10).await;
    assert_eq!(page.next, Cursor::Number(BASE + 2));
    assert!(
        lab.page(&feed, 0, page.next.into(), 10)
            .await
            .changes
            .is_empty()
    );
    // A reader of live numbers goes on as ever.
    app.execute_batch("insert into t values (11)").unwrap();
    assert_eq!(lab.page(&feed, 0, live.into(), 10).await.changes.len(), 1);
    assert!(!lab.store.backfill(&feed, 2).await.unwrap().finished);
    assert!(lab.store.backfill(&feed, 2).await.unwrap().finished);
    let rest = lab.page(&feed, 0, page.next.into(), 10).await;
    let numbers: Vec<i64> = rest
        .changes
        .iter()
        .map(|c| c.cursor.number().unwrap())
        .collect();
    // Rows 10 and 11 were there when the backfill came by.
    assert_eq!(
        numbers,
        [
            BASE + 3,
            BASE + 4,
            BASE + 5,
            DEFAULT_START + 1,
            DEFAULT_START + 2
        ]
    );
}

#[tokio::test]
async fn a_joined_table_gives_its_own_ids_and_nothing_twice() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch(
        "create table e (id integer primary key, change_id integer);
         insert into e values (1, 50), (2, null), (3, 40), (4, 60), (5, 40), (6, 'x');",
    )
    .unwrap();
    let feed = lab.joined("e").await;
    app.execute_batch(
        "insert into changefeed_change (feed_id, shard, change_id) values (1, 0, 50)",
    )
    .unwrap();
    let first = lab.store.backfill(&feed, 1).await.unwrap();
    assert_eq!((first.added, first.finished), (1, false));
    // Published while the backfill is at work.
    app.execute_batch(
        "insert into changefeed_change (feed_id, shard, change_id) values (1, 0, 60)",
    )
    .unwrap();
    while !lab.store.backfill(&feed, 1).await.unwrap().finished {}
    assert_eq!(
        lab.numbers(&feed, 0).await,
        [
            (BASE + 1, 40),
            (DEFAULT_START + 1, 50),
            (DEFAULT_START + 2, 60)
        ]
    );
    let left: i64 = app
        .query_row(
            "select count(*) from sqlite_master where name like '%backfill' and type = 'index'",
            [],
            |r| r.get(0),
        )
        .unwrap();
    assert_eq!(left, 0, "the index of the backfill is gone");
}

#[tokio::test]
async fn a_start_too_low_or_a_feed_without_rows_is_refused() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch(
        "create table t (id integer primary key); insert into t values (1), (2), (3)",
    )
    .unwrap();
    let low = lab
        .create(NewFeed {
            start: 2,
            ..captured("t", None, 1)
        })
        .await;
    let error = lab.store.backfill(&low, 1).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert_eq!(
        error.message(),
        "the rows of t do not fit below the start of feed 'captured-1'"
    );
    assert!(lab.numbers(&low, 0).await.is_empty(), "nothing was changed");
    let fits = NewFeed {
        name: "fits".parse().unwrap(),
        start: 3,
        ..captured("t", None, 1)
    };
    let fits = lab.create(fits).await;
    assert_eq!(lab.store.backfill(&fits, 10).await.unwrap().added, 3);
    let numbers: Vec<i64> = lab.numbers(&fits, 0).await.iter().map(|c| c.0).collect();
    assert_eq!(numbers, [1, 2, 3]);
    let bare = lab.feed(9, 1).await;
    let error = lab.store.backfill(&bare, 1).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.advice().is_some());
    assert!(lab.store.backfill(&fits, 0).await.is_err());
}

#[tokio::test]
async fn numbers_put_in_by_hand_and_trimmed_ones_are_respected() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (id integer primary key); insert into t values (1), (2)")
        .unwrap();
    let feed = lab.captured("t", None, 1).await;
    app.execute_batch("insert into changefeed_change values (1, 0, 5, 1999999999999000)")
        .unwrap();
    assert!(!lab.store.backfill(&feed, 1).await.unwrap().finished);
    let error = app
        .execute_batch("insert into changefeed_change values (1, 0, 6, 7)")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("a backfill of this feed is at work"),
        "{error}"
    );
    // Trimming stops at the frontier.
    app.execute_batch("insert into t values (9)").unwrap();
    let trimmed = lab
        .store
        .trim(&feed, std::time::Duration::ZERO.into(), 100)
        .await
        .unwrap();
    assert_eq!(trimmed.removed, 2);
    while !lab.store.backfill(&feed, 1).await.unwrap().finished {}
    let numbers: Vec<i64> = lab.numbers(&feed, 0).await.iter().map(|c| c.0).collect();
    assert_eq!(
        numbers,
        [
            1_999_999_999_999_002,
            1_999_999_999_999_003,
            DEFAULT_START + 1
        ]
    );

    let late = lab
        .create(NewFeed {
            name: "late".parse().unwrap(),
            ..captured("t", None, 1)
        })
        .await;
    app.execute_batch("update t set id = id").unwrap();
    lab.store
        .trim(&late, std::time::Duration::ZERO.into(), 100)
        .await
        .unwrap();
    let error = lab.store.backfill(&late, 10).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(
        error.message().contains("can no longer be backfilled"),
        "{error:?}"
    );
    let page = lab
        .store
        .read(&late, ShardId(0), After::First, 10)
        .await
        .unwrap();
    assert!(page.changes.is_empty());
}
