//! Transactions that write to several shards.

use std::time::{Duration, Instant};

use changefeed_core::{Kind, Ulid, UlidOptions, Uuid};
use changefeed_postgres::tokio_postgres::IsolationLevel;
use changefeed_testkit::backend::{PostgresSession, Session};
use changefeed_testkit::run;
use changefeed_testkit::ulids::FEED;
use tokio::task::JoinSet;

use crate::ulids::support::{Scene, options, patience, scene};

/// Another feed; it comes before FEED.
const EARLIER: Uuid = Uuid::from_u128(7);
const COMMIT: &str = "select changefeed.commit_ulid_transaction()";

fn begin(shards: &str, more: &str) -> String {
    format!(
        "select changefeed.begin_ulid_shards(array_fill('{FEED}'::uuid, \
         array[cardinality(array[{shards}])]), array[{shards}]{more})"
    )
}

fn new(shard: i32) -> String {
    format!("select encode(changefeed.new_ulid('{FEED}', {shard}), 'hex')")
}

async fn all(session: &PostgresSession, statements: &[&str]) {
    for statement in statements {
        session.execute(statement).await.unwrap();
    }
}

async fn write(scene: &Scene, options: &UlidOptions) -> Vec<Ulid> {
    let mut transaction = scene.store.begin_ulid(options).await.unwrap();
    let mut given = Vec::new();
    for pair in options.shards() {
        given.push(transaction.next_ulid_of(pair.feed, pair.shard).unwrap());
    }
    transaction.commit().await.unwrap();
    given
}

#[test]
fn ulids_of_several_shards_increase_in_each() {
    run(async {
        let scene = scene().await;
        let session = scene.session().await;
        let both = options().and(EARLIER, 3);
        let mut newest = write(&scene, &both).await;
        for turn in 0..6 {
            // By the library with every isolation level, and by SQL, where more are added.
            let given = match turn {
                0 => write(&scene, &both).await,
                1 | 2 => {
                    let level = [IsolationLevel::RepeatableRead, IsolationLevel::Serializable];
                    let mut transaction = scene
                        .store
                        .begin_ulid_with(&both, level[turn - 1])
                        .await
                        .unwrap();
                    let wait = Duration::from_secs(1);
                    let error = transaction.add(FEED, 1, wait).await.unwrap_err();
                    assert!(error.to_string().contains("isolation level"), "{error}");
                    let given = [(EARLIER, 3), (FEED, 0)]
                        .map(|(feed, shard)| transaction.next_ulid_of(feed, shard).unwrap());
                    transaction.commit().await.unwrap();
                    assert_eq!(scene.locks().await, 0);
                    given.to_vec()
                }
                3 => {
                    let begin = UlidOptions::new(EARLIER, 3);
                    let mut transaction = scene.store.begin_ulid(&begin).await.unwrap();
                    let first = transaction.next_ulid().unwrap();
                    transaction
                        .add(FEED, 0, Duration::from_secs(1))
                        .await
                        .unwrap();
                    assert!(transaction.next_ulid().is_err(), "which one?");
                    let second = transaction.next_ulid_of(FEED, 0).unwrap();
                    transaction.commit().await.unwrap();
                    vec![first, second]
                }
                _ => {
                    let begin = format!(
                        "select changefeed.begin_ulid_shards(array['{FEED}', '{EARLIER}']::uuid[], array[0, 3])"
                    );
                    all(&session, &["begin", &begin]).await;
                    let mut given = Vec::new();
                    for (feed, shard) in [(EARLIER, 3), (FEED, 0)] {
                        let new =
                            format!("select encode(changefeed.new_ulid('{feed}', {shard}), 'hex')");
                        let rows = session.query(&new).await.unwrap();
                        let text = rows[0][0].clone().unwrap();
                        let value = u128::from_str_radix(&text, 16).unwrap();
                        given.push(Ulid::from_bytes(value.to_be_bytes()));
                    }
                    let commit = [COMMIT, "select 1"][turn - 4];
                    all(&session, &[commit, "commit"]).await;
                    given
                }
            };
            for (before, now) in newest.iter().zip(&given) {
                assert!(before < now, "turn {turn}");
            }
            newest = given;
        }
        assert_eq!(scene.locks().await, 0);
    });
}

#[test]
fn misuse_of_several_shards_is_named() {
    run(async {
        let scene = scene().await;
        let session = scene.session().await;
        let add = |shard: i32| format!("select changefeed.add_ulid_shard('{FEED}', {shard})");
        for (statements, expected) in [
            (
                vec![begin("0, 1", ""), "select changefeed.new_ulid()".into()],
                "name the feed and the shard",
            ),
            (
                vec![begin("0, 1", ""), new(2)],
                "shard 2 is not in this ULID transaction",
            ),
            (
                vec![begin("3, 5", ""), add(4)],
                "locked in ascending order; name all of them",
            ),
            (
                vec![begin("3, 5", ""), add(5)],
                "is in this transaction already",
            ),
            (
                vec![begin("3", ""), begin("4", "")],
                "is already open in this transaction",
            ),
            (vec![add(0)], "no ULID transaction to add a shard to"),
            (
                vec![begin("0", ""), COMMIT.into(), add(1)],
                "already called; commit",
            ),
            (vec![begin("0, null", "")], "not null"),
            (vec![begin("0", ", 5")], "at least 10 ms"),
            (
                vec!["select changefeed.begin_ulid_shards('{}', '{}')".into()],
                "at least one feed",
            ),
            (
                vec![format!(
                    "select changefeed.begin_ulid_shards(array['{FEED}']::uuid[], '{{1, 2}}')"
                )],
                "one shard for each feed",
            ),
            (
                vec![
                    "set transaction isolation level repeatable read".into(),
                    begin("0, 1", ""),
                ],
                "read committed",
            ),
        ] {
            session.execute("begin").await.unwrap();
            let (last, before) = statements.split_last().unwrap();
            for statement in before {
                session.execute(statement).await.unwrap();
            }
            let error = session.execute(last).await.unwrap_err();
            assert!(
                error.message.starts_with("CF004: "),
                "{statements:?}: {error}"
            );
            assert!(error.message.contains(expected), "{statements:?}: {error}");
            session.execute("rollback").await.unwrap();
            assert_eq!(scene.locks().await, 0, "{statements:?}");
        }
        // What was added and taken back is neither verified nor drawn from, and the same shard twice is once.
        let both = begin("0, 0", "");
        all(
            &session,
            &[
                "begin",
                &both,
                "savepoint a",
                &add(1),
                &new(1),
                "rollback to a",
            ],
        )
        .await;
        let gone = session.execute(&new(1)).await.unwrap_err();
        assert!(gone.message.contains("not in this"), "{gone}");
        all(
            &session,
            &[
                "rollback",
                "begin",
                &both,
                "savepoint a",
                &add(1),
                "rollback to a",
            ],
        )
        .await;
        all(
            &session,
            &["select changefeed.new_ulid()", COMMIT, "commit"],
        )
        .await;
        let mut transaction = scene.store.begin_ulid(&options()).await.unwrap();
        let wait = Duration::from_secs(1);
        let error = transaction.add(FEED, -1, wait).await.unwrap_err();
        assert!(error.to_string().contains("ascending order"), "{error}");
        transaction.commit().await.unwrap();
    });
}

/// Named in opposite orders, they are locked in one: nobody waits in a circle.
#[test]
fn opposite_orders_do_not_wait_for_each_other() {
    run(async {
        let scene = scene().await;
        let mut writers = JoinSet::new();
        let began = Instant::now();
        for n in 0..6 {
            let (store, session) = (scene.other_store().await, scene.session().await);
            writers.spawn(async move {
                for _ in 0..40 {
                    let (one, other) = if n % 2 == 0 { (0, 1) } else { (1, 0) };
                    if n < 4 {
                        let options = UlidOptions::new(FEED, one).and(FEED, other);
                        let transaction = store.begin_ulid(&options).await.unwrap();
                        transaction.commit().await.unwrap();
                    } else {
                        let begin = begin(&format!("{one}, {other}"), "");
                        all(&session, &["begin", &begin, COMMIT, "commit"]).await;
                    }
                }
            });
        }
        writers.join_all().await;
        eprintln!(
            "240 transactions in opposite orders: {} ms",
            began.elapsed().as_millis()
        );
        assert!(
            began.elapsed() < Duration::from_secs(25),
            "somebody stood still"
        );
        assert_eq!(scene.incidents().await + scene.incidents_of(1).await, 0);
    });
}

/// One incident for each burned shard, one timeout for whoever waits for both, and nothing of the lost one is committed.
#[test]
fn promise_7_a_lost_holder_of_two_shards() {
    run(async {
        let scene = scene().await;
        let timeout = Duration::from_millis(500);
        for first in [0, 1] {
            let before = (scene.incidents().await, scene.incidents_of(1).await);
            let silent = scene.session().await;
            let begin = begin("0, 1", ", timeout => 60000");
            all(&silent, &["begin", &begin, &new(0), &new(1)]).await;
            // Somebody needs one of them.
            let one = UlidOptions {
                shard: first,
                ..patience(timeout)
            };
            let began = Instant::now();
            scene
                .store
                .begin_ulid(&one)
                .await
                .unwrap()
                .commit()
                .await
                .unwrap();
            assert!(
                began.elapsed() < Duration::from_secs(2),
                "{:?}",
                began.elapsed()
            );
            // The other is not burned yet, and still this transaction is lost.
            let refused = silent.execute("commit").await.unwrap_err();
            assert!(refused.message.starts_with("CF003: "), "{refused}");
            let now = (scene.incidents().await, scene.incidents_of(1).await);
            let expected = match first {
                0 => (before.0 + 1, before.1),
                _ => (before.0, before.1 + 1),
            };
            assert_eq!(now, expected);
        }
        let before = scene.incidents().await + scene.incidents_of(1).await;
        let silent = scene.session().await;
        all(&silent, &["begin", &begin("0, 1", ", timeout => 60000")]).await;
        let began = Instant::now();
        let mut writers = JoinSet::new();
        for n in 0..5 {
            let store = scene.other_store().await;
            let options = match n {
                0 => patience(timeout),
                1 => UlidOptions {
                    shard: 1,
                    ..patience(timeout)
                },
                _ => patience(timeout).and(FEED, 1),
            };
            writers.spawn(async move {
                store
                    .begin_ulid(&options)
                    .await
                    .unwrap()
                    .commit()
                    .await
                    .unwrap();
            });
        }
        writers.join_all().await;
        eprintln!(
            "five waited for a lost holder of two shards: {} ms",
            began.elapsed().as_millis()
        );
        // One timeout, though some had to find both.
        assert!(began.elapsed() < Duration::from_secs(3));
        let after = scene.incidents().await + scene.incidents_of(1).await;
        assert_eq!(after, before + 2, "one for each shard");
        assert!(silent.execute(COMMIT).await.is_err());
    });
}

/// A shard whose holder is lost is found when it is added, too: the transaction fails, and done again it goes on.
#[test]
fn adding_a_shard_of_a_lost_holder_reports_it() {
    run(async {
        let scene = scene().await;
        let silent = scene.session().await;
        all(&silent, &["begin", &begin("1", ", timeout => 60000")]).await;
        let quick = patience(Duration::from_millis(200));
        let wait = Duration::from_secs(10);
        let mut transaction = scene.store.begin_ulid(&quick).await.unwrap();
        let error = transaction.add(FEED, 1, wait).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Busy, "{error}");
        assert_eq!(scene.incidents_of(1).await, 1);
        // An error that was swallowed does not make a commit of a rollback.
        assert!(transaction.commit().await.is_err());
        let mut again = scene.store.begin_ulid(&quick).await.unwrap();
        again.add(FEED, 1, wait).await.unwrap();
        again.commit().await.unwrap();
        assert_eq!(scene.incidents().await, 0);
    });
}
