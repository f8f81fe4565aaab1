//! A throwaway PostgreSQL, and databases on it.

mod audit;
mod cluster;
mod database;
mod programs;
mod relay;

pub use cluster::{Cluster, free_port};
pub use database::{Database, as_role, empty_database, fresh_database, server_url};
pub use programs::{program, programs};
pub use relay::Relay;
