//! Leases, many instances, stopping, and definitions that change under way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed_core::{EventStatus, Sink};
use changefeed_receiver::{Receiver, Reply};
use changefeed_testkit::backend::{Backend, eventually_true};
use changefeed_testkit::events::{LEASE, attempts, claim};
use changefeed_testkit::patience;

use crate::dispatcher::stage::{Stage, faults, retry, row_id};

fn short_lease() -> Duration {
    // On a slow server the first calls alone take seconds.
    let slow = patience() > 1;
    Duration::from_millis(if slow { 10_000 } else { 800 })
}

/// It is renewed while the request is under way: two others get nothing, and it is sent once.
pub(crate) async fn promise_9_a_request_longer_than_the_lease_is_made_once(
    backend: Arc<dyn Backend>,
) {
    let stage = Stage::new(backend, |d| {
        d.delivery.retry.timeout = Duration::from_secs(60);
    })
    .await;
    stage.receiver.otherwise(Reply::Hang);
    stage.insert(0, 5).await;
    let mut workers = Vec::new();
    for _ in 0..3 {
        workers.push(stage.dispatch(|o| o.lease = short_lease()).await);
    }
    stage
        .receiver
        .wait_until(|_, seen| seen.hanging == 5)
        .await
        .unwrap();
    // Four leases long.
    let began = std::time::Instant::now();
    eventually_true("the leases would have run out", async || {
        let states = stage.store.trigger_states().await.unwrap();
        assert_eq!(states[0].in_flight, 5, "held all the time");
        began.elapsed() > short_lease() * 4
    })
    .await;
    stage.receiver.release();
    stage.is_settled().await;
    for worker in workers {
        worker.stop().await;
    }
    assert_eq!(stage.receiver.seen().requests, 5);
    let account = stage.account().await;
    assert_eq!(
        (account.delivered, account.unknown, account.late),
        (5, 0, 0)
    );
}

/// Ten at once, faults of every kind, and writers that go on: each event as if there were one.
pub(crate) async fn promise_12_ten_dispatchers_do_the_work_of_one(backend: Arc<dyn Backend>) {
    const EVENTS: usize = 400;
    let stage = Stage::new(backend, |d| {
        d.delivery.retry.num_retries = 1;
        d.delivery.retry.timeout = Duration::from_millis(1500);
    })
    .await;
    let faults = faults();
    stage.receiver.rule(move |request| {
        let id = usize::try_from(row_id(request)).unwrap();
        // Every tenth fails once, every hundredth for good.
        let fails = id % 10 == 0 && retry(request) == 0 || id % 100 == 1;
        fails.then(|| faults[id / 10 % faults.len()].clone())
    });
    let mut workers = Vec::new();
    for _ in 0..10 {
        workers.push(stage.dispatch(|o| o.concurrency = 10).await);
    }
    for batch in 0..8 {
        stage.insert(batch * EVENTS / 8, EVENTS / 8).await;
    }
    stage.is_settled().await;
    let mut delivered = 0;
    for worker in workers {
        let totals = worker.stop().await;
        assert_eq!(totals.late, 0);
        delivered += totals.delivered;
    }
    let account = stage.account().await;
    assert_eq!((account.delivered, account.dead), (EVENTS - 4, 4));
    assert_eq!(delivered, account.delivered as u64);
    assert_eq!((account.unknown, account.late), (0, 0));
}

/// Requests under way come to their end and are written; what was only taken is free at once.
pub(crate) async fn a_stop_finishes_what_is_under_way_and_gives_back_the_rest(
    backend: Arc<dyn Backend>,
) {
    let stage = Stage::new(backend, |d| d.delivery.concurrency = Some(2)).await;
    // Quick at first, so that some are taken ahead; then everything hangs.
    stage
        .receiver
        .rule(|request| (row_id(request) >= 40).then_some(Reply::Hang));
    let work = stage.dispatch(|_| {}).await;
    stage.insert(0, 80).await;
    stage
        .receiver
        .wait_until(|_, seen| seen.hanging == 2)
        .await
        .unwrap();
    work.tell_to_stop();
    eventually_true("only what is under way is held", async || {
        stage.store.trigger_states().await.unwrap()[0].in_flight == 2
    })
    .await;
    stage.receiver.release();
    let totals = work.stop().await;
    assert_eq!(totals.delivered, 42);
    assert_eq!(stage.in_state(EventStatus::Delivered).await.len(), 42);
    for event in stage.in_state(EventStatus::Pending).await {
        assert_eq!(event.tries, 0, "no attempt was counted");
        assert_eq!(event.locked_by, None);
    }
    // Somebody else can go on at once. A look of the same process may begin behind an event, which the
    // next one from the beginning finds within a second or so.
    let mut free = 0;
    let soon = Instant::now() + LEASE / 20;
    while free < 38 && Instant::now() < soon {
        free += claim(&*stage.store, &stage.trigger, 100, "next", LEASE)
            .await
            .len();
    }
    assert_eq!(free, 38);
}

/// Past its grace: the attempts are in the log as cut off, and the events are free at once.
pub(crate) async fn a_stop_that_cannot_wait_records_what_it_cut_off(backend: Arc<dyn Backend>) {
    let stage = Stage::new(backend, |d| {
        d.delivery.retry.timeout = Duration::from_secs(60);
    })
    .await;
    stage.receiver.otherwise(Reply::Hang);
    stage.insert(0, 3).await;
    let work = stage
        .dispatch(|o| o.grace = Duration::from_millis(100))
        .await;
    stage
        .receiver
        .wait_until(|_, seen| seen.hanging == 3)
        .await
        .unwrap();
    work.stop().await;
    let pending = stage.in_state(EventStatus::Pending).await;
    assert_eq!(pending.len(), 3);
    for event in &pending {
        assert_eq!(event.locked_by, None);
        assert_eq!(attempts(&*stage.store, event.event.id).await, ["1 unknown"]);
    }
    // It used up no retry, of which there are none.
    stage.receiver.otherwise(Reply::Accept);
    let work = stage.dispatch(|_| {}).await;
    stage.is_settled().await;
    work.stop().await;
    let account = stage.account().await;
    assert_eq!((account.delivered, account.unknown), (3, 3));
}

/// A pause means that nothing more is begun, also not of what this instance has taken ahead.
pub(crate) async fn a_pause_holds_back_what_was_taken_already(backend: Arc<dyn Backend>) {
    let stage = Stage::new(backend, |d| d.delivery.concurrency = Some(1)).await;
    stage
        .receiver
        .rule(|request| (row_id(request) >= 60).then_some(Reply::Hang));
    let work = stage.dispatch(|_| {}).await;
    stage.insert(0, 120).await;
    stage
        .receiver
        .wait_until(|_, seen| seen.hanging == 1)
        .await
        .unwrap();
    stage
        .store
        .pause_trigger(&stage.trigger, Some("stop"))
        .await
        .unwrap();
    // A definition is at most a second old; something made after the pause is served when it
    // was seen.
    let marker = Receiver::start().await.unwrap();
    let mut other = stage.trigger.definition.clone();
    other.name = "marker".parse().unwrap();
    other.delivery.sink = Sink::webhook(marker.url("/"));
    stage.store.create_trigger(&other, false).await.unwrap();
    stage.insert(1000, 1).await;
    marker.wait_for(1).await.unwrap();
    let before = stage.receiver.seen().requests;
    stage.receiver.otherwise(Reply::Accept);
    stage.receiver.rule(|_| None);
    stage.receiver.release();
    stage.insert(1001, 1).await;
    marker.wait_for(2).await.unwrap();
    eventually_true("the request under way is written", async || {
        stage.receiver.seen().in_flight == 0
    })
    .await;
    assert_eq!(
        stage.receiver.seen().requests,
        before,
        "requests of a paused trigger"
    );
    work.stop().await;
}

/// Another instance has the function for it now: what was taken here must not be kept for ever.
pub(crate) async fn what_is_no_longer_served_here_is_given_back(backend: Arc<dyn Backend>) {
    let stage = Stage::new(backend, |d| d.delivery.concurrency = Some(1)).await;
    stage
        .receiver
        .rule(|request| (row_id(request) >= 60).then_some(Reply::Hang));
    let work = stage.dispatch(|o| o.lease = short_lease()).await;
    stage.insert(0, 120).await;
    stage
        .receiver
        .wait_until(|_, seen| seen.hanging == 1)
        .await
        .unwrap();
    let mut handled = stage.trigger.definition.clone();
    handled.delivery.sink = Sink::InProcess;
    let trigger = stage.store.create_trigger(&handled, true).await.unwrap();
    let mut mine = 0;
    let unsent = 120 - usize::try_from(stage.receiver.seen().requests).unwrap();
    eventually_true("all but the one under way are free", async || {
        mine += claim(&*stage.store, &trigger, 200, "handler", LEASE)
            .await
            .len();
        mine == unsent
    })
    .await;
    stage.receiver.release();
    work.stop().await;
}

/// What waits is archived and not sent; what is under way is logged as late.
pub(crate) async fn a_dropped_trigger_ends_its_deliveries(backend: Arc<dyn Backend>) {
    let stage = Stage::new(backend, |d| d.delivery.concurrency = Some(2)).await;
    stage.receiver.otherwise(Reply::Hang);
    stage.insert(0, 10).await;
    let work = stage.dispatch(|_| {}).await;
    stage
        .receiver
        .wait_until(|_, seen| seen.hanging == 2)
        .await
        .unwrap();
    stage.store.drop_trigger(&stage.trigger).await.unwrap();
    stage.receiver.release();
    let totals = work.stop().await;
    assert_eq!(totals.late, 2);
    assert_eq!(stage.receiver.seen().requests, 2);
    let archived = stage.in_state(EventStatus::Archived).await;
    assert_eq!(archived.len(), 10);
    let mut late = 0;
    for event in &archived {
        let attempts = attempts(&*stage.store, event.event.id).await;
        late += attempts
            .iter()
            .filter(|a| *a == "1 success 200 late")
            .count();
    }
    assert_eq!(late, 2);
}

/// Within the second for which definitions are kept.
pub(crate) async fn a_new_trigger_is_served_without_a_restart(backend: Arc<dyn Backend>) {
    let stage = Stage::new(backend, |_| {}).await;
    let work = stage.dispatch(|_| {}).await;
    stage.insert(0, 1).await;
    stage.receiver.wait_for(1).await.unwrap();
    let mut another = stage.trigger.definition.clone();
    another.name = "another".parse().unwrap();
    another.delivery.sink = Sink::webhook(stage.receiver.url("/another"));
    stage.store.create_trigger(&another, false).await.unwrap();
    let mut moved = stage.trigger.definition.clone();
    moved.delivery.sink = Sink::webhook(stage.receiver.url("/moved"));
    stage.store.create_trigger(&moved, true).await.unwrap();
    eventually_true("both are served as they are defined now", async || {
        stage.insert(fastrand::usize(10..1_000_000_000), 1).await;
        let requests = stage.receiver.requests();
        ["/another", "/moved"]
            .iter()
            .all(|path| requests.iter().any(|r| r.path == *path))
    })
    .await;
    work.stop().await;
}
