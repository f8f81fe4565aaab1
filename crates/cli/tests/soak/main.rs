//! Chaos for as long as it is told: several `changefeed serve` processes on one database, with
//! writers to feeds, to a table with an event trigger and to a watched table, while a random schedule
//! kills and freezes instances and database sessions, crashes the server, sets its clock and makes
//! the receiver fail. When all is quiet again the independent checkers judge promises 1 to 5 and 8
//! to 11.
//!
//! `./test` runs it for seconds, `./test --soak 2h` for two hours. The schedule comes from a seed,
//! which is printed; `CHANGEFEED_TEST_SEED` gives another one.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking, its name says what it is about, and its counts are shown"
)]

mod chaos;
mod fleet;
mod receiving;
mod tally;
mod watched;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use changefeed::{Feed, Store, TableName};
use changefeed_testkit::backend::{Backend, PostgresBackend, SqliteBackend, captured};
use changefeed_testkit::events::checker::{audit, guard, nothing_was_stolen, seen_by};
use changefeed_testkit::events::to_webhook;
use changefeed_testkit::events::writers::{ORDERS, Writers, every_change_has_its_event};
use changefeed_testkit::history::Workload;
use changefeed_testkit::postgres::Cluster;
use changefeed_testkit::{run, soak_duration};

use crate::chaos::Chaos;
use crate::fleet::Fleet;
use crate::receiving::Receiving;
use crate::watched::Watched;

/// How long it may take until everything is done after the chaos: the clock has been set a last
/// time, leases run out, and retries are waited for.
const PATIENCE: Duration = Duration::from_secs(180);

/// Pauses of writers and readers: what is written in hours has to be kept and judged.
const PACE: Duration = Duration::from_millis(60);

#[test]
fn chaos_on_postgresql_breaks_no_promise() {
    run(async {
        let cluster = Cluster::start_with_clock();
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::on(&cluster.url()).await);
        soak("postgresql", backend, Some(&cluster)).await;
    });
}

/// Kills only: a stopped process that writes holds an SQLite file also against the application.
#[test]
fn kills_on_sqlite_break_no_promise() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(SqliteBackend::fresh().await);
        soak("sqlite", backend, None).await;
    });
}

async fn soak(database: &'static str, backend: Arc<dyn Backend>, cluster: Option<&Cluster>) {
    let workload = Workload {
        writers: 3,
        readers: 2,
        sweepers: 0,
        duration: Duration::ZERO,
        transactions: 0,
        own_ids: true,
        pace: PACE,
        ..Workload::short()
    };
    let seed = workload.seed;
    eprintln!("{database}: CHANGEFEED_TEST_SEED={seed}");
    let began = Instant::now();
    let (store, feed) = backend.feed(37, 2).await;
    let session = backend.session().await;
    session.run(ORDERS).await;
    session
        .run("create table entry (id bigint primary key)")
        .await;
    let table = TableName::unqualified("entry");
    let entries = store
        .create_feed(&captured("entries", table, None, 1))
        .await
        .unwrap();
    guard(&*backend).await;
    let receiving = Receiving::start().await;
    let mut definition = to_webhook("t", "orders", &receiving.receiver.url("/t"));
    definition.delivery.retry.num_retries = 3;
    definition.delivery.retry.interval = Duration::from_secs(1);
    definition.delivery.retry.timeout = Duration::from_secs(4);
    store.create_trigger(&definition, false).await.unwrap();
    let watched = Watched::start(&backend, &*store, &receiving, seed).await;
    let writers = Writers::start_slowly(&backend, 2, seed, PACE * 2);
    drop(session);

    let fleet = Fleet::of(&backend.url(), 5);
    let mut chaos = Chaos::new(&backend, cluster, fleet, &receiving, seed);
    let by_capture = Workload {
        captured: Some("entry"),
        ..workload.clone()
    };
    let over = AtomicBool::new(false);
    let (by_sql, captured, ()) = tokio::join!(
        workload.run(Arc::clone(&backend), &feed, async |_, _| until(&over).await),
        by_capture.run(Arc::clone(&backend), &entries, async |_, _| {
            until(&over).await;
        }),
        async {
            // Not before all readers are connected, which come before the writers.
            numbers_are_given(&*backend, &feed).await;
            numbers_are_given(&*backend, &entries).await;
            chaos.rage(soak_duration()).await;
            chaos.end().await;
            numbers_are_given(&*backend, &feed).await;
            over.store(true, Ordering::SeqCst);
        }
    );
    let committed = writers.stop().await;
    let written = watched.stop().await;

    // A connection of before the chaos is dead by now.
    let (store, session) = (backend.store().await, backend.session().await);
    deliveries_are_over(&*store).await;
    let events = every_change_has_its_event(&*store, &*session).await;
    nothing_was_stolen(&*session).await;
    let retry = &definition.delivery.retry;
    let account = audit(&*store, retry, &seen_by(&[&receiving.receiver])).await;
    assert_eq!(account.delivered + account.dead, events);
    let handed_over = written.judge(&*store, &*session, &receiving).await;
    let mut tally = chaos.over();
    for (extent, name) in [(by_sql, "by SQL"), (captured, "captured")] {
        tally.note(format!("changes {name}"), extent.changes);
        tally.note(format!("transactions {name}"), extent.committed);
        tally.note(format!("rolled back {name}"), extent.rolled_back);
        tally.note(format!("in doubt {name}"), extent.in_doubt);
        tally.note(format!("pages read {name}"), extent.pages);
    }
    tally.note("transactions with events", committed);
    tally.note("events", events);
    tally.note("events delivered", account.delivered);
    tally.note("dead letters", account.dead);
    tally.note("requests repeated", account.repeated);
    tally.note("attempts with unknown outcome", account.unknown);
    tally.note("attempts that were late", account.late);
    tally.note("writes to a watched table", written.writes);
    tally.note("rows handed over", handed_over);
    tally.note("webhook requests", receiving.requests());
    tally.note("seconds", began.elapsed().as_secs());
    tally.print(database, seed);
}

async fn until(over: &AtomicBool) {
    while !over.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits for what the instances do by themselves after the chaos.
async fn patiently(what: &str, mut ask: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !ask().await {
        assert!(began.elapsed() < PATIENCE, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until the instances number what is written. Whoever checks the feeds sweeps as well, so
/// this is seen before.
async fn numbers_are_given(backend: &dyn Backend, feed: &Feed) {
    let (store, session) = (backend.store().await, backend.session().await);
    if !store.needs_sweeping() {
        return;
    }
    let last = format!(
        "select sum(last_change_sequence_number)::bigint from {} where feed_id = {}",
        backend.words().our("shard"),
        feed.id.0
    );
    let before = session.number(&last).await;
    patiently("the instances give numbers again", async || {
        session.number(&last).await > before + 20
    })
    .await;
}

async fn deliveries_are_over(store: &dyn Store) {
    patiently("no event is pending", async || {
        let states = store.trigger_states().await;
        states.is_ok_and(|states| states.iter().all(|s| s.pending == 0))
    })
    .await;
}
