//! What only PostgreSQL has, on a real server: roles, schemas, partitions, sessions, snapshots, and a server that can go
//! away. What every store promises is the conformance suite in `crates/testkit`.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking, its name says what it is about, and its seed is shown"
)]

mod attacks;
mod definitions;
mod erasing;
mod events;
mod interface;
mod migrations;
mod naive_reader;
mod numbering;
mod reading;
mod regressions;
mod resharding;
mod telling;
mod ulids;
mod watches;
