//! Waking readers.

use std::time::Duration;

use changefeed_core::{FeedStore, ShardId, WakeStore};

use changefeed_sqlite::rusqlite::Connection;

use crate::support::{Lab, is_woken};

fn publish(feed: i16, shard: i16) -> String {
    format!(
        "insert into changefeed_change (feed_id, shard, change_id) values ({feed}, {shard}, 1);"
    )
}

#[tokio::test]
async fn a_commit_of_another_process_wakes_the_waiters_of_its_shard_only() {
    let lab = Lab::new().await;
    let feed = lab.feed(1, 2).await;
    let mut zero = lab.store.listen(&feed, ShardId(0));
    let mut one = lab.store.listen(&feed, ShardId(1));
    // Seen for the first time, a shard is news: something may have happened before. The second
    // look has begun when the second news comes, so the first is over, and with it whatever it had
    // for the other waiter, who may have come too late for it.
    assert!(is_woken(&mut zero).await);
    lab.shell(&publish(1, 0)).unwrap();
    assert!(is_woken(&mut zero).await);
    one.look();
    for _ in 0..3 {
        lab.shell(&publish(1, 1)).unwrap();
        assert!(is_woken(&mut one).await);
        lab.shell(&publish(1, 0)).unwrap();
        assert!(is_woken(&mut zero).await);
    }
    // Whoever was woken for the other shard would have news by now: both shards were looked at
    // after the last commit.
    let silent = tokio::time::timeout(Duration::from_millis(1), one.news()).await;
    assert!(silent.is_err());
}

#[tokio::test]
async fn two_stores_wake_each_other_and_a_rollback_wakes_nobody() {
    let lab = Lab::new().await;
    let feed = lab.feed(1, 2).await;
    let other = lab.other().await;
    let mut here = lab.store.listen(&feed, ShardId(0));
    let mut there = other.listen(&feed, ShardId(0));
    assert!(is_woken(&mut here).await && is_woken(&mut there).await);
    let app = lab.app();
    app.execute_batch(&format!("begin immediate; {} rollback;", publish(1, 0)))
        .unwrap();
    app.execute_batch(&publish(1, 1)).unwrap();
    let mut probe = lab.store.listen(&feed, ShardId(1));
    app.execute_batch(&publish(1, 1)).unwrap();
    assert!(is_woken(&mut probe).await);
    assert!(
        tokio::time::timeout(Duration::from_millis(1), here.news())
            .await
            .is_err()
    );
    app.execute_batch(&publish(1, 0)).unwrap();
    assert!(is_woken(&mut here).await && is_woken(&mut there).await);
}

#[tokio::test]
async fn a_backfill_that_ends_wakes_readers_at_its_frontier() {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (id integer primary key); insert into t values (1)")
        .unwrap();
    let feed = lab.captured("t", None, 1).await;
    lab.store.backfill(&feed, 1).await.unwrap();
    let mut waiter = lab.store.listen(&feed, ShardId(0));
    assert!(is_woken(&mut waiter).await);
    assert!(lab.store.backfill(&feed, 1).await.unwrap().finished);
    assert!(is_woken(&mut waiter).await);
}

#[tokio::test]
async fn the_thread_ends_with_its_store() {
    let lab = Lab::new().await;
    let feed = lab.feed(1, 1).await;
    let store = lab.other().await;
    let mut waiter = store.listen(&feed, ShardId(0));
    assert!(is_woken(&mut waiter).await);
    let clone = store.clone();
    drop(store);
    lab.app().execute_batch(&publish(1, 0)).unwrap();
    assert!(is_woken(&mut waiter).await, "a clone keeps it");
    drop(clone);
    let (path, dir) = (lab.path(), lab.close());
    // Leaving WAL needs the file for oneself: nobody has a connection any more.
    let alone = Connection::open(path).unwrap();
    let mode: String = alone
        .query_row("pragma journal_mode = delete", [], |row| row.get(0))
        .unwrap();
    assert_eq!(mode, "delete");
    drop(dir);
}
