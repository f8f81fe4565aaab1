//! One sweeper works, the others stand by: what happens to real processes when the one that works
//! dies, crashes or freezes, and when a frozen one wakes up.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, and its name says what it is about"
)]

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use changefeed_testkit::backend::{Backend, Session, ids, on_every_server};
use changefeed_testkit::process::{Running, terminate};
use changefeed_testkit::{eventually, run};

/// What is promised for a take-over, where the server is beside us.
const WITHIN: Duration = Duration::from_secs(2);

/// These tests measure time, so they do not run beside each other.
static ALONE: Mutex<()> = Mutex::new(());

fn alone(case: impl AsyncFn(Scene)) {
    let _guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    run(on_every_server(async |backend| {
        case(Scene::new(backend).await).await;
    }));
}

fn sweeper(url: &str, crash_at: Option<&str>) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_changefeed"));
    command
        .args(["--db", url, "sweep", "--group", "0", "--json"])
        .env_remove("CHANGEFEED_CRASH_AT")
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if let Some(place) = crash_at {
        command.env("CHANGEFEED_CRASH_AT", place);
    }
    Running::start(&mut command)
}

/// Who holds the lease of group 0: process and generation.
async fn leader(backend: &dyn Backend) -> Option<(u32, i64)> {
    let holders = backend.store().await.lease_holders().await.unwrap();
    let holder = holders.iter().find(|h| h.name == "sweep/0")?;
    let pid = holder.owner.split('/').nth(1)?.parse().ok()?;
    (holder.expires_in_ms > 0).then_some((pid, holder.generation))
}

/// Waits until the process leads; returns its generation.
async fn leads(backend: &dyn Backend, process: &Running) -> i64 {
    eventually("the process leads", || async {
        let (pid, generation) = leader(backend).await?;
        (pid == process.pid()).then_some(generation)
    })
    .await
}

struct Scene {
    backend: Arc<dyn Backend>,
    session: Box<dyn Session>,
    published: i64,
}

impl Scene {
    async fn new(backend: Arc<dyn Backend>) -> Self {
        backend.feed(37, 1).await;
        let session = backend.session().await;
        Scene {
            backend,
            session,
            published: 0,
        }
    }

    fn within(&self) -> Duration {
        WITHIN * self.backend.patience()
    }

    /// Publishes a change and waits until it has its number; returns how long that took.
    async fn publish_and_wait(&mut self) -> Duration {
        self.published += 1;
        let sql = self.backend.words().publish(37, 0, self.published);
        self.session.run(&sql).await;
        let began = Instant::now();
        eventually("the change has its number", || async {
            let last = self
                .session
                .number("select last_change_sequence_number from changefeed.shard")
                .await;
            (last >= 2_000_000_000_000_000 + self.published).then_some(())
        })
        .await;
        began.elapsed()
    }

    /// Every change once, in order.
    async fn nothing_is_lost_or_doubled(&self) {
        let store = self.backend.store().await;
        let feed = &store.feeds().await.unwrap()[0];
        let expected: Vec<i64> = (1..=self.published).collect();
        assert_eq!(ids(&*store, feed, 0).await, expected);
    }
}

/// Neither acknowledges nor releases anything: the worst kind of dead.
#[test]
fn a_frozen_sweeper_is_replaced_within_two_seconds_and_does_no_harm_when_it_wakes() {
    alone(async |mut scene| {
        let url = scene.backend.url();
        let first = sweeper(&url, None);
        let generation = leads(&*scene.backend, &first).await;
        let second = sweeper(&url, None);
        scene.publish_and_wait().await;

        first.freeze();
        let waited = scene.publish_and_wait().await;
        assert!(waited < scene.within(), "the take-over took {waited:?}");
        let (pid, now) = leader(&*scene.backend).await.unwrap();
        assert_eq!(pid, second.pid());
        assert!(now > generation);

        first.thaw();
        for _ in 0..20 {
            scene.publish_and_wait().await;
        }
        assert_eq!(
            leader(&*scene.backend).await,
            Some((second.pid(), now)),
            "the one that woke up stands by"
        );
        second.freeze();
        let waited = scene.publish_and_wait().await;
        assert!(waited < scene.within(), "the way back took {waited:?}");
        second.thaw();
        scene.publish_and_wait().await;
        scene.nothing_is_lost_or_doubled().await;
    });
}

/// `kill -9`.
#[test]
fn a_killed_sweeper_is_replaced_within_two_seconds() {
    alone(async |mut scene| {
        let url = scene.backend.url();
        let mut first = sweeper(&url, None);
        leads(&*scene.backend, &first).await;
        let second = sweeper(&url, None);
        scene.publish_and_wait().await;
        first.kill();
        let waited = scene.publish_and_wait().await;
        assert!(waited < scene.within(), "the take-over took {waited:?}");
        assert_eq!(leader(&*scene.backend).await.unwrap().0, second.pid());
        scene.nothing_is_lost_or_doubled().await;
    });
}

/// Right after it got the lease, right before a sweep is sent, right after it was done.
#[test]
fn promise_11_a_crash_at_any_named_place_loses_and_doubles_nothing() {
    alone(async |mut scene| {
        let url = scene.backend.url();
        for place in [
            "sweep.leased",
            "sweep.before:3",
            "sweep.after",
            "sweep.after:4",
        ] {
            scene.published += 1;
            let sql = scene.backend.words().publish(37, 0, scene.published);
            scene.session.run(&sql).await;
            let mut doomed = sweeper(&url, Some(place));
            let status = doomed.wait(Duration::from_secs(20));
            assert!(!status.success(), "{place} was never passed");
        }
        let _next = sweeper(&url, None);
        let waited = scene.publish_and_wait().await;
        assert!(
            waited < scene.within() + Duration::from_secs(1),
            "{waited:?}"
        );
        scene.nothing_is_lost_or_doubled().await;
    });
}

/// Told to stop, it gives the lease back, says what it did, and succeeds.
#[test]
fn a_sweeper_that_is_told_to_stop_hands_over_at_once() {
    alone(async |mut scene| {
        let url = scene.backend.url();
        let mut first = sweeper(&url, None);
        leads(&*scene.backend, &first).await;
        for _ in 0..3 {
            scene.publish_and_wait().await;
        }
        let _second = sweeper(&url, None);
        terminate(first.pid());
        assert!(first.wait(Duration::from_secs(5)).success());
        let mut said = String::new();
        let mut stdout = first.child().stdout.take().unwrap();
        stdout.read_to_string(&mut said).unwrap();
        assert!(said.starts_with("{\"changes\":3,\"lag_ms\":"), "{said}");
        assert!(said.contains("\"iterations\":"), "{said}");
        let waited = scene.publish_and_wait().await;
        // A lease that was kept would cost a second and a half.
        if scene.backend.words().beside_us {
            assert!(waited < Duration::from_secs(1), "{waited:?}");
        }
        scene.nothing_is_lost_or_doubled().await;
    });
}

/// Many processes: one lease, one that works, no harm.
#[test]
fn promise_12_of_many_sweepers_one_works() {
    alone(async |mut scene| {
        let url = scene.backend.url();
        let sweepers: Vec<Running> = (0..8).map(|_| sweeper(&url, None)).collect();
        for _ in 0..10 {
            scene.publish_and_wait().await;
        }
        let (pid, _) = leader(&*scene.backend).await.unwrap();
        assert!(sweepers.iter().any(|s| s.pid() == pid));
        scene.nothing_is_lost_or_doubled().await;
    });
}

/// The same for whoever pushes a subscription: nothing of a stopped process keeps the next one waiting, and what it
/// writes when it wakes up is refused by the sink.
#[test]
fn a_frozen_pusher_is_replaced_within_two_seconds_and_repeats_nothing_when_it_wakes() {
    alone(async |mut scene| {
        let url = scene.backend.url();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pushed");
        let to = format!("file:{}", file.display());
        let feed = scene.backend.store().await.feeds().await.unwrap().remove(0);
        let mut create = Command::new(env!("CARGO_BIN_EXE_changefeed"));
        create.args(["--db", &url, "subscription", "create", "out", "--feed"]);
        create.args([feed.name.as_str(), "--to", &to]);
        assert!(create.output().unwrap().status.success());
        let _sweeper = sweeper(&url, None);
        let pusher = || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_changefeed"));
            command
                .args(["--db", &url, "serve", "--only", "push", "--allow-files"])
                .arg(dir.path())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            Running::start(&mut command)
        };
        let pushers = [pusher(), pusher()];
        let lines = || {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            i64::try_from(text.lines().count()).unwrap()
        };
        let works = async || {
            eventually("somebody pushes", || async {
                let holders = scene.backend.store().await.lease_holders().await.unwrap();
                let holder = holders.iter().find(|h| h.name == "push/out/0")?;
                let pid: u32 = holder.owner.split('/').nth(1)?.parse().ok()?;
                pushers
                    .iter()
                    .position(|p| p.pid() == pid && holder.expires_in_ms > 0)
            })
            .await
        };
        let mut published = 0;
        for _ in 0..3 {
            let working = works().await;
            pushers[working].freeze();
            published += 1;
            let sql = scene.backend.words().publish(37, 0, published);
            scene.session.run(&sql).await;
            let began = Instant::now();
            eventually("the change is pushed", || async {
                (lines() >= published).then_some(())
            })
            .await;
            let waited = began.elapsed();
            assert!(waited < scene.within(), "the take-over took {waited:?}");
            pushers[working].thaw();
        }
        scene.published = published;
        for _ in 0..20 {
            scene.publish_and_wait().await;
        }
        eventually("everything is pushed", || async {
            (lines() >= scene.published).then_some(())
        })
        .await;
        assert_eq!(lines(), scene.published);
    });
}
