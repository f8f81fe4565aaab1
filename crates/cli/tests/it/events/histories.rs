//! Everything at once: writers that write all the time, instances that are killed, crash and
//! freeze, a receiver that fails, and a server that crashes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed_testkit::backend::{Backend, PostgresBackend, eventually_true};
use changefeed_testkit::events::writers::{Writers, every_change_has_its_event};
use changefeed_testkit::postgres::Cluster;
use changefeed_testkit::process::Running;
use changefeed_testkit::receiver::{Receiver, Reply};
use changefeed_testkit::soaking;
use fastrand::Rng;

use crate::events::fleet::{Scene, lease, row_and_retry};

const CRASH_POINTS: [&str; 6] = [
    "deliver.claimed:2",
    "deliver.sent",
    "deliver.sent:7",
    "deliver.before_write",
    "deliver.before_write:3",
    "deliver.after_write:2",
];

fn misfortune() -> Duration {
    Duration::from_secs(if soaking() { 300 } else { 7 })
}

/// Every eighth event fails once, and every fiftieth for good, in one way or another.
fn misbehave(receiver: &Receiver) {
    receiver.rule(|request| {
        let (row, retry) = row_and_retry(request);
        let fails = row % 8 == 0 && retry == 0 || row % 50 == 1;
        fails.then(|| match row % 5 {
            0 => Reply::DropAfterReading,
            1 => Reply::Status(500),
            2 => Reply::Garbage,
            3 => Reply::ResetBeforeReading,
            _ => Reply::AcceptAfter(Duration::from_millis(60)),
        })
    });
}

fn seed() -> u64 {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    seed
}

/// The end of every history: all that was written has its event, and every event its end.
async fn judge(scene: &Scene, committed: u64) {
    scene.is_settled().await;
    let events = every_change_has_its_event(&*scene.store, &*scene.session).await;
    let account = scene.account().await;
    eprintln!("{committed} transactions, {events} events, {account:?}");
    assert!(committed > 20, "the writers got nowhere: {committed}");
    assert_eq!(account.delivered + account.dead, events);
}

/// Ten processes, one database, no misfortune but the receiver's.
pub(crate) async fn promise_12_ten_instances_do_the_work_of_one(backend: Arc<dyn Backend>) {
    let scene = Scene::new(backend, |d| {
        d.delivery.retry.num_retries = 2;
        d.delivery.retry.timeout = Duration::from_secs(10);
    })
    .await;
    misbehave(&scene.receiver);
    let fleet: Vec<Running> = (0..10).map(|_| scene.deliver_patiently()).collect();
    let writers = Writers::start(&scene.backend, 2, seed());
    eventually_true("much is delivered", async || {
        scene.receiver.seen().requests >= 150
    })
    .await;
    let committed = writers.stop().await;
    judge(&scene, committed).await;
    let account = scene.account().await;
    assert_eq!((account.unknown, account.late), (0, 0), "{account:?}");
    drop(fleet);
}

/// Three processes, each of which may be killed, crash or freeze at any moment.
pub(crate) async fn promises_8_9_and_11_hold_in_a_history_of_kills_crashes_and_freezes(
    backend: Arc<dyn Backend>,
) {
    let scene = Scene::new(backend, |d| {
        d.delivery.retry.num_retries = 2;
        d.delivery.retry.timeout = Duration::from_secs(5);
    })
    .await;
    misbehave(&scene.receiver);
    let seed = seed();
    let mut rng = Rng::with_seed(seed);
    let mut fleet: Vec<Running> = (0..3).map(|_| scene.deliver(None)).collect();
    let writers = Writers::start(&scene.backend, 2, seed);
    let began = Instant::now();
    while began.elapsed() < misfortune() {
        let unlucky = rng.usize(..fleet.len());
        let seen = scene.receiver.seen().requests;
        match rng.u8(..3) {
            0 => {
                fleet[unlucky].kill();
                fleet[unlucky] = scene.deliver(None);
            }
            1 => {
                fleet[unlucky].kill();
                fleet[unlucky] = scene.deliver(rng.choice(CRASH_POINTS));
            }
            _ => {
                fleet[unlucky].freeze();
                let frozen = Instant::now();
                eventually_true("its lease is over", async || {
                    frozen.elapsed() > lease().mul_f32(1.3)
                })
                .await;
                fleet[unlucky].thaw();
            }
        }
        // Not the next one before something was sent again.
        eventually_true("deliveries go on", async || {
            for place in fleet.iter_mut() {
                if place.ended().is_some() {
                    *place = scene.deliver(None);
                }
            }
            scene.receiver.seen().requests > seen + 10
        })
        .await;
    }
    let committed = writers.stop().await;
    for place in &mut fleet {
        if place.ended().is_some() {
            *place = scene.deliver(None);
        }
    }
    // One that was told to crash may do so now.
    fleet.push(scene.deliver(None));
    judge(&scene, committed).await;
}

/// Stopped like in a crash, and killed with all its processes, while writers and instances go on
/// as soon as it is back.
pub(crate) async fn a_server_that_crashes_under_load_loses_nothing() {
    let cluster = Cluster::start_new();
    let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::on(&cluster.url()).await);
    let mut scene = Scene::new(backend, |d| {
        d.delivery.retry.num_retries = 2;
        d.delivery.retry.timeout = Duration::from_secs(5);
    })
    .await;
    misbehave(&scene.receiver);
    let mut fleet: Vec<Running> = (0..3).map(|_| scene.deliver_at_work()).collect();
    let writers = Writers::start(&scene.backend, 3, seed());
    for crash in 0..if soaking() { 60 } else { 4 } {
        let seen = scene.receiver.seen().requests;
        eventually_true("events are delivered again", async || {
            scene.receiver.seen().requests > seen + 40
        })
        .await;
        if crash % 2 == 0 {
            cluster.stop_immediate();
        } else {
            cluster.kill_server();
        }
        cluster.start();
        assert!(
            fleet.iter_mut().all(|p| p.ended().is_none()),
            "an instance does not end because the server did"
        );
    }
    let committed = writers.stop().await;
    scene.session = scene.backend.session().await;
    judge(&scene, committed).await;
}
