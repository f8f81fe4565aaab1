//! The conformance suite on PostgreSQL.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, and its name says what it is about"
)]

use changefeed_testkit::backend::PostgresBackend;

changefeed_testkit::conformance!(PostgresBackend::fresh().await);
