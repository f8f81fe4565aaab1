//! The measures on PostgreSQL.

mod events;
mod feeds;
mod scratch;
mod session;
mod ulids;
mod watches;

pub(crate) use scratch::Scratch;
