//! The SQL Server store.
//!
//! How changes get their numbers is told at the top of `migrations/0001/feeds.sql`: a sweep is
//! one call of a stored procedure, so this crate holds no lock and no transaction between round
//! trips. The rooms are the same as in the other stores.

mod access;
mod backfill;
mod backlog;
mod capture;
mod condition;
mod connect;
mod connection;
mod consumers;
mod definitions;
mod erase;
mod error;
mod event_backfill;
mod event_capture;
mod event_claim;
mod event_drift;
mod event_feeds;
mod event_install;
mod event_log;
mod events;
mod feed_drift;
mod feeds;
mod filter;
mod instances;
mod json;
mod leases;
mod platform;
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
mod table_trigger;
mod token;
mod tracking;
mod triggers;
mod trim;
mod ulid_feeds;
mod ulids;
mod wake;
mod watch_findings;
mod watch_key;
mod watch_registry;
mod watch_rights;
mod watch_triggers;
mod watches;

// Every statement that is sent or generated, for tests that judge them without a server.
#[cfg(any(test, feature = "testing"))]
#[path = "../testing/event_statements.rs"]
mod event_statements;
#[cfg(any(test, feature = "testing"))]
#[path = "../testing/statements.rs"]
mod statements;
#[cfg(any(test, feature = "testing"))]
#[path = "../testing/watch_statements.rs"]
mod watch_statements;

use std::sync::Arc;

use changefeed_core::Result;
pub use connect::Target;
pub use connection::Connection;
pub use consumers::{advance_consumer, consume};
pub use platform::Platform;
pub use schema::{MIGRATIONS, migration_script};
#[cfg(any(test, feature = "testing"))]
pub use statements::statements;
pub use tiberius;
pub use ulids::{UlidIsolation, UlidTransaction};

/// A SQL Server database with changefeed in it. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct SqlServerStore {
    inner: Arc<Inner>,
}

struct Inner {
    door: session::Door,
    known: Arc<session::Known>,
    platform: Platform,
    /// Where ULID transactions show that they live while their own connection is busy.
    pulse: tokio::sync::Mutex<Option<Connection>>,
    prober: wake::Prober,
}

impl SqlServerStore {
    /// Connects to `sqlserver://user:password@host:1433/database`, or by an ADO connection
    /// string. One connection is made at once, so that a wrong password or host is an error here
    /// and not later.
    pub async fn connect(url: &str) -> Result<Self> {
        let door = session::Door::new(Target::parse(url)?)?;
        let known = Arc::default();
        let platform = door
            .call_anyway(&known, session::Limit::BRIEF, async |s| {
                Ok(s.connection.platform())
            })
            .await?;
        Ok(SqlServerStore {
            inner: Arc::new(Inner {
                door,
                known,
                platform,
                pulse: tokio::sync::Mutex::default(),
                prober: wake::Prober::default(),
            }),
        })
    }

    /// Which server it is.
    pub fn platform(&self) -> Platform {
        self.inner.platform
    }
}

impl std::fmt::Debug for SqlServerStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqlServerStore").finish_non_exhaustive()
    }
}
