//! Who holds which rows, what happens to those that fail, and what a newer change does to them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use changefeed_core::{Batch, BatchOutcome, ParkedRows, RowOperation, WatchSettings};
use changefeed_engine::{Handled, WatchFunction};
use serde_json::json;
use tokio::sync::mpsc;

use RowOperation::{Delete, Insert, Update};

use crate::backend::{Backend, eventually_true};
use crate::eventually;
use crate::watching::{Instance, Scene, failed, ids, quick, seen, take};

/// The same settings with a lease that runs out soon.
fn brief() -> WatchSettings {
    WatchSettings {
        lease: Duration::from_millis(200),
        renewal: Duration::from_millis(50),
        ..quick()
    }
}

/// Settings with a lease that lasts longer than any test.
fn long() -> WatchSettings {
    WatchSettings {
        lease: Duration::from_secs(600),
        ..quick()
    }
}

async fn next(scene: &Scene, owner: &str, settings: &WatchSettings) -> Batch {
    eventually("a batch", || async { scene.take(owner, settings).await }).await
}

/// Not in parts either.
pub async fn promise_9_a_leased_row_is_nobody_elses(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let other = scene.backend.store().await;
    scene
        .app
        .run("insert into orders values (1, 'a'), (2, 'a')")
        .await;
    let held = scene.take("a", &long()).await.unwrap();
    assert_eq!(ids(&held), [1, 2]);
    assert!(take(&*other, &scene.watch, "b", &long()).await.is_none());
    // Nor for the instance itself.
    assert!(scene.take("a", &long()).await.is_none());
    scene.app.run("insert into orders values (3, 'a')").await;
    let rest = take(&*other, &scene.watch, "b", &long()).await.unwrap();
    assert_eq!(ids(&rest), [3]);
    assert_ne!(held.generation, rest.generation);
    let lease = format!(
        "select count(*) from {} where _changefeed_lease_owner = 'a' \
         and _changefeed_lease_generation = {} and _changefeed_attempt_count = 1 \
         and _changefeed_lease_expiration_time is not null",
        scene.watch.leases_table, held.generation
    );
    assert_eq!(scene.app.number(&lease).await, 2);
    assert_eq!(scene.settle(&held, BatchOutcome::Done).await, 2);
    assert_eq!(scene.settle(&held, BatchOutcome::Done).await, 0, "once");
}

/// Neither its success nor its failure nor its renewal.
pub async fn promise_9_an_expired_lease_changes_hands_and_the_late_one_is_ignored(
    backend: Arc<dyn Backend>,
) {
    let scene = Scene::new(backend).await;
    scene.app.run("insert into orders values (1, 'a')").await;
    let asked = Instant::now();
    let lost = scene.take("a", &brief()).await.unwrap();
    let taken = next(&scene, "b", &long()).await;
    assert!(asked.elapsed() >= brief().lease, "taken before it expired");
    assert_eq!((taken.attempt, ids(&taken)), (2, vec![1]));
    assert!(taken.generation > lost.generation);
    let renewed = scene.store.renew(&scene.watch, &lost, long().lease).await;
    assert_eq!(renewed.unwrap(), 0);
    assert_eq!(scene.settle(&lost, BatchOutcome::Done).await, 0);
    assert_eq!(scene.settle(&lost, failed("late")).await, 0);
    assert_eq!(scene.settle(&lost, BatchOutcome::Released).await, 0);
    assert!(scene.take("a", &brief()).await.is_none(), "still b's");
    assert_eq!(scene.settle(&taken, BatchOutcome::Done).await, 1);
    assert!(scene.take("a", &brief()).await.is_none());
}

/// Not lost, not merged into the running call.
pub async fn promise_10_a_newer_change_of_a_row_in_process_comes_after_it(
    backend: Arc<dyn Backend>,
) {
    let scene = Scene::new(backend).await;
    let app = &scene.app;
    app.run("insert into orders values (1, 'a'), (2, 'a'), (3, 'a')")
        .await;
    let held = scene.take("a", &long()).await.unwrap();
    app.run("update orders set note = 'b' where id = 1").await;
    app.run("delete from orders where id = 2").await;
    assert!(scene.take("b", &long()).await.is_none(), "in process");
    app.run("update orders set note = 'c' where id = 1").await;
    assert!(scene.take("b", &long()).await.is_none());
    assert_eq!(scene.settle(&held, BatchOutcome::Done).await, 3);
    let newer = scene.take("b", &long()).await.unwrap();
    assert_eq!(newer.attempt, 1);
    let mut changes = seen(&newer);
    changes.sort_by_key(|(_, item)| item["id"].as_i64());
    assert_eq!(
        changes,
        [
            (Update, json!({"id": 1, "note": "c"})),
            (Delete, json!({"id": 2}))
        ]
    );
    // What is deleted while a delete is in process, and comes back, is an insert.
    app.run("insert into orders values (2, 'again')").await;
    assert!(scene.take("c", &long()).await.is_none());
    scene.settle(&newer, BatchOutcome::Done).await;
    assert_eq!(
        scene.all(100).await,
        [[(Insert, json!({"id": 2, "note": "again"}))]]
    );
}

/// Longer than it was granted for at first.
pub async fn a_renewed_lease_lasts(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    scene.app.run("insert into orders values (1, 'a')").await;
    let held = scene.take("a", &brief()).await.unwrap();
    let renewed = scene.store.renew(&scene.watch, &held, long().lease).await;
    assert_eq!(renewed.unwrap(), 1);
    scene.app.run("update orders set note = 'b'").await;
    // A lease as short as the first one, granted later: when it has run out, so had the first.
    scene.app.run("insert into orders values (2, 'a')").await;
    assert_eq!(ids(&scene.take("c", &brief()).await.unwrap()), [2]);
    assert_eq!(ids(&next(&scene, "b", &long()).await), [2]);
    assert!(scene.take("b", &brief()).await.is_none());
    assert_eq!(scene.settle(&held, BatchOutcome::Done).await, 1);
}

/// After the retry interval by the one, after the lease by the others.
pub async fn a_failed_batch_is_tried_again_by_its_holder_and_later_by_others(
    backend: Arc<dyn Backend>,
) {
    let scene = Scene::new(backend).await;
    scene.app.run("insert into orders values (1, 'a')").await;
    let first = scene.take("a", &long()).await.unwrap();
    let waits = Instant::now();
    assert_eq!(scene.settle(&first, failed("no luck")).await, 1);
    let other = scene.backend.store().await;
    assert!(take(&*other, &scene.watch, "b", &long()).await.is_none());
    let status = scene.store.watch_status(&scene.watch, 1).await.unwrap();
    assert_eq!(status.last_error.as_deref(), Some("no luck"));
    assert_eq!((status.unprocessed, status.parked), (1, 0));
    let second = next(&scene, "a", &brief()).await;
    assert!(waits.elapsed() >= quick().retry_interval);
    assert_eq!((second.attempt, ids(&second)), (2, vec![1]));
    // The second lease is a short one: when it has ended, the row is anybody's.
    scene.settle(&second, failed("again")).await;
    let lasting = long();
    let third = eventually("b gets it", || take(&*other, &scene.watch, "b", &lasting)).await;
    assert_eq!(third.attempt, 3);
    scene.app.run("update orders set note = 'b'").await;
    assert_eq!(
        seen(&third)[0].1["note"],
        "a",
        "as it was when it was taken"
    );
    assert_eq!(scene.settle(&third, BatchOutcome::Done).await, 1);
    assert_eq!(scene.all(100).await.concat().len(), 1);
}

/// All the others of its batch succeed, in groups that shrink around it.
pub async fn one_bad_row_is_parked_alone(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let values: Vec<String> = (1..=100).map(|id| format!("({id}, 'a')")).collect();
    scene
        .app
        .run(&format!("insert into orders values {}", values.join(", ")))
        .await;
    let mut calls = 0;
    let mut good = std::collections::BTreeSet::new();
    eventually_true("only the bad row is left", async || {
        while let Some(batch) = scene.take("a", &long()).await {
            calls += 1;
            let ids = ids(&batch);
            assert!(ids.len() <= long().group(batch.attempt));
            if ids.contains(&42) {
                scene.settle(&batch, failed("42 is bad")).await;
            } else {
                good.extend(ids);
                scene.settle(&batch, BatchOutcome::Done).await;
            }
        }
        let status = scene.store.watch_status(&scene.watch, 10).await.unwrap();
        status.parked == 1 && status.unprocessed == 0
    })
    .await;
    assert_eq!(good.len(), 99);
    assert!(calls < 30, "{calls} calls");
    let status = scene.store.watch_status(&scene.watch, 10).await.unwrap();
    let parked = &status.parked_changes[0];
    assert_eq!(parked.key.get(), "{\"id\":42}");
    assert_eq!((parked.operation, parked.attempts), (Insert, 5));
    assert_eq!(parked.error.as_deref(), Some("42 is bad"));
}

/// A process that is killed by a row must not be killed by it for ever.
pub async fn an_attempt_that_was_cut_off_counts(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    scene
        .app
        .run("insert into orders values (1, 'a'), (2, 'a')")
        .await;
    let settings = WatchSettings {
        attempts: 3,
        lease: Duration::from_millis(30),
        renewal: Duration::from_millis(10),
        ..quick()
    };
    let mut attempts = Vec::new();
    eventually_true("both are parked", async || {
        if let Some(batch) = scene.take("a", &settings).await {
            attempts.push((batch.attempt, batch.changes.len()));
        }
        let status = scene.store.watch_status(&scene.watch, 10).await.unwrap();
        status.parked == 2
    })
    .await;
    attempts.sort_unstable();
    assert_eq!(attempts, [(1, 2), (2, 2), (3, 1), (3, 1)]);
    let status = scene.store.watch_status(&scene.watch, 10).await.unwrap();
    assert_eq!(
        status.last_error.as_deref(),
        Some("a did not report back: outcome unknown")
    );
}

/// With all their attempts before them.
pub async fn parked_changes_come_back_by_retry_or_by_a_newer_change(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let once = WatchSettings {
        attempts: 1,
        ..long()
    };
    let app = &scene.app;
    app.run("insert into orders values (1, 'a'), (2, 'a'), (3, 'a')")
        .await;
    let batch = scene.take("a", &once).await.unwrap();
    let settled = scene
        .store
        .settle(&scene.watch, &batch, &failed("no"), &once)
        .await;
    assert_eq!(settled.unwrap().parked, 3);
    assert!(scene.take("a", &once).await.is_none());
    app.run("update orders set note = 'b' where id = 2").await;
    app.run("delete from orders where id = 3").await;
    let newer = scene.take("a", &long()).await.unwrap();
    assert_eq!(
        seen(&newer),
        [
            (Insert, json!({"id": 2, "note": "b"})),
            (Delete, json!({"id": 3}))
        ],
        "the function was never handed them"
    );
    assert_eq!(newer.attempt, 1);
    scene.settle(&newer, BatchOutcome::Done).await;
    assert_eq!(
        scene
            .store
            .retry_parked(&scene.watch, ParkedRows::All)
            .await
            .unwrap(),
        1
    );
    assert_eq!(
        scene
            .store
            .retry_parked(&scene.watch, ParkedRows::All)
            .await
            .unwrap(),
        0
    );
    let again = scene.take("a", &long()).await.unwrap();
    assert_eq!((again.attempt, ids(&again)), (1, vec![1]));
    assert_eq!(scene.settle(&again, BatchOutcome::Done).await, 1);
    let status = scene.store.watch_status(&scene.watch, 10).await.unwrap();
    assert_eq!((status.unprocessed, status.parked), (0, 0));
    assert_eq!(status.last_error, None);
}

/// By its version, which no other parked row has, however often they were retried together.
pub async fn one_parked_row_is_retried_by_its_version(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let once = WatchSettings {
        attempts: 1,
        ..long()
    };
    scene
        .app
        .run("insert into orders values (1, 'a'), (2, 'b'), (3, 'c')")
        .await;
    let park = async || {
        while let Some(batch) = scene.take("a", &once).await {
            let settled = scene
                .store
                .settle(&scene.watch, &batch, &failed("no"), &once)
                .await;
            settled.unwrap();
        }
        let status = scene.store.watch_status(&scene.watch, 10).await.unwrap();
        status.parked_changes
    };
    park().await;
    let all = scene.store.retry_parked(&scene.watch, ParkedRows::All);
    assert_eq!(all.await.unwrap(), 3);
    let parked = park().await;
    assert_eq!(parked.len(), 3);
    let second = parked.iter().find(|p| p.key.get().contains('2')).unwrap();
    let version = ParkedRows::Version(second.version);
    let retry = async || scene.store.retry_parked(&scene.watch, version).await;
    assert_eq!(retry().await.unwrap(), 1);
    assert_eq!(retry().await.unwrap(), 0, "it waits for its next attempt");
    let again = scene.take("a", &long()).await.unwrap();
    assert_eq!((again.attempt, ids(&again)), (1, vec![2]));
    scene.settle(&again, BatchOutcome::Done).await;
    let status = scene.store.watch_status(&scene.watch, 10).await.unwrap();
    assert_eq!((status.unprocessed, status.parked), (0, 2));
}

/// The newer one gets its own attempts.
pub async fn a_newer_change_of_a_row_that_uses_up_its_attempts_is_not_parked(
    backend: Arc<dyn Backend>,
) {
    let scene = Scene::new(backend).await;
    let once = WatchSettings {
        attempts: 1,
        ..long()
    };
    scene.app.run("insert into orders values (1, 'bad')").await;
    let batch = scene.take("a", &once).await.unwrap();
    scene.app.run("update orders set note = 'good'").await;
    // Noticed while the bad one is in process.
    assert!(scene.take("b", &once).await.is_none());
    let settled = scene
        .store
        .settle(&scene.watch, &batch, &failed("bad"), &once)
        .await;
    assert_eq!(settled.unwrap().rows, 1);
    assert_eq!(
        scene.all(100).await,
        [[(Insert, json!({"id": 1, "note": "good"}))]]
    );
}

/// When an instance is stopped before it has called the function.
pub async fn a_released_batch_is_as_if_it_had_not_been_taken(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    scene
        .app
        .run("insert into orders values (1, 'a'), (2, 'a')")
        .await;
    let batch = scene.take("a", &long()).await.unwrap();
    assert_eq!(scene.settle(&batch, BatchOutcome::Released).await, 2);
    let other = scene.backend.store().await;
    let again = take(&*other, &scene.watch, "b", &long()).await.unwrap();
    assert_eq!((again.attempt, ids(&again)), (1, vec![1, 2]));
    // Also for the store that has released it.
    other
        .settle(&scene.watch, &again, &BatchOutcome::Released, &long())
        .await
        .unwrap();
    let again = next(&scene, "a", &long()).await;
    assert_eq!((again.attempt, ids(&again)), (1, vec![1, 2]));
}

/// Receivers of webhooks tell requests apart by versions and bits. A database that was restored from a backup gives
/// the same versions again, so the bits of every version are by chance; of one version they stay what they are.
pub async fn a_version_has_bits_by_chance_that_stay(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let bits = |batch: &Batch| -> Vec<i64> { batch.changes.iter().map(|c| c.bits).collect() };
    scene
        .app
        .run("insert into orders values (1, 'a'), (2, 'a')")
        .await;
    let first = scene.take("a", &long()).await.unwrap();
    assert_ne!(first.changes[0].bits, first.changes[1].bits);
    // It may have been sent before the instance was stopped.
    assert_eq!(scene.settle(&first, BatchOutcome::Released).await, 2);
    let again = next(&scene, "a", &brief()).await;
    assert_eq!(bits(&again), bits(&first));
    assert_eq!(scene.settle(&again, failed("no")).await, 2);
    let again = next(&scene, "b", &long()).await;
    assert_eq!((again.attempt, bits(&again)), (2, bits(&first)));
    scene.app.run("update orders set note = 'b'").await;
    assert_eq!(scene.settle(&again, BatchOutcome::Done).await, 2);
    let newer = next(&scene, "a", &long()).await;
    assert_eq!(ids(&newer), [1, 2]);
    for bits in bits(&newer) {
        assert!(bits != first.changes[0].bits && bits != first.changes[1].bits);
    }
}

/// The same row, the same version, the same number of attempts: only the generation differs.
pub async fn a_lease_that_came_back_has_another_generation(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    scene.app.run("insert into orders values (1, 'a')").await;
    let first = scene.take("a", &long()).await.unwrap();
    scene.settle(&first, BatchOutcome::Released).await;
    let second = next(&scene, "a", &long()).await;
    assert_eq!(second.versions, first.versions);
    assert_eq!(second.attempt, first.attempt);
    assert_eq!(scene.settle(&first, BatchOutcome::Done).await, 0);
    assert_eq!(scene.settle(&second, BatchOutcome::Done).await, 1);
}

/// A function whose calls are told to a test, and end when it says so.
struct Slow {
    called: mpsc::UnboundedSender<(&'static str, Vec<i64>)>,
    end: Arc<tokio::sync::Semaphore>,
    name: &'static str,
}

/// Tells when a call is dropped before its end.
struct Dropped<'a>(&'a Slow, bool);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        if !self.1 {
            let _ = self.0.called.send(("cancelled", Vec::new()));
        }
    }
}

#[async_trait]
impl WatchFunction for Slow {
    async fn call(&self, batch: &Batch) -> Result<Handled, String> {
        let mut dropped = Dropped(self, false);
        let _ = self.called.send((self.name, ids(batch)));
        let permit = self.end.acquire().await;
        permit.unwrap().forget();
        dropped.1 = true;
        Ok(Handled::all())
    }
}

/// By renewal, for many times its lease.
pub async fn a_function_that_runs_long_keeps_its_rows(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let (called, mut calls) = mpsc::unbounded_channel();
    let end = Arc::new(tokio::sync::Semaphore::new(0));
    let settings = WatchSettings {
        // Long enough that a busy machine renews it in time.
        lease: Duration::from_secs(3),
        renewal: Duration::from_millis(200),
        ..quick()
    };
    let mut instances = Vec::new();
    for name in ["a", "b"] {
        let slow = Slow {
            called: called.clone(),
            end: end.clone(),
            name,
        };
        let backend = &*scene.backend;
        instances.push(Instance::start(backend, &scene.watch, name, settings, slow).await);
    }
    scene.app.run("insert into orders values (1, 'a')").await;
    assert_eq!(calls.recv().await.unwrap().1, [1]);
    let during = tokio::time::timeout(settings.lease * 2, calls.recv()).await;
    assert!(
        during.is_err(),
        "nobody else, and not cancelled: {during:?}"
    );
    end.add_permits(1);
    eventually_true("it is done", async || {
        let status = scene.store.watch_status(&scene.watch, 0).await.unwrap();
        status.unprocessed == 0
    })
    .await;
    for instance in instances {
        instance.stop().await;
    }
    assert!(calls.try_recv().is_err());
}

/// Whatever keeps it from renewing: here somebody who keeps the database from writing.
pub async fn a_function_is_cancelled_before_its_lease_can_expire(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend).await;
    let (called, mut calls) = mpsc::unbounded_channel();
    let slow = Slow {
        called,
        end: Arc::new(tokio::sync::Semaphore::new(0)),
        name: "a",
    };
    let settings = WatchSettings {
        lease: Duration::from_millis(1000),
        renewal: Duration::from_millis(100),
        ..quick()
    };
    let instance = Instance::start(&*scene.backend, &scene.watch, "a", settings, slow).await;
    scene.app.run("insert into orders values (1, 'a')").await;
    assert_eq!(calls.recv().await.unwrap(), ("a", vec![1]));
    let words = scene.backend.words();
    let table_id = scene.watch.table_id.to_string();
    let hold = words.hold_backlogs.replace("{table_id}", &table_id);
    let block = format!("{}; {hold}", words.begin);
    scene.app.run(&block).await;
    let blocked = Instant::now();
    assert_eq!(calls.recv().await.unwrap().0, "cancelled");
    // The last renewal may have been granted just before the block.
    assert!(
        blocked.elapsed() < settings.lease,
        "{:?}",
        blocked.elapsed()
    );
    scene.app.run("rollback").await;
    // It fails like any other attempt, and is tried again.
    assert_eq!(calls.recv().await.unwrap().1, [1]);
    instance.kill();
}
