//! The conformance suite on SQLite.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, and its name says what it is about"
)]

use changefeed_testkit::backend::SqliteBackend;

changefeed_testkit::conformance!(SqliteBackend::fresh().await);
