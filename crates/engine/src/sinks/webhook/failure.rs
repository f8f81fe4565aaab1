//! Why a request got no answer, in one sentence. Decided by the types and kinds of errors, never
//! by their texts.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use rustls::pki_types::InvalidDnsNameError;

/// Why no connection was made, where we are the ones who know.
#[derive(Debug)]
pub(super) enum NoConnection {
    /// The name has no address.
    Unresolved(io::Error),
    /// Every address it has is refused; this is one of them.
    Refused(IpAddr, &'static str),
    /// It took too long.
    TimedOut(Duration),
}

impl fmt::Display for NoConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoConnection::Unresolved(error) => {
                write!(f, "its name could not be resolved ({error})")
            }
            NoConnection::Refused(address, why) => {
                write!(
                    f,
                    "{address} is {why}, which changefeed is told not to call"
                )
            }
            NoConnection::TimedOut(limit) => {
                write!(f, "there was no connection within the limit of {limit:?}")
            }
        }
    }
}

impl StdError for NoConnection {}

/// One sentence about an error of the client.
pub(super) fn sentence(error: &(dyn StdError + 'static), host: &str) -> String {
    let mut last = error;
    let mut next = Some(error);
    // What the kind of an error says, should nothing below it say more.
    let mut kind = None;
    while let Some(error) = next {
        if let Some(own) = error.downcast_ref::<NoConnection>() {
            return format!("no connection to {host}: {own}");
        }
        if let Some(tls) = error.downcast_ref::<rustls::Error>() {
            return format!("TLS with {host} failed: {tls}");
        }
        if error.is::<InvalidDnsNameError>() {
            return format!("TLS with {host} failed: this is no name that a certificate can have");
        }
        if let Some(http) = error.downcast_ref::<hyper::Error>() {
            if http.is_parse() {
                return format!("the answer of {host} is not HTTP that can be read: {http}");
            }
            if http.is_incomplete_message() {
                return format!("{host} closed the connection before its answer was complete");
            }
        }
        last = error;
        next = match error.downcast_ref::<io::Error>() {
            Some(io) => {
                kind = by_kind(io.kind(), host).or(kind);
                // `source` of such an error skips the one that it wraps.
                match io.get_ref() {
                    Some(wrapped) => Some(wrapped),
                    None => io.source(),
                }
            }
            None => error.source(),
        };
    }
    kind.unwrap_or_else(|| format!("the request to {host} failed: {last}"))
}

fn by_kind(kind: io::ErrorKind, host: &str) -> Option<String> {
    use io::ErrorKind as Kind;
    match kind {
        Kind::ConnectionRefused => Some(format!("{host} refused the connection")),
        Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe => {
            Some(format!("{host} reset the connection"))
        }
        Kind::UnexpectedEof => Some(format!(
            "{host} closed the connection before its answer was complete"
        )),
        Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::TimedOut => {
            Some(format!("{host} cannot be reached"))
        }
        _ => None,
    }
}
