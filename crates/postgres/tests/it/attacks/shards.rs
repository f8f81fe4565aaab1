//! Many shards, and backlogs larger than a time limit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed_core::{Cursor, DEFAULT_START, Feed, Store, SweepGroup};
use changefeed_engine::{CancellationToken, Sweeper};
use changefeed_testkit::backend::{Backend, PostgresBackend, Session, ids, numbers, settle};
use changefeed_testkit::{eventually, run};
use tokio::task::JoinSet;

const GROUP: SweepGroup = SweepGroup(0);
const SWEEP: &str = "select coalesce(sum(change_count), 0)::bigint from changefeed.sweep(0)";

async fn feed(shards: i16) -> (Arc<dyn Backend>, Arc<dyn Store>, Feed) {
    let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
    let (store, feed) = backend.feed(37, shards).await;
    (backend, store, feed)
}

/// Pages that one sweep touches.
async fn pages(session: &dyn Session) -> i64 {
    let plan = session
        .query("explain (analyze, buffers, costs off) select * from changefeed.sweep(0)")
        .await
        .unwrap();
    let line = plan
        .iter()
        .filter_map(|row| row[0].as_deref())
        .find(|line| line.contains("Buffers: shared hit="));
    line.map_or(0, |line| {
        let hit = line.split("hit=").nth(1).unwrap();
        let digits: String = hit.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap()
    })
}

/// 3,000 idle shards cost 87,000 rows in 20 seconds, and a change waited for a second.
#[test]
fn a_sweep_costs_what_has_changed_and_not_what_exists() {
    run(async {
        let (backend, ..) = feed(1).await;
        let (session, words) = (backend.session().await, backend.words());
        // All have had changes once, and are idle since.
        session
            .run(
                "insert into changefeed.feed values (38, 'idle'); \
                 insert into changefeed.shard (feed_id, shard) select 38, generate_series(0, 9999); \
                 insert into changefeed.change (feed_id, shard, change_id) \
                 select 38, i, i from generate_series(0, 9999) i",
            )
            .await;
        while session.number(SWEEP).await > 0 {}
        let progress = "select count(*) from changefeed.progress";
        let (before, mut touched) = (session.number(progress).await, Vec::new());
        for id in 20_000..20_020 {
            session.run(&words.publish(37, 0, id)).await;
            touched.push(pages(&*session).await);
        }
        touched.sort_unstable();
        assert!(touched[10] < 300, "pages for one change: {touched:?}");
        assert!(session.number(progress).await <= before + 20);
        // Nothing has changed: nothing is looked at, and no transaction id is used up.
        let xid = "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
        let began = session.number(xid).await;
        let idle = pages(&*session).await;
        assert!(idle < 60, "pages for nothing: {idle}");
        let ended = session.number(xid).await;
        assert!(ended - began <= 5, "{} transaction ids", ended - began);
    });
}

/// A change waited for a second. Also prints what it costs that nothing happens.
#[test]
fn a_change_is_as_quick_with_ten_thousand_idle_shards_as_with_one() {
    run(async {
        let (backend, store, feed) = feed(1).await;
        let (session, words) = (backend.session().await, backend.words());
        let stop = CancellationToken::new();
        let sweeper = Sweeper::new(store.clone(), GROUP, "quick");
        let sweeping = tokio::spawn(sweeper.run(|_| {}, stop.clone()));
        let measure = async |first: i64| {
            let mut waited = Vec::new();
            for id in first..first + 60 {
                session.run(&words.publish(37, 0, id)).await;
                let began = Instant::now();
                eventually("the change has its number", || async {
                    let ask =
                        format!("select count(*) from changefeed.numbered where change_id = {id}");
                    (session.number(&ask).await == 1).then_some(())
                })
                .await;
                waited.push(began.elapsed());
            }
            waited.sort_unstable();
            waited[30]
        };
        measure(1).await;
        let alone = measure(1_000).await;
        session
            .run(
                "insert into changefeed.feed values (38, 'idle'); \
                 insert into changefeed.shard (feed_id, shard) select 38, generate_series(0, 9999); \
                 insert into changefeed.change (feed_id, shard, change_id) \
                 select 38, i, 100000 + i from generate_series(0, 9999) i",
            )
            .await;
        // Counted in one table: what waits is looked up shard by shard, and looking would keep the sweeper from work.
        let numbered = "select count(*) from changefeed.numbered where feed_id = 38";
        eventually("the idle ones are swept", || async {
            (session.number(numbered).await == 10_000).then_some(())
        })
        .await;
        measure(2_000).await;
        let among_many = measure(3_000).await;
        println!("one shard: {alone:?}; among 10,000: {among_many:?}");
        // Loose, because the machine is shared; it was fifty times as much.
        assert!(
            among_many < alone * 3 + Duration::from_millis(20),
            "{alone:?} with one shard, {among_many:?} with 10,000"
        );
        let backends = "select coalesce(string_agg(pid::text, ' '), '') from pg_stat_activity \
                        where datname = current_database() \
                        and (query like '%changefeed.sweep(%' or query like '%take_lease%')";
        let used = async || {
            let pids = session.value(backends).await;
            let ticks = |pid: &str| {
                let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
                let fields: Vec<&str> = stat.rsplit(')').next()?.split(' ').collect();
                Some(fields.get(12)?.parse::<u64>().ok()? + fields.get(13)?.parse::<u64>().ok()?)
            };
            let own = ticks(&std::process::id().to_string()).unwrap_or_default();
            (pids.split(' ').filter_map(ticks).sum::<u64>(), own)
        };
        // For as long as it takes to renew the lease a dozen times; between two renewals it finds nothing, many times.
        let renewed = "select renewal from changefeed.lease where name = 'sweep/0'";
        let (began, before, first) = (Instant::now(), used().await, session.number(renewed).await);
        eventually("the sweeper has renewed its lease", || async {
            (session.number(renewed).await >= first + 12).then_some(())
        })
        .await;
        // A tick is a hundredth of a second. Other tests may run in this process, too.
        let (after, seconds) = (used().await, began.elapsed().as_secs_f64());
        let spent = |now: u64, then: u64| now.saturating_sub(then);
        let (server, client) = (spent(after.0, before.0), spent(after.1, before.1));
        let (server, client) = (server as f64 / seconds, client as f64 / seconds);
        println!("idle: server {server:.1} %, client {client:.1} % of a core");
        assert!(server < 10.0, "{server:.1} % of a core");
        stop.cancel();
        sweeping.await.unwrap().unwrap();
        assert_eq!(ids(&*store, &feed, 0).await.len(), 240);
    });
}

/// The role's limit stopped every sweep of a backlog, for ever.
#[test]
fn a_backlog_is_numbered_under_a_statement_timeout_that_is_too_short_for_it() {
    run(async {
        let (backend, store, feed) = feed(1).await;
        let (session, writer) = (backend.session().await, backend.session().await);
        writer
            .run(&backend.words().publish_range(37, 0, 1, 200_000))
            .await;
        session.run("set statement_timeout = '100ms'").await;
        eventually("all have their numbers", || async {
            for _ in 0..10 {
                // On a loaded machine one of them may be cut off.
                let _ = session.execute(SWEEP).await;
            }
            let end = store.shard_states(&feed).await.unwrap()[0].last;
            (end == Cursor::Number(DEFAULT_START + 200_000)).then_some(())
        })
        .await;
        // sweep_loop ends before its limit does, with its result.
        session.run("set statement_timeout = '2s'").await;
        eventually("a loop ends with its result", || async {
            session.query("call changefeed.sweep_loop()").await.ok()
        })
        .await;
    });
}

/// A sweep of unlimited size took seconds, and everybody else waited.
#[test]
fn one_sweep_is_bounded_and_a_small_shard_does_not_wait_for_a_large_one() {
    run(async {
        let (backend, store, feed) = feed(2).await;
        let (session, words) = (backend.session().await, backend.words());
        assert_eq!(session.number(SWEEP).await, 0);
        session.run(&words.publish_range(37, 0, 1, 400_000)).await;
        let first = session.number(SWEEP).await;
        assert!((1_000..=200_000).contains(&first), "{first}");
        session.run(&words.publish(37, 1, 1_000_000)).await;
        session.number(SWEEP).await;
        assert_eq!(ids(&*store, &feed, 1).await, [1_000_000]);
        while session.number(SWEEP).await > 0 {}
        let found = numbers(&*store, &feed, 0).await;
        let expected = (DEFAULT_START + 1..).zip(1..=400_000).collect::<Vec<_>>();
        assert!(found == expected, "{} numbers", found.len());
    });
}

/// A backlog is cut where a transaction begins: what was committed before another one began has
/// to come first all the same, and nothing may be doubled or left out.
#[test]
fn pieces_of_a_backlog_keep_the_order() {
    run(async {
        let (backend, store, feed) = feed(1).await;
        let publish = "insert into changefeed.change (feed_id, shard, change_id) \
                       select 37, 0, nextval('changefeed.change_id') from generate_series(1, {})";
        let mut writers = JoinSet::new();
        for writer in 0..6usize {
            let session = backend.session().await;
            writers.spawn(async move {
                // What each of its transactions wrote, one after the other.
                let mut written: Vec<(i64, i64)> = Vec::new();
                for turn in 0..40usize {
                    let rows = match (turn + writer) % 10 {
                        0 => 2_500,
                        1..=4 => 90,
                        _ => 1,
                    };
                    session.run("begin").await;
                    let insert = publish.replace("{}", &rows.to_string());
                    session.run(&insert).await;
                    let here = "select min(change_id) from changefeed.inbox \
                                where xid = pg_current_xact_id()";
                    let low = session.number(here).await;
                    let here = here.replace("min", "max");
                    let high = session.number(&here).await;
                    let end = if turn % 7 == 3 { "rollback" } else { "commit" };
                    session.run(end).await;
                    if end == "commit" {
                        written.push((low, high));
                    }
                }
                written
            });
        }
        // Open all the time, and its change comes last.
        let long = backend.session().await;
        long.run("begin").await;
        long.run(&publish.replace("{}", "1")).await;
        let sweeper = backend.session().await;
        let mut all = Vec::new();
        while let Some(written) = writers.join_next().await {
            sweeper.number(SWEEP).await;
            all.push(written.unwrap());
        }
        long.run("commit").await;
        settle(&*store, GROUP).await;
        let session = backend.session().await;
        let pending = session
            .number("select count(*) from changefeed.pending")
            .await;
        assert_eq!(pending, 0);
        let found = ids(&*store, &feed, 0).await;
        let committed = "select count(distinct change_id) from changefeed.inbox";
        assert_eq!(
            session.number(committed).await,
            i64::try_from(found.len()).unwrap()
        );
        let place: std::collections::HashMap<i64, usize> =
            found.iter().enumerate().map(|(at, id)| (*id, at)).collect();
        assert_eq!(place.len(), found.len(), "a change was numbered twice");
        for written in all {
            for pair in written.windows(2) {
                assert!(place[&pair[0].1] < place[&pair[1].0], "{pair:?}");
            }
        }
    });
}

/// The session that sweeps the new group had looked further than the old group had got.
#[test]
fn a_shard_that_moves_to_another_group_takes_its_news_along() {
    run(async {
        let (backend, store, feed) = feed(2).await;
        let (session, words) = (backend.session().await, backend.words());
        let other = "select coalesce(sum(change_count), 0)::bigint from changefeed.sweep(1)";
        session
            .run("update changefeed.shard set sweep_group = 1 where feed_id = 37 and shard = 1")
            .await;
        assert_eq!(session.number(SWEEP).await, 0);
        assert_eq!(session.number(other).await, 0);
        session.run(&words.publish(37, 0, 1)).await;
        session.run(&words.publish(37, 1, 2)).await;
        assert_eq!(session.number(other).await, 1);
        session
            .run("update changefeed.shard set sweep_group = 1 where feed_id = 37 and shard = 0")
            .await;
        assert_eq!(session.number(SWEEP).await, 0);
        assert_eq!(session.number(other).await, 1);
        assert_eq!(ids(&*store, &feed, 0).await, [1]);
    });
}

/// Somebody holds a shard (a frozen sweeper, a trim): the others go on, and its news are not
/// forgotten.
#[test]
fn a_locked_shard_holds_up_no_other_and_is_swept_when_it_is_free() {
    run(async {
        let (backend, store, feed) = feed(3).await;
        let (session, holder) = (backend.session().await, backend.session().await);
        let words = backend.words();
        assert_eq!(session.number(SWEEP).await, 0);
        session.run(&words.publish(37, 0, 1)).await;
        holder.run("begin").await;
        assert_eq!(holder.number(SWEEP).await, 1);
        for id in 2..5 {
            session.run(&words.publish(37, 0, 10 * id)).await;
            session.run(&words.publish(37, 1, 10 * id + 1)).await;
            assert_eq!(session.number(SWEEP).await, 1);
        }
        // A sweep that is undone has numbered nothing.
        holder.run("rollback").await;
        assert_eq!(session.number(SWEEP).await, 4);
        assert_eq!(ids(&*store, &feed, 0).await, [1, 20, 30, 40]);
        assert_eq!(session.number(SWEEP).await, 0);
        session.run(&words.publish(37, 2, 3)).await;
        assert_eq!(holder.number(SWEEP).await, 1);
    });
}

/// A savepoint that is rolled back, and a transaction that is prepared, do not fool a session's
/// memory of what it has looked at.
#[test]
fn what_a_session_remembers_survives_its_rollbacks() {
    run(async {
        let (backend, store, feed) = feed(2).await;
        let (session, writer) = (backend.session().await, backend.session().await);
        let words = backend.words();
        assert_eq!(session.number(SWEEP).await, 0);
        writer.run("begin").await;
        writer.run(&words.publish(37, 1, 7)).await;
        writer.run("prepare transaction 'sweep_memory'").await;
        writer.run(&words.publish(37, 0, 1)).await;
        session.run("begin; savepoint a").await;
        assert_eq!(session.number(SWEEP).await, 1);
        session.run("rollback to a").await;
        assert_eq!(session.number(SWEEP).await, 1);
        // Published by the sweeper's own transaction: not before it has committed.
        session.run(&words.publish(37, 0, 2)).await;
        assert_eq!(session.number(SWEEP).await, 0);
        session.run("commit").await;
        assert_eq!(session.number(SWEEP).await, 1);
        writer.run("commit prepared 'sweep_memory'").await;
        assert_eq!(session.number(SWEEP).await, 1);
        assert_eq!(ids(&*store, &feed, 0).await, [1, 2]);
        assert_eq!(ids(&*store, &feed, 1).await, [7]);
    });
}
