//! The stream below a connection. It knows whether something waits to be sent, and it writes the
//! answers to requests that nobody could read: the HTTP library sends those without a body.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::http::StatusCode;
use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connections::Life;
use crate::problem::Problem;

/// A stream whose life is watched.
pub(crate) struct Socket<S> {
    stream: S,
    life: Arc<Life>,
    /// What is sent instead of the library's own answer, and how long that one is.
    instead: Option<(Bytes, usize)>,
}

impl<S> Socket<S> {
    pub(crate) fn new(stream: S, life: Arc<Life>) -> Self {
        Socket {
            stream,
            life,
            instead: None,
        }
    }
}

/// The longest answer that the library writes by itself.
const LONGEST: usize = 300;

/// Where the library's own answer begins in what it sends, and its status. It is the last thing that it
/// sends, while no request is under way, and has no header that says anything.
fn own_answer(sent: &[IoSlice<'_>]) -> Option<(usize, StatusCode)> {
    if !sent.iter().rev().find(|s| !s.is_empty())?.ends_with(b"\n") {
        return None;
    }
    let length: usize = sent.iter().map(|s| s.len()).sum();
    let mut skip = length.saturating_sub(LONGEST);
    let begin = skip;
    let mut tail = Vec::with_capacity(LONGEST);
    for slice in sent {
        let unseen = slice.get(skip..).unwrap_or_default();
        skip = skip.saturating_sub(slice.len());
        tail.extend_from_slice(unseen);
    }
    let text = tail.strip_suffix(b"\r\n\r\n")?;
    let at = text.windows(9).rposition(|w| w == b"HTTP/1.1 ")?;
    let head = std::str::from_utf8(&text[at..]).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse::<u16>().ok()?;
    let plain = lines.all(|line| {
        let line = line.to_ascii_lowercase();
        line == "content-length: 0" || line == "connection: close" || line.starts_with("date: ")
    });
    let status = StatusCode::from_u16(status).ok()?;
    (plain && status.is_client_error()).then_some((begin + at, status))
}

/// The answer to a request that cannot be read.
pub(crate) fn unreadable(status: StatusCode) -> Problem {
    let detail = match status {
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            "the header of the request is larger than 64 KiB, or has more than 100 fields"
        }
        StatusCode::URI_TOO_LONG => "the address of the request is too long",
        _ => "this is not a valid HTTP request",
    };
    Problem::new(status, "invalid", detail)
}

/// An answer that ends its connection, as bytes.
pub(crate) fn last_words(problem: &Problem) -> Bytes {
    let status = problem.status();
    let body = problem.json();
    let retry = match problem.retry_after() {
        Some(seconds) => format!("retry-after: {seconds}\r\n"),
        None => String::new(),
    };
    let text = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\n\
         connection: close\r\n{retry}x-content-type-options: nosniff\r\ncache-control: no-store\r\n\r\n{body}",
        status.as_u16(),
        status.canonical_reason().unwrap_or("Error"),
        body.len(),
    );
    Bytes::from(text)
}

impl<S: AsyncWrite + Unpin> Socket<S> {
    /// Sends what stands for the library's own answer; says how much of the library's that was.
    fn poll_instead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Some((text, stands_for)) = &mut self.instead else {
            return Poll::Ready(Ok(0));
        };
        while text.has_remaining() {
            let sent = ready!(Pin::new(&mut self.stream).poll_write(cx, text))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            text.advance(sent);
        }
        let stands_for = *stands_for;
        self.instead = None;
        Poll::Ready(Ok(stands_for))
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.instead.is_some() {
            return self.poll_instead(cx);
        }
        let own = match self.life.asks_nothing() {
            true => own_answer(slices),
            false => None,
        };
        match own {
            None => Pin::new(&mut self.stream).poll_write_vectored(cx, slices),
            Some((0, status)) => {
                let length = slices.iter().map(|s| s.len()).sum();
                self.instead = Some((last_words(&unreadable(status)), length));
                self.poll_instead(cx)
            }
            // First what comes before it.
            Some((before, _)) => {
                let mut left = before;
                let mut first = Vec::with_capacity(slices.len());
                for slice in slices {
                    let part = &slice[..slice.len().min(left)];
                    left -= part.len();
                    first.push(IoSlice::new(part));
                }
                Pin::new(&mut self.stream).poll_write_vectored(cx, &first)
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = self.poll_send(cx, slices);
        self.life.sent(sent.is_ready());
        sent
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        // What is flushed was written before, so this only ever ends a wait, or begins one.
        self.life.flushed(flushed.is_ready());
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(parts: &[&str]) -> Option<(usize, u16)> {
        let slices: Vec<_> = parts.iter().map(|p| IoSlice::new(p.as_bytes())).collect();
        own_answer(&slices).map(|(at, status)| (at, status.as_u16()))
    }

    #[test]
    fn only_the_librarys_own_answer_is_replaced() {
        let own = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\
                   date: Mon, 16 Nov 2026 03:00:00 GMT\r\n\r\n";
        assert_eq!(found(&[own]), Some((0, 400)));
        let before = "HTTP/1.1 200 OK\r\ncontent-length: 400\r\n\r\n".to_owned() + &"x".repeat(400);
        assert_eq!(found(&[&before, own]), Some((before.len(), 400)));
        let both = before.clone() + own;
        assert_eq!(found(&[&both]), Some((before.len(), 400)));
        assert_eq!(found(&["", "", own, ""]), Some((0, 400)));
        for other in [
            "HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\ncontent-type: a/b\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 7\r\n\r\n{\"a\":1}",
            "",
            "\r\n\r\n",
        ] {
            assert_eq!(found(&[other]), None, "{other}");
        }
    }
}
