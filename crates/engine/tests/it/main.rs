//! The engine from outside.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "everything here is test code: panicking is how a test fails"
)]

#[cfg(all(feature = "nats", feature = "redis"))]
mod brokers;
mod webhook;
