//! The SQLite store of changefeed: no server, one file.
//!
//! SQLite has one writer at a time, so a change gets its number at the moment it is inserted,
//! inside the writer's own transaction, and there is nothing to sweep. Everything else is as on
//! the other databases. Writers need nothing of ours but SQL; the stock `sqlite3` shell will do:
//!
//! ```sql
//! begin immediate;
//! update changefeed_change_id set value = value + 1;
//! insert into my_event (note, change_id) values ('hello', (select value from changefeed_change_id));
//! insert into changefeed_change (feed_id, shard, change_id)
//!   select 37, 0, value from changefeed_change_id;
//! commit;
//! ```
//!
//! ```
//! use changefeed_core::{After, FeedStore, NewFeed, SchemaStore, ShardId};
//! use changefeed_sqlite::SqliteStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> changefeed_core::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("app.db");
//! let store = SqliteStore::open(&path).await?;
//! store.migrate().await?;
//! let feed = store.create_feed(&NewFeed::new("orders".parse()?)).await?;
//!
//! let app = store.connection()?;
//! let publish = "insert into changefeed_change (feed_id, shard, change_id) values (1, 0, 7)";
//! app.execute(publish, []).unwrap();
//!
//! let page = store.read(&feed, ShardId(0), After::First, 100).await?;
//! assert_eq!(page.changes[0].change_id, Some(7));
//! # Ok(())
//! # }
//! ```
//!
//! Feeds that the writer orders itself are written in ULID transactions: see [`begin_ulid`].

mod access;
mod arrange;
mod backfill;
mod backlog;
mod capture;
mod condition;
mod connect;
mod consumers;
mod definitions;
mod erase;
mod error;
mod event_backfill;
mod event_capture;
mod event_drift;
mod event_log;
mod event_pace;
mod event_row;
mod events;
mod feed_drift;
mod feeds;
mod filter;
mod instances;
mod leases;
mod quote;
mod read;
mod reshard;
mod schema;
mod source;
mod staging;
mod subscriptions;
mod sweep;
mod tracking;
mod triggers;
mod trim;
mod ulid_feeds;
mod ulids;
mod unique;
mod value;
mod wake;
mod watches;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use changefeed_core::{Kind, Result, TriggerId, require_current};
use rusqlite::{Connection, Transaction};

pub use consumers::{advance_consumer, consume};
pub use rusqlite;
pub use schema::{MIGRATIONS, migration_script};
pub use ulids::{UlidTransaction, begin_ulid};

use connect::Pool;
use wake::Waker;

/// Feeds in an SQLite file. Cloning is cheap; all clones share the same connections.
#[derive(Clone)]
pub struct SqliteStore {
    inner: Arc<Inner>,
}

struct Inner {
    pool: Pool,
    waker: Waker,
    /// Whether the schema was found to be the one this program knows.
    current: AtomicBool,
    /// For each ordered event trigger, an event of the key that was looked at last.
    walked: Mutex<HashMap<TriggerId, i64>>,
    /// For each backlog at work, the schema under which its triggers and tables were all there.
    sound: Mutex<HashMap<String, i64>>,
    sightings: changefeed_core::Sightings,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore")
            .field("path", &self.inner.pool.path())
            .finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens a database file, creating it if it is missing. Nothing is installed by this; see
    /// [`migrate`](changefeed_core::SchemaStore::migrate).
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, connect::READERS).await
    }

    /// The same with so many connections for reading, at least one. There is one for writing besides.
    pub async fn open_with(path: impl AsRef<Path>, readers: usize) -> Result<Self> {
        let pool = Pool::open(path.as_ref(), readers.max(1)).await?;
        let waker = Waker::new(pool.path());
        Ok(SqliteStore {
            inner: Arc::new(Inner {
                pool,
                waker,
                current: AtomicBool::new(false),
                walked: Mutex::default(),
                sound: Mutex::default(),
                sightings: changefeed_core::Sightings::default(),
            }),
        })
    }

    /// A new connection to the same file with the same settings, for transactions of the
    /// application's own. Blocks; begin writing transactions with `BEGIN IMMEDIATE`.
    pub fn connection(&self) -> Result<Connection> {
        connect::open(self.inner.pool.path())
    }

    /// Says that something was committed by this process, so that waiting readers look at once.
    /// Without it they notice a few milliseconds later.
    pub fn announce(&self) {
        self.inner.waker.look_now();
    }

    fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    fn forget_schema(&self) {
        self.inner.current.store(false, Ordering::Release);
    }

    fn walked(&self, trigger: TriggerId) -> Option<i64> {
        let walked = self.inner.walked.lock();
        let walked = walked.unwrap_or_else(PoisonError::into_inner);
        walked.get(&trigger).copied()
    }

    fn set_walked(&self, trigger: TriggerId, event: Option<i64>) {
        let walked = self.inner.walked.lock();
        let mut walked = walked.unwrap_or_else(PoisonError::into_inner);
        match event {
            Some(event) => walked.insert(trigger, event),
            None => walked.remove(&trigger),
        };
    }

    fn sound(&self, leases: &str) -> Option<i64> {
        let sound = self.inner.sound.lock();
        let sound = sound.unwrap_or_else(PoisonError::into_inner);
        sound.get(leases).copied()
    }

    fn set_sound(&self, leases: &str, schema: i64) {
        let sound = self.inner.sound.lock();
        let mut sound = sound.unwrap_or_else(PoisonError::into_inner);
        if sound.get(leases) != Some(&schema) {
            sound.insert(leases.to_owned(), schema);
        }
    }

    /// Reads one moment of the database, if its schema is the one we know.
    async fn reading<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Transaction<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let inner = Arc::clone(&self.inner);
        self.pool().read(move |tx| inner.checked(tx, act)).await
    }

    /// Writes, if the schema is the one we know.
    async fn writing<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Transaction<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let inner = Arc::clone(&self.inner);
        self.pool().write(move |tx| inner.checked(tx, act)).await
    }
}

impl Inner {
    fn checked<T>(
        &self,
        tx: &Transaction<'_>,
        act: impl FnOnce(&Transaction<'_>) -> Result<T>,
    ) -> Result<T> {
        if !self.current.load(Ordering::Acquire) {
            require_current(schema::state(tx)?)?;
            self.current.store(true, Ordering::Release);
        }
        act(tx).map_err(|error| {
            if error.kind() != Kind::Database {
                return error;
            }
            // Somebody may have removed or replaced our tables since we looked.
            match schema::state(tx).and_then(require_current) {
                Ok(()) => error,
                Err(other) => {
                    self.current.store(false, Ordering::Release);
                    other
                }
            }
        })
    }
}
