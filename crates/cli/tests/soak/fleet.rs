//! `changefeed serve` processes of one database, and what they said.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use changefeed_testkit::process::Running;

/// An instance that does not find the server while it starts says so and ends. Later it may not.
const STARTING: Duration = Duration::from_secs(30);

pub(crate) struct Instance {
    pub(crate) process: Running,
    started: Instant,
    doomed: bool,
}

/// How an instance ended that nobody has killed.
pub(crate) enum Ended {
    /// At the place where it was told to crash.
    AsTold,
    /// While it was starting, because the server was away.
    Starting,
}

pub(crate) struct Fleet {
    url: String,
    logs: PathBuf,
    pub(crate) instances: Vec<Instance>,
}

impl Fleet {
    pub(crate) fn of(url: &str, size: usize) -> Self {
        let mut fleet = Fleet {
            url: url.to_owned(),
            logs: tempfile::tempdir().unwrap().keep(),
            instances: Vec::new(),
        };
        for place in 0..size {
            let instance = fleet.start(place, None);
            fleet.instances.push(instance);
        }
        fleet
    }

    fn log(&self, place: usize) -> PathBuf {
        self.logs.join(format!("instance-{place}"))
    }

    fn start(&self, place: usize, crash_at: Option<&str>) -> Instance {
        let log: File = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log(place))
            .unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_changefeed"));
        command
            .args(["--db", &self.url, "serve", "--listen", "127.0.0.1:0"])
            .args(["--lease", "5s", "--fetch-interval", "200ms"])
            .env("RUST_LOG", "warn")
            .env_remove("CHANGEFEED_CRASH_AT")
            .stdout(Stdio::null())
            .stderr(log);
        if let Some(point) = crash_at {
            command.env("CHANGEFEED_CRASH_AT", point);
        }
        Instance {
            process: Running::start(&mut command),
            started: Instant::now(),
            doomed: crash_at.is_some(),
        }
    }

    /// `kill -9`, and another one in its place.
    pub(crate) fn replace(&mut self, place: usize, crash_at: Option<&str>) {
        self.instances[place].process.kill();
        self.instances[place] = self.start(place, crash_at);
    }

    /// Replaces those that have ended, and says how they did.
    pub(crate) fn tend(&mut self) -> Vec<Ended> {
        let mut ends = Vec::new();
        for place in 0..self.instances.len() {
            let instance = &mut self.instances[place];
            let Some(status) = instance.process.ended() else {
                continue;
            };
            if instance.doomed {
                ends.push(Ended::AsTold);
            } else {
                assert!(
                    instance.started.elapsed() < STARTING,
                    "an instance ended by itself, {status}: {}",
                    self.said(place)
                );
                ends.push(Ended::Starting);
            }
            self.instances[place] = self.start(place, None);
        }
        ends
    }

    /// None that was told to crash may do so any more.
    pub(crate) fn spare(&mut self) {
        for place in 0..self.instances.len() {
            if self.instances[place].doomed {
                self.replace(place, None);
            }
        }
    }

    /// The end of what an instance and its predecessors said.
    fn said(&self, place: usize) -> String {
        let said = std::fs::read_to_string(self.log(place)).unwrap_or_default();
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Whatever happens to an instance, it does not panic.
    pub(crate) fn assert_no_panics(&self) {
        for place in 0..self.instances.len() {
            let said = std::fs::read_to_string(self.log(place)).unwrap_or_default();
            let panics: Vec<&str> = said.lines().filter(|l| l.contains("panicked")).collect();
            assert!(panics.is_empty(), "{panics:#?}\n{}", self.said(place));
        }
    }
}

impl Drop for Fleet {
    /// After a failure somebody wants to read what the instances said.
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("what the instances said: {}", self.logs.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.logs);
        }
    }
}
