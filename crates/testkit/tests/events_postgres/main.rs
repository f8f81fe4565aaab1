//! What event triggers promise on PostgreSQL in particular: every type, every kind of table and
//! writer, rights, and locks.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, and its name says what it is about"
)]

mod altered;
mod attacks;
mod encodings;
mod frozen;
mod load;
mod partitions;
mod rights;
mod scene;
mod tables;
mod types;
mod writers;
