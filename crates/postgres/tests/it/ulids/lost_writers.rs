//! Promise 7: a writer that disappears stops its shard for at most the timeout, is counted once,
//! and cannot commit afterwards; one that lives is left alone.

use std::io::Cursor;
use std::time::{Duration, Instant};

use changefeed_core::Kind;
use changefeed_postgres::PostgresStore;
use changefeed_testkit::backend::{Backend, Session};
use changefeed_testkit::postgres::Relay;
use changefeed_testkit::{eventually, run};
use futures_util::SinkExt;
use tokio::task::JoinSet;

use crate::ulids::support::{Client, Scene, insert, options, scene, write};

const TIMEOUT: Duration = Duration::from_secs(1);
/// What is promised is the timeout and 250 ms, on a machine that has time for us. The rest is for
/// one that does not; the figure is printed.
const BOUND: Duration = Duration::from_millis(2000);

/// One writer begins, commits, and tells when it had begun.
async fn begins(store: PostgresStore, note: String) -> Instant {
    let mut transaction = store.begin_ulid(&options()).await.unwrap();
    let begun = Instant::now();
    insert(&mut transaction, &note).await;
    transaction.commit().await.unwrap();
    begun
}

/// Queues `count` writers, lets the holder disappear, and measures until the first and until the
/// last of them had begun.
async fn stall(scene: &Scene, count: i64, disappear: impl AsyncFnOnce()) -> (Duration, Duration) {
    let mut writers = JoinSet::new();
    let store = scene.other_store().await;
    for n in 0..count {
        writers.spawn(begins(store.clone(), format!("outsider {n}")));
    }
    scene.queued(count).await;
    let frozen = Instant::now();
    disappear().await;
    let begun = writers.join_all().await;
    let first = begun.iter().min().unwrap().duration_since(frozen);
    let last = begun.iter().max().unwrap().duration_since(frozen);
    (first, last)
}

fn within_bounds(what: &str, stalled: Duration) {
    eprintln!("{what}: stalled for {} ms", stalled.as_millis());
    assert!(
        stalled < BOUND,
        "{what}: the shard stood for {stalled:?}, not for {TIMEOUT:?}"
    );
}

async fn session_of_holder(scene: &Scene) -> String {
    scene
        .admin
        .value(
            "select pid from pg_locks where locktype = 'advisory' and granted and database = \
             (select oid from pg_database where datname = current_database())",
        )
        .await
}

/// Ten writers wait; the incident is one.
#[test]
fn promise_7_a_frozen_process_stalls_its_shard_for_one_timeout() {
    run(async {
        let scene = scene().await;
        let mut zombie = Client::start(&scene.backend.url());
        zombie.must("begin");
        zombie.ask("insert zombie");
        let (first, last) = stall(&scene, 10, async || zombie.process.freeze()).await;
        within_bounds("frozen, ten waiting", first);
        assert!(last - first < TIMEOUT, "they went one by one: {last:?}");
        assert_eq!(scene.incidents().await, 1);
        // It wakes up in time to try: what it wrote is not published.
        zombie.process.thaw();
        let answer = zombie.ask("commit");
        assert!(
            answer.starts_with("Busy: ") && answer.contains("its lock was burned"),
            "{answer}"
        );
        assert_eq!(scene.notes().await.len(), 10);
        assert_eq!(scene.incidents().await, 1);
        scene.unlocked().await;
    });
}

/// Where the state alone would look as it had left it.
#[test]
fn promise_6_a_zombie_cannot_commit_even_if_nobody_has_since() {
    run(async {
        let scene = scene().await;
        for begin in ["begin", "begin-repeatable-read"] {
            let before = scene.incidents().await;
            let mut zombie = Client::start(&scene.backend.url());
            zombie.must(begin);
            zombie.ask("insert zombie");
            zombie.process.freeze();
            // A writer finds the incident, and takes back what it did.
            let living = scene.store.begin_ulid(&options()).await.unwrap();
            assert_eq!(scene.incidents().await, before + 1);
            living.rollback().await.unwrap();
            zombie.process.thaw();
            let answer = zombie.ask("commit");
            assert!(answer.starts_with("Busy: "), "{begin}: {answer}");
            assert_eq!(scene.notes().await, [""; 0]);
            // And its process is as good as any other afterwards.
            zombie.must(begin);
            zombie.must("rollback");
            assert_eq!(scene.incidents().await, before + 1);
            scene.unlocked().await;
        }
    });
}

/// Burning frees only our lock: the server ends the session, and with it the locks on rows.
#[test]
fn a_frozen_process_loses_its_row_locks_too() {
    run(async {
        let scene = scene().await;
        scene
            .admin
            .run("create table counter (n int); insert into counter values (0)")
            .await;
        let zombie = scene.session().await;
        zombie
            .execute(&format!(
                "begin; select changefeed.begin_ulid_transaction('{}', 0, 200); \
                 update counter set n = n + 1",
                options().feed
            ))
            .await
            .unwrap();
        let began = Instant::now();
        scene.admin.run("update counter set n = n + 10").await;
        let waited = began.elapsed();
        eprintln!("row lock of a silent holder: {} ms", waited.as_millis());
        assert!(waited < Duration::from_millis(600) + TIMEOUT);
        assert_eq!(scene.admin.number("select n from counter").await, 10);
        let dead = zombie
            .execute("select changefeed.commit_ulid_transaction(); commit")
            .await
            .unwrap_err();
        assert!(
            dead.connection_lost || dead.message.starts_with("25P03"),
            "{dead}"
        );
    });
}

/// Without a FIN: both sides keep their sockets, and nothing arrives.
#[test]
fn promise_7_a_network_that_is_cut_stalls_for_one_timeout() {
    run(async {
        let scene = scene().await;
        let relay = Relay::to(&scene.backend.url()).await;
        let far = PostgresStore::connect(&relay.url).await.unwrap();
        let mut lost = far.begin_ulid(&options()).await.unwrap();
        insert(&mut lost, "lost").await;
        let (first, _) = stall(&scene, 3, async || relay.cut()).await;
        within_bounds("network cut", first);
        assert_eq!(scene.incidents().await, 1);
        relay.heal();
        let error = lost.commit().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Busy, "{error}");
        assert_eq!(scene.notes().await.len(), 3);
        assert_eq!(scene.incidents().await, 1);
        scene.unlocked().await;
    });
}

/// The server is in the middle of a statement then, and that is no sign of life.
#[test]
fn promise_7_a_process_frozen_while_it_receives_a_large_result() {
    run(async {
        let scene = scene().await;
        let mut zombie = Client::start(&scene.backend.url());
        zombie.must("begin");
        let pid = session_of_holder(&scene).await;
        zombie.must("flood");
        let mut blocked = None;
        let (first, _) = stall(&scene, 3, async || {
            zombie.process.freeze();
            eventually("the server waits for its client", || async {
                let state = scene
                    .admin
                    .value(&format!(
                        "select state || '/' || coalesce(wait_event, '') \
                         from pg_stat_activity where pid = {pid}"
                    ))
                    .await;
                (state == "active/ClientWrite").then_some(())
            })
            .await;
            blocked = Some(Instant::now());
        })
        .await;
        let filled = blocked.unwrap().elapsed();
        eprintln!("(the server noticed {} ms ago)", filled.as_millis());
        within_bounds("frozen while receiving", first);
        assert_eq!(scene.incidents().await, 1);
        assert_eq!(scene.notes().await.len(), 3);
    });
}

/// A pod that loses power: one timeout, not one for each of its connections.
#[test]
fn promise_7_ten_connections_of_one_process_cost_one_timeout() {
    run(async {
        let scene = scene().await;
        let mut pod = Client::start(&scene.backend.url());
        pod.must("begin");
        pod.must("queue 9");
        scene.queued(9).await;
        // An outsider, last in the queue of all.
        let outsider = tokio::spawn(begins(scene.other_store().await, "outsider".to_owned()));
        scene.queued(10).await;
        let frozen = Instant::now();
        pod.process.freeze();
        let stalled = outsider.await.unwrap().duration_since(frozen);
        within_bounds("ten connections of one process", stalled);
        assert_eq!(scene.incidents().await, 1);
        // And whoever comes now does not wait for the dead either.
        let began = Instant::now();
        write(&scene.store, "later").await;
        assert!(began.elapsed() < TIMEOUT, "another timeout for the dead");
        assert_eq!(scene.incidents().await, 1);
    });
}

/// A waiter must not go by what it saw at its first look: then the holder was busy.
#[test]
fn promise_7_a_holder_that_falls_silent_while_others_wait() {
    run(async {
        let scene = scene().await;
        let holder = scene.session().await;
        let feed = options().feed;
        holder
            .execute(&format!(
                "begin; select changefeed.begin_ulid_transaction('{feed}', 0)"
            ))
            .await
            .unwrap();
        // The waiters come while this runs.
        let busy = tokio::spawn(async move {
            holder.execute("select pg_sleep(1)").await.unwrap();
            (holder, Instant::now())
        });
        let mut writers = JoinSet::new();
        for n in 0..3 {
            writers.spawn(begins(scene.other_store().await, format!("outsider {n}")));
        }
        scene.queued(3).await;
        let (_holder, silent) = busy.await.unwrap();
        let begun = writers.join_all().await.into_iter().min().unwrap();
        within_bounds("silent after a statement", begun.duration_since(silent));
        assert_eq!(scene.incidents().await, 1);
    });
}

/// Nor is a waiter of plain SQL, which has no library to ask again, told of an incident when the
/// holder was idle at its first look, and speaks now and then.
#[test]
fn promise_7_plain_sql_waits_for_a_holder_that_speaks_now_and_then() {
    run(async {
        let scene = scene().await;
        let (holder, waiter) = (scene.session().await, scene.session().await);
        let begin = format!(
            "begin; select changefeed.begin_ulid_transaction('{}', 0)",
            options().feed
        );
        holder.execute(&begin).await.unwrap();
        let waiting = tokio::spawn(async move { waiter.execute(&begin).await });
        scene.queued(1).await;
        for _ in 0..8 {
            tokio::time::sleep(TIMEOUT / 4).await;
            holder.execute("select 1").await.unwrap();
        }
        holder.execute("rollback").await.unwrap();
        waiting.await.unwrap().unwrap();
        assert_eq!(scene.incidents().await, 0);
    });
}

/// Queues ten writers behind a holder that lives, and lets it finish.
async fn no_incident(scene: &Scene, hold: impl AsyncFnOnce()) {
    let mut writers = JoinSet::new();
    let store = scene.other_store().await;
    for n in 0..10 {
        writers.spawn(begins(store.clone(), format!("waiting {n}")));
    }
    scene.queued(10).await;
    hold().await;
    writers.join_all().await;
    assert_eq!(
        scene.incidents().await,
        0,
        "a living holder was judged dead"
    );
    assert_eq!(scene.notes().await.len(), 11);
    scene.unlocked().await;
}

/// It computes for three timeouts; the library speaks for it.
#[test]
fn promise_7_a_holder_that_computes_is_kept_alive_by_the_library() {
    run(async {
        let scene = scene().await;
        let mut holder = scene.store.begin_ulid(&options()).await.unwrap();
        no_incident(&scene, async || {
            tokio::time::sleep(3 * TIMEOUT).await;
            insert(&mut holder, "slow").await;
            holder.commit().await.unwrap();
        })
        .await;
    });
}

/// So is one with a session lock, before and after its snapshot.
#[test]
fn promise_7_a_busy_holder_is_alive() {
    run(async {
        let scene = scene().await;
        let level = changefeed_postgres::tokio_postgres::IsolationLevel::RepeatableRead;
        let mut holder = scene
            .store
            .begin_ulid_with(&options(), level)
            .await
            .unwrap();
        no_incident(&scene, async || {
            let began = Instant::now();
            insert(&mut holder, "busy").await;
            while began.elapsed() < 2 * TIMEOUT {
                holder.batch_execute("select 1").await.unwrap();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            // One statement that takes longer than the timeout.
            holder.batch_execute("select pg_sleep(1.5)").await.unwrap();
            holder.commit().await.unwrap();
        })
        .await;
    });
}

/// By plain SQL, with nobody to speak for it but its statements.
#[test]
fn promise_7_statements_are_signs_of_life() {
    run(async {
        let scene = scene().await;
        let holder = scene.session().await;
        let feed = options().feed;
        holder
            .execute(&format!(
                "begin; select changefeed.begin_ulid_transaction('{feed}', 0)"
            ))
            .await
            .unwrap();
        no_incident(&scene, async || {
            for _ in 0..5 {
                holder.execute("select pg_sleep(0.5)").await.unwrap();
            }
            holder
                .execute(
                    "insert into event values (0, changefeed.new_ulid(), 'sql'); \
                     select changefeed.commit_ulid_transaction(); commit",
                )
                .await
                .unwrap();
        })
        .await;
    });
}

/// A bulk load by COPY is one statement, in which the server mostly waits for its client.
#[test]
fn promise_7_a_slow_copy_is_alive() {
    run(async {
        let scene = scene().await;
        let mut holder = scene.store.begin_ulid(&options()).await.unwrap();
        let ulids: Vec<_> = holder.ulids(500).unwrap().collect();
        let mut writers = JoinSet::new();
        for n in 0..3 {
            writers.spawn(begins(scene.other_store().await, format!("waiting {n}")));
        }
        scene.queued(3).await;
        let copy = holder
            .copy_in::<_, Cursor<Vec<u8>>>("copy event (shard, ulid, note) from stdin")
            .await
            .unwrap();
        let mut copy = std::pin::pin!(copy);
        let began = Instant::now();
        let mut sent = 0;
        // What the driver gathers before it sends has to be filled several times a second.
        let note = "x".repeat(2000);
        for ulid in ulids {
            let hex: String = ulid.to_bytes().iter().map(|b| format!("{b:02x}")).collect();
            let line = format!("0\t\\\\x{hex}\t{note}\n").into_bytes();
            copy.send(Cursor::new(line)).await.unwrap();
            sent += 1;
            tokio::time::sleep(Duration::from_millis(5)).await;
            if began.elapsed() > 5 * TIMEOUT / 2 {
                break;
            }
        }
        assert_eq!(copy.as_mut().finish().await.unwrap(), sent);
        holder.commit().await.unwrap();
        writers.join_all().await;
        assert_eq!(scene.incidents().await, 0);
    });
}

/// The holder is another one at every look; a queue is no incident, however long it stands.
#[test]
fn promise_7_a_long_queue_is_no_incident() {
    run(async {
        let scene = scene().await;
        let mut writers = JoinSet::new();
        let began = Instant::now();
        for store in [scene.other_store().await, scene.other_store().await] {
            for _ in 0..10 {
                let store = store.clone();
                writers.spawn(async move {
                    let mut longest = Duration::ZERO;
                    while began.elapsed() < 3 * TIMEOUT {
                        let asked = Instant::now();
                        let mut turn = store.begin_ulid(&options()).await.unwrap();
                        longest = longest.max(asked.elapsed());
                        insert(&mut turn, "turn").await;
                        tokio::time::sleep(Duration::from_millis(60)).await;
                        turn.commit().await.unwrap();
                    }
                    longest
                });
            }
        }
        let longest = writers.join_all().await.into_iter().max().unwrap();
        eprintln!(
            "twenty writers, {} turns, longest wait {} ms",
            scene.notes().await.len(),
            longest.as_millis()
        );
        assert!(
            longest > TIMEOUT,
            "nobody waited long enough to prove anything"
        );
        assert_eq!(scene.incidents().await, 0);
        scene.unlocked().await;
    });
}

/// A process that dies closes its connections: nobody waits, and nothing is counted.
#[test]
fn promise_7_a_killed_process_frees_its_shard_at_once() {
    run(async {
        let scene = scene().await;
        for begin in ["begin", "begin-repeatable-read"] {
            let mut dying = Client::start(&scene.backend.url());
            dying.must(begin);
            dying.ask("insert dying");
            let (first, _) = stall(&scene, 1, async || dying.process.kill()).await;
            eprintln!("{begin}, killed: stalled for {} ms", first.as_millis());
            assert!(first < TIMEOUT);
        }
        assert_eq!(scene.incidents().await, 0);
        assert_eq!(scene.notes().await.len(), 2);
    });
}

/// Its rows are locked then, and its lock cannot be burned: the server has to end it, soon after the timeout, and the
/// incident is counted all the same.
#[test]
fn promise_7_a_holder_that_is_lost_between_verifying_and_committing() {
    run(async {
        let scene = scene().await;
        write(&scene.store, "before").await;
        let holder = scene.session().await;
        let feed = options().feed;
        holder
            .execute(&format!(
                "begin; select changefeed.begin_ulid_transaction('{feed}', 0)"
            ))
            .await
            .unwrap();
        let (first, _) = stall(&scene, 3, async || {
            holder
                .execute("select changefeed.commit_ulid_transaction()")
                .await
                .unwrap();
        })
        .await;
        within_bounds("silent after verifying", first);
        assert_eq!(scene.incidents().await, 1);
        assert!(holder.execute("commit").await.is_err());
        assert_eq!(scene.notes().await.len(), 4);
    });
}
