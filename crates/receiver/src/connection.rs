//! One connection: requests are read one after the other, and answered as the script says.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::script::{Keep, Script};
use crate::{Reply, Request};

/// The most headers that a request may have.
const MAX_HEADERS: usize = 100;

/// The largest head; what is larger is not a request of ours.
const MAX_HEAD: usize = 256 * 1024;

const ACCEPTED: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// Whether the connection can serve another request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    GoOn,
    Close,
}

/// Serves a connection to its end. That the other side breaks off is nobody's error here.
pub(crate) async fn serve(stream: TcpStream, script: Arc<Script>, number: u64) {
    let _ = stream.set_nodelay(true);
    let mut connection = Connection {
        stream,
        script,
        number,
        nth: 0,
        buffer: BytesMut::with_capacity(8 * 1024),
    };
    while let Ok(Then::GoOn) = connection.exchange().await {}
}

struct Connection {
    stream: TcpStream,
    script: Arc<Script>,
    number: u64,
    /// Requests so far.
    nth: u64,
    buffer: BytesMut,
}

/// Counts a request as being in flight, also when its task is aborted.
struct InFlight(Arc<Script>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Where the parts of a request are, in the buffer.
struct Head {
    length: usize,
    body: usize,
    request: Option<Request>,
}

impl Connection {
    async fn exchange(&mut self) -> io::Result<Then> {
        if self.buffer.is_empty() {
            self.first_byte().await?;
        }
        self.nth += 1;
        let queued = self.script.begin();
        let in_flight = InFlight(Arc::clone(&self.script));
        let arrived = Instant::now();
        if queued == Some(Reply::ResetBeforeReading) {
            self.record_unread(arrived, Reply::ResetBeforeReading);
            return self.reset();
        }
        let unseen = self.script.unseen();
        let mut request = match self.read(arrived, unseen.is_none()).await {
            Ok(request) => request,
            Err(error) => {
                self.record_unread(arrived, Reply::DropAfterReading);
                return Err(error);
            }
        };
        let reply = match (queued, &mut request, unseen) {
            (Some(queued), _, _) => queued,
            (None, Some(request), _) => self.script.decide(request),
            (None, None, unseen) => unseen.unwrap_or(Reply::Accept),
        };
        if let Some(request) = &mut request {
            request.reply = reply.clone();
        }
        self.script.record(request);
        let outcome = self.answer(reply).await;
        drop(in_flight);
        outcome
    }

    /// Waits for a request to begin. Unless speed is all that counts its first byte stays unread:
    /// it may have to be reset before anything is.
    async fn first_byte(&mut self) -> io::Result<()> {
        let some = match self.script.keep {
            Keep::Everything => self.stream.peek(&mut [0]).await?,
            Keep::Counts => self.stream.read_buf(&mut self.buffer).await?,
        };
        if some == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    async fn more(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Reads a whole request, and takes it apart if somebody wants to see it.
    async fn read(&mut self, arrived: Instant, wanted: bool) -> io::Result<Option<Request>> {
        let head = loop {
            match self.head(arrived, wanted)? {
                Some(head) => break head,
                None if self.buffer.len() > MAX_HEAD => {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                None => self.more().await?,
            }
        };
        let length = head.length + head.body;
        self.buffer
            .reserve(length.saturating_sub(self.buffer.len()));
        while self.buffer.len() < length {
            self.more().await?;
        }
        let whole = self.buffer.split_to(length);
        Ok(head.request.map(|mut request| {
            request.body = whole.freeze().slice(head.length..);
            request.complete = true;
            request
        }))
    }

    /// Reads the head of a request, if all of it is there.
    fn head(&self, arrived: Instant, wanted: bool) -> io::Result<Option<Head>> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut parsed = httparse::Request::new(&mut headers);
        let invalid = |text: &'static str| io::Error::new(io::ErrorKind::InvalidData, text);
        let length = match parsed.parse(&self.buffer) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        };
        let mut body = 0;
        for header in parsed.headers.iter() {
            if header.name.eq_ignore_ascii_case("content-length") {
                body = std::str::from_utf8(header.value)
                    .ok()
                    .and_then(|text| text.parse().ok())
                    .ok_or_else(|| invalid("the content-length is not a number"))?;
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                return Err(invalid("the receiver reads no chunked bodies"));
            }
        }
        let request = wanted.then(|| Request {
            method: parsed.method.unwrap_or_default().to_owned(),
            path: parsed.path.unwrap_or_default().to_owned(),
            headers: parsed
                .headers
                .iter()
                .map(|h| {
                    let value = String::from_utf8_lossy(h.value).into_owned();
                    (h.name.to_owned(), value)
                })
                .collect(),
            body: Bytes::new(),
            arrived,
            connection: self.number,
            nth: self.nth,
            complete: false,
            reply: Reply::Accept,
        });
        Ok(Some(Head {
            length,
            body,
            request,
        }))
    }

    /// Writes down a request that was not read, or not to its end.
    fn record_unread(&mut self, arrived: Instant, reply: Reply) {
        let mut request = match self.head(arrived, true) {
            Ok(Some(head)) => head.request,
            _ => None,
        };
        let request = request.take().unwrap_or_else(|| Request {
            method: String::new(),
            path: String::new(),
            headers: Vec::new(),
            body: self.buffer.split().freeze(),
            arrived,
            connection: self.number,
            nth: self.nth,
            complete: false,
            reply: Reply::Accept,
        });
        self.script.record(Some(Request { reply, ..request }));
    }

    /// Closing with this option sends RST instead of FIN.
    fn reset(&self) -> io::Result<Then> {
        self.stream.set_zero_linger()?;
        Ok(Then::Close)
    }

    async fn answer(&mut self, reply: Reply) -> io::Result<Then> {
        match reply {
            Reply::Accept => return self.accept().await,
            Reply::AcceptAndClose => {
                self.accept().await?;
                return Ok(Then::Close);
            }
            Reply::AcceptAfter(pause) => {
                if self.is_left_alone_for(pause).await {
                    return self.accept().await;
                }
                return Ok(Then::Close);
            }
            Reply::Status(status) => self.write(status, &[], &[]).await?,
            Reply::StatusWithRetryAfter(status, wait) => {
                self.write(status, &[("retry-after".into(), wait)], &[])
                    .await?;
            }
            Reply::Redirect(to) => self.write(307, &[("location".into(), to)], &[]).await?,
            Reply::Answer {
                status,
                headers,
                body,
            } => self.write(status, &headers, &body).await?,
            Reply::Hang => return self.hang().await,
            Reply::RespondSlowly { body, every } => {
                self.write_head(200, &[], body.len() as u64).await?;
                for byte in body {
                    if !self.is_left_alone_for(every).await {
                        return Ok(Then::Close);
                    }
                    self.stream.write_all(&[byte]).await?;
                }
            }
            Reply::HugeBody(bytes) => self.huge(bytes).await?,
            Reply::BreakOffInBody => {
                self.write_head(200, &[], 1000).await?;
                self.stream.write_all(b"not a thousand bytes").await?;
                return Ok(Then::Close);
            }
            Reply::Garbage => {
                self.stream
                    .write_all(b"\x15\x03\x01 220 this is not the protocol you expected\r\n\r\n")
                    .await?;
                return Ok(Then::Close);
            }
            Reply::ResetBeforeReading => return self.reset(),
            Reply::DropAfterReading => return Ok(Then::Close),
        }
        self.script.count(|seen| seen.answered += 1);
        Ok(Then::GoOn)
    }

    async fn accept(&mut self) -> io::Result<Then> {
        self.stream.write_all(ACCEPTED).await?;
        self.script.count(|seen| seen.answered += 1);
        Ok(Then::GoOn)
    }

    async fn hang(&mut self) -> io::Result<Then> {
        let mut released = self.script.releases();
        self.script.count(|seen| seen.hanging += 1);
        let stayed = tokio::select! {
            _ = released.changed() => true,
            () = gone(&self.stream) => false,
        };
        self.script.count(|seen| {
            seen.hanging -= 1;
            seen.abandoned += u64::from(!stayed);
        });
        match stayed {
            true => self.accept().await,
            false => Ok(Then::Close),
        }
    }

    /// Waits; false if the other side goes away meanwhile, which is counted.
    async fn is_left_alone_for(&self, pause: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(pause) => true,
            () = gone(&self.stream) => {
                self.script.count(|seen| seen.abandoned += 1);
                false
            }
        }
    }

    async fn huge(&mut self, bytes: u64) -> io::Result<()> {
        static PIECE: [u8; 64 * 1024] = [b'x'; 64 * 1024];
        self.write_head(200, &[], bytes).await?;
        let mut left = bytes;
        while left > 0 {
            let piece = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE.len());
            self.stream.write_all(&PIECE[..piece]).await?;
            left -= piece as u64;
            self.script.count(|seen| seen.huge_bytes += piece as u64);
        }
        Ok(())
    }

    async fn write(
        &mut self,
        status: u16,
        headers: &[(String, String)],
        body: &[u8],
    ) -> io::Result<()> {
        self.write_head(status, headers, body.len() as u64).await?;
        self.stream.write_all(body).await
    }

    async fn write_head(
        &mut self,
        status: u16,
        headers: &[(String, String)],
        length: u64,
    ) -> io::Result<()> {
        let mut head = format!("HTTP/1.1 {status} \r\ncontent-length: {length}\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.stream.write_all(head.as_bytes()).await
    }
}

/// Waits until the other side has closed the connection; the next request, should one already
/// come, stays where it is.
async fn gone(stream: &TcpStream) {
    match stream.peek(&mut [0]).await {
        Ok(0) | Err(_) => {}
        Ok(_) => std::future::pending().await,
    }
}
