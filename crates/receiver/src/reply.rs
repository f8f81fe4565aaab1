//! What the receiver can be told to do with a request.

use std::time::Duration;

use bytes::Bytes;

/// What to do with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// 200 with an empty body.
    Accept,
    /// 200, and then the connection is closed, which the answer did not announce: what a server
    /// does with connections that nobody uses.
    AcceptAndClose,
    /// 200, but only after a while.
    AcceptAfter(Duration),
    /// This status, with an empty body.
    Status(u16),
    /// This status, with a `Retry-After` header as given: seconds, a date, or nonsense.
    StatusWithRetryAfter(u16, String),
    /// 307 to this URL.
    Redirect(String),
    /// A whole answer as given. `content-length` is added.
    Answer {
        /// The status.
        status: u16,
        /// Headers.
        headers: Vec<(String, String)>,
        /// The body.
        body: Bytes,
    },
    /// Read everything, then answer nothing until released; released, it is accepted.
    Hang,
    /// 200 and the headers at once, then the body byte by byte.
    RespondSlowly {
        /// The body.
        body: Bytes,
        /// The pause before each byte.
        every: Duration,
    },
    /// 200 with a body of so many bytes.
    HugeBody(u64),
    /// 200 and a `content-length` that the body does not reach before the connection is closed.
    BreakOffInBody,
    /// Something that is not HTTP.
    Garbage,
    /// Reset the connection. Asked for by [`next`](crate::Receiver::next), not a byte is read
    /// before; a rule has had to read the request, so there it is a reset instead of an answer.
    ResetBeforeReading,
    /// Read everything, then close the connection without an answer.
    DropAfterReading,
}
