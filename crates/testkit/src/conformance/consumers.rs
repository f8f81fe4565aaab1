//! Named consumers, whose cursors are kept beside the changes.

use std::sync::Arc;

use changefeed_core::{
    ConsumerName, Cursor, DEFAULT_START, FeedId, FeedName, Kind, ShardId, Store, seek_consumer,
};

use crate::backend::{Backend, Session, eventually_true};

fn consumer(text: &str) -> ConsumerName {
    text.parse().unwrap()
}

fn at(n: i64) -> Cursor {
    Cursor::Number(DEFAULT_START + n)
}

/// Several consumers, several shards; the newest stored cursor is the one that counts.
pub async fn a_cursor_is_kept_by_name_and_shard(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 2).await;
    let (session, words) = (backend.session().await, backend.words());
    for shard in [0, 1] {
        session
            .run(&words.publish_range(37, shard, 10 * i64::from(shard), 10))
            .await;
    }
    backend.settle(&*store).await;
    let (a, b) = (consumer("mailer"), consumer("search_index-2"));
    assert_eq!(
        store.consumer_cursor(&a, &feed, ShardId(0)).await.unwrap(),
        None
    );
    for (name, shard, n) in [(&a, 0, 1), (&a, 1, 2), (&b, 0, 3), (&a, 0, 4)] {
        seek_consumer(&*store, name, &feed, ShardId(shard), at(n))
            .await
            .unwrap();
    }
    let other = backend.store().await;
    for (name, shard, expected) in [
        (&a, 0, Some(4)),
        (&a, 1, Some(2)),
        (&b, 0, Some(3)),
        (&b, 1, None),
    ] {
        assert_eq!(
            other
                .consumer_cursor(name, &feed, ShardId(shard))
                .await
                .unwrap(),
            expected.map(at)
        );
    }
    assert_eq!(other.consumers().await.unwrap().len(), 3);
}

/// What `status` shows.
pub async fn lag_is_counted_in_changes_and_time(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 1).await;
    let (session, words) = (backend.session().await, backend.words());
    session.run(&words.publish_range(37, 0, 1, 10)).await;
    backend.settle(&*store).await;
    let name = consumer("mailer");
    let lag = async || {
        let all = store.consumers().await.unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].name, name);
        assert_eq!(all[0].feed, feed.name);
        assert!(all[0].idle_ms >= 0 && all[0].lag_ms >= 0);
        all[0].clone()
    };
    let store_at = async |n| {
        seek_consumer(&*store, &name, &feed, ShardId(0), at(n))
            .await
            .unwrap();
    };
    store_at(0).await;
    assert_eq!(lag().await.lag_changes, 10);
    store_at(7).await;
    assert_eq!(lag().await.lag_changes, 3);
    // Time passes, and the unread changes get older.
    eventually_true("the lag in time grows", async || lag().await.lag_ms >= 20).await;
    store_at(10).await;
    let none = lag().await;
    assert_eq!((none.lag_changes, none.lag_ms), (0, 0));
    assert_eq!(none.cursor, at(10));
}

/// The consumer of this suite: it adds up change ids in a table of its own, and moves its cursor
/// from where it was in the same transaction.
async fn consume(
    backend: &Arc<dyn Backend>,
    store: &dyn Store,
    session: &dyn Session,
    from: Cursor,
) -> Result<Cursor, String> {
    let words = backend.words();
    let feed = &store.feeds().await.unwrap()[0];
    let page = store.read(feed, ShardId(0), from.into(), 4).await.unwrap();
    session.run(words.begin).await;
    for change in &page.changes {
        session
            .run(&format!(
                "update total set sum = sum + {}",
                change.change_id.unwrap()
            ))
            .await;
    }
    let moved = session
        .query(&format!(
            "update {} set cursor = '{}' where name = 'adder' and feed_id = 37 and shard = 0 \
             and cursor = '{from}' returning cursor",
            words.our("consumer"),
            page.next
        ))
        .await;
    match moved {
        Ok(rows) if rows.len() == 1 => {
            session.run("commit").await;
            Ok(page.next)
        }
        other => {
            session.run("rollback").await;
            Err(format!("{other:?}"))
        }
    }
}

/// Exactly-once effects: whatever is cut off or comes too late leaves neither effects nor cursor.
pub async fn effects_and_cursor_commit_together(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 1).await;
    let (session, words) = (backend.session().await, backend.words());
    session
        .run("create table total (sum bigint not null); insert into total values (0)")
        .await;
    session.run(&words.publish_range(37, 0, 1, 10)).await;
    backend.settle(&*store).await;
    let name = consumer("adder");
    seek_consumer(&*store, &name, &feed, ShardId(0), at(0))
        .await
        .unwrap();

    // The process dies between its effects and its commit.
    let doomed = backend.session().await;
    doomed.run(words.begin).await;
    doomed.run("update total set sum = sum + 1000").await;
    doomed
        .run(&format!(
            "update {} set cursor = '{}' where name = 'adder'",
            words.our("consumer"),
            at(4)
        ))
        .await;
    doomed.kill().await;

    // Once the database has noticed, the next instance starts from the stored cursor.
    let stored = store
        .consumer_cursor(&name, &feed, ShardId(0))
        .await
        .unwrap();
    assert_eq!(stored, Some(at(0)));
    let second = consume(&backend, &*store, &*session, at(0)).await.unwrap();
    assert_eq!(second, at(4));

    // A zombie that still believes in the old cursor is refused, effects and all.
    let zombie = backend.session().await;
    consume(&backend, &*store, &*zombie, at(0))
        .await
        .unwrap_err();
    assert_eq!(session.number("select sum from total").await, 1 + 2 + 3 + 4);

    let third = consume(&backend, &*store, &*session, second).await.unwrap();
    consume(&backend, &*store, &*session, third).await.unwrap();
    assert_eq!(session.number("select sum from total").await, 55);
    assert_eq!(
        store
            .consumer_cursor(&name, &feed, ShardId(0))
            .await
            .unwrap(),
        Some(at(10))
    );
}

/// On every shard of the feed, and on that feed only.
pub async fn a_consumer_can_be_forgotten(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 3).await;
    let (_, other) = backend.feed(38, 1).await;
    let name = consumer("mailer");
    for shard in 0..3 {
        seek_consumer(&*store, &name, &feed, ShardId(shard), at(0))
            .await
            .unwrap();
    }
    seek_consumer(&*store, &name, &other, ShardId(0), at(0))
        .await
        .unwrap();
    assert_eq!(store.drop_consumer(&name, &feed).await.unwrap(), 3);
    assert_eq!(store.drop_consumer(&name, &feed).await.unwrap(), 0);
    let left = store.consumers().await.unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].feed, other.name);
}

/// It would wait for ever, and nothing could be trimmed.
pub async fn a_consumer_of_an_unknown_shard_is_refused(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 1).await;
    let error = seek_consumer(&*store, &consumer("c"), &feed, ShardId(1), at(0))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error:?}");
    let ghost = changefeed_core::Feed {
        id: FeedId(99),
        name: FeedName::trusted("ghost".to_owned()),
        ..feed
    };
    let error = seek_consumer(&*store, &consumer("c"), &ghost, ShardId(0), at(0))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error:?}");
    assert!(store.consumers().await.unwrap().is_empty());
}
