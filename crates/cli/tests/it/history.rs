//! The history test with everything that can happen to real processes: the sweepers are
//! `changefeed sweep` processes that get killed, crash at named places and freeze, and the server
//! is restarted under load. An independent checker decides.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed_testkit::backend::{Backend, PostgresBackend, on_every_server};
use changefeed_testkit::history::{Recorder, Workload};
use changefeed_testkit::postgres::Cluster;
use changefeed_testkit::process::Running;
use changefeed_testkit::{eventually, run, soaking};
use fastrand::Rng;

const SHARD: (i16, i16) = (37, 0);

/// Where a sweeper may be told to crash, and at which passage.
const CRASH_POINTS: [&str; 6] = [
    "sweep.leased",
    "sweep.before",
    "sweep.after",
    "sweep.before:5",
    "sweep.after:7",
    "sweep.after:20",
];

/// Sweeper processes of one database.
struct Fleet {
    url: String,
    sweepers: Vec<Running>,
}

impl Fleet {
    fn of(url: &str, size: usize) -> Self {
        let mut fleet = Fleet {
            url: url.to_owned(),
            sweepers: Vec::new(),
        };
        for _ in 0..size {
            let sweeper = fleet.start(None);
            fleet.sweepers.push(sweeper);
        }
        fleet
    }

    fn start(&self, crash_at: Option<&str>) -> Running {
        Running::start(self.command(crash_at).stdout(Stdio::null()))
    }

    /// Starts one, and returns when it has found the server.
    fn start_at_work(&self) -> Running {
        tokio::task::block_in_place(|| {
            Running::start(self.command(None).stdout(Stdio::piped())).heard("sweeping group 0")
        })
    }

    fn command(&self, crash_at: Option<&str>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_changefeed"));
        command
            .args(["--db", &self.url, "sweep", "--group", "0"])
            .env_remove("CHANGEFEED_CRASH_AT")
            .stderr(Stdio::null());
        if let Some(place) = crash_at {
            command.env("CHANGEFEED_CRASH_AT", place);
        }
        command
    }

    /// One misfortune of a sweeper; the dead are replaced.
    async fn suffer(&mut self, backend: &dyn Backend, rng: &mut Rng) {
        let unlucky = rng.usize(..self.sweepers.len());
        match rng.u8(..3) {
            0 => {
                self.sweepers[unlucky].kill();
                self.sweepers[unlucky] = self.start(None);
            }
            1 => {
                let place = rng.choice(CRASH_POINTS).unwrap();
                self.sweepers[unlucky].kill();
                self.sweepers[unlucky] = self.start(Some(place));
            }
            _ => {
                if let Some((leader, generation)) = leader(backend).await
                    && let Some(sweeper) = self.sweepers.iter().find(|s| s.pid() == leader)
                {
                    sweeper.freeze();
                    let frozen = Instant::now();
                    // Until another one leads, or for as long as it would take.
                    while frozen.elapsed() < Duration::from_millis(2500) {
                        if matches!(self::leader(backend).await, Some((_, g)) if g != generation) {
                            break;
                        }
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                    sweeper.thaw();
                }
            }
        }
        for sweeper in 0..self.sweepers.len() {
            if self.sweepers[sweeper].ended().is_some() {
                self.sweepers[sweeper] = self.start(None);
            }
        }
    }
}

/// The process that holds the lease of group 0, and its generation.
async fn leader(backend: &dyn Backend) -> Option<(u32, i64)> {
    let holders = backend.store().await.lease_holders().await.ok()?;
    let holder = holders.iter().find(|h| h.name == "sweep/0")?;
    let pid = holder.owner.split('/').nth(1)?.parse().ok()?;
    (holder.expires_in_ms > 0).then_some((pid, holder.generation))
}

fn workload() -> Workload {
    Workload {
        sweepers: 0,
        // They write until the misfortunes are over.
        transactions: 0,
        ..Workload::short()
    }
}

fn misfortune() -> Duration {
    Duration::from_secs(if soaking() { 300 } else { 9 })
}

/// Publishes in a transaction that stays open until the returned future is awaited.
async fn long_writer(backend: &dyn Backend, recorder: &Recorder) -> impl AsyncFnOnce() {
    let (session, words) = (backend.session().await, backend.words());
    let mut writing = recorder.begin("long-writer");
    session.run(words.begin).await;
    let first = session.number(words.draw_change_id).await;
    session.run(&words.publish(SHARD.0, SHARD.1, first)).await;
    writing.change(SHARD, first);
    async move || {
        let last = session.number(words.draw_change_id).await;
        session.run(&words.publish(SHARD.0, SHARD.1, last)).await;
        writing.change(SHARD, last);
        session.run("commit").await;
        writing.committed();
    }
}

/// Promises 1 to 5, 11 and 12 with sweepers that are killed, crash and freeze, and a transaction
/// that stays open all the while.
#[test]
fn sweepers_that_are_killed_crash_and_freeze_break_no_promise() {
    run(on_every_server(async |backend| {
        let (_, feed) = backend.feed(SHARD.0, 2).await;
        let mut fleet = Fleet::of(&backend.url(), 3);
        eventually("a sweeper leads", || leader(&*backend)).await;
        let sick = Arc::clone(&backend);
        workload()
            .run(backend, &feed, async |recorder: Recorder, mut rng: Rng| {
                let finish = long_writer(&*sick, &recorder).await;
                let began = Instant::now();
                while began.elapsed() < misfortune() {
                    fleet.suffer(&*sick, &mut rng).await;
                }
                finish().await;
            })
            .await;
    }));
}

/// Promise 11 for the server: stopped like in a crash, and killed with all its processes, under
/// load, while sweepers, writers and readers go on as soon as it is back.
#[test]
fn a_server_that_crashes_under_load_breaks_no_promise() {
    run(async {
        let cluster = Cluster::start_new();
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::on(&cluster.url()).await);
        let (_, feed) = backend.feed(SHARD.0, 2).await;
        let mut fleet = Fleet::of(&backend.url(), 0);
        fleet.sweepers = vec![fleet.start_at_work(), fleet.start_at_work()];
        let sick = Arc::clone(&backend);
        let crashes = if soaking() { 100 } else { 6 };
        let workload = Workload {
            own_ids: true,
            ..workload()
        };
        workload
            .run(backend, &feed, async |recorder: Recorder, mut rng: Rng| {
                for crash in 0..crashes {
                    // Not before the processes have found the server again and done something.
                    let pages = recorder.history().pages.len();
                    let before = last_number(&*sick).await;
                    eventually("numbers are given and read again", || async {
                        let more = recorder.history().pages.len() > pages + 50
                            && last_number(&*sick).await > before + 150;
                        more.then_some(())
                    })
                    .await;
                    if crash % 2 == 0 {
                        tokio::task::block_in_place(|| {
                            cluster.stop_immediate();
                            cluster.start();
                        });
                    } else {
                        tokio::task::block_in_place(|| {
                            cluster.kill_server();
                            cluster.start();
                        });
                    }
                    for sweeper in &mut fleet.sweepers {
                        assert!(
                            sweeper.ended().is_none(),
                            "a sweeper gave up because the server was away"
                        );
                    }
                    if rng.bool() {
                        let unlucky = rng.usize(..fleet.sweepers.len());
                        fleet.sweepers[unlucky].kill();
                        fleet.sweepers[unlucky] = fleet.start_at_work();
                    }
                }
            })
            .await;
    });
}

/// The newest number of the shard.
async fn last_number(backend: &dyn Backend) -> i64 {
    let session = eventually("a connection", || async {
        backend.try_session().await.ok()
    })
    .await;
    session
        .number(
            "select last_change_sequence_number from changefeed.shard \
             where feed_id = 37 and shard = 0",
        )
        .await
}
