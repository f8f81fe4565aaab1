//! The webhook sink against a receiver that misbehaves as it is told.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "everything here is test code: panicking is how a test fails"
)]

mod addresses;
mod bodies;
mod failures;
mod limits;
mod other_ecosystems;
mod reuse;
mod secrets;
mod support;
mod tls;
