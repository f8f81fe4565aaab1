//! What proves changefeed: throwaway servers, one conformance suite over every store, recorded
//! histories with an independent checker, and scripted faults.
//!
//! A new store is proved by implementing [`backend::Backend`] and calling
//! [`conformance!`](crate::conformance!) in one test file.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "everything here is test code: panicking is how a test fails, and what it prints \
              is shown when it does"
)]

pub mod backend;
pub mod conformance;
pub mod events;
pub mod history;
pub mod postgres;
pub mod process;
pub mod sqlserver;
pub mod ulids;
mod wait;
pub mod watching;

pub use changefeed_receiver as receiver;
pub use wait::{eventually, patience, run, soak_duration, soaking};
