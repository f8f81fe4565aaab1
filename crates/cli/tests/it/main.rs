//! The `changefeed` program from outside, as real processes on real databases. One program holds all of these tests,
//! because linking takes longer than running most of them.
//!
//! Two stand beside it: `takeover` measures time, so nothing else may run at the same time, and `soak` is run again for
//! hours by `./test --soak`.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking, its name says what it is about, and its seed is shown"
)]

mod apply;
mod attacks;
mod bad_input;
mod book;
mod certify;
mod dashboard;
mod deploy;
mod docs;
mod events;
mod examples;
mod findings;
mod forms;
mod guides;
mod history;
mod http;
mod listening;
mod logs;
#[cfg(target_os = "linux")]
mod release;
#[cfg(unix)]
mod subscriptions;
mod top;
#[cfg(feature = "otel")]
mod traces;
mod ulids;
mod watches;
