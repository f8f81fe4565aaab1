//! Attacks on the stores: one file per class of attacker or accident, one test per hole that was
//! found. `docs/security.md` is the threat model that they belong to.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, and its name says what it is about"
)]

mod capture;
mod clocks;
mod ddl;
mod dumps;
mod grants;
mod names;
mod order;
mod outcomes;
mod pages;
mod pools;
mod reading;
mod replace;
mod review;
mod row_security;
mod shards;
mod statistics;
mod ulids;
mod watches;
