//! The conformance suite on the server of `CHANGEFEED_TEST_SQLSERVER_URL`.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, and its name says what it is about"
)]

use changefeed_testkit::backend::SqlServerBackend;

changefeed_testkit::conformance!(SqlServerBackend::fresh().await);
