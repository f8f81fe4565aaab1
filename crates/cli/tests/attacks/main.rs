//! Attacks on the running program: one file per class, one test per hole that was found.
//! `docs/security.md` is the threat model that they belong to.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, and its name says what it is about"
)]

mod connections;
mod definitions;
mod frozen;
mod protocols;
mod secrets;
mod webhooks;
