//! Feeds on SQL Server: a client that is not ours, what the roles may do, and what a failure leaves
//! behind. On the server of `CHANGEFEED_TEST_SQLSERVER_URL`.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking, and its name says what it is about"
)]

mod collations;
mod doctor;
mod failures;
mod python;
mod roles;
