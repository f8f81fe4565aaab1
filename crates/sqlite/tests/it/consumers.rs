//! Named consumers.

use changefeed_core::{
    ConsumerName, ConsumerStore, Cursor, DEFAULT_START, Error, FeedStore, Kind, NewFeed, ShardId,
    Taken, seek_consumer,
};
use changefeed_sqlite::{advance_consumer, consume};

use crate::support::Lab;

const SHARD: ShardId = ShardId(0);

#[tokio::test]
async fn lag_is_counted_in_changes_and_time() {
    let lab = Lab::new().await;
    let feed = lab.feed(37, 2).await;
    let app = lab.app();
    app.execute_batch(
        "insert into changefeed_change values (37, 0, 1, 10), (37, 0, 2, 20);
         insert into changefeed_change (feed_id, shard, change_id)
           values (37, 0, 3), (37, 0, 4), (37, 0, 5);
         update changefeed_progress set marked_at = marked_at - 60000;",
    )
    .unwrap();
    let name: ConsumerName = "c".parse().unwrap();
    assert_eq!(
        lab.store
            .consumer_cursor(&name, &feed, SHARD)
            .await
            .unwrap(),
        None
    );
    for (cursor, lag) in [
        (0, 5),
        (10, 4),
        (20, 3),
        (DEFAULT_START, 3),
        (DEFAULT_START + 2, 1),
    ] {
        let cursor = Cursor::Number(cursor);
        seek_consumer(&lab.store, &name, &feed, SHARD, cursor)
            .await
            .unwrap();
        let found = lab
            .store
            .consumer_cursor(&name, &feed, SHARD)
            .await
            .unwrap();
        assert_eq!(found, Some(cursor));
        let consumer = lab.store.consumers().await.unwrap().remove(0);
        assert_eq!((consumer.lag_changes, consumer.cursor), (lag, cursor));
        assert!(
            (60_000..120_000).contains(&consumer.lag_ms),
            "{}",
            consumer.lag_ms
        );
        assert!((0..60_000).contains(&consumer.idle_ms));
    }
    let last = Cursor::Number(DEFAULT_START + 3);
    seek_consumer(&lab.store, &name, &feed, SHARD, last)
        .await
        .unwrap();
    let consumer = lab.store.consumers().await.unwrap().remove(0);
    assert_eq!((consumer.lag_changes, consumer.lag_ms), (0, 0));
    seek_consumer(&lab.store, &name, &feed, ShardId(1), Cursor::Number(0))
        .await
        .unwrap();
    let unknown = seek_consumer(&lab.store, &name, &feed, ShardId(9), last)
        .await
        .unwrap_err();
    assert_eq!(unknown.kind(), Kind::NotFound);
    assert_eq!(lab.store.drop_consumer(&name, &feed).await.unwrap(), 2);
    assert!(lab.store.consumers().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_cursor_moves_with_the_effects_or_not_at_all() {
    let lab = Lab::new().await;
    let feed = lab.feed(37, 1).await;
    let name: ConsumerName = "c".parse().unwrap();
    let app = lab.store.connection().unwrap();
    app.execute_batch("create table effect (n integer)")
        .unwrap();
    let advance = |from, to| advance_consumer(&app, &name, feed.id, SHARD, from, to);
    let (one, two) = (Cursor::Number(1), Cursor::Number(2));
    app.execute_batch("begin immediate; insert into effect values (1)")
        .unwrap();
    advance(None, one).unwrap();
    app.execute_batch("rollback").unwrap();
    assert_eq!(
        lab.store
            .consumer_cursor(&name, &feed, SHARD)
            .await
            .unwrap(),
        None
    );
    app.execute_batch("begin immediate; insert into effect values (1)")
        .unwrap();
    advance(None, one).unwrap();
    app.execute_batch("commit").unwrap();
    // A second instance that believes it is the first.
    assert_eq!(advance(None, two).unwrap_err().kind(), Kind::Moved);
    assert_eq!(advance(Some(two), two).unwrap_err().kind(), Kind::Moved);
    advance(Some(one), two).unwrap();
    assert_eq!(
        lab.store
            .consumer_cursor(&name, &feed, SHARD)
            .await
            .unwrap(),
        Some(two)
    );
    lab.store.drop_feed(&feed).await.unwrap();
    assert!(lab.store.consumers().await.unwrap().is_empty());
}

#[tokio::test]
async fn effects_that_fail_are_undone_and_those_of_the_second_do_not_happen() {
    let lab = Lab::new().await;
    let mut app = lab.store.connection().unwrap();
    app.execute_batch("create table orders (id integer primary key); create table effect (n)")
        .unwrap();
    let new = NewFeed::captured("orders").unwrap();
    let feed = lab.store.create_feed(&new).await.unwrap();
    app.execute_batch("insert into orders values (1), (2)")
        .unwrap();
    let name: ConsumerName = "c".parse().unwrap();
    let taken = Taken::read(&lab.store, &name, &feed, SHARD, 10)
        .await
        .unwrap();
    let effect = "insert into effect values (1)";
    let failed = consume(&mut app, &taken, |effects| {
        effects.execute(effect, []).unwrap();
        Err::<(), _>(Error::invalid("no"))
    });
    assert_eq!(failed.unwrap_err().message(), "no");
    let again = Taken::read(&lab.store, &name, &feed, SHARD, 10)
        .await
        .unwrap();
    assert_eq!(again.from, None, "the page is the next one still");
    for (kind, of) in [(None, &taken), (Some(Kind::Moved), &again)] {
        let done = consume(&mut app, of, |effects| {
            effects.execute(effect, []).unwrap();
            Ok::<_, Error>(())
        });
        assert_eq!(done.err().map(|e| e.kind()), kind);
    }
    let effects: i64 = app
        .query_row("select count(*) from effect", [], |row| row.get(0))
        .unwrap();
    assert_eq!(effects, 1);
}

/// It would be put behind the rows that are backfilled below where an empty feed begins.
#[tokio::test]
async fn a_page_without_changes_moves_no_consumer() {
    let lab = Lab::new().await;
    let mut app = lab.store.connection().unwrap();
    app.execute_batch(
        "create table orders (id integer primary key); insert into orders values (7)",
    )
    .unwrap();
    let new = NewFeed::captured("orders").unwrap();
    let feed = lab.store.create_feed(&new).await.unwrap();
    let name: ConsumerName = "c".parse().unwrap();
    let nothing = Taken::read(&lab.store, &name, &feed, SHARD, 10)
        .await
        .unwrap();
    assert_eq!(nothing.to(), None);
    consume(&mut app, &nothing, |_| Ok::<_, Error>(())).unwrap();
    while !lab.store.backfill(&feed, 10).await.unwrap().finished {}
    let old = Taken::read(&lab.store, &name, &feed, SHARD, 10)
        .await
        .unwrap();
    assert_eq!((old.from, old.page.changes.len()), (None, 1));
}
