//! One throwaway server.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::postgres::programs;
use crate::process::{children, is_alive, signal};

/// A PostgreSQL server of our own: on a random loopback port, in a temporary directory, never as
/// root, and gone with this process, however this process ends.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    port: u16,
    user: Option<(u32, u32)>,
    // The library that shows the server another time, if it has a clock of its own.
    clock: Option<PathBuf>,
    // Removes everything when its input closes, which the kernel does for us if we are killed.
    watchdog: Child,
}

/// Settings for speed: what a crash of the machine would do to it is not tested, crashes of the
/// server lose nothing.
const SETTINGS: &str = "
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
fsync = off
full_page_writes = off
max_connections = 200
max_prepared_transactions = 20
shared_buffers = 64MB
max_wal_size = 1GB
";

impl Cluster {
    /// Makes and starts a server.
    pub fn start_new() -> Self {
        Self::make(None)
    }

    /// Makes and starts a server whose clock can be set. Only the time of day: as on a real machine,
    /// what measures intervals goes on.
    pub fn start_with_clock() -> Self {
        let library = ["x86_64-linux-gnu/", "aarch64-linux-gnu/", ""]
            .iter()
            .map(|place| PathBuf::from(format!("/usr/lib/{place}faketime/libfaketime.so.1")))
            .find(|library| library.exists())
            .expect("libfaketime is not installed (Debian: apt-get install libfaketime)");
        Self::make(Some(library))
    }

    /// Sets the clock of the server to so many seconds from the real time.
    pub fn set_clock(&self, seconds: i64) {
        let (new, file) = (self.dir.join("clock.new"), self.dir.join("clock"));
        std::fs::write(&new, format!("{seconds:+}s\n")).unwrap();
        std::fs::rename(new, file).unwrap();
    }

    /// Makes and starts a hot standby of this server: it gets everything a moment later, and can be read.
    pub fn start_standby(&self) -> Self {
        let mut standby = Self::place(None);
        let data = standby.data();
        finish(
            standby
                .command("pg_basebackup")
                .args(["-h", "127.0.0.1", "-U", "tester", "-R", "--no-sync"])
                .args(["-X", "stream", "-c", "fast", "-p", &self.port.to_string()])
                .arg("-D")
                .arg(&data),
        )
        .unwrap_or_else(|output| panic!("pg_basebackup failed:\n{output}"));
        standby.start_somewhere();
        standby
    }

    /// A place for a server.
    fn place(clock: Option<PathBuf>) -> Self {
        let user = server_user();
        let dir = tempfile::Builder::new()
            .prefix("changefeed-pg.")
            .tempdir()
            .unwrap()
            .keep();
        if let Some((uid, gid)) = user {
            chown(&dir, Some(uid), Some(gid)).unwrap();
        }
        let watchdog = watchdog(&dir, user);
        Cluster {
            dir,
            port: 0,
            user,
            clock,
            watchdog,
        }
    }

    fn make(clock: Option<PathBuf>) -> Self {
        let mut cluster = Self::place(clock);
        cluster.set_clock(0);
        let data = cluster.data();
        finish(
            cluster
                .command("initdb")
                .arg("-D")
                .arg(&data)
                .args(["-U", "tester", "-A", "trust", "-E", "UTF8"])
                .args(["--locale=C", "--no-sync"]),
        )
        .unwrap_or_else(|output| panic!("initdb failed:\n{output}"));
        std::fs::OpenOptions::new()
            .append(true)
            .open(data.join("postgresql.conf"))
            .and_then(|mut conf| conf.write_all(SETTINGS.as_bytes()))
            .unwrap();
        cluster.start_somewhere();
        cluster
    }

    /// Starts it on a port that nobody uses.
    fn start_somewhere(&mut self) {
        for attempt in 1.. {
            self.port = free_port();
            match self.try_start() {
                Ok(()) => break,
                // Somebody else took the port since we looked.
                Err(_) if attempt < 5 => {}
                Err(output) => panic!("PostgreSQL did not start:\n{output}"),
            }
        }
    }

    /// The address of its first database, as its superuser.
    pub fn url(&self) -> String {
        format!("postgres://tester@127.0.0.1:{}/postgres", self.port)
    }

    /// The same database of this server as that address names on another one.
    pub fn url_like(&self, url: &str) -> String {
        let database = url.rsplit('/').next().unwrap();
        format!("postgres://tester@127.0.0.1:{}/{database}", self.port)
    }

    /// The process id of the server.
    pub fn pid(&self) -> u32 {
        let file = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap();
        file.lines().next().unwrap().trim().parse().unwrap()
    }

    /// Stops it as a crash would: sessions are cut off, nothing is written back.
    pub fn stop_immediate(&self) {
        let data = self.data();
        finish(
            self.command("pg_ctl")
                .arg("-D")
                .arg(&data)
                .args(["-m", "immediate", "-w", "stop"]),
        )
        .unwrap_or_else(|output| panic!("PostgreSQL did not stop:\n{output}"));
    }

    /// Starts it again on the same port, and returns when it answers.
    pub fn start(&self) {
        self.try_start()
            .unwrap_or_else(|output| panic!("PostgreSQL did not start again:\n{output}"));
    }

    /// `kill -9` of the server and of all its processes.
    pub fn kill_server(&self) {
        let server = self.pid();
        // Stopped first, so that it starts no more children while we look for them.
        signal(server, Signal::STOP);
        let mut all = children(server);
        all.push(server);
        for pid in &all {
            signal(*pid, Signal::KILL);
        }
        let began = Instant::now();
        while all.iter().any(|pid| is_alive(*pid)) {
            assert!(
                began.elapsed() < Duration::from_secs(10),
                "PostgreSQL survived SIGKILL"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        // In a container that has no init process nobody buries the dead, and the next server
        // would take the zombie for a living one.
        let _ = std::fs::remove_file(self.data().join("postmaster.pid"));
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn try_start(&self) -> Result<(), String> {
        let (data, log) = (self.data(), self.dir.join("log"));
        let mut command = self.command("pg_ctl");
        if let Some(library) = &self.clock {
            command
                .env("LD_PRELOAD", library)
                .env("FAKETIME_TIMESTAMP_FILE", self.dir.join("clock"))
                .env("FAKETIME_NO_CACHE", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
                .env("DONT_FAKE_MONOTONIC", "1");
        }
        finish(command.arg("-D").arg(&data).arg("-l").arg(&log).args([
            "-w",
            "-t",
            "60",
            "-o",
            &format!("-p {}", self.port),
            "start",
        ]))
        .map_err(|output| output + &std::fs::read_to_string(&log).unwrap_or_default())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(programs().join(program));
        as_user(&mut command, self.user);
        command
            .current_dir(&self.dir)
            .env("LC_ALL", "C")
            // A Ctrl-C at the terminal is for the tests; the watchdog cleans up after them.
            .process_group(0);
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Closing its input is the sign; then everything is gone when it has ended.
        drop(self.watchdog.stdin.take());
        let _ = self.watchdog.wait();
    }
}

/// Runs a command to its end; its output is the error when it fails.
fn finish(command: &mut Command) -> Result<(), String> {
    // A pipe would stay open in the server that pg_ctl leaves behind, hence a file.
    let mut output = tempfile::tempfile().unwrap();
    let status = command
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output.try_clone().unwrap())
        .status()
        .map_err(|e| format!("{command:?}: {e}"))?;
    if status.success() {
        return Ok(());
    }
    let mut text = String::new();
    std::io::Seek::rewind(&mut output).unwrap();
    std::io::Read::read_to_string(&mut output, &mut text).unwrap();
    Err(text)
}

/// PostgreSQL refuses to run as root: then as its own user, or as nobody.
fn server_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let find = |wanted: &str| {
        users.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next()? == wanted).then_some(())?;
            let uid = fields.nth(1)?.parse().ok()?;
            Some((uid, fields.next()?.parse().ok()?))
        })
    };
    let user = find("postgres").or_else(|| find("nobody"));
    Some(user.expect("neither a user postgres nor nobody"))
}

fn as_user(command: &mut Command, user: Option<(u32, u32)>) {
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
}

/// A port that nobody uses at this moment.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .unwrap()
        .port()
}

fn watchdog(dir: &Path, user: Option<(u32, u32)>) -> Child {
    const SCRIPT: &str = r#"
        trap '' INT TERM HUP
        read -r never
        "$1/pg_ctl" -D "$2/data" -m immediate -w stop
        rm -rf "$2"
    "#;
    let mut command = Command::new("sh");
    command
        .args(["-c", SCRIPT, "watchdog"])
        .arg(programs())
        .arg(dir)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Not in our group, so that a Ctrl-C at the terminal does not reach it.
        .process_group(0);
    as_user(&mut command, user);
    command.spawn().unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{PostgresSession, Session};

    async fn ask(url: &str) -> Option<String> {
        let session = PostgresSession::connect(url).await.ok()?;
        let rows = session
            .query("select string_agg(n::text, ',' order by n) from kept")
            .await;
        rows.ok()?.into_iter().next()?.into_iter().next()?
    }

    /// What is committed survives a stop like a crash and `kill -9`; the port stays the same; and
    /// nothing is left of it afterwards.
    #[test]
    fn a_cluster_can_crash_come_back_and_disappear() {
        crate::run(async {
            let cluster = Cluster::start_new();
            let (dir, pid) = (cluster.dir.clone(), cluster.pid());
            let url = cluster.url();
            let session = PostgresSession::connect(&url).await.unwrap();
            session
                .execute("create table kept (n int); insert into kept values (1)")
                .await
                .unwrap();
            cluster.stop_immediate();
            assert_eq!(ask(&url).await, None);
            cluster.start();
            assert_eq!(ask(&url).await.as_deref(), Some("1"));
            let session = PostgresSession::connect(&url).await.unwrap();
            session
                .execute("insert into kept values (2)")
                .await
                .unwrap();
            cluster.kill_server();
            assert_eq!(ask(&url).await, None);
            cluster.start();
            assert_eq!(ask(&url).await.as_deref(), Some("1,2"));
            drop(cluster);
            assert!(!dir.exists());
            assert!(!is_alive(pid));
        });
    }
}
