//! What only SQL Server has, on the server of `CHANGEFEED_TEST_SQLSERVER_URL`. What every store promises is the
//! conformance suite in `crates/testkit`.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking, its name says what it is about, and its seed is shown"
)]

mod feeds;
mod migrations;
mod ulids;
mod watches;
