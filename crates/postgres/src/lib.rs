//! The PostgreSQL store.
//!
//! How changes get their numbers is told at the top of `migrations/0001/feeds.sql`: a sweep is
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
mod erase;
mod error;
mod event_backfill;
mod event_capture;
mod event_claim;
mod event_drift;
mod event_feeds;
mod event_log;
mod events;
mod feed_drift;
mod feeds;
mod filter;
mod floors;
mod instances;
mod leases;
mod locked;
mod names;
mod patience;
mod quote;
mod read;
mod reshard;
mod row;
mod schema;
mod session;
mod source;
mod store;
mod subscriptions;
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
mod watch_before;
mod watch_columns;
mod watch_findings;
mod watch_key;
mod watch_rights;
mod watches;

use std::sync::Arc;

use changefeed_core::Result;
pub use connect::{place, session};
pub use consumers::{advance_consumer, consume};
pub use schema::{MIGRATIONS, migration_script};
pub use tokio_postgres;
pub use ulids::UlidTransaction;

/// A PostgreSQL database with changefeed in it. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
}

struct Inner {
    door: session::Door,
    known: Arc<session::Known>,
    ear: wake::Ear,
    prober: wake::Prober,
    watch_prober: wake::WatchProber,
}

impl PostgresStore {
    /// Connects to `postgres://user:password@host:port/database`. One connection is made at
    /// once, so that a wrong password or host is an error here and not later.
    pub async fn connect(url: &str) -> Result<Self> {
        let target = connect::Target::parse(url)?;
        let known = Arc::new(session::Known {
            server: target.server(),
            ..session::Known::default()
        });
        let store = PostgresStore {
            inner: Arc::new(Inner {
                door: session::Door::new(target)?,
                known,
                ear: wake::Ear::default(),
                prober: wake::Prober::default(),
                watch_prober: wake::WatchProber::default(),
            }),
        };
        let inner = &store.inner;
        inner
            .door
            .call_anyway(&inner.known, session::Limit::BRIEF, async |_| Ok(()))
            .await?;
        Ok(store)
    }
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}
