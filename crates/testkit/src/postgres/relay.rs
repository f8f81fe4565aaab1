//! A way to the server that can be cut.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// A way to the server that can be cut without anybody being told.
pub struct Relay {
    /// The server's URL by this way.
    pub url: String,
    to_server: Arc<AtomicBool>,
    to_client: Arc<AtomicBool>,
    ways: Arc<Mutex<Vec<AbortHandle>>>,
}

impl Relay {
    /// A way to the server of a URL.
    pub async fn to(url: &str) -> Self {
        let (scheme, rest) = url.split_once("://").unwrap();
        let (user, rest) = rest.split_once('@').unwrap_or(("", rest));
        let (server, database) = rest.split_once('/').unwrap();
        let port = if scheme.starts_with("postgres") {
            5432
        } else {
            1433
        };
        let server = if server.contains(':') {
            server.to_owned()
        } else {
            format!("{server}:{port}")
        };
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = socket.local_addr().unwrap().port();
        let relay = Relay {
            url: String::new(),
            to_server: Arc::default(),
            to_client: Arc::default(),
            ways: Arc::default(),
        };
        let (up, down) = (relay.to_server.clone(), relay.to_client.clone());
        let ways = relay.ways.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = socket.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let there = tokio::spawn(forward(from_client, to_server, up.clone()));
                let back = tokio::spawn(forward(from_server, to_client, down.clone()));
                let mut ways = ways.lock().unwrap();
                ways.extend([there.abort_handle(), back.abort_handle()]);
            }
        });
        let at = if user.is_empty() { "" } else { "@" };
        Relay {
            url: format!("{scheme}://{user}{at}127.0.0.1:{port}/{database}"),
            ..relay
        }
    }

    /// From now on nothing arrives, and both sides keep their sockets.
    pub fn cut(&self) {
        self.to_server.store(true, Ordering::SeqCst);
        self.to_client.store(true, Ordering::SeqCst);
    }

    /// From now on nothing comes back from the server, as if the client had stopped reading.
    pub fn choke(&self) {
        self.to_client.store(true, Ordering::SeqCst);
    }

    /// Ends all connections. The server notices when it answers, and that is after the commit.
    /// New connections are made as before.
    pub fn sever(&self) {
        for way in self.ways.lock().unwrap().drain(..) {
            way.abort();
        }
    }

    /// What was sent meanwhile arrives now.
    pub fn heal(&self) {
        self.to_server.store(false, Ordering::SeqCst);
        self.to_client.store(false, Ordering::SeqCst);
    }
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, cut: Arc<AtomicBool>) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count) = from.read(&mut buffer).await {
        while cut.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if count == 0 || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
