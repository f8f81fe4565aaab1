//! The brokers: those of somebody, or throwaway ones that end with the measures.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use changefeed::{Error, Kind, Result};

use super::bare::Nats;
use crate::report::Findings;

/// How long a broker may take to listen.
const PATIENCE: Duration = Duration::from_secs(20);

/// The brokers that somebody names. Without names, the programs `nats-server` (three nodes) and `redis-server` are
/// started, if they are in the path.
#[derive(Debug, Clone, Default)]
pub struct Brokers {
    /// `nats://host:4222[,host…]`
    pub nats: Option<String>,
    /// `redis://host:6379`
    pub redis: Option<String>,
}

/// One that is measured.
pub(super) struct Broker {
    pub(super) name: &'static str,
    pub(super) url: String,
    /// The names of its measures, and the least that is promised.
    pub(super) rate: &'static str,
    pub(super) half: &'static str,
    pub(super) most: &'static str,
    pub(super) least: f64,
    bare: Option<Nats>,
}

impl Broker {
    async fn nats(servers: &str, replicas: usize) -> Result<Self> {
        let servers = servers.trim_end_matches('/');
        Ok(Broker {
            name: "NATS",
            url: format!("{servers}/changefeed_bench?replicas={replicas}"),
            rate: "NATS: pushing, against the bare client without guarantees",
            half: "NATS: commit to acknowledgement, p50",
            most: "NATS: commit to acknowledgement, p99",
            least: 0.75,
            bare: Some(Nats::connect(servers, replicas).await?),
        })
    }

    fn redis(server: &str) -> Self {
        Broker {
            name: "Redis",
            // A name of its own for each run: streams are not removed from somebody's server.
            url: format!(
                "{}/changefeed_bench_{:08x}?maxlen=100000",
                server.trim_end_matches('/'),
                std::process::id()
            ),
            rate: "Redis: pushing, against reading alone",
            half: "Redis: commit to acknowledgement, p50",
            most: "Redis: commit to acknowledgement, p99",
            least: 0.7,
            bare: None,
        }
    }

    /// How fast the bare client is; nothing where pushing is compared with reading.
    pub(super) async fn bare(&self, messages: usize) -> Result<Option<f64>> {
        match &self.bare {
            Some(client) => client.push(messages).await.map(Some),
            None => Ok(None),
        }
    }

    pub(super) async fn clean_up(&self) {
        if let Some(client) = &self.bare {
            client.clean_up().await;
        }
    }
}

/// What runs for the measures.
pub(super) struct Running {
    pub(super) brokers: Vec<Broker>,
    servers: Vec<Child>,
    directory: PathBuf,
}

impl Running {
    pub(super) async fn start(named: &Brokers, findings: &mut Findings<'_>) -> Result<Self> {
        let name = format!("changefeed-bench-{}", std::process::id());
        let mut running = Running {
            brokers: Vec::new(),
            servers: Vec::new(),
            directory: std::env::temp_dir().join(name),
        };
        let nobody = named.nats.is_none() && named.redis.is_none();
        match (&named.nats, in_path("nats-server")) {
            (Some(url), _) => running.brokers.push(Broker::nats(url, 3).await?),
            (None, Some(program)) if nobody => {
                let hosts = running.nats_cluster(&program)?;
                running.brokers.push(Broker::nats(&hosts, 3).await?);
            }
            (None, _) if nobody => {
                findings.note(
                    "NATS was not measured: there is no nats-server in PATH, and no --nats URL"
                        .to_owned(),
                );
            }
            (None, _) => {}
        }
        match (&named.redis, in_path("redis-server")) {
            (Some(url), _) => running.brokers.push(Broker::redis(url)),
            (None, Some(program)) if nobody => {
                let url = running.redis(&program)?;
                running.brokers.push(Broker::redis(&url));
            }
            (None, _) if nobody => {
                findings.note(
                    "Redis was not measured: there is no redis-server in PATH, and no --redis URL"
                        .to_owned(),
                );
            }
            (None, _) => {}
        }
        match running.brokers.is_empty() {
            true => Err(
                Error::new(Kind::Unavailable, "there is no broker to be measured").advise(
                    "name one by --nats or --redis, or put nats-server or redis-server into PATH",
                ),
            ),
            false => Ok(running),
        }
    }

    /// Three servers that are one cluster. Returns their URL.
    fn nats_cluster(&mut self, program: &Path) -> Result<String> {
        let ports = |_| Ok((free_port()?, free_port()?));
        let nodes: Vec<(u16, u16)> = (0..3).map(ports).collect::<Result<_>>()?;
        let routes: Vec<String> = nodes
            .iter()
            .map(|(_, route)| format!("\"nats://127.0.0.1:{route}\""))
            .collect();
        for (port, route) in &nodes {
            let directory = self.directory.join(format!("nats-{port}"));
            std::fs::create_dir_all(&directory).map_err(not_written)?;
            let config = directory.join("config");
            let text = format!(
                "listen: \"127.0.0.1:{port}\"\nserver_name: \"n{port}\"\njetstream {{ store_dir: \"{}\" }}\n\
                 cluster {{ name: \"c\", listen: \"127.0.0.1:{route}\", routes: [{}] }}\n",
                directory.display(),
                routes.join(", ")
            );
            std::fs::write(&config, text).map_err(not_written)?;
            let config = config.display().to_string();
            self.spawn(program, &["-c", &config], *port)?;
        }
        let hosts: Vec<String> = nodes
            .iter()
            .map(|(port, _)| format!("127.0.0.1:{port}"))
            .collect();
        Ok(format!("nats://{}", hosts.join(",")))
    }

    fn redis(&mut self, program: &Path) -> Result<String> {
        let (port, directory) = (free_port()?, self.directory.join("redis"));
        std::fs::create_dir_all(&directory).map_err(not_written)?;
        let (text, directory) = (port.to_string(), directory.display().to_string());
        let arguments = [
            "--bind",
            "127.0.0.1",
            "--port",
            &text,
            "--dir",
            &directory,
            "--save",
            "",
        ];
        self.spawn(program, &arguments, port)?;
        Ok(format!("redis://127.0.0.1:{port}"))
    }

    fn spawn(&mut self, program: &Path, arguments: &[&str], port: u16) -> Result<()> {
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| not_started(program).caused_by(e))?;
        self.servers.push(child);
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if began.elapsed() > PATIENCE {
                return Err(not_started(program));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    pub(super) fn stop(self) {}
}

impl Drop for Running {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn not_written(error: std::io::Error) -> Error {
    Error::new(
        Kind::Unavailable,
        "the directory of a broker cannot be written",
    )
    .caused_by(error)
}

fn not_started(program: &Path) -> Error {
    let message = format!("{} does not start", program.display());
    Error::new(Kind::Unavailable, message)
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    let address = listener
        .map_err(|e| Error::new(Kind::Unavailable, "there is no free port").caused_by(e))?;
    Ok(address.port())
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}
