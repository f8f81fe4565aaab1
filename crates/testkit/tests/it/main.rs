//! The conformance suite on every store, and what concerns several of them. What only one database has is tested in its
//! own crate. The T-SQL judge is a program of its own (`tsql`), because `./test` runs it beside all others.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking, its name says what it is about, and its seed is shown"
)]

mod dispatcher;
mod pages;
mod postgres;
mod restored_ids;
mod sqlite;
/// Here, because it needs the histories of the kit, which the tests of the SQLite crate do without.
mod sqlite_processes;
#[cfg(feature = "sqlserver-server")]
mod sqlserver;
mod warming;
