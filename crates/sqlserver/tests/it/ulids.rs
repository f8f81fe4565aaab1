//! ULID transactions on SQL Server: the documented T-SQL, the Rust client, writers that get lost,
//! and a client that is not ours. On the server of `CHANGEFEED_TEST_SQLSERVER_URL`.

mod client;
mod lost_writers;
mod python;
mod sql;
mod support;
