//! Named consumers.

use changefeed_core::{
    ConsumerName, ConsumerStore, Cursor, DEFAULT_START, FeedStore, Kind, ShardId, seek_consumer,
};
use changefeed_sqlite::advance_consumer;

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
