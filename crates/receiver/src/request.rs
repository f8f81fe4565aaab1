//! What is recorded of a request.

use std::time::Instant;

use bytes::Bytes;

use crate::Reply;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Request {
    /// The method; empty if nothing was read.
    pub method: String,
    /// The path with its query; empty if nothing was read.
    pub path: String,
    /// The headers in their order, names as they were written.
    pub headers: Vec<(String, String)>,
    /// The body, as far as it was read.
    pub body: Bytes,
    /// When its first byte arrived.
    pub arrived: Instant,
    /// Which connection it came by, counted from 1.
    pub connection: u64,
    /// Its number among the requests of its connection, from 1.
    pub nth: u64,
    /// Whether all of it was read.
    pub complete: bool,
    /// What was done with it.
    pub reply: Reply,
}

impl Request {
    /// The value of a header, whatever the case of its name; the first if there are several.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}
