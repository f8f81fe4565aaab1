//! A client that does exactly what it is told, also what no decent client does.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// How long any answer may take before the test has failed.
const PATIENCE: Duration = Duration::from_secs(70);

/// A request, before it is sent.
#[derive(Clone)]
pub(crate) struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Option<String>,
}

pub(crate) fn get(path: impl Into<String>) -> Request {
    request("GET", path)
}

pub(crate) fn request(method: &str, path: impl Into<String>) -> Request {
    Request {
        method: method.to_owned(),
        path: path.into(),
        headers: Vec::new(),
        body: None,
    }
}

impl Request {
    pub(crate) fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn token(self, token: &str) -> Self {
        self.header("authorization", format!("Bearer {token}"))
    }

    pub(crate) fn json(mut self, body: Value) -> Self {
        self.body = Some(body.to_string());
        self.header("content-type", "application/json")
    }

    pub(crate) fn text(mut self, body: impl Into<String>) -> Self {
        self.body = Some(body.into());
        self
    }

    fn bytes(&self, host: &str) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        if !self.headers.iter().any(|(name, _)| name == "host") {
            head.push_str(&format!("host: {host}\r\n"));
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = &self.body {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        head.push_str(self.body.as_deref().unwrap_or_default());
        head.into_bytes()
    }

    /// Sends it on a connection of its own and reads the whole answer.
    pub(crate) async fn send(&self, to: SocketAddr) -> Answer {
        let mut open = self.open(to).await;
        tokio::time::timeout(PATIENCE, open.rest())
            .await
            .unwrap_or_else(|_| panic!("{} {}: no end", self.method, self.path))
    }

    /// Sends it and reads the head of the answer; its body is read as it comes.
    pub(crate) async fn open(&self, to: SocketAddr) -> Open {
        let stream = TcpStream::connect(to).await.unwrap();
        self.open_on(stream, &to.to_string()).await
    }

    pub(crate) async fn open_on(
        &self,
        mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
        host: &str,
    ) -> Open {
        stream.write_all(&self.bytes(host)).await.unwrap();
        tokio::time::timeout(PATIENCE, Open::head(Box::new(stream)))
            .await
            .unwrap_or_else(|_| panic!("{} {}: no answer", self.method, self.path))
    }
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// The body as JSON, of an answer with this status.
    pub(crate) fn json(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e} in {}", self.body))
    }

    /// The one sentence of an error with this status.
    pub(crate) fn problem(&self, status: u16) -> String {
        let json = self.json(status);
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json")
        );
        assert_eq!(json["status"], status);
        let detail = json["detail"].as_str().unwrap().to_owned();
        assert!(!detail.is_empty() && !detail.contains('\n'), "{detail}");
        detail
    }
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers
        .iter()
        .find(|(n, _)| n == name)
        .map(|(_, v)| v.as_str())
}

trait Wire: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Wire for T {}

/// An answer whose body is still coming.
pub(crate) struct Open {
    wire: BufReader<Box<dyn Wire>>,
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    unread: Vec<u8>,
}

/// A server-sent event.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) data: Option<String>,
}

impl Open {
    async fn head(wire: Box<dyn Wire>) -> Open {
        let mut wire = BufReader::new(wire);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            let read = wire.read_line(&mut line).await.unwrap();
            assert!(read > 0, "the connection ended before an answer");
            let line = line.trim_end().to_owned();
            if line.is_empty() {
                break;
            }
            lines.push(line);
        }
        let status = lines[0].split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines[1..]
            .iter()
            .map(|line| {
                let (name, value) = line.split_once(':').unwrap();
                (name.to_ascii_lowercase(), value.trim().to_owned())
            })
            .collect();
        Open {
            wire,
            status,
            headers,
            unread: Vec::new(),
        }
    }

    /// The next piece of a body that comes in pieces; `None` at its end, however it ended.
    async fn chunk(&mut self) -> Option<Vec<u8>> {
        let mut line = String::new();
        self.wire.read_line(&mut line).await.ok()?;
        let size = usize::from_str_radix(line.trim(), 16).ok()?;
        let mut chunk = vec![0; size + 2];
        self.wire.read_exact(&mut chunk).await.ok()?;
        chunk.truncate(size);
        (size > 0).then_some(chunk)
    }

    async fn rest(&mut self) -> Answer {
        let mut body = Vec::new();
        if find(&self.headers, "transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk().await {
                body.extend(chunk);
            }
        } else if let Some(length) = find(&self.headers, "content-length") {
            body = vec![0; length.parse().unwrap()];
            self.wire.read_exact(&mut body).await.unwrap();
        }
        Answer {
            status: self.status,
            headers: self.headers.clone(),
            body: String::from_utf8(body).unwrap(),
        }
    }

    /// The next block of a stream of events, comments included as blocks without anything;
    /// `None` when the stream has ended.
    pub(crate) async fn block(&mut self) -> Option<Event> {
        let next = async {
            loop {
                if let Some(end) = self.unread.windows(2).position(|w| w == b"\n\n") {
                    let block: Vec<u8> = self.unread.drain(..end + 2).collect();
                    return Some(parse(&String::from_utf8(block).unwrap()));
                }
                let chunk = self.chunk().await?;
                self.unread.extend(chunk);
            }
        };
        tokio::time::timeout(PATIENCE, next)
            .await
            .unwrap_or_else(|_| panic!("nothing came, and no end"))
    }

    /// The next event that has data.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        loop {
            let event = self.block().await?;
            if event.data.is_some() {
                return Some(event);
            }
        }
    }
}

fn parse(block: &str) -> Event {
    let mut event = Event::default();
    for line in block.lines() {
        let Some((field, value)) = line.split_once(": ") else {
            continue;
        };
        let value = Some(value.to_owned());
        match field {
            "id" => event.id = value,
            "event" => event.kind = value,
            "data" => event.data = value,
            _ => {}
        }
    }
    event
}
