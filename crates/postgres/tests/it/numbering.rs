//! One test for each way in which numbering on PostgreSQL was found to break silently.

pub(crate) mod restored;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use changefeed_core::{DEFAULT_START, Feed, Store, SweepGroup};
use changefeed_testkit::backend::{Backend, PostgresBackend, Session, ids, numbers, settle};
use changefeed_testkit::{eventually, run};

use restored::psql;

const GROUP: SweepGroup = SweepGroup(0);

async fn feed() -> (Arc<dyn Backend>, Arc<dyn Store>, Feed) {
    let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
    let (store, feed) = backend.feed(37, 1).await;
    (backend, store, feed)
}

fn gapless(numbers: &[(i64, i64)]) -> bool {
    (DEFAULT_START + 1..)
        .zip(numbers)
        .all(|(expected, (number, _))| expected == *number)
}

/// A sequence with a cache is per session: the one who draws later would get the lower id.
#[test]
fn two_sessions_draw_change_ids_in_order() {
    run(async {
        let (backend, ..) = feed().await;
        let (a, b) = (backend.session().await, backend.session().await);
        let draw = backend.words().draw_change_id;
        let mut drawn = Vec::new();
        for _ in 0..50 {
            drawn.push(a.number(draw).await);
            drawn.push(b.number(draw).await);
        }
        assert!(drawn.windows(2).all(|pair| pair[0] < pair[1]), "{drawn:?}");
        let cache = "select seqcache from pg_sequence \
                     where seqrelid = 'changefeed.change_id'::regclass";
        assert_eq!(a.number(cache).await, 1);
    });
}

/// Lock and scan in one statement numbers twice: the scan keeps the snapshot from before the
/// wait. Here the second sweep begins while the first holds the shard, and ends after it.
#[test]
fn a_sweep_that_overlaps_another_numbers_nothing_twice() {
    run(async {
        let (backend, store, feed) = feed().await;
        let words = backend.words();
        let (writer, first) = (backend.session().await, backend.session().await);
        for round in 0..10i64 {
            writer
                .run(&words.publish_many(37, 0, 10 * round..10 * round + 5))
                .await;
            first.run("begin").await;
            let swept = first
                .number("select sum(change_count)::bigint from changefeed.sweep(0)")
                .await;
            assert!(swept >= 5);
            writer
                .run(&words.publish_many(37, 0, 10 * round + 5..10 * round + 10))
                .await;
            let other = backend.store().await;
            let second = tokio::spawn(async move { other.sweep(GROUP).await.unwrap() });
            if round % 2 == 0 {
                // The second has begun, and is waiting or done.
                eventually("the second sweep has begun", || async {
                    (second.is_finished() || waiting(&*writer).await > 0).then_some(())
                })
                .await;
            }
            first.run("commit").await;
            second.await.unwrap();
        }
        settle(&*store, GROUP).await;
        let found = numbers(&*store, &feed, 0).await;
        assert!(gapless(&found));
        assert_eq!(ids(&*store, &feed, 0).await, (0..100).collect::<Vec<_>>());
    });
}

async fn waiting(session: &dyn Session) -> i64 {
    session
        .number(
            "select count(*) from pg_stat_activity where datname = current_database() \
             and wait_event_type = 'Lock'",
        )
        .await
}

/// Many at once, by plain SQL as others would call it.
#[test]
fn concurrent_sweeps_never_number_twice() {
    run(async {
        let (backend, store, feed) = feed().await;
        let words = backend.words();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let session = backend.session().await;
            tasks.spawn(async move {
                for _ in 0..100 {
                    session
                        .query("select * from changefeed.sweep(0)")
                        .await
                        .unwrap();
                }
            });
        }
        for writer in 0..4i64 {
            let session = backend.session().await;
            tasks.spawn(async move {
                for n in 0..100 {
                    let id = 1000 * writer + n;
                    session.run(&words.publish(37, 0, id)).await;
                }
            });
        }
        while let Some(outcome) = tasks.join_next().await {
            outcome.unwrap();
        }
        settle(&*store, GROUP).await;
        let found = numbers(&*store, &feed, 0).await;
        assert!(gapless(&found));
        let mut all: Vec<i64> = found.iter().map(|(_, id)| *id).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!((found.len(), all.len()), (400, 400));
    });
}

/// A row inside a savepoint carries the savepoint's transaction id in `xmin`, and a prepared
/// transaction belongs to no session: both must be found when they commit, whoever swept before.
#[test]
fn rows_of_savepoints_and_prepared_transactions_are_found_when_they_commit() {
    run(async {
        let (backend, store, feed) = feed().await;
        let words = backend.words();
        let (a, b, other) = (
            backend.session().await,
            backend.session().await,
            backend.session().await,
        );
        a.run("begin").await;
        a.run("savepoint one").await;
        a.run(&words.publish(37, 0, 1)).await;
        a.run("savepoint two").await;
        a.run(&words.publish(37, 0, 2)).await;
        a.run("release savepoint two").await;
        b.run("begin").await;
        b.run(&words.publish(37, 0, 3)).await;
        b.run("savepoint three").await;
        b.run(&words.publish(37, 0, 4)).await;
        b.run("rollback to savepoint three").await;
        b.run("prepare transaction 'changefeed-trap'").await;
        // The snapshots of later sweeps pass all of these.
        for id in 100..120 {
            other.run(&words.publish(37, 0, id)).await;
            settle(&*store, GROUP).await;
        }
        a.run("commit").await;
        settle(&*store, GROUP).await;
        other.run(&words.publish(37, 0, 120)).await;
        settle(&*store, GROUP).await;
        other.run("commit prepared 'changefeed-trap'").await;
        settle(&*store, GROUP).await;
        let expected: Vec<i64> = (100..120).chain([1, 2, 120, 3]).collect();
        assert_eq!(ids(&*store, &feed, 0).await, expected);
    });
}

/// Scanning again from the oldest open transaction is quadratic behind a long writer: what a
/// sweep touches must not grow with what was numbered since.
#[test]
fn a_sweep_behind_a_long_writer_stays_cheap() {
    run(async {
        let (backend, store, feed) = feed().await;
        let words = backend.words();
        let (long, writer) = (backend.session().await, backend.session().await);
        long.run("begin").await;
        long.run(&words.publish(37, 0, 1)).await;
        let buffers = async |first: i64| {
            writer.run(&words.publish_range(37, 0, first, 10)).await;
            let plan = writer
                .query("explain (analyze, buffers, costs off) select * from changefeed.sweep(0)")
                .await
                .unwrap();
            let line = plan
                .iter()
                .filter_map(|row| row[0].as_deref())
                .find(|line| line.contains("Buffers: shared hit="))
                .unwrap();
            let hit = line.split("hit=").nth(1).unwrap();
            let digits: String = hit.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<i64>().unwrap()
        };
        // The first sweeps of a session also fill its caches.
        for round in 0..5 {
            buffers(100 + 10 * round).await;
        }
        let before = buffers(1_000).await;
        for round in 0..30 {
            writer
                .run(&words.publish_range(37, 0, 100_000 + 2_000 * round, 2_000))
                .await;
            settle(&*store, GROUP).await;
        }
        // This session was away: it looks once at what the others have numbered since.
        buffers(1_500).await;
        // The cheapest of a few: statistics that are gathered meanwhile make it plan its statements once more.
        let mut after = i64::MAX;
        for round in 0..5 {
            after = after.min(buffers(2_000 + 10 * round).await);
        }
        assert!(
            after < 3 * before + 100,
            "a sweep of ten changes touched {before} pages, and {after} after 60,000 more"
        );
        long.run("commit").await;
        settle(&*store, GROUP).await;
        assert_eq!(ids(&*store, &feed, 0).await.last(), Some(&1));
    });
}

/// An older snapshot would number twice: refused with a sentence.
#[test]
fn a_sweep_in_another_isolation_level_is_refused() {
    run(async {
        let (backend, store, feed) = feed().await;
        let session = backend.session().await;
        session.run(&backend.words().publish(37, 0, 1)).await;
        for level in ["repeatable read", "serializable"] {
            session.run(&format!("begin isolation level {level}")).await;
            let error = session
                .query("select * from changefeed.sweep(0)")
                .await
                .unwrap_err();
            assert!(
                error.message.contains(&format!(
                    "changefeed: sweep needs the isolation level read committed, not {level}"
                )),
                "{error}"
            );
            session.run("rollback").await;
        }
        assert_eq!(ids(&*store, &feed, 0).await, [0i64; 0]);
        // Nor does a different default of the database stop our own sweeper.
        session
            .run(
                "do $$ begin execute format('alter database %I set \
                 default_transaction_isolation to ''repeatable read''', current_database()); end $$",
            )
            .await;
        let other = backend.store().await;
        settle(&*other, GROUP).await;
        assert_eq!(ids(&*store, &feed, 0).await, [1]);
    });
}

/// A snapshot counts its own transaction as finished: what the sweeping transaction itself has
/// written, or writes afterwards, must get its number once, and after its commit.
#[test]
fn a_sweep_inside_a_transaction_that_publishes_loses_nothing() {
    run(async {
        let (backend, store, feed) = feed().await;
        let (session, words) = (backend.session().await, backend.words());
        let sweep = "select coalesce(sum(change_count), 0)::bigint from changefeed.sweep(0)";
        for (round, end) in [(0i64, "commit"), (1, "rollback"), (2, "commit")] {
            let id = |n| 10 * round + n;
            session.run("begin").await;
            session.run(&words.publish(37, 0, id(1))).await;
            session.run("savepoint s").await;
            session.run(&words.publish(37, 0, id(2))).await;
            if let Err(error) = session.query(sweep).await {
                // Refusing is as good as waiting for the commit.
                assert!(error.message.contains("changefeed: "), "{error}");
                session.run("rollback to savepoint s").await;
                session.run(&words.publish(37, 0, id(2))).await;
            }
            session.run(&words.publish(37, 0, id(3))).await;
            session.run(end).await;
            settle(&*store, GROUP).await;
        }
        settle(&*store, GROUP).await;
        let found = numbers(&*store, &feed, 0).await;
        assert!(gapless(&found));
        let found: Vec<i64> = found.iter().map(|(_, id)| *id).collect();
        assert_eq!(found, [1, 2, 3, 21, 22, 23]);
    });
}

/// A number that somebody has read must not be given again after a crash.
#[test]
fn a_sweep_commits_synchronously_whatever_the_session_says() {
    run(async {
        let (backend, ..) = feed().await;
        let (session, words) = (backend.session().await, backend.words());
        session.run("set synchronous_commit = off").await;
        session.run(&words.publish(37, 0, 1)).await;
        session.run("begin").await;
        session
            .query("select * from changefeed.sweep(0)")
            .await
            .unwrap();
        assert_eq!(session.value("show synchronous_commit").await, "on");
        session.run("commit").await;
        assert_eq!(session.value("show synchronous_commit").await, "off");
    });
}

/// A frozen process keeps its session locks: so between two calls there are none, neither of the
/// one who sweeps nor of those who stand by.
#[test]
fn sweepers_hold_nothing_between_calls() {
    run(async {
        let (backend, store, _) = feed().await;
        let session = backend.session().await;
        let standby = backend.store().await;
        session.run(&backend.words().publish(37, 0, 1)).await;
        let ttl = Duration::from_secs(60);
        assert!(store.lease("sweep/0", "a", ttl).await.unwrap().is_some());
        store.sweep(GROUP).await.unwrap();
        assert!(standby.lease("sweep/0", "b", ttl).await.unwrap().is_none());
        standby.sweep(GROUP).await.unwrap();
        let held = session
            .query(
                "select l.locktype, l.mode, a.state, a.query \
                 from pg_locks l join pg_stat_activity a using (pid) \
                 where a.datname = current_database() and a.pid <> pg_backend_pid()",
            )
            .await
            .unwrap();
        assert!(held.is_empty(), "{held:?}");
        let in_transaction = session
            .number(
                "select count(*) from pg_stat_activity where datname = current_database() \
                 and pid <> pg_backend_pid() and (state <> 'idle' or backend_xmin is not null)",
            )
            .await;
        assert_eq!(in_transaction, 0);
    });
}

/// As a function nothing of it would be visible before its end; and the one that stands by gives
/// up after its wait, with zeros, holding no lock meanwhile.
#[test]
fn sweep_loop_shows_its_work_while_it_runs() {
    run(async {
        let (backend, store, feed) = feed().await;
        let words = backend.words();
        let (looping, standby, writer) = (
            backend.session().await,
            backend.session().await,
            backend.session().await,
        );
        let running = tokio::spawn(async move {
            looping
                .query("call changefeed.sweep_loop(0, 1000, 3000, 5, null, null, null)")
                .await
                .unwrap()
        });
        writer.run(&words.publish(37, 0, 1)).await;
        eventually("a number while the loop runs", || async {
            (ids(&*store, &feed, 0).await == [1]).then_some(())
        })
        .await;
        assert!(!running.is_finished());
        let standing_by = tokio::spawn(async move {
            standby
                .query("call changefeed.sweep_loop(0, 400, 1000, 5, null, null, null)")
                .await
                .unwrap()
        });
        while !standing_by.is_finished() {
            let locks = writer
                .query(
                    "select l.locktype, l.mode from pg_locks l join pg_stat_activity a using (pid) \
                     where a.query like '%sweep_loop(0, 400%' and a.pid <> pg_backend_pid() \
                     and (l.locktype in ('advisory', 'tuple') or l.mode like '%ExclusiveLock%') \
                     and l.locktype not in ('virtualxid', 'transactionid') \
                     and a.wait_event = 'PgSleep'",
                )
                .await
                .unwrap();
            assert!(locks.is_empty(), "{locks:?}");
        }
        let zeros = standing_by.await.unwrap();
        assert_eq!(zeros, [["0", "0", "0"].map(|n| Some(n.to_owned()))]);
        writer.run(&words.publish(37, 0, 2)).await;
        let rows = running.await.unwrap();
        let number = |column: usize| rows[0][column].as_ref().unwrap().parse::<i64>().unwrap();
        assert_eq!(number(0), 2, "changes");
        assert!(number(1) >= 0, "the largest lag");
        assert!(number(2) > 1, "iterations");
    });
}

/// What was numbered goes away in bulk, without waiting for anybody and with nobody waiting for
/// it: a waiting TRUNCATE would stop every writer.
#[test]
fn tidying_up_never_blocks_writers_and_loses_nothing() {
    run(async {
        let (backend, store, feed) = feed().await;
        let words = backend.words();
        let (long, writer) = (backend.session().await, backend.session().await);
        writer.run("set lock_timeout = '2s'").await;
        let size = "select (sum(pg_relation_size(c.oid)) / 1024 / 1024)::bigint from pg_class c \
                    where relnamespace = 'changefeed'::regnamespace and relkind = 'r' \
                    and relname like 'inbox%'";
        let burn = "do $$ begin for i in 1..8400 loop \
                    perform pg_current_xact_id(); commit; end loop; end $$";
        long.run("begin").await;
        long.run(&words.publish(37, 0, 1)).await;
        writer
            .run(&words.publish_range(37, 0, 1_000, 400_000))
            .await;
        let full = writer.number(size).await;
        assert!(full >= 16, "{full} MiB");
        settle(&*store, GROUP).await;
        for segment in 0..6i64 {
            writer.run(burn).await;
            writer.run(&words.publish(37, 0, 500_000 + segment)).await;
            settle(&*store, GROUP).await;
        }
        long.run("commit").await;
        // Once for the long one's change, and once more when every snapshot shows its number.
        let more = AtomicI64::new(0);
        eventually("what was numbered is gone", || async {
            let id = 600_000 + more.fetch_add(1, Ordering::Relaxed);
            writer.run(&words.publish(37, 0, id)).await;
            settle(&*store, GROUP).await;
            (writer.number(size).await < full / 2).then_some(())
        })
        .await;
        let found = numbers(&*store, &feed, 0).await;
        assert!(gapless(&found));
        let more = usize::try_from(more.into_inner()).unwrap();
        assert_eq!(found.len(), 400_000 + 6 + 1 + more);
        let state = &store.shard_states(&feed).await.unwrap()[0];
        assert_eq!(state.pending, 0);
    });
}

/// The predicate must reach an index, for prepared statements too, and never the inbox.
#[test]
fn reading_by_number_through_the_view_is_an_index_scan() {
    run(async {
        let (backend, store, _) = feed().await;
        let (session, words) = (backend.session().await, backend.words());
        session.run(&words.publish_range(37, 0, 1, 50_000)).await;
        settle(&*store, GROUP).await;
        session.run("vacuum analyze changefeed.numbered").await;
        session
            .run(
                "prepare page (bigint) as select change_sequence_number, change_id \
                 from changefeed.change where feed_id = 37 and shard = 0 \
                 and change_sequence_number > $1 order by change_sequence_number limit 100",
            )
            .await;
        for mode in ["force_custom_plan", "force_generic_plan"] {
            session.run(&format!("set plan_cache_mode = {mode}")).await;
            let plan: Vec<String> = session
                .query(&format!(
                    "explain (analyze, costs off, timing off) execute page({})",
                    DEFAULT_START + 49_000
                ))
                .await
                .unwrap()
                .into_iter()
                .filter_map(|row| row[0].clone())
                .collect();
            let plan = plan.join("\n");
            assert!(plan.contains("Index"), "{mode}:\n{plan}");
            assert!(!plan.contains("Seq Scan on numbered"), "{mode}:\n{plan}");
            let scanned = plan
                .lines()
                .filter(|line| line.contains("inbox") && !line.contains("never executed"));
            assert_eq!(scanned.count(), 0, "{mode}:\n{plan}");
        }
    });
}

/// Bulk loaders use COPY.
#[test]
fn copy_into_change_works() {
    run(async {
        let (backend, store, feed) = feed().await;
        psql(
            &backend.url(),
            b"copy changefeed.change (feed_id, shard, change_id) from stdin;\n37\t0\t1\n37\t0\t2\n\\.\n",
        );
        settle(&*store, GROUP).await;
        assert_eq!(ids(&*store, &feed, 0).await, [1, 2]);
    });
}

/// A row for a shard that does not exist must fail at insert, not wait for ever.
#[test]
fn an_unknown_shard_is_refused_with_a_foreign_key_error() {
    run(async {
        let (backend, ..) = feed().await;
        let session = backend.session().await;
        let error = session
            .execute(&backend.words().publish(37, 5, 1))
            .await
            .unwrap_err();
        assert_eq!(error.message, "23503: changefeed: feed 37 has no shard 5");
    });
}
