//! The conformance suite on PostgreSQL.

use changefeed_testkit::backend::PostgresBackend;

changefeed_testkit::conformance!(PostgresBackend::fresh().await);
