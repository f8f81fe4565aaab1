//! Feeds that are ordered by ULIDs.

use std::time::Duration;

use changefeed_core::{
    After, ConsumerName, ConsumerStore, Cursor, Feed, FeedStore, Kind, NewFeed, ShardId, Source,
    TableName, Ulid, UlidOptions, Uuid, WakeStore, seek_consumer,
};
use changefeed_sqlite::begin_ulid;
use changefeed_sqlite::rusqlite::{Connection, params};

use crate::support::{Lab, content, is_woken, named};

pub(crate) const EVENTS: Uuid = Uuid::from_u128(0x8027_0756_deeb_11ed_91f2_4f03_a365_d3f8);

fn new_feed(table: &str, shard_column: &str, ulid_column: &str, shards: i16) -> NewFeed {
    NewFeed {
        shards,
        source: Some(Source::Ulid {
            feed: EVENTS,
            table: TableName::unqualified(table),
            shard_column: shard_column.to_owned(),
            ulid_column: ulid_column.to_owned(),
        }),
        ..named("events")
    }
}

pub(crate) async fn event_feed(lab: &Lab, shards: i16) -> Feed {
    lab.create(new_feed("event", "shard", "ulid", shards)).await
}

/// Writes rows in one transaction of a shard at a time; returns their ULIDs.
fn write(app: &mut Connection, shard: i32, time: Option<u64>, notes: &[&str]) -> Vec<Ulid> {
    let options = UlidOptions {
        time_hint: time,
        ..UlidOptions::new(EVENTS, shard)
    };
    let mut transaction = begin_ulid(app, &options).unwrap();
    let mut ulids = Vec::new();
    for note in notes {
        let ulid = transaction.next_ulid().unwrap();
        transaction
            .execute(
                "insert into event values (?1, ?2, ?3)",
                params![shard, ulid.to_bytes(), note],
            )
            .unwrap();
        ulids.push(ulid);
    }
    transaction.commit().unwrap();
    ulids
}

async fn events() -> (Lab, Connection) {
    let lab = Lab::new().await;
    let app = lab.store.connection().unwrap();
    app.execute_batch(
        "create table event (shard integer, ulid blob, note text, primary key (shard, ulid)) \
         without rowid",
    )
    .unwrap();
    (lab, app)
}

#[tokio::test]
async fn pages_follow_the_ulids_of_a_shard() {
    let (lab, mut app) = events().await;
    let feed = event_feed(&lab, 2).await;
    assert_eq!(
        lab.store.feeds().await.unwrap(),
        std::slice::from_ref(&feed)
    );
    let empty = lab.page(&feed, 0, After::First, 10).await;
    assert_eq!(empty.next, Cursor::Ulid(Ulid::MIN));
    let end = lab.page(&feed, 0, After::Last, 10).await;
    assert_eq!(end.next, Cursor::Ulid(Ulid::MIN));

    let ulids = write(&mut app, 0, None, &["a", "b", "c"]);
    write(&mut app, 1, None, &["other"]);
    let page = lab.page(&feed, 0, After::First, 2).await;
    assert_eq!(page.next, Cursor::Ulid(ulids[1]));
    let first = &page.changes[0];
    assert_eq!(
        (first.cursor, first.change_id),
        (Cursor::Ulid(ulids[0]), None)
    );
    let hex: String = ulids[0]
        .to_bytes()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    assert_eq!(
        content(&first.content),
        format!(r#"{{"shard":0,"ulid":"\\x{hex}","note":"a"}}"#)
    );
    let rest = lab.page(&feed, 0, page.next.into(), 2).await;
    assert_eq!(rest.changes.len(), 1);
    assert_eq!(rest.next, Cursor::Ulid(ulids[2]));
    let nothing = lab.page(&feed, 0, rest.next.into(), 2).await;
    assert!(nothing.changes.is_empty());
    assert_eq!(nothing.next, rest.next);

    let last = lab.page(&feed, 0, After::Last, 10).await;
    assert!(last.changes.is_empty());
    let more = write(&mut app, 0, None, &["d"]);
    let page = lab.page(&feed, 0, last.next.into(), 10).await;
    assert_eq!(page.next, Cursor::Ulid(more[0]));
    assert_eq!(page.changes.len(), 1);
    assert_eq!(lab.rows(&feed, 1).await.len(), 1);
}

#[tokio::test]
async fn reading_begins_at_a_point_in_time() {
    let (lab, mut app) = events().await;
    let feed = event_feed(&lab, 1).await;
    for time in [1000, 1001, 1001, 2000] {
        write(&mut app, 0, Some(time), &[&time.to_string()]);
    }
    for (time, expected) in [
        (0, 4),
        (1000, 4),
        (1001, 3),
        (1002, 1),
        (2000, 1),
        (2001, 0),
    ] {
        let page = lab.page(&feed, 0, After::Time(time), 10).await;
        assert_eq!(page.changes.len(), expected, "{time}");
    }
    let nowhere = lab.page(&feed, 0, After::Time(u64::MAX), 10).await;
    assert!(nowhere.changes.is_empty());
}

#[tokio::test]
async fn a_view_of_joined_tables_is_a_feed_too() {
    let (lab, mut app) = events().await;
    app.execute_batch(
        "create table topic (id integer primary key, note text, \"the {shard}\" integer);
         insert into topic values (1, 'a', 0);
         create view v as select t.\"the {shard}\" + 0 as part, e.ulid, t.id
           from event e join topic t on t.note = e.note;",
    )
    .unwrap();
    write(&mut app, 0, None, &["a", "b"]);
    let feed = lab.create(new_feed("V", "Part", "ULID", 1)).await;
    let Some(Source::Ulid {
        shard_column,
        ulid_column,
        ..
    }) = &feed.source
    else {
        panic!("{feed:?}");
    };
    assert_eq!(
        (shard_column.as_str(), ulid_column.as_str()),
        ("part", "ulid")
    );
    assert_eq!(lab.rows(&feed, 0).await.len(), 1);
}

#[tokio::test]
async fn what_cannot_be_a_ulid_feed_is_refused() {
    let (lab, mut app) = events().await;
    app.execute_batch(
        "create table wrong (shard text, ulid text, n integer, loose, primary key (shard));
         create table loose (shard integer, ulid);",
    )
    .unwrap();
    for (table, shard, ulid, kind, why) in [
        ("nowhere", "shard", "ulid", Kind::NotFound, "no table"),
        ("event", "nope", "ulid", Kind::NotFound, "'nope'"),
        ("event", "shard", "nope", Kind::NotFound, "'nope'"),
        ("wrong", "shard", "loose", Kind::Invalid, "integers"),
        ("wrong", "n", "ulid", Kind::Invalid, "16 bytes"),
    ] {
        let error = lab
            .store
            .create_feed(&new_feed(table, shard, ulid, 1))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(why), "{error}");
    }
    assert!(lab.store.feeds().await.unwrap().is_empty());

    let feed = event_feed(&lab, 1).await;
    let ulid = write(&mut app, 0, None, &["a"])[0];
    for error in [
        lab.store.backfill(&feed, 1).await.map(drop).unwrap_err(),
        lab.store
            .trim(&feed, Duration::ZERO.into(), 1)
            .await
            .map(drop)
            .unwrap_err(),
        lab.store
            .read(&feed, ShardId(0), Cursor::Number(1).into(), 1)
            .await
            .map(drop)
            .unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
    }
    let unknown = lab.store.read(&feed, ShardId(1), After::First, 1).await;
    assert_eq!(unknown.unwrap_err().kind(), Kind::NotFound);
    let numbered = lab.feed(9, 1).await;
    let after = Cursor::Ulid(ulid).into();
    let foreign = lab.store.read(&numbered, ShardId(0), after, 1).await;
    assert_eq!(foreign.unwrap_err().kind(), Kind::Invalid);
    lab.store.drop_feed(&feed).await.unwrap();

    // A column without a type takes everything; what nobody would ever read is told.
    let loose = lab.create(new_feed("loose", "shard", "ulid", 1)).await;
    for (value, why) in [
        (format!("'{ulid}'"), "as text"),
        ("7".to_owned(), "as integer"),
        ("x'ff'".to_owned(), "1 bytes where a ULID has 16"),
    ] {
        app.execute_batch(&format!(
            "delete from loose; insert into loose values (0, {value}), (0, null)"
        ))
        .unwrap();
        let error = lab.store.read(&loose, ShardId(0), After::First, 1).await;
        let error = error.unwrap_err();
        assert!(error.message().contains(why), "{error}");
    }
}

#[tokio::test]
async fn states_and_lag_go_by_the_time_of_the_ulids() {
    let (lab, mut app) = events().await;
    let feed = event_feed(&lab, 2).await;
    let now = u64::try_from(
        std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .unwrap()
            .as_millis(),
    )
    .unwrap();
    let old = write(&mut app, 0, Some(now - 90_000), &["a"])[0];
    let new = write(&mut app, 0, Some(now - 60_000), &["b"])[0];
    let states = lab.store.shard_states(&feed).await.unwrap();
    assert_eq!(states[0].last, Cursor::Ulid(new));
    assert!((60_000..120_000).contains(&states[0].since_ms));
    assert_eq!(states[1].last, Cursor::Ulid(Ulid::MIN));
    assert!((0..60_000).contains(&states[1].since_ms));

    let name: ConsumerName = "c".parse().unwrap();
    for (cursor, lag_ms) in [(old, 30_000), (new, 0)] {
        let cursor = Cursor::Ulid(cursor);
        seek_consumer(&lab.store, &name, &feed, ShardId(0), cursor)
            .await
            .unwrap();
        let consumer = lab.store.consumers().await.unwrap().remove(0);
        assert_eq!(
            (consumer.cursor, consumer.lag_changes, consumer.lag_ms),
            (cursor, 0, lag_ms)
        );
        let stored = lab
            .store
            .consumer_cursor(&name, &feed, ShardId(0))
            .await
            .unwrap();
        assert_eq!(stored, Some(cursor));
    }
    // A shard that never had a ULID.
    seek_consumer(
        &lab.store,
        &name,
        &feed,
        ShardId(1),
        Cursor::Ulid(Ulid::MIN),
    )
    .await
    .unwrap();
    assert_eq!(lab.store.consumers().await.unwrap()[1].lag_ms, 0);
}

#[tokio::test]
async fn a_committed_ulid_transaction_wakes_the_waiters_of_its_shard_only() {
    let (lab, mut app) = events().await;
    let feed = event_feed(&lab, 2).await;
    let mut zero = lab.store.listen(&feed, ShardId(0));
    let mut one = lab.store.listen(&feed, ShardId(1));
    // Seen for the first time, a shard is news: something may have happened before. The second
    // look has begun when the second news comes, so the first is over, and with it whatever it had
    // for the other waiter, who may have come too late for it.
    assert!(is_woken(&mut zero).await);
    write(&mut app, 0, Some(1000), &["a"]);
    assert!(is_woken(&mut zero).await);
    one.look();
    for _ in 0..3 {
        write(&mut app, 1, Some(1000), &["a"]);
        assert!(is_woken(&mut one).await);
        let mut undone = begin_ulid(&mut app, &UlidOptions::new(EVENTS, 1)).unwrap();
        undone.next_ulid().unwrap();
        undone.rollback().unwrap();
        write(&mut app, 0, Some(1000), &["a"]);
        assert!(is_woken(&mut zero).await);
    }
    let silent = tokio::time::timeout(Duration::from_millis(1), one.news()).await;
    assert!(silent.is_err());
}

#[tokio::test]
async fn a_table_that_is_gone_is_told_and_the_feed_can_be_dropped() {
    let (lab, app) = events().await;
    let feed = event_feed(&lab, 1).await;
    app.execute_batch("drop table event").unwrap();
    let gone = lab.store.read(&feed, ShardId(0), After::First, 1).await;
    assert_eq!(gone.unwrap_err().kind(), Kind::NotFound);
    lab.store.drop_feed(&feed).await.unwrap();
    let left: i64 = app
        .query_row("select count(*) from changefeed_ulid_source", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(left, 0);
}
