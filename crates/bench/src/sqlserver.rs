//! The measures on SQL Server.

mod events;
mod feeds;
mod scratch;
mod ulids;
mod watches;

pub(crate) use scratch::Scratch;
