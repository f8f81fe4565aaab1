//! A client that costs as little as possible, so that the server is what is measured.

use std::net::SocketAddr;

use changefeed::{Error, Kind, Result};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

fn broken(error: std::io::Error) -> Error {
    Error::new(Kind::Unavailable, "the connection to the server broke").caused_by(error)
}

fn strange(what: String) -> Error {
    Error::new(Kind::Database, what)
}

/// A connection that is used again and again.
pub(super) struct Connection {
    wire: BufReader<TcpStream>,
    host: String,
}

impl Connection {
    pub(super) async fn open(to: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(to).await.map_err(broken)?;
        stream.set_nodelay(true).map_err(broken)?;
        Ok(Connection {
            wire: BufReader::new(stream),
            host: to.to_string(),
        })
    }

    /// Sends a request and reads the head of the answer; returns its length if it has one.
    async fn ask(&mut self, path: &str, accept: &str) -> Result<Option<usize>> {
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: {}\r\naccept: {accept}\r\n\r\n",
            self.host
        );
        self.wire.write_all(head.as_bytes()).await.map_err(broken)?;
        let (mut first, mut length) = (None, None);
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().ok();
            }
            first.get_or_insert(line);
        }
        match first {
            Some(status) if status.starts_with("HTTP/1.1 200") => Ok(length),
            status => Err(strange(format!(
                "the server answered {}",
                status.unwrap_or_default()
            ))),
        }
    }

    async fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.wire.read_line(&mut line).await.map_err(broken)? {
            0 => Err(strange("the server hung up".to_owned())),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    /// The body of an answer.
    pub(super) async fn get(&mut self, path: &str) -> Result<String> {
        let length = self.ask(path, "*/*").await?;
        let length = length.ok_or_else(|| strange("an answer has no length".to_owned()))?;
        let mut body = vec![0; length];
        self.wire.read_exact(&mut body).await.map_err(broken)?;
        String::from_utf8(body).map_err(|_| strange("an answer is no text".to_owned()))
    }
}

/// A stream of events.
pub(super) struct Stream(Connection);

impl Stream {
    pub(super) async fn open(to: SocketAddr, path: &str) -> Result<Self> {
        let mut connection = Connection::open(to).await?;
        connection.ask(path, "text/event-stream").await?;
        Ok(Stream(connection))
    }

    /// The id of the next change.
    pub(super) async fn change_id(&mut self) -> Result<i64> {
        loop {
            let line = self.0.line().await?;
            let id = line
                .split_once("\"change_id\":\"")
                .and_then(|(_, rest)| rest.split_once('"'))
                .and_then(|(id, _)| id.parse().ok());
            if let Some(id) = id {
                return Ok(id);
            }
        }
    }
}
