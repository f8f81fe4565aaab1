//! The PostgreSQL store.
//!
//! How changes get their numbers is told at the top of `migrations/0001_feeds.sql`: a sweep is
//! one call of a server-side function, so this crate holds no lock and no transaction between
//! round trips. The rooms are the same as in the other stores.

mod access;
mod backfill;
mod backlog;
mod capture;
mod connect;
mod consumers;
mod definitions;
mod encoding;
mod error;
mod event_backfill;
mod event_capture;
mod event_claim;
mod event_drift;
mod event_feeds;
mod event_log;
mod events;
mod feeds;
mod floors;
mod instances;
mod leases;
mod patience;
mod quote;
mod read;
mod schema;
mod source;
mod surroundings;
mod sweep;
mod table_locks;
mod template;
mod tracking;
mod triggers;
mod trim;
mod typed;
mod ulid_feeds;
mod ulids;
mod wake;
mod watch_columns;
mod watch_findings;
mod watch_key;
mod watch_rights;
mod watches;

use std::sync::Arc;

use changefeed_core::{PageJoins, Result, WakeHub};
pub use connect::place;
pub use consumers::advance_consumer;
use deadpool_postgres::Pool;
pub use schema::migration_script;
pub use tokio_postgres;
pub use ulids::UlidTransaction;

/// A PostgreSQL database with changefeed in it. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
}

struct Inner {
    pool: Pool,
    target: connect::Target,
    hub: WakeHub,
    listener: wake::Listener,
    prober: wake::Prober,
    joins: PageJoins,
    floors: floors::Floors,
    encoding: encoding::Encoding,
    walks: event_claim::Walks,
    backlogs: backlog::Backlogs,
    schema_checked: std::sync::atomic::AtomicBool,
}

impl PostgresStore {
    /// Connects to `postgres://user:password@host:port/database`. One connection is made at
    /// once, so that a wrong password or host is an error here and not later.
    pub async fn connect(url: &str) -> Result<Self> {
        let target = connect::Target::parse(url)?;
        let pool = target.pool()?;
        let store = PostgresStore {
            inner: Arc::new(Inner {
                pool,
                target,
                hub: WakeHub::default(),
                listener: wake::Listener::default(),
                prober: wake::Prober::default(),
                joins: PageJoins::default(),
                floors: floors::Floors::default(),
                encoding: encoding::Encoding::default(),
                walks: event_claim::Walks::default(),
                backlogs: backlog::Backlogs::default(),
                schema_checked: std::sync::atomic::AtomicBool::new(false),
            }),
        };
        drop(store.raw_client().await?);
        Ok(store)
    }
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}
