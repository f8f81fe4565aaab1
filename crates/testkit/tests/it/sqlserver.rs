//! The conformance suite on the server of `CHANGEFEED_TEST_SQLSERVER_URL`.

use changefeed_testkit::backend::SqlServerBackend;

changefeed_testkit::conformance!(SqlServerBackend::fresh().await);
