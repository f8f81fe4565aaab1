//! The dashboard in a real browser, on its main journeys. Screenshots of them stay under `target`.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, and its name says what it is about"
)]

mod browser;
mod looking;
mod operating;
mod people;
mod stage;
