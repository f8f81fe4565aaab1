//! Connections: one that writes and a few that read.
//!
//! SQLite blocks its caller, so all work happens on the runtime's blocking threads, and a
//! transaction begins and ends within one such piece of work: nothing is held across an await.
//! Writers queue for the one writing connection instead of meeting in SQLite's busy handler,
//! which is not fair. In WAL mode readers neither wait for the writer nor hold it up.
//!
//! The database file is never opened by other means: closing such a handle would drop the locks
//! that SQLite holds for this process.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use changefeed_core::{Connections, Error, Kind, Result};
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};
use tokio::sync::Semaphore;

use crate::error::{Explain, cannot_open};

/// How long a statement waits for another process that writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// Readers at the same time. More would only contend for the same pages.
const READERS: usize = 4;

/// The connections of a store.
pub(crate) struct Pool {
    path: PathBuf,
    writer: Arc<tokio::sync::Mutex<Connection>>,
    seats: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl Pool {
    /// Opens the file, creating it if it is missing.
    pub(crate) async fn open(path: &Path) -> Result<Self> {
        if path.as_os_str().is_empty() || path.to_str() == Some(":memory:") {
            return Err(Error::invalid(
                "a database in memory cannot be shared by several connections",
            )
            .advise("name a file, for example sqlite:changefeed.db"));
        }
        let path = path.to_owned();
        blocking(move || {
            let writer = open(&path)?;
            if writer.is_readonly("main").explained()? {
                return Err(Error::new(
                    Kind::Permission,
                    format!("the database file '{}' is read-only", path.display()),
                )
                .advise("make the file and its directory writable for this user"));
            }
            Ok(Pool {
                path,
                writer: Arc::new(tokio::sync::Mutex::new(writer)),
                seats: Arc::new(Semaphore::new(READERS)),
                idle: Arc::default(),
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
        let reading = READERS - self.seats.available_permits();
        let writing = usize::from(self.writer.try_lock().is_err());
        Connections {
            most: READERS + 1,
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
        let mut writer = Arc::clone(&self.writer).lock_owned().await;
        blocking(move || act(&mut writer)).await
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
        let seat = Arc::clone(&self.seats)
            .acquire_owned()
            .await
            .map_err(closed)?;
        let (path, idle) = (self.path.clone(), Arc::clone(&self.idle));
        blocking(move || {
            let _seat = seat;
            let spare = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut connection = match spare {
                Some(connection) => connection,
                None => open_reader(&path)?,
            };
            let transaction = connection.transaction().explained()?;
            let answer = act(&transaction);
            transaction.finish().explained()?;
            idle.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(connection);
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
    connection.busy_timeout(BUSY_TIMEOUT).explained()?;
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

/// Opens a connection that cannot change anything.
pub(crate) fn open_reader(path: &Path) -> Result<Connection> {
    let connection = open(path)?;
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
