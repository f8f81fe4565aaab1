//! Attacks on the stores: one file per class of attacker or accident, one test per hole that was
//! found. `docs/security.md` is the threat model that they belong to.

mod capture;
mod clocks;
mod ddl;
mod dumps;
mod grants;
mod names;
mod order;
mod outcomes;
mod pools;
mod reading;
mod review;
mod row_security;
mod shards;
mod statistics;
mod ulids;
mod waking;
mod watches;
