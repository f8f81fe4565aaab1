//! The SQLite store from outside: what applications do to the file, with the stock shell and
//! with connections of their own, and what readers then see.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod backfill;
mod capture;
mod consumers;
mod ddl;
mod event_admin;
mod event_alter;
mod event_capture;
mod event_delivery;
mod event_replace;
mod event_replay;
mod event_support;
mod fuzz;
mod hostile;
mod leases;
mod migrations;
mod open;
mod pool;
mod publish;
mod replace;
mod rows;
mod schema;
mod support;
mod trim;
mod ulid_feeds;
mod ulids;
mod ulids_sql;
mod wake;
mod watches;
