//! What has passed over a connection.
//!
//! A receiver may close a connection that nobody uses in the moment in which we use it again. The
//! error is then the same as when it fails over our request, but it says nothing about the request,
//! so it must not cost the event a retry. To tell them apart one has to know whether the connection
//! was made for this request, and what passed over it since: that is noted here, above TLS, whose
//! own words at the end of a connection are no answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use hyper::rt::{Read, Write};
use hyper_util::client::legacy::Error;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How a connection ended that was there before the request was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// Not a byte of the request was written: it cannot have arrived.
    Unsent,
    /// Something was written, and not a byte came back: nobody knows.
    Unanswered,
}

/// How the connection of a request that failed had ended; nothing if it was made for this request, or
/// an answer had begun: then the failure is the receiver's.
pub(super) fn ended(error: &Error, began: Instant) -> Option<Ended> {
    let mut extensions = http::Extensions::new();
    error.connect_info()?.get_extras(&mut extensions);
    extensions.get::<Arc<Wire>>()?.ended(began)
}

/// The notes about a connection. Times are nanoseconds since it was made; 0 is never.
#[derive(Debug)]
pub(super) struct Wire {
    made: Instant,
    written: AtomicU64,
    read: AtomicU64,
}

impl Wire {
    fn new() -> Self {
        Wire {
            made: Instant::now(),
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
        }
    }

    fn note(&self, time: &AtomicU64) {
        let now = u64::try_from(self.made.elapsed().as_nanos()).unwrap_or(u64::MAX);
        time.store(now.max(1), Ordering::Relaxed);
    }

    fn ended(&self, began: Instant) -> Option<Ended> {
        let (written, read) = (
            self.written.load(Ordering::Relaxed),
            self.read.load(Ordering::Relaxed),
        );
        // Nothing if the connection is younger than the request. It may have been made for another one
        // meanwhile, and then it has been answered.
        let began = began.checked_duration_since(self.made);
        if written > read {
            return (began.is_some() || read > 0).then_some(Ended::Unanswered);
        }
        let began = u64::try_from(began?.as_nanos()).unwrap_or(u64::MAX);
        (written <= began).then_some(Ended::Unsent)
    }
}

/// A stream about which notes are taken.
#[derive(Debug)]
pub(super) struct Noted<S> {
    stream: TokioIo<S>,
    wire: Arc<Wire>,
}

impl<S> Noted<S> {
    pub(super) fn new(stream: S) -> TokioIo<Self> {
        TokioIo::new(Noted {
            stream: TokioIo::new(stream),
            wire: Arc::new(Wire::new()),
        })
    }

    fn wrote(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(1..)) = written {
            self.wire.note(&self.wire.written);
        }
        written
    }
}

impl<S: Connection> Connection for Noted<S> {
    fn connected(&self) -> Connected {
        self.stream.inner().connected().extra(self.wire.clone())
    }
}

impl<S: Read + Unpin> AsyncRead for Noted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buffer.remaining();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.remaining() < room {
            self.wire.note(&self.wire.read);
        }
        read
    }
}

impl<S: Write + Unpin> AsyncWrite for Noted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(written)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_what_happened_since_the_request_began_counts() {
        let wire = Wire {
            made: Instant::now(),
            written: AtomicU64::new(1000),
            read: AtomicU64::new(2000),
        };
        let after = |nanos| wire.made + Duration::from_nanos(nanos);
        assert_eq!(wire.ended(after(3000)), Some(Ended::Unsent));
        wire.written.store(4000, Ordering::Relaxed);
        assert_eq!(wire.ended(after(3000)), Some(Ended::Unanswered));
        // It was made for a request that began later, and answered that.
        let before = wire.made.checked_sub(Duration::from_millis(1));
        assert_eq!(wire.ended(before.unwrap()), Some(Ended::Unanswered));
        wire.read.store(5000, Ordering::Relaxed);
        assert_eq!(wire.ended(after(3000)), None);
    }

    #[test]
    fn a_connection_that_was_made_for_the_request_says_nothing() {
        let wire = Wire::new();
        let before = wire.made.checked_sub(Duration::from_millis(1)).unwrap();
        assert_eq!(wire.ended(before), None);
        wire.note(&wire.written);
        assert_eq!(wire.ended(before), None);
    }
}
