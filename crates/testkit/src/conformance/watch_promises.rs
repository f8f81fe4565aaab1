//! Many instances, random writes, failures and deaths: in the end every row's final state was
//! handed over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use changefeed_core::{Batch, WatchSettings};
use changefeed_engine::{Handled, WatchFunction};

use crate::backend::{Backend, Session, Words, eventually_true};
use crate::soaking;
use crate::watching::{Copying, Instance, Scene, ids, orders, quick};

/// Counts how often each row is handed over.
#[derive(Clone, Default)]
struct Counting(Arc<std::sync::Mutex<BTreeMap<i64, u64>>>);

#[async_trait]
impl WatchFunction for Counting {
    async fn call(&self, batch: &Batch) -> Result<Handled, String> {
        let mut counts = self.0.lock().unwrap();
        for id in ids(batch) {
            *counts.entry(id).or_default() += 1;
        }
        Ok(Handled::all())
    }
}

/// Where nothing goes wrong, each change is handed over exactly once.
pub async fn promise_12_ten_instances_share_the_work(backend: Arc<dyn Backend>) {
    const ROWS: i64 = 3000;
    let scene = Scene::new(backend).await;
    let counting = Counting::default();
    // Nobody dies here, however slow the machine is.
    let settings = WatchSettings {
        batch: 50,
        lease: Duration::from_secs(600),
        renewal: Duration::from_secs(60),
        ..quick()
    };
    let mut instances = Vec::new();
    for n in 0..10 {
        let (backend, owner) = (&*scene.backend, format!("instance-{n}"));
        let counting = counting.clone();
        instances.push(Instance::start(backend, &scene.watch, owner, settings, counting).await);
    }
    for part in 0..30 {
        let values: Vec<String> = (0..ROWS / 30)
            .map(|n| format!("({}, 'a')", part * ROWS / 30 + n))
            .collect();
        scene
            .app
            .run(&format!("insert into orders values {}", values.join(", ")))
            .await;
    }
    eventually_true("everything is processed", async || {
        let status = scene.store.watch_status(&scene.watch, 0).await.unwrap();
        status.unprocessed == 0
    })
    .await;
    let mut busy = 0;
    for instance in instances {
        let totals = instance.stop().await;
        assert_eq!(totals.failed, 0);
        busy += usize::from(totals.batches > 0);
    }
    let counts = counting.0.lock().unwrap();
    assert_eq!(counts.len() as i64, ROWS);
    assert!(
        counts.values().all(|count| *count == 1),
        "each exactly once"
    );
    assert!(busy > 1, "only one of ten instances has worked");
}

/// Instances fail at random and die at random; the application writes at random; at the end a copy
/// of the table that was kept by what the function was handed is the table.
pub async fn promises_9_to_12_hold_under_random_writes_failures_and_deaths(
    backend: Arc<dyn Backend>,
) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    fastrand::seed(seed);
    let scene = Scene::new(backend).await;
    let function = Copying {
        failures: 100,
        late_failures: true,
        ..Copying::default()
    };
    let settings = WatchSettings {
        batch: 20,
        lease: Duration::from_millis(400),
        renewal: Duration::from_millis(100),
        // Dice never park a row for good: the chance is nil.
        attempts: 1000,
        ..quick()
    };
    let running = Arc::new(AtomicBool::new(true));
    let written = Arc::new(AtomicU64::new(0));
    let mut writers = Vec::new();
    for n in 0..3 {
        let session = scene.backend.session().await;
        let (running, written, words) = (running.clone(), written.clone(), scene.backend.words());
        let random = fastrand::Rng::with_seed(seed ^ n);
        writers.push(tokio::spawn(write(
            session, random, words, running, written,
        )));
    }
    let length = if soaking() {
        Duration::from_secs(60)
    } else {
        Duration::from_secs(4)
    };
    let until = Instant::now() + length;
    let mut instances = Vec::new();
    let mut started = 0;
    // However slow the machine is, enough has to happen.
    let enough = || written.load(Ordering::Relaxed) > 50;
    while Instant::now() < until || !enough() {
        while instances.len() < 5 {
            started += 1;
            let (backend, owner) = (&*scene.backend, format!("instance-{started}"));
            let function = function.clone();
            let instance = Instance::start(backend, &scene.watch, owner, settings, function);
            instances.push(instance.await);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        instances
            .swap_remove(fastrand::usize(..instances.len()))
            .kill();
    }
    running.store(false, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    eventually_true("the copy is the table", async || {
        let status = scene.store.watch_status(&scene.watch, 0).await.unwrap();
        status.unprocessed == 0
    })
    .await;
    for instance in instances {
        instance.stop().await;
    }
    assert_eq!(function.rows(), orders(&*scene.app).await);
    let status = scene.store.watch_status(&scene.watch, 0).await.unwrap();
    assert_eq!((status.parked, status.leased), (0, 0));
}

/// An application: short transactions of a few writes to few rows, some rolled back.
async fn write(
    session: Box<dyn Session>,
    mut random: fastrand::Rng,
    words: Words,
    running: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
) {
    while running.load(Ordering::Relaxed) {
        let mut sql = format!("{};", words.begin);
        // In order, so that the application does not meet itself in a deadlock.
        let mut rows: Vec<i64> = (0..random.i64(1..5)).map(|_| random.i64(0..60)).collect();
        rows.sort_unstable();
        rows.dedup();
        for id in rows {
            let note = random.u32(..);
            sql.push_str(&match random.u8(..10) {
                0..4 => {
                    let put = words.put_order.replace("{id}", &id.to_string());
                    put.replace("{note}", &note.to_string()) + ";"
                }
                4..8 => format!("update orders set note = '{note}' where id = {id};"),
                _ => format!("delete from orders where id = {id};"),
            });
        }
        sql.push_str(if random.u8(..10) == 0 {
            "rollback"
        } else {
            "commit"
        });
        match session.execute(&sql).await {
            Err(_) if words.puts_clash => session.run("rollback").await,
            done => {
                done.unwrap();
                written.fetch_add(1, Ordering::Relaxed);
            }
        }
        tokio::time::sleep(Duration::from_millis(random.u64(..4))).await;
    }
}
