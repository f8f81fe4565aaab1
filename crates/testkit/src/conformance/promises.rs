//! Promises 1 to 5 and 11 of the design, by number.

use std::sync::Arc;

use changefeed_core::{After, Cursor, DEFAULT_START, ShardId};

use crate::backend::{Backend, ids, numbers, wait_for};
use crate::history::Workload;

/// The race that this project exists for: A takes its id, B takes a higher one and commits, a
/// reader reads, and only then A commits.
pub async fn promise_1_a_change_that_commits_late_is_not_skipped(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 1).await;
    let words = backend.words();
    let (a, b) = (backend.session().await, backend.session().await);
    a.run(words.begin).await;
    a.run(&words.publish(37, 0, 1)).await;
    let b_writes = tokio::spawn(async move {
        b.run(words.begin).await;
        b.run(&words.publish(37, 0, 2)).await;
        b.run("commit").await;
    });
    if store.needs_sweeping() {
        // Where writers are not serialised, B is not held up by A.
        b_writes.await.unwrap();
        let page = read_after(&backend, After::First).await;
        assert_eq!(page.0, [2]);
        a.run("commit").await;
        assert_eq!(read_after(&backend, page.1.into()).await.0, [1]);
    } else {
        let page = read_after(&backend, After::First).await;
        assert_eq!(page.0, [0i64; 0]);
        a.run("commit").await;
        b_writes.await.unwrap();
        assert_eq!(read_after(&backend, page.1.into()).await.0, [1, 2]);
    }
    assert_eq!(ids(&*store, &feed, 0).await.len(), 2);
}

/// Numbers what is there and reads the page after a point of feed 37, shard 0.
async fn read_after(backend: &Arc<dyn Backend>, after: After) -> (Vec<i64>, Cursor) {
    let store = backend.store().await;
    backend.settle(&*store).await;
    let feed = &store.feeds().await.unwrap()[0];
    let page = store.read(feed, ShardId(0), after, 100).await.unwrap();
    let ids = page.changes.iter().map(|c| c.change_id.unwrap()).collect();
    (ids, page.next)
}

/// Others are numbered and read while it is open, and it gets its place when it commits.
pub async fn promise_1_a_long_open_transaction_holds_nobody_up_and_loses_nothing(
    backend: Arc<dyn Backend>,
) {
    let (store, feed) = backend.feed(37, 1).await;
    let words = backend.words();
    let (long, other) = (backend.session().await, backend.session().await);
    if store.needs_sweeping() {
        long.run(words.begin).await;
        long.run(&words.publish(37, 0, 1)).await;
        for round in 0..20i64 {
            let ids = 100 * (round + 1)..100 * (round + 1) + 50;
            other.run(&words.publish_many(37, 0, ids)).await;
            backend.settle(&*store).await;
        }
        assert_eq!(ids(&*store, &feed, 0).await.len(), 1000);
        long.run(&words.publish(37, 0, 2)).await;
        long.run("commit").await;
        backend.settle(&*store).await;
        let all = ids(&*store, &feed, 0).await;
        assert_eq!(all.len(), 1002);
        assert_eq!(all[1000..], [1, 2]);
    } else {
        // Where writers are serialised, readers must still not wait for one that is slow.
        other.run(&words.publish_many(37, 0, 100..150)).await;
        long.run(words.begin).await;
        long.run(&words.publish(37, 0, 1)).await;
        assert_eq!(ids(&*store, &feed, 0).await.len(), 50);
        long.run("commit").await;
        assert_eq!(ids(&*store, &feed, 0).await.len(), 51);
    }
}

/// Per feed and shard, from `last_change_sequence_number + 1`.
pub async fn promise_2_numbers_are_gapless_from_the_start_in_every_shard(
    backend: Arc<dyn Backend>,
) {
    let (store, feed) = backend.feed(37, 3).await;
    let (session, words) = (backend.session().await, backend.words());
    for id in 0..300i64 {
        let shard = i16::try_from(id % 3).unwrap();
        session.run(&words.publish(37, shard, id)).await;
        if id % 7 == 0 {
            backend.settle(&*store).await;
        }
    }
    backend.settle(&*store).await;
    for shard in 0..3 {
        let expected: Vec<(i64, i64)> = (0..100)
            .map(|n| (DEFAULT_START + 1 + n, 3 * n + i64::from(shard)))
            .collect();
        assert_eq!(numbers(&*store, &feed, shard).await, expected);
    }
    for state in store.shard_states(&feed).await.unwrap() {
        assert_eq!(state.last, Cursor::Number(DEFAULT_START + 100));
        assert_eq!(state.pending, 0);
    }
}

/// Across sweeps and within one, whatever connection was used.
pub async fn promise_3_what_was_committed_before_comes_before(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 1).await;
    let words = backend.words();
    let sessions = [
        backend.session().await,
        backend.session().await,
        backend.session().await,
    ];
    let mut order = Vec::new();
    for round in 0..60usize {
        let session = &sessions[round % 3];
        session.run(words.begin).await;
        let id = session.number(words.draw_change_id).await;
        session.run(&words.publish(37, 0, id)).await;
        session.run("commit").await;
        order.push(id);
        if round % 11 == 0 {
            backend.settle(&*store).await;
        }
    }
    backend.settle(&*store).await;
    assert_eq!(ids(&*store, &feed, 0).await, order);
}

/// Also when others commit in between.
pub async fn promise_4_what_was_rolled_back_never_appears_and_leaves_no_gap(
    backend: Arc<dyn Backend>,
) {
    let (store, feed) = backend.feed(37, 1).await;
    let (session, words) = (backend.session().await, backend.words());
    for id in 0..40i64 {
        session.run(words.begin).await;
        session.run(&words.publish(37, 0, id)).await;
        if id % 2 == 0 {
            session.run("rollback").await;
        } else {
            session.run("commit").await;
        }
        if id % 9 == 0 {
            backend.settle(&*store).await;
        }
    }
    backend.settle(&*store).await;
    let expected: Vec<(i64, i64)> = (0..20)
        .map(|n| (DEFAULT_START + 1 + n, 2 * n + 1))
        .collect();
    assert_eq!(numbers(&*store, &feed, 0).await, expected);
    // A statement that fails takes back its own insert, too.
    let again = format!(
        "{}; select 1/0 from no_such_table",
        words.publish(37, 0, 900)
    );
    let _ = session.execute(words.begin).await;
    assert!(session.execute(&again).await.is_err());
    session.run("rollback").await;
    backend.settle(&*store).await;
    assert_eq!(numbers(&*store, &feed, 0).await, expected);
}

/// Nested, released and rolled back.
pub async fn promise_4_savepoints_take_back_only_their_own(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 1).await;
    let (session, words) = (backend.session().await, backend.words());
    let publish = |id| words.publish(37, 0, id);
    session.run(words.begin).await;
    session.run(&publish(1)).await;
    session.run("savepoint a").await;
    session.run(&publish(2)).await;
    session.run("savepoint b").await;
    session.run(&publish(3)).await;
    session.run("rollback to savepoint b").await;
    session.run(&publish(4)).await;
    session.run("release savepoint a").await;
    session.run("savepoint c").await;
    session.run(&publish(5)).await;
    session.run("rollback to savepoint c").await;
    session.run(&publish(6)).await;
    backend.settle(&*backend.store().await).await;
    session.run("commit").await;
    backend.settle(&*store).await;
    let expected: Vec<(i64, i64)> = (1..).map(|n| DEFAULT_START + n).zip([1, 2, 4, 6]).collect();
    assert_eq!(numbers(&*store, &feed, 0).await, expected);
}

/// Whatever was published meanwhile, and whatever the page size.
pub async fn promise_5_a_page_read_twice_starts_with_the_same_changes(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 1).await;
    let (session, words) = (backend.session().await, backend.words());
    session.run(&words.publish_many(37, 0, 100..130)).await;
    backend.settle(&*store).await;
    let other = backend.store().await;
    for (low, after) in [
        (-1, After::First),
        (-2, Cursor::Number(DEFAULT_START).into()),
        (-3, Cursor::Number(DEFAULT_START + 7).into()),
    ] {
        let once = store.read(&feed, ShardId(0), after, 10).await.unwrap();
        // Lower ids come later; they must not push in.
        session.run(&words.publish(37, 0, low)).await;
        backend.settle(&*store).await;
        for (reader, limit) in [(&store, 10), (&other, 25), (&store, 3)] {
            let again = reader.read(&feed, ShardId(0), after, limit).await.unwrap();
            for (a, b) in once.changes.iter().zip(&again.changes) {
                assert_eq!((a.cursor, a.change_id), (b.cursor, b.change_id));
            }
            assert_eq!(again.changes.len(), limit.min(again.changes.len()));
        }
    }
}

/// Neither at once nor later.
pub async fn promise_11_a_connection_cut_in_mid_transaction_publishes_nothing(
    backend: Arc<dyn Backend>,
) {
    let (store, feed) = backend.feed(37, 1).await;
    let words = backend.words();
    for id in 1..=5 {
        let session = backend.session().await;
        session.run(words.begin).await;
        session.run(&words.publish(37, 0, id)).await;
        session.kill().await;
        backend.settle(&*store).await;
    }
    let session = backend.session().await;
    session.run(&words.publish(37, 0, 6)).await;
    assert_eq!(wait_for(&*store, &feed, 0, 1).await, [6]);
}

/// Sweeps and pages are dropped half-way, as by a crash of their process; the next does it all.
pub async fn promise_11_work_cut_off_at_any_moment_is_done_by_the_next(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 2).await;
    let (session, words) = (backend.session().await, backend.words());
    for round in 0..30i64 {
        let first = 100 * round;
        session
            .run(&words.publish_many(37, 0, first..first + 40))
            .await;
        session
            .run(&words.publish_many(37, 1, first + 40..first + 50))
            .await;
        let doomed = backend.store().await;
        let soon = std::time::Duration::from_micros(u64::try_from(round).unwrap() * 150);
        let _ = tokio::time::timeout(soon, backend.settle(&*doomed)).await;
        drop(doomed);
    }
    let all = wait_for(&*store, &feed, 0, 1200).await;
    assert_eq!(all.len(), 1200);
    wait_for(&*store, &feed, 1, 300).await;
    for (shard, from, count) in [(0, 0, 40), (1, 40, 50)] {
        let expected: Vec<i64> = (0..30i64)
            .flat_map(|round| 100 * round + from..100 * round + count)
            .collect();
        let found = numbers(&*store, &feed, shard).await;
        let ids: Vec<i64> = found.iter().map(|(_, id)| *id).collect();
        assert_eq!(ids, expected);
        assert!((DEFAULT_START + 1..).zip(&found).all(|(n, (m, _))| n == *m));
    }
}

/// Sixteen writers that delay, roll back, use savepoints and get killed, three readers per
/// shard, two sweepers, and the checker.
pub async fn promises_1_to_5_hold_in_a_random_history(backend: Arc<dyn Backend>) {
    let (_, feed) = backend.feed(37, 2).await;
    let workload = Workload::short();
    workload.run(backend, &feed, async |_, _| {}).await;
}
