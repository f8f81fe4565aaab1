//! Calls whose outcome the caller does not know: the answer was lost, or the database executed the
//! call late. Each of them can be repeated, and none of them undoes what happened since.

use std::sync::Arc;

use changefeed_core::{ConsumerName, Cursor, DEFAULT_START, Kind, ShardId, seek_consumer};

use crate::backend::Backend;

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
