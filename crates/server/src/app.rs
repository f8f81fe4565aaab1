//! What every handler works with.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{AllowedVariables, Finding, SchemaState};
use changefeed_engine::{CancellationToken, Changefeed};

use crate::access::Access;
use crate::complaints::Complaints;
use crate::connections::Connections;
use crate::feeds::Feeds;
use crate::kept::Kept;
use crate::limits::Limits;
use crate::reads::Reads;
use changefeed_engine::observe::Health;
use changefeed_engine::observe::Meters;
use changefeed_engine::observe::Samples;

/// How the server serves.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where it listens.
    pub listen: SocketAddr,
    /// A certificate and its key, both PEM files.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Names that this machine goes by, besides `localhost` and its addresses.
    pub allow_hosts: Vec<String>,
    /// Origins whose pages may read, and write with a token; `*` for all, which may only read.
    pub cors_origins: Vec<String>,
    /// The environment variables that definitions may name here.
    pub allowed_variables: AllowedVariables,
    /// The largest body of a request, in bytes.
    pub max_body: usize,
    /// Concurrent requests.
    pub max_requests: usize,
    /// Long polls and streams at the same time.
    pub max_waiting: usize,
    /// Connections at the same time.
    pub max_connections: usize,
    /// How long a request may take, not counting long polling.
    pub request_timeout: Duration,
    /// How often an idle stream sends a keep-alive.
    pub keep_alive: Duration,
    /// How long requests under way may take when the server is stopped.
    pub grace: Duration,
}

impl Options {
    /// The defaults.
    pub fn new(listen: SocketAddr) -> Self {
        Options {
            listen,
            tls: None,
            allow_hosts: Vec::new(),
            cors_origins: Vec::new(),
            allowed_variables: AllowedVariables::default(),
            max_body: 1024 * 1024,
            max_requests: 256,
            max_waiting: 5000,
            max_connections: 10_000,
            request_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(15),
            grace: Duration::from_secs(10),
        }
    }

    /// Long polls and streams that there is really room for: a quarter of the connections is left to those
    /// who do not wait.
    pub(crate) fn room_to_wait(&self) -> usize {
        let room = self.max_connections - self.max_connections / 4;
        self.max_waiting.min(room.max(1))
    }

    /// Whether only this machine can reach the server.
    pub fn is_loopback(&self) -> bool {
        self.listen.ip().is_loopback()
    }
}

/// Everything that handlers share.
pub(crate) struct App {
    /// For requests.
    pub(crate) db: Changefeed,
    /// This instance among the others.
    pub(crate) instance: String,
    /// For what goes on without them.
    pub(crate) loops: Changefeed,
    pub(crate) options: Options,
    pub(crate) feeds: Feeds,
    pub(crate) reads: Reads,
    pub(crate) access: Access,
    pub(crate) limits: Limits,
    pub(crate) connections: Arc<Connections>,
    pub(crate) health: Health,
    pub(crate) meters: Arc<Meters>,
    pub(crate) samples: Arc<Samples>,
    pub(crate) complaints: Complaints,
    /// What is installed in the database.
    pub(crate) schema: Kept<SchemaState>,
    /// What `doctor` has to say.
    pub(crate) findings: Kept<Vec<Finding>>,
    pub(crate) shutdown: CancellationToken,
    /// The description of the interface, as JSON text.
    pub(crate) openapi: bytes::Bytes,
}
