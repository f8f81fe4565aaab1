//! A webhook receiver that does what a script tells it.
//!
//! Tests tell it, in the failure's own words, what to do with the next request ([`Receiver::next`]),
//! with those that a rule picks ([`Receiver::rule`]) and with all others ([`Receiver::otherwise`]);
//! it records what arrived, byte for byte, and lets tests wait for what they expect without
//! sleeping. It is written directly on a TCP listener because it must misbehave on purpose, which
//! HTTP servers take care not to do. Told to keep nothing ([`Keep::Counts`]), it is fast enough to
//! stand at the other end of a benchmark.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use changefeed_receiver::{Receiver, Reply};
//!
//! let receiver = Receiver::start().await?;
//! receiver.next([Reply::Status(503), Reply::Accept]);
//! // … something posts to receiver.url("/orders") …
//! # use tokio::io::AsyncWriteExt;
//! # let mut client = tokio::net::TcpStream::connect(receiver.address()).await?;
//! # client.write_all(b"POST /orders HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}").await?;
//! let requests = receiver.wait_for(1).await?;
//! assert_eq!(requests[0].path, "/orders");
//! assert_eq!(&requests[0].body[..], b"{}");
//! # std::io::Result::Ok(()) }).unwrap();
//! ```

mod connection;
mod reply;
mod request;
mod script;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tokio::task::{JoinHandle, JoinSet};

pub use reply::Reply;
pub use request::Request;
pub use script::{Keep, Seen};

use script::Script;

/// How long a test waits for what it expects before it fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// A receiver on a port of 127.0.0.1. Dropping it closes the port and every connection.
#[derive(Debug)]
pub struct Receiver {
    address: SocketAddr,
    script: Arc<Script>,
    listening: JoinHandle<()>,
}

impl Receiver {
    /// Starts one on a free port; it accepts everything until told otherwise.
    pub async fn start() -> io::Result<Self> {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), Keep::Everything).await
    }

    /// Starts one on a free port that only counts, for benchmarks.
    pub async fn start_counting() -> io::Result<Self> {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), Keep::Counts).await
    }

    /// Starts one at an address, for example that of another that has been dropped.
    pub async fn start_at(address: SocketAddr, keep: Keep) -> io::Result<Self> {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            TcpSocket::new_v6()?
        };
        // Otherwise the connections of a predecessor would keep the port for a minute.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(1024)?;
        let address = listener.local_addr()?;
        let script = Arc::new(Script::new(keep));
        let listening = tokio::spawn(listen(listener, Arc::clone(&script)));
        Ok(Receiver {
            address,
            script,
            listening,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a path, which begins with `/`.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// What to do with the next requests, one each, in the order of their first bytes. This goes
    /// before every rule.
    pub fn next(&self, replies: impl IntoIterator<Item = Reply>) {
        self.script.queue(replies);
    }

    /// Lets a rule decide about requests that no [`next`](Self::next) is waiting for; `None` leaves
    /// the decision to [`otherwise`](Self::otherwise). A new rule replaces the one before.
    pub fn rule(&self, rule: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static) {
        self.script.set_rule(Arc::new(rule));
    }

    /// What to do with all other requests.
    pub fn otherwise(&self, reply: Reply) {
        self.script.set_otherwise(reply);
    }

    /// Accepts every request that hangs at this moment; later ones hang again.
    pub fn release(&self) {
        self.script.release();
    }

    /// The requests so far, in the order in which they were read; none if it only counts.
    pub fn requests(&self) -> Vec<Request> {
        self.script.look(|requests, _| requests.to_vec())
    }

    /// Forgets the requests so far; counts stay.
    pub fn forget(&self) {
        self.script.forget();
    }

    /// What has been counted.
    pub fn seen(&self) -> Seen {
        self.script.look(|_, seen| *seen)
    }

    /// Waits until so many requests have arrived, and returns them.
    pub async fn wait_for(&self, count: u64) -> io::Result<Vec<Request>> {
        self.wait_until(|_, seen| seen.requests >= count).await
    }

    /// Waits until a condition over the requests and the counts holds, and returns the requests.
    /// What does not happen within half a minute is an error that says what there was.
    pub async fn wait_until(
        &self,
        condition: impl FnMut(&[Request], &Seen) -> bool,
    ) -> io::Result<Vec<Request>> {
        let waited = tokio::time::timeout(PATIENCE, self.script.wait_until(condition)).await;
        waited.map_err(|_| {
            io::Error::new(
                io::ErrorKind::TimedOut,
                format!(
                    "the receiver did not see what was expected within {PATIENCE:?}, but {:?}",
                    self.seen()
                ),
            )
        })
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// Accepts connections. They live in a set of this task, so that they end with it.
async fn listen(listener: TcpListener, script: Arc<Script>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let number = script.connected();
                    connections.spawn(connection::serve(stream, Arc::clone(&script), number));
                }
                // Too many open files, most likely: the connections that end make room.
                Err(_) => tokio::task::yield_now().await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}
