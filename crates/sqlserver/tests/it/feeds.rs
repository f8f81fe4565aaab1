//! Feeds on SQL Server: a client that is not ours, what the roles may do, and what a failure leaves
//! behind. On the server of `CHANGEFEED_TEST_SQLSERVER_URL`.

mod collations;
mod doctor;
mod failures;
mod python;
mod roles;
