//! The conformance suite on SQLite.

use changefeed_testkit::backend::SqliteBackend;

changefeed_testkit::conformance!(SqliteBackend::fresh().await);
