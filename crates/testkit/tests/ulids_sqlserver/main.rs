//! ULID transactions on SQL Server: the documented T-SQL, the Rust client, writers that get lost,
//! and a client that is not ours. On the server of `CHANGEFEED_TEST_SQLSERVER_URL`.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking, and its name says what it is about"
)]

mod client;
mod lost_writers;
mod python;
mod sql;
mod support;
