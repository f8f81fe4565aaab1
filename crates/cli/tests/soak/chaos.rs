//! The schedule: what happens to whom, and when.

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed_testkit::backend::Backend;
use changefeed_testkit::postgres::Cluster;
use changefeed_testkit::process::{children, signal};
use fastrand::Rng;
use rustix::process::Signal;

use crate::fleet::{Ended, Fleet};
use crate::receiving::{MOODS, Receiving};
use crate::tally::Tally;

/// Where an instance may be told to crash, and at which passage.
const CRASH_POINTS: [&str; 9] = [
    "sweep.before:5",
    "sweep.after:20",
    "deliver.claimed:2",
    "deliver.sent:7",
    "deliver.before_write:3",
    "deliver.after_write:2",
    "watch.leased:3",
    "watch.before:2",
    "watch.after:4",
];

/// What has to be made good again.
#[derive(Debug, Clone, Copy)]
enum Undo {
    /// Wakes a process of ours or of the server.
    Wake(u32),
    /// The receiver is well again.
    Cheer,
}

pub(crate) struct Chaos<'a> {
    backend: &'a Arc<dyn Backend>,
    cluster: Option<&'a Cluster>,
    fleet: Fleet,
    receiving: &'a Receiving,
    rng: Rng,
    undo: Vec<(Instant, Undo)>,
    tally: Tally,
}

impl<'a> Chaos<'a> {
    pub(crate) fn new(
        backend: &'a Arc<dyn Backend>,
        cluster: Option<&'a Cluster>,
        fleet: Fleet,
        receiving: &'a Receiving,
        seed: u64,
    ) -> Self {
        Chaos {
            backend,
            cluster,
            fleet,
            receiving,
            rng: Rng::with_seed(seed),
            undo: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// One misfortune after another, and several at once.
    pub(crate) async fn rage(&mut self, duration: Duration) {
        let began = Instant::now();
        let mut told = Instant::now();
        // Every kind once, also in a run of seconds; then as the dice fall.
        let mut kinds = [0, 30, 40, 50, 70, 82, 88];
        self.rng.shuffle(&mut kinds);
        let mut first = kinds.into_iter();
        // Only what can happen everywhere, or also what needs a server.
        let most = if self.cluster.is_some() { 100 } else { 50 };
        while began.elapsed() < duration {
            let dice = first.find(|kind| *kind < most);
            let dice = dice.unwrap_or_else(|| self.rng.u8(..most));
            self.misfortune(dice).await;
            let pause = Duration::from_millis(self.rng.u64(100..2500));
            tokio::time::sleep(pause).await;
            self.make_good(Instant::now());
            self.tend();
            if told.elapsed() > Duration::from_secs(300) {
                told = Instant::now();
                let left = duration.saturating_sub(began.elapsed()).as_secs();
                eprintln!("{left} s to go: {:?}", self.tally);
            }
        }
    }

    /// Everything is well again, and stays so.
    pub(crate) async fn end(&mut self) {
        let pending = std::mem::take(&mut self.undo);
        for (_, undo) in pending {
            self.undo(undo);
        }
        self.receiving.set_mood(0);
        self.tend();
        self.fleet.spare();
        if let Some(cluster) = self.cluster {
            cluster.set_clock(0);
            self.finish_prepared().await;
        }
    }

    /// The counts, when all has been judged.
    pub(crate) fn over(mut self) -> Tally {
        self.tend();
        self.fleet.assert_no_panics();
        self.tally
    }

    async fn misfortune(&mut self, dice: u8) {
        let place = self.rng.usize(..self.fleet.instances.len());
        match dice {
            0..30 => {
                self.tally.count("instances killed");
                self.fleet.replace(place, None);
            }
            30..40 => {
                self.tally.count("instances told to crash");
                let point = self.rng.choice(CRASH_POINTS);
                self.fleet.replace(place, point);
            }
            40..50 => {
                let mood = self.rng.usize(1..MOODS.len());
                self.tally.count(MOODS[mood]);
                self.receiving.set_mood(mood);
                self.later(6000, Undo::Cheer);
            }
            50..70 => {
                self.tally.count("instances frozen");
                let process = &self.fleet.instances[place].process;
                process.freeze();
                let pid = process.pid();
                self.later(12_000, Undo::Wake(pid));
            }
            70..82 => self.freeze_session(),
            82..88 => self.crash_server().await,
            _ => {
                if let Some(cluster) = self.cluster {
                    self.tally.count("clock steps");
                    let reach = *self.rng.choice(&[3, 30, 600, 3600]).unwrap();
                    cluster.set_clock(self.rng.i64(-reach..=reach));
                }
            }
        }
    }

    /// Freezes any process of the server that works for a client.
    fn freeze_session(&mut self) {
        let Some(cluster) = self.cluster else {
            return;
        };
        let sessions: Vec<u32> = children(cluster.pid())
            .into_iter()
            .filter(|pid| is_session(*pid))
            .collect();
        if let Some(pid) = self.rng.choice(&sessions) {
            self.tally.count("database sessions frozen");
            signal(*pid, Signal::STOP);
            self.later(12_000, Undo::Wake(*pid));
        }
    }

    async fn crash_server(&mut self) {
        let Some(cluster) = self.cluster else {
            return;
        };
        if self.rng.bool() {
            // A server that was told to stop waits for its sessions, and libfaketime has locks
            // that a frozen session may hold against the server: a stop that never ends.
            self.make_good(Instant::now() + Duration::from_secs(3600));
            self.tally.count("server stopped as in a crash");
            tokio::task::block_in_place(|| cluster.stop_immediate());
        } else {
            self.tally.count("server killed");
            tokio::task::block_in_place(|| cluster.kill_server());
        }
        let away = Duration::from_millis(self.rng.u64(..1500));
        tokio::time::sleep(away).await;
        tokio::task::block_in_place(|| cluster.start());
        self.finish_prepared().await;
    }

    /// A transaction that was prepared by a writer who lost its connection holds up its shard until
    /// somebody decides. Its writer does not know what became of it, so either is right.
    async fn finish_prepared(&mut self) {
        let Ok(session) = self.backend.try_session().await else {
            return;
        };
        let prepared = session
            .query("select gid from pg_prepared_xacts where database = current_database()")
            .await
            .unwrap_or_default();
        for gid in prepared.iter().filter_map(|row| row[0].as_deref()) {
            // Its writer may be faster.
            let decided = session.execute(&format!("commit prepared '{gid}'")).await;
            if decided.is_ok() {
                self.tally.count("prepared transactions finished");
            }
        }
    }

    fn later(&mut self, most_ms: u64, undo: Undo) {
        let wait = Duration::from_millis(self.rng.u64(500..most_ms));
        self.undo.push((Instant::now() + wait, undo));
    }

    fn make_good(&mut self, now: Instant) {
        let (due, later) = self.undo.drain(..).partition(|(when, _)| *when <= now);
        self.undo = later;
        let due: Vec<(Instant, Undo)> = due;
        for (_, undo) in due {
            self.undo(undo);
        }
    }

    fn undo(&self, undo: Undo) {
        match undo {
            Undo::Wake(pid) => signal(pid, Signal::CONT),
            Undo::Cheer => self.receiving.set_mood(0),
        }
    }

    fn tend(&mut self) {
        for ended in self.fleet.tend() {
            self.tally.count(match ended {
                Ended::AsTold => "instances crashed as told",
                Ended::Starting => "instances without a server at their start",
            });
        }
    }
}

/// Processes of the server say in their titles what they are; those for clients name the client.
fn is_session(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|title| String::from_utf8_lossy(&title).contains("127.0.0.1("))
}
