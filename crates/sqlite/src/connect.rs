//! Connections: one that writes and a few that read.
//!
//! SQLite blocks its caller, so all work happens on the runtime's blocking threads, and a
//! transaction begins and ends within one such piece of work: nothing is held across an await.
//! Writers queue for the one writing connection instead of meeting in SQLite's busy handler,
//! which is not fair. In WAL mode readers neither wait for the writer nor hold it up.
//!
//! What is done with a connection is not asynchronous, so it cannot ask for another one: as many
//! callers as there are connections never wait for each other.
//!
//! Every call ends. It waits for a connection and for the write lock of another process for a limited
//! time, together; and a statement that takes too long is interrupted. Both are errors that a caller
//! may try again after.
//!
//! The database file is never opened by other means: closing such a handle would drop the locks
//! that SQLite holds for this process.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use changefeed_core::{Connections, Error, Kind, Result};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};
use tokio::sync::Semaphore;

use crate::error::{Explain, cannot_open};

/// How long a call waits for its turn: for a connection, and for another process that writes.
const WAIT: Duration = Duration::from_secs(30);

/// How long the work of a call may take. Writing includes the installation of triggers and indexes on
/// tables of any size.
const READING: Duration = Duration::from_secs(60);
const WRITING: Duration = Duration::from_secs(600);

/// Instructions of SQLite's machine between two looks at the clock.
const STEPS: i32 = 10_000;

/// Readers at the same time. More would only contend for the same pages.
pub(crate) const READERS: usize = 4;

/// The connections of a store.
pub(crate) struct Pool {
    path: PathBuf,
    writer: Arc<tokio::sync::Mutex<Guarded>>,
    seats: Arc<Semaphore>,
    readers: usize,
    idle: Arc<Mutex<Vec<Guarded>>>,
    limits: Limits,
}

/// How long a call may take.
#[derive(Debug, Clone, Copy)]
struct Limits {
    wait: Duration,
    reading: Duration,
    writing: Duration,
}

/// A connection whose work ends at a time.
struct Guarded {
    connection: Connection,
    until: Arc<Mutex<Instant>>,
}

impl Guarded {
    fn new(connection: Connection) -> Result<Guarded> {
        let until = Arc::new(Mutex::new(Instant::now()));
        let end = Arc::clone(&until);
        connection
            .progress_handler(
                STEPS,
                Some(move || Instant::now() > *end.lock().unwrap_or_else(PoisonError::into_inner)),
            )
            .explained()?;
        Ok(Guarded { connection, until })
    }

    /// The connection, for one call.
    fn begin(&mut self, wait: Duration, work: Duration) -> Result<&mut Connection> {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + wait + work;
        self.connection.busy_timeout(wait).explained()?;
        Ok(&mut self.connection)
    }
}

impl Pool {
    /// Opens the file, creating it if it is missing.
    pub(crate) async fn open(path: &Path, readers: usize) -> Result<Self> {
        let limits = Limits {
            wait: WAIT,
            reading: READING,
            writing: WRITING,
        };
        Pool::limited(path, limits, readers).await
    }

    async fn limited(path: &Path, limits: Limits, readers: usize) -> Result<Self> {
        if path.as_os_str().is_empty() || path.to_str() == Some(":memory:") {
            return Err(Error::invalid(
                "a database in memory cannot be shared by several connections",
            )
            .advise("name a file, for example sqlite:changefeed.db"));
        }
        let path = path.to_owned();
        blocking(move || {
            let writer = open_ours(&path)?;
            if writer.is_readonly("main").explained()? {
                return Err(Error::new(
                    Kind::Permission,
                    format!("the database file '{}' is read-only", path.display()),
                )
                .advise("make the file and its directory writable for this user"));
            }
            Ok(Pool {
                path,
                writer: Arc::new(tokio::sync::Mutex::new(Guarded::new(writer)?)),
                seats: Arc::new(Semaphore::new(readers)),
                readers,
                idle: Arc::default(),
                limits,
            })
        })
        .await
    }

    /// How many of the connections there are, and how many are in use.
    pub(crate) fn connections(&self) -> Connections {
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len();
        let reading = self.readers - self.seats.available_permits();
        let writing = usize::from(self.writer.try_lock().is_err());
        Connections {
            most: self.readers + 1,
            open: idle + reading + 1,
            idle: idle + 1 - writing,
            // Neither a semaphore nor a mutex says how many wait for it.
            waiting: 0,
        }
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Does something on the writing connection, outside of any transaction.
    pub(crate) async fn alone<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        // Once begun, the work goes on even when its caller gives up: the guard goes with it.
        let limits = self.limits;
        let asked = Instant::now();
        let mut writer = tokio::time::timeout(limits.wait, Arc::clone(&self.writer).lock_owned())
            .await
            .map_err(|_| {
                Error::new(
                    Kind::Busy,
                    "another call of this process has held the write lock for too long",
                )
                .advise("look for a transaction that was left open, or a process that was stopped")
            })?;
        blocking(move || {
            let wait = limits.wait.saturating_sub(asked.elapsed());
            act(writer.begin(wait, limits.writing)?)
        })
        .await
    }

    /// Does something in a transaction that holds the write lock from its beginning: a lock
    /// taken later fails at once when somebody else has written meanwhile.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Transaction<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.alone(move |connection| {
            let transaction = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .explained()?;
            let answer = act(&transaction)?;
            transaction.commit().explained()?;
            Ok(answer)
        })
        .await
    }

    /// Does something in a transaction that sees one moment of the database.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Transaction<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let closed = |_| Error::new(Kind::Unavailable, "the store is closed");
        let limits = self.limits;
        let seat = tokio::time::timeout(limits.wait, Arc::clone(&self.seats).acquire_owned())
            .await
            .map_err(|_| {
                Error::new(
                    Kind::Busy,
                    "all connections that read have been busy for too long",
                )
            })?
            .map_err(closed)?;
        let (path, idle) = (self.path.clone(), Arc::clone(&self.idle));
        blocking(move || {
            let _seat = seat;
            let spare = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut reader = match spare {
                Some(reader) => reader,
                None => Guarded::new(open_reader(&path)?)?,
            };
            let connection = reader.begin(limits.wait, limits.reading)?;
            let transaction = connection.transaction().explained()?;
            let answer = act(&transaction);
            transaction.finish().explained()?;
            idle.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(reader);
            answer
        })
        .await
    }
}

/// Opens a connection with the settings that everything of ours uses.
///
/// `synchronous=FULL` is deliberate: with NORMAL a power cut may take back the last commits, and
/// numbers that a reader has already seen would be given again to other changes.
///
/// The cache is twice SQLite's default: the driver's build lets all connections of a process share
/// one budget, and a busy neighbour would starve ours.
pub(crate) fn open(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection =
        Connection::open_with_flags(path, flags).map_err(|error| cannot_open(path, error))?;
    connection.busy_timeout(WAIT).explained()?;
    // The first look at the file: whether it is a database at all shows only here.
    connection
        .query_row("select count(*) from sqlite_master", [], |_| Ok(()))
        .map_err(|error| cannot_open(path, error))?;
    connection.set_prepared_statement_cache_capacity(64);
    connection
        .execute_batch(
            "pragma foreign_keys = on; pragma synchronous = full; pragma cache_size = -4000;",
        )
        .explained()?;
    Ok(connection)
}

/// Opens a connection for statements of ours. The schema of the file is somebody else's: what its
/// views, triggers and generated columns call must be harmless functions, and nothing in it can
/// write to the file's own pages.
fn open_ours(path: &Path) -> Result<Connection> {
    let connection = open(path)?;
    for (config, on) in [
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
    ] {
        connection.set_db_config(config, on).explained()?;
    }
    connection
        .execute_batch("pragma cell_size_check = on")
        .explained()?;
    Ok(connection)
}

/// Opens a connection that cannot change anything.
pub(crate) fn open_reader(path: &Path) -> Result<Connection> {
    let connection = open_ours(path)?;
    connection
        .pragma_update(None, "query_only", true)
        .explained()?;
    Ok(connection)
}

/// Runs blocking work off the runtime's own threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(answer) => answer,
        Err(failed) => Err(
            Error::new(Kind::Database, "the work on the database was cut off").caused_by(failed),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Limits = Limits {
        wait: Duration::from_millis(300),
        reading: Duration::from_millis(300),
        writing: Duration::from_millis(300),
    };
    /// Far more than any of these calls needs, on any machine.
    const IN_TIME: Duration = Duration::from_secs(60);

    async fn pool() -> (tempfile::TempDir, Pool) {
        let dir = tempfile::tempdir().unwrap();
        let pool = Pool::limited(&dir.path().join("test.db"), SHORT, READERS).await;
        (dir, pool.unwrap())
    }

    /// A process that was stopped in the middle of a transaction looks like this connection.
    #[tokio::test]
    async fn a_held_write_lock_makes_every_call_fail_in_time() {
        let (_dir, pool) = pool().await;
        let other = open(pool.path()).unwrap();
        other.execute_batch("begin immediate").unwrap();
        let pool = Arc::new(pool);
        let calls: Vec<_> = (0..50)
            .map(|_| {
                let pool = Arc::clone(&pool);
                tokio::spawn(async move { pool.write(|_| Ok(())).await })
            })
            .collect();
        let all = async {
            let mut kinds = Vec::new();
            for call in calls {
                kinds.push(call.await.unwrap().unwrap_err().kind());
            }
            kinds
        };
        let kinds = tokio::time::timeout(IN_TIME, all).await.unwrap();
        assert!(kinds.iter().all(|kind| *kind == Kind::Busy), "{kinds:?}");
        other.execute_batch("rollback").unwrap();
        pool.write(|_| Ok(())).await.unwrap();
    }

    #[tokio::test]
    async fn a_statement_that_does_not_end_is_interrupted() {
        const ENDLESS: &str = "with recursive n (n) as (select 1 union all select n + 1 from n) \
                               select count(*) from n";
        let (_dir, pool) = pool().await;
        let endless = |tx: &Transaction<'_>| {
            tx.query_row(ENDLESS, [], |row| row.get::<_, i64>(0))
                .explained()
        };
        for _ in 0..2 {
            let read = tokio::time::timeout(IN_TIME, pool.read(endless));
            let kind = read.await.unwrap().unwrap_err().kind();
            assert_eq!(kind, Kind::Unavailable);
            let write = tokio::time::timeout(IN_TIME, pool.write(endless));
            let kind = write.await.unwrap().unwrap_err().kind();
            assert_eq!(kind, Kind::Unavailable);
        }
        pool.read(|_| Ok(())).await.unwrap();
        pool.write(|_| Ok(())).await.unwrap();
    }
}
