//! One instance that dies, and another that goes on.

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed::EventStatus;
use changefeed_testkit::backend::{Backend, eventually_true};
use changefeed_testkit::events::{attempts, log};
use changefeed_testkit::patience;
use changefeed_testkit::process::terminate;
use changefeed_testkit::receiver::Reply;

use crate::events::fleet::Scene;

/// After the claim, after the request, before and after the write of the outcome.
pub(crate) async fn promise_11_a_crash_at_any_named_place_loses_nothing(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend, |d| d.delivery.concurrency = Some(2)).await;
    let mut rows = 0;
    for (place, arrives, written) in [
        ("deliver.claimed", false, false),
        ("deliver.sent", true, false),
        ("deliver.sent:3", true, false),
        ("deliver.before_write", true, false),
        ("deliver.after_write", true, true),
        ("deliver.after_write:2", true, true),
    ] {
        let before_rows = rows;
        scene.insert(rows, 4).await;
        rows += 4;
        let before = scene.receiver.seen().requests;
        let mut doomed = scene.deliver(Some(place));
        // Until it gets there: how many outcomes one write takes is its own affair.
        let deadline = Instant::now() + Duration::from_secs(30) * patience();
        let status = loop {
            if let Some(status) = doomed.ended() {
                break status;
            }
            assert!(Instant::now() < deadline, "{place} was never passed");
            tokio::time::sleep(Duration::from_millis(100)).await;
            scene.insert(rows, 1).await;
            rows += 1;
        };
        assert!(!status.success(), "{place} was never passed");
        let arrived = scene.receiver.seen().requests - before;
        assert_eq!(arrived > 0, arrives, "{place}: {arrived} requests");
        let survivor = scene.deliver(None);
        scene.is_settled().await;
        drop(survivor);
        assert_eq!(scene.delivered().await.len(), rows, "{place}");
        let mut at_once = 0;
        for event in &scene.delivered().await[before_rows..] {
            let attempts = attempts(&*scene.store, event.event.id).await;
            at_once += usize::from(attempts == ["1 success 200"]);
        }
        if written {
            assert!(at_once > 0, "{place}: what is written counts");
        }
    }
    let account = scene.account().await;
    assert_eq!(account.delivered, rows);
    assert!(account.unknown > 0 && account.repeated > 0, "{account:?}");
}

/// All its requests are under way when it dies; the next one sends them again, and says why.
pub(crate) async fn promise_11_kill_minus_9_in_the_middle_of_requests_loses_nothing(
    backend: Arc<dyn Backend>,
) {
    let scene = Scene::new(backend, |_| {}).await;
    scene.receiver.otherwise(Reply::Hang);
    scene.insert(0, 30).await;
    let mut doomed = scene.deliver(None);
    scene
        .receiver
        .wait_until(|_, seen| seen.hanging == 30)
        .await
        .unwrap();
    doomed.kill();
    scene.receiver.otherwise(Reply::Accept);
    let survivor = scene.deliver(None);
    scene.is_settled().await;
    drop(survivor);
    let account = scene.account().await;
    assert_eq!(
        (account.delivered, account.unknown, account.repeated),
        (30, 30, 30)
    );
    for event in scene.delivered().await {
        assert_eq!(
            attempts(&*scene.store, event.event.id).await,
            ["1 unknown", "2 success 200"]
        );
    }
}

/// SIGTERM: what is under way is finished and written, and the summary is on its standard output.
pub(crate) async fn told_to_stop_it_finishes_and_says_what_it_did(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend, |_| {}).await;
    scene.receiver.otherwise(Reply::Hang);
    scene.insert(0, 10).await;
    let mut process = scene.deliver(None);
    scene
        .receiver
        .wait_until(|_, seen| seen.hanging == 10)
        .await
        .unwrap();
    terminate(process.pid());
    // What it may still take meanwhile is answered at once.
    scene.receiver.otherwise(Reply::Accept);
    scene.insert(100, 5).await;
    scene.receiver.release();
    assert!(process.wait(Duration::from_secs(20)).success());
    let mut said = String::new();
    let mut stdout = process.child().stdout.take().unwrap();
    stdout.read_to_string(&mut said).unwrap();
    assert!(said.contains("\"delivered\":1"), "{said}");
    let delivered = scene.delivered().await.len();
    assert!((10..=15).contains(&delivered), "{delivered}");
    let states = scene.store.trigger_states().await.unwrap();
    assert_eq!(states[0].in_flight, 0, "nothing is kept");
    assert_eq!(states[0].pending, 15 - delivered as i64);
}

/// `trigger backfill` is killed in the middle, and again; the next one goes on, and every row that
/// was there becomes one event.
pub(crate) async fn promise_11_a_backfill_that_is_killed_goes_on(backend: Arc<dyn Backend>) {
    const ROWS: usize = 600;
    let scene = Scene::new(backend, |_| {}).await;
    let definition = scene.trigger.definition.clone();
    scene.store.drop_trigger(&scene.trigger).await.unwrap();
    scene.insert(0, ROWS).await;
    scene
        .store
        .create_trigger(&definition, false)
        .await
        .unwrap();
    let mut killed = 0;
    loop {
        let before = log(&*scene.store).await.len();
        let mut process = scene.run(&["trigger", "backfill", "t", "--batch", "3"]);
        // Two more batches at least, then it dies; towards the end it may be through before.
        let ended = loop {
            if let Some(status) = process.ended() {
                break Some(status);
            }
            if log(&*scene.store).await.len() > before + 6 && killed < 4 {
                process.kill();
                killed += 1;
                break None;
            }
        };
        if let Some(status) = ended {
            assert!(status.success());
            break;
        }
    }
    assert!(killed >= 2, "it was through before it could be killed");
    let mut ids: Vec<i64> = log(&*scene.store)
        .await
        .iter()
        .map(|e| {
            let new = changefeed_testkit::events::row(e.event.new.as_deref());
            new["id"].as_i64().unwrap()
        })
        .collect();
    ids.sort_unstable();
    let all: Vec<i64> = (0..i64::try_from(ROWS).unwrap()).collect();
    assert_eq!(ids, all, "each row once");
}

/// What was not delivered of a dropped trigger is archived after the table was let go. Whoever dies in
/// between leaves that to the next instance; nothing is delivered.
pub(crate) async fn whoever_dies_while_a_trigger_is_dropped_leaves_nothing_to_deliver(
    backend: Arc<dyn Backend>,
) {
    let scene = Scene::new(backend, |_| {}).await;
    scene.insert(0, 20).await;
    let mut doomed = scene.run_until(Some("trigger.dropped"), &["trigger", "drop", "t", "--yes"]);
    let status = doomed.wait(Duration::from_secs(30) * patience());
    assert!(!status.success(), "it was to die");
    assert!(scene.store.triggers().await.unwrap().is_empty());
    // The table is the application's again.
    scene.insert(100, 1).await;
    let survivor = scene.deliver(None);
    eventually_true("everything is archived", async || {
        let all = log(&*scene.store).await;
        all.iter().all(|e| e.status == EventStatus::Archived)
    })
    .await;
    drop(survivor);
    assert_eq!(log(&*scene.store).await.len(), 20);
    assert_eq!(scene.receiver.seen().requests, 0);
}
