//! A process that serves, seen from outside.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use changefeed::{Error, Kind, Result};

use super::PATIENCE;
use super::client::Connection;

/// `changefeed serve` in a process of its own, which ends with this value.
pub(super) struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    pub(super) fn start(program: &Path, url: &str) -> Result<Self> {
        let mut process = Command::new(program)
            .args(["serve", "--only", "http", "--listen", "127.0.0.1:0"])
            // Not an argument: those are for everybody to see, and it may hold a password.
            .env("CHANGEFEED_DB", url)
            .env("RUST_LOG", "off")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| {
                let program = program.display();
                Error::new(Kind::Unavailable, format!("cannot run {program} serve")).caused_by(e)
            })?;
        let mut said = String::new();
        if let Some(output) = process.stdout.take() {
            let _ = BufReader::new(output).read_line(&mut said);
        }
        let address = said
            .split_once("://")
            .and_then(|(_, rest)| rest.split_once(';')?.0.parse().ok());
        match address {
            Some(address) => Ok(Server { process, address }),
            None => {
                let _ = process.kill();
                let _ = process.wait();
                Err(Error::new(
                    Kind::Unavailable,
                    "`changefeed serve` did not begin to listen",
                )
                .advise(
                    "run `changefeed serve` with the same --db to see why; where there are \
                             tokens the measures have none",
                ))
            }
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// A figure that the server tells of itself.
    pub(super) async fn metric(&self, name: &str) -> Result<f64> {
        let text = Connection::open(self.address)
            .await?
            .get("/metrics")
            .await?;
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
            .ok_or_else(|| Error::new(Kind::Database, format!("there is no metric {name}")))
    }

    /// Waits until so many clients wait.
    pub(super) async fn waiting(&self, clients: usize) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let now = self.metric("changefeed_http_waiting").await?;
            if now == clients as f64 {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(Error::new(
                    Kind::Busy,
                    format!("{now} clients wait at the server instead of {clients}"),
                ));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
