//! ULID transactions on PostgreSQL: the pure SQL interface, the Rust client, promise 6 by
//! histories, promise 7 with clients that freeze and networks that are cut, and reading.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking, and its name says what it is about"
)]

mod attacks;
mod client;
mod history;
mod lost_writers;
mod reading;
mod sql;
mod support;
