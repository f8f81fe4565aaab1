//! Subscriptions as processes: instances that push are killed, crash at named places and are frozen past their leases,
//! and the sinks must hold the feed all the same.

mod options;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed::place_of;
use changefeed_testkit::backend::{Backend, eventually_true, on_every_backend, read_all};
use changefeed_testkit::process::Running;
use changefeed_testkit::{run, soaking};
use fastrand::Rng;

use crate::watches::{changefeed, json_lines, out};

const CRASH_POINTS: [&str; 7] = [
    "push.leased",
    "push.before:3",
    "push.after:2",
    "push.stored:4",
    "file.before:2",
    "file.within:3",
    "file.after:2",
];

struct Fleet {
    url: String,
    dir: PathBuf,
    instances: Vec<Running>,
}

impl Fleet {
    fn of(url: &str, dir: &Path, size: usize) -> Self {
        let mut fleet = Fleet {
            url: url.to_owned(),
            dir: dir.to_owned(),
            instances: Vec::new(),
        };
        for _ in 0..size {
            let instance = fleet.start(None);
            fleet.instances.push(instance);
        }
        fleet
    }

    fn start(&self, crash_at: Option<&str>) -> Running {
        let dir = self.dir.to_str().unwrap();
        let args = [
            "serve",
            "--only",
            "push,sweep",
            "--allow-exec",
            "--allow-files",
            dir,
        ];
        let mut command = changefeed(&self.url, &args);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(place) = crash_at {
            command.env("CHANGEFEED_CRASH_AT", place);
        }
        Running::start(&mut command)
    }

    /// One misfortune; the dead are replaced.
    async fn suffer(&mut self, rng: &mut Rng) {
        let unlucky = rng.usize(..self.instances.len());
        match rng.u8(..3) {
            0 => self.instances[unlucky].kill(),
            1 => {
                self.instances[unlucky].kill();
                self.instances[unlucky] = self.start(rng.choice(CRASH_POINTS));
            }
            _ => {
                // Longer than a lease lasts, so that another takes over; then the zombie wakes up.
                self.instances[unlucky].freeze();
                let asleep = Duration::from_millis(rng.u64(1500..3000));
                tokio::time::sleep(asleep).await;
                self.instances[unlucky].thaw();
            }
        }
        for at in 0..self.instances.len() {
            if self.instances[at].ended().is_some() {
                self.instances[at] = self.start(None);
            }
        }
    }
}

/// The cursors in a file, and whether a replay was among them.
fn cursors(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| {
            let (epoch, cursor) = place_of(line.as_bytes()).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(epoch, 0);
            cursor.to_string()
        })
        .collect()
}

async fn history(backend: Arc<dyn Backend>) {
    let (store, feed) = backend.feed(37, 2).await;
    let (session, words) = (backend.session().await, backend.words());
    let (url, dir) = (backend.url(), tempfile::tempdir().unwrap());
    let name = |what: &str| dir.path().join(what).display().to_string();
    let create = |subscription: &str, to: &str| {
        let feed = feed.name.as_str();
        let args = [
            "subscription",
            "create",
            subscription,
            "--feed",
            feed,
            "--to",
            to,
        ];
        let (code, _, errors) = out(&url, &[&args[..], &["--batch", "20"]].concat());
        assert_eq!(code, 0, "{errors}");
    };
    create("files", &format!("file:{}", name("file-{shard}")));
    // A command cannot be asked what it has: at least once.
    let append = format!("exec:cat >> {}", name("command-$CHANGEFEED_SHARD"));
    create("command", &append);

    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let mut fleet = Fleet::of(&url, dir.path(), 3);
    let rounds = if soaking() { 90 } else { 8 };
    let mut written = 0;
    for _ in 0..rounds {
        for shard in [0, 1] {
            let count = rng.i64(1..200);
            let publish =
                words.publish_range(37, shard, 1_000_000 * i64::from(shard) + written, count);
            session.run(&publish).await;
            written += count;
        }
        fleet.suffer(&mut rng).await;
    }
    let began = Instant::now();
    for shard in [0, 1] {
        backend.settle(&*store).await;
        let expected: Vec<String> = read_all(&*store, &feed, shard, 1000)
            .await
            .iter()
            .map(|change| change.cursor.to_string())
            .collect();
        let file = dir.path().join(format!("file-{shard}"));
        eventually_true("the file holds the feed", async || {
            let held = cursors(&file);
            assert!(held.len() <= expected.len(), "seed {seed}: duplicates");
            assert_eq!(held, expected[..held.len()], "seed {seed}");
            held.len() == expected.len()
        })
        .await;
        let command = dir.path().join(format!("command-{shard}"));
        eventually_true("the command was given the feed", async || {
            let mut seen = std::collections::HashSet::new();
            let mut first = cursors(&command);
            first.retain(|cursor| seen.insert(cursor.clone()));
            assert!(first.len() <= expected.len(), "seed {seed}");
            assert_eq!(
                first,
                expected[..first.len()],
                "seed {seed}: a gap, or another order"
            );
            first.len() == expected.len()
        })
        .await;
    }
    eprintln!("{written} changes, caught up after {:?}", began.elapsed());
    for shown in json_lines(&url, &["subscription", "list", "--json"]) {
        assert_eq!(shown["shards"].as_array().unwrap().len(), 2);
        assert_eq!(shown["shards"][0]["lost"], 0, "{shown}");
    }
}

#[test]
fn promise_13_a_file_holds_the_feed_whatever_happens_to_those_who_push() {
    run(async { on_every_backend(history).await });
}

/// What is typed, and what is said.
#[test]
fn a_subscription_is_defined_paused_moved_and_dropped() {
    run(async {
        on_every_backend(async |backend| {
            let (store, feed) = backend.feed(37, 1).await;
            let (url, feed) = (backend.url(), feed.name.to_string());
            let session = backend.session().await;
            session
                .run(&backend.words().publish_range(37, 0, 1, 5))
                .await;
            backend.settle(&*store).await;
            let create = ["subscription", "create", "s", "--feed", &feed, "--to"];
            let (code, _, errors) = out(
                &url,
                &[&create[..], &["stdout:", "--format", "debezium"]].concat(),
            );
            assert_eq!(code, 2, "{errors}");
            assert!(errors.contains("--images"), "{errors}");
            let (code, _, errors) = out(&url, &[&create[..], &["kafka://x"]].concat());
            assert_eq!(code, 2, "{errors}");
            assert!(errors.contains("is not a sink"), "{errors}");
            let made = json_lines(
                &url,
                &[&create[..], &["stdout:", "--from", "now", "--json"]].concat(),
            );
            assert_eq!(made[0]["shards"][0]["lag_changes"], 0);
            let say = |args: &[&str]| {
                json_lines(&url, &[&["subscription"], args, &["--json"]].concat()).remove(0)
            };
            assert_eq!(say(&["pause", "s", "--reason", "lunch"])["paused"], "lunch");
            assert_eq!(say(&["resume", "s"])["state"], "waiting");
            let sought = say(&["seek", "s", "--to", "beginning"]);
            assert_eq!(sought["shards"][0]["epoch"], 1);
            assert_eq!(sought["shards"][0]["cursor"], serde_json::Value::Null);
            assert_eq!(say(&["reset", "s", "--yes"])["shards"][0]["epoch"], 2);
            assert_eq!(say(&["show", "s"])["to"], "stdout:");
            assert_eq!(out(&url, &["subscription", "drop", "s", "--yes"]).0, 0);
            assert_eq!(out(&url, &["subscription", "show", "s"]).0, 1);
        })
        .await;
    });
}
