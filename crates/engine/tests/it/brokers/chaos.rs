//! Several processes push the same list without any lease, are stopped in the middle of a batch, woken, and killed, and so
//! is the broker. In the end the sink holds the list: equal, in order, nothing twice.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use changefeed_engine::sinks::destination::{Appended, Destination, Held};
use rustix::process::{Pid, Signal, kill_process};

use super::servers::{self, Server};
use super::{DEADLINE, lane, messages, number, numbers, open, rename, stands_at};

const URL: &str = "CHANGEFEED_TEST_PUSH_URL";
const DIRECTORY: &str = "CHANGEFEED_TEST_PUSH_DIRECTORY";

/// One pusher, which runs until it is killed. It writes what it does to a file named by its process.
#[tokio::test]
#[ignore = "is a process of the other tests of this file"]
async fn pusher() {
    let (Ok(url), Ok(directory)) = (std::env::var(URL), std::env::var(DIRECTORY)) else {
        return;
    };
    let directory = PathBuf::from(directory);
    let mut log = fs::File::create(directory.join(format!("{}.log", std::process::id()))).unwrap();
    let (sink, lane) = (open(&url).await, lane(0, 0));
    let mut believed = None;
    loop {
        let goal = goal(&directory);
        let held = match believed.take() {
            Some(held) => held,
            None => match sink.resume(&lane).await {
                Ok(held) => held,
                Err(why) => {
                    writeln!(log, "away {why}").unwrap();
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let next = match held {
            Held::Upto(mark) => number(mark) + 1,
            Held::Nothing => 1,
            Held::CannotTell => stored(&directory) + 1,
        };
        if next > goal {
            writeln!(log, "idle").unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        let mut batch = messages(&lane, next..=goal.min(next + fastrand::i64(0..400)));
        rename(&mut batch);
        writeln!(log, "begin {next} {}", batch.len()).unwrap();
        match sink.append(&lane, held, &batch).await {
            Appended::All(held) => {
                if held == Held::CannotTell {
                    store(&directory, next - 1 + batch.len() as i64);
                }
                writeln!(log, "appended").unwrap();
                believed = Some(held);
            }
            Appended::Conflict => writeln!(log, "conflict").unwrap(),
            Appended::Unavailable(why) => {
                writeln!(log, "unavailable {why}").unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            refused => panic!("{refused:?}"),
        }
    }
}

/// The position of a sink that cannot tell, as a subscription stores it.
fn stored(directory: &Path) -> i64 {
    fs::read_to_string(directory.join("position")).map_or(0, |text| text.parse().unwrap())
}

/// Never moves it back.
fn store(directory: &Path, position: i64) {
    if position > stored(directory) {
        let new = directory.join(format!("position-{}", std::process::id()));
        fs::write(&new, position.to_string()).unwrap();
        fs::rename(new, directory.join("position")).unwrap();
    }
}

fn goal(directory: &Path) -> i64 {
    fs::read_to_string(directory.join("goal"))
        .unwrap()
        .parse()
        .unwrap()
}

/// A pusher as its test sees it.
struct Pusher {
    child: Child,
    log: PathBuf,
}

impl Pusher {
    fn start(url: &str, directory: &Path) -> Self {
        Pusher::trusting(url, directory, None)
    }

    /// One that trusts a certificate instead of those of the system.
    fn trusting(url: &str, directory: &Path, certificate: Option<&Path>) -> Self {
        let module = module_path!().split_once("::").expect("a module").1;
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                &format!("{module}::pusher"),
                "--ignored",
                "--nocapture",
            ])
            .env(URL, url)
            .env(DIRECTORY, directory)
            .envs(certificate.map(|path| ("SSL_CERT_FILE", path)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let log = directory.join(format!("{}.log", child.id()));
        Pusher { child, log }
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process"), signal).expect("a signal");
    }

    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Whether it is stopped between sending a batch and hearing what became of it.
    fn is_stopped_in_a_batch(&self) -> bool {
        let began = Instant::now();
        loop {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
            if stat
                .rsplit_once(") ")
                .is_some_and(|(_, rest)| rest.starts_with('T'))
            {
                return self
                    .lines()
                    .last()
                    .is_some_and(|line| line.starts_with("begin"));
            }
            assert!(began.elapsed() < DEADLINE, "it does not stop: {stat}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Pusher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The pushers, their list and their broker.
pub(super) struct Chaos<'a> {
    url: String,
    servers: &'a mut [Server],
    directory: tempfile::TempDir,
    observer: Arc<dyn Destination>,
    can_tell: bool,
    pushers: Vec<Pusher>,
    goal: i64,
    conflicts: usize,
    chance: fastrand::Rng,
}

impl<'a> Chaos<'a> {
    pub(super) async fn new(url: String, servers: &'a mut [Server]) -> Self {
        let seed = fastrand::u64(..);
        eprintln!("seed {seed}");
        let observer = open(&url).await;
        let can_tell = observer.resume(&lane(0, 0)).await != Ok(Held::CannotTell);
        let mut chaos = Chaos {
            observer,
            can_tell,
            url,
            servers,
            directory: tempfile::tempdir().unwrap(),
            pushers: Vec::new(),
            goal: 0,
            conflicts: 0,
            chance: fastrand::Rng::with_seed(seed),
        };
        chaos.raise(0);
        for _ in 0..3 {
            chaos
                .pushers
                .push(Pusher::start(&chaos.url, chaos.directory.path()));
        }
        chaos
    }

    /// There is more to push.
    fn raise(&mut self, by: i64) {
        self.goal += by;
        let (new, path) = (
            self.directory.path().join("new"),
            self.directory.path().join("goal"),
        );
        fs::write(&new, self.goal.to_string()).unwrap();
        fs::rename(new, path).unwrap();
    }

    /// All that there is to push is in the sink.
    async fn settle(&self) {
        let began = Instant::now();
        let lane = lane(0, 0);
        loop {
            let at = match self.can_tell {
                true => stands_at(&*self.observer, &lane).await,
                false => stored(self.directory.path()),
            };
            assert!(at <= self.goal);
            if at == self.goal {
                return;
            }
            if began.elapsed() > DEADLINE {
                let logs: Vec<_> = self.pushers.iter().map(|p| p.lines().pop()).collect();
                panic!(
                    "the sink stands at {at} of {}; the pushers: {logs:?}",
                    self.goal
                );
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Stops a pusher in the middle of a batch.
    async fn stop(&mut self) -> usize {
        let which = self.chance.usize(..self.pushers.len());
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < DEADLINE, "never in a batch");
            self.raise(200);
            tokio::time::sleep(Duration::from_millis(self.chance.u64(0..10))).await;
            self.pushers[which].signal(Signal::STOP);
            if self.pushers[which].is_stopped_in_a_batch() {
                return which;
            }
            self.pushers[which].signal(Signal::CONT);
        }
    }

    /// Wakes a pusher up and waits until its batch has ended somehow.
    async fn wake(&mut self, which: usize) {
        let before = self.pushers[which].lines().len();
        self.pushers[which].signal(Signal::CONT);
        let began = Instant::now();
        while self.pushers[which].lines().len() <= before {
            assert!(began.elapsed() < DEADLINE, "it does not wake up");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn count_conflicts(&mut self, which: usize) {
        let lines = self.pushers[which].lines();
        self.conflicts += lines.iter().filter(|line| *line == "conflict").count();
    }

    fn kill(&mut self, which: usize) {
        self.pushers[which].signal(Signal::KILL);
        self.pushers[which].child.wait().unwrap();
        self.count_conflicts(which);
        self.pushers[which] = Pusher::start(&self.url, self.directory.path());
    }

    pub(super) async fn run(mut self, rounds: usize) -> i64 {
        self.raise(500);
        self.settle().await;
        for round in 0..rounds {
            // Others take over, and the sink goes on before the stopped one wakes up.
            let stopped = self.stop().await;
            self.settle().await;
            self.raise(1000);
            match round % 3 {
                0 => self.settle().await,
                1 => {
                    let other = (stopped + 1) % self.pushers.len();
                    self.kill(other);
                }
                _ if self.servers.is_empty() => self.settle().await,
                _ => {
                    let which = self.chance.usize(..self.servers.len());
                    tokio::time::sleep(Duration::from_millis(self.chance.u64(0..30))).await;
                    self.servers[which].kill();
                    self.servers[which].restart();
                }
            }
            self.wake(stopped).await;
            self.settle().await;
            // Some die in the middle of a batch, too.
            let stopped = self.stop().await;
            self.kill(stopped);
            self.settle().await;
        }
        for which in 0..self.pushers.len() {
            self.count_conflicts(which);
        }
        self.pushers.clear();
        eprintln!("{} messages, {} conflicts", self.goal, self.conflicts);
        assert!(
            self.conflicts > 0 || !self.can_tell,
            "the pushers never met"
        );
        self.goal
    }
}

/// Fewer rounds, unless this is a soak.
pub(super) fn rounds(few: usize) -> usize {
    if std::env::var_os("CHANGEFEED_SOAK").is_some_and(|v| !v.is_empty() && v != "0") {
        60
    } else {
        few
    }
}

/// Of a sink that gets messages at least once: they may come again, but never for the first time before one that
/// precedes them.
#[cfg(feature = "rabbitmq")]
pub(super) fn judge_at_least_once(read: &[(i64, Bytes)], goal: i64) {
    let mut newest = 0;
    for (at, found) in numbers(read).into_iter().enumerate() {
        assert!(found <= newest + 1, "at {at}, {found} comes after {newest}");
        newest = newest.max(found);
    }
    assert_eq!(newest, goal, "the end is missing");
    eprintln!("{} messages for {goal}", read.len());
}

pub(super) fn judge(read: &[(i64, Bytes)], goal: i64) {
    let numbers = numbers(read);
    let wrong = numbers
        .iter()
        .zip(1..)
        .position(|(found, wanted)| *found != wanted);
    if let Some(at) = wrong {
        let around = &numbers[at.saturating_sub(5)..numbers.len().min(at + 5)];
        panic!(
            "of {} for {goal}, number {} is wrong: {around:?}",
            numbers.len(),
            at + 1
        );
    }
    assert_eq!(numbers.len() as i64, goal, "the end is missing");
}

#[tokio::test]
async fn nothing_is_lost_or_repeated_in_redis() {
    let mut servers = [servers::redis(&[])];
    let port = servers[0].port;
    let url = format!("redis://127.0.0.1:{port}/orders");
    let goal = Chaos::new(url, &mut servers).await.run(rounds(6)).await;
    judge(&super::redis::read(port, "orders:0").await, goal);
}

#[tokio::test]
async fn nothing_is_lost_or_repeated_in_nats() {
    let mut servers = [servers::nats("")];
    let port = servers[0].port;
    let url = format!("nats://127.0.0.1:{port}/shop.orders");
    let goal = Chaos::new(url, &mut servers).await.run(rounds(6)).await;
    let context = super::nats::context(&[port]).await;
    judge(
        &super::nats::read(&context, "shop_orders", "shop.orders.0").await,
        goal,
    );
}

/// The leader is killed as often as the others.
#[tokio::test]
async fn nothing_is_lost_or_repeated_in_a_cluster_of_nats() {
    let mut servers = servers::nats_cluster();
    let ports: Vec<u16> = servers.iter().map(|server| server.port).collect();
    let hosts: Vec<String> = ports
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    let url = format!("nats://{}/shop.orders?replicas=3", hosts.join(","));
    let goal = Chaos::new(url, &mut servers).await.run(rounds(6)).await;
    let context = super::nats::context(&ports).await;
    judge(
        &super::nats::read(&context, "shop_orders", "shop.orders.0").await,
        goal,
    );
}

fn write_pem(path: &Path, what: &str, der: &[u8]) {
    let text = STANDARD.encode(der);
    fs::write(
        path,
        format!("-----BEGIN {what}-----\n{text}\n-----END {what}-----\n"),
    )
    .unwrap();
}

/// In a process of its own, because the environment says which certificates are trusted.
#[tokio::test]
async fn nats_is_reached_by_tls() {
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = (
        directory.path().join("certificate"),
        directory.path().join("key"),
    );
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    write_pem(&certificate, "CERTIFICATE", made.cert.der());
    write_pem(&key, "PRIVATE KEY", &made.signing_key.serialize_der());
    let server = servers::nats(&format!(
        "tls {{ cert_file: \"{}\", key_file: \"{}\" }}\n",
        certificate.display(),
        key.display()
    ));
    let url = format!("nats+tls://localhost:{}/shop.orders", server.port);
    let said = open(&url).await.resume(&lane(0, 0)).await.unwrap_err();
    assert!(said.contains("cannot be reached"), "{said}");
    fs::write(directory.path().join("goal"), "1000").unwrap();
    let pusher = Pusher::trusting(&url, directory.path(), Some(&certificate));
    let began = Instant::now();
    while !pusher.lines().iter().any(|line| line == "idle") {
        assert!(began.elapsed() < DEADLINE, "{:?}", pusher.lines());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(pusher.lines().iter().any(|line| line == "appended"));
}
