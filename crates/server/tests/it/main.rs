//! The routes in this process, through the router, on an SQLite file: who may what, what is refused and how. What is
//! about sockets, processes or another database is in `crates/cli/tests/it/http`.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, and its name says what it is about"
)]

mod access;
mod bad_input;
mod origins;
mod recovery;
mod resharding;
mod stage;
