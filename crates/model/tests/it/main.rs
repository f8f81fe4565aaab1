//! What is shipped keeps its promises in every state of small worlds, and every mutation of it is found.
#![allow(
    missing_docs,
    clippy::print_stderr,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking, tells how much it saw, and its name says what it is about"
)]

mod common;
mod events;
mod leases;
mod one_writer;
mod snapshots;
mod sweep;
mod ulid;
mod watches;
