//! ULID transactions for clients: `migrations/0001/ulid_locks.sql` tells how they work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use changefeed_core::{
    Error, Kind, Result, Ulid, UlidCounter, UlidOptions, UlidState, crash_point,
};
use tiberius::{Row, ToSql};
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::SqlServerStore;
use crate::connection::{Connection, Lent};
use crate::error::{INCIDENT, db};
use crate::row::{Cells, first};

/// What fits the server's milliseconds.
const LONGEST_WAIT: Duration = Duration::from_millis(i32::MAX as u64);
/// The end of the year 9999, in milliseconds since 1970: no later time has a name in SQL.
const LAST_TIME: u64 = 253_402_300_799_999;

/// Verifies and commits in one round trip, so that nobody can be lost in between while the
/// shard's rows are locked. An error of the first ends the batch.
const COMMIT: &str = "exec changefeed.commit_ulid_transaction; commit transaction; \
     set deadlock_priority low";
/// Leaves the session as it was before.
const FREE: &str = "set transaction isolation level read committed; set deadlock_priority low; \
     exec changefeed.rollback_ulid_transaction";
const ROLLBACK: &str = "if @@trancount > 0 rollback transaction";

/// What a ULID transaction sees of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UlidIsolation {
    /// What is committed when a statement runs.
    #[default]
    ReadCommitted,
    /// What was committed when the transaction got its shard. The database must allow snapshot
    /// isolation.
    Snapshot,
}

/// A transaction whose ULIDs are increasing for every observer of its shard.
///
/// Its statements run one after the other, on one connection. A background task shows the server
/// that this process is alive, so that a transaction which computes for long is not judged dead.
/// Dropping it closes the connection; the server then rolls back and frees the shard.
pub struct UlidTransaction {
    session: Arc<Session>,
    counter: UlidCounter,
    alive: AbortHandle,
}

impl std::fmt::Debug for UlidTransaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UlidTransaction")
            .field("counter", &self.counter)
            .finish_non_exhaustive()
    }
}

/// A connection with an open transaction.
struct Session {
    held: Mutex<Held>,
    isolation: UlidIsolation,
    /// The server has rolled it back after an error. Statements would not belong to it any more.
    undone: AtomicBool,
}

/// A connection that goes back to the pool when it is released, and is closed otherwise: what is
/// still open in it must not stay open.
struct Held(Option<Lent>);

impl SqlServerStore {
    /// Begins a ULID transaction: queues for the shard, and goes on by itself after an incident.
    pub async fn begin_ulid(&self, options: &UlidOptions) -> Result<UlidTransaction> {
        self.begin_ulid_with(options, UlidIsolation::ReadCommitted)
            .await
    }

    /// The same with another isolation level; for a snapshot the lock is taken before the
    /// transaction begins, so that the snapshot is not older than the lock.
    pub async fn begin_ulid_with(
        &self,
        options: &UlidOptions,
        isolation: UlidIsolation,
    ) -> Result<UlidTransaction> {
        options.validate()?;
        if !options.others.is_empty() {
            return Err(Error::invalid(
                "a ULID transaction on SQL Server writes to one shard; write to the others in transactions of their own",
            ));
        }
        let hint = time_hint(options)?;
        // To wait for ever is to wait for the largest number of milliseconds.
        let deadline = Instant::now() + options.wait.min(LONGEST_WAIT);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut held = Held(Some(self.inner.door.application(&self.inner.known).await?));
            let error = match begin(held.connection()?, options, &hint, left, isolation).await {
                Ok(begun) => return Ok(self.begun(held, begun, options, isolation)),
                Err(error) => error,
            };
            held.undo().await?;
            if error.code() != Some(INCIDENT) || Instant::now() >= deadline {
                held.release();
                return Err(db(error));
            }
            // Outside of any transaction, so that the number survives and is seen at once; on the
            // same connection, which knows what it saw. Doing it is the proof that we live.
            report_incident(held.connection()?, options).await?;
            held.release();
        }
    }

    /// Says on a connection of its own that a transaction lives: those of the pool may all belong to
    /// transactions that wait for this very one.
    async fn beat(&self, beat: &str, every: Duration) -> Result<()> {
        let mut kept = self.inner.pulse.lock().await;
        // One that fails, or is cut off in the middle, is not kept.
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => Connection::open(&self.inner.door.target).await?,
        };
        // Not for longer than a beat takes: this connection may be dead as well. To open one may take
        // longer than that, and is not begun anew each time.
        match tokio::time::timeout(every, connection.batch(beat)).await {
            Ok(done) => done?,
            Err(late) => {
                return Err(
                    Error::new(Kind::Unavailable, "no answer to a sign of life").caused_by(late)
                );
            }
        }
        *kept = Some(connection);
        Ok(())
    }

    fn begun(
        &self,
        held: Held,
        begun: Begun,
        options: &UlidOptions,
        isolation: UlidIsolation,
    ) -> UlidTransaction {
        let session = Arc::new(Session {
            held: Mutex::new(held),
            isolation,
            undone: AtomicBool::new(false),
        });
        let beat = format!(
            "exec changefeed.ulid_beat '{}', {}, {}",
            options.feed, options.shard, begun.transaction
        );
        let pulse = keep_alive(self.clone(), session.clone(), beat, options.timeout / 4);
        UlidTransaction {
            session,
            counter: UlidCounter::new(begun.state),
            alive: tokio::spawn(pulse).abort_handle(),
        }
    }
}

impl UlidTransaction {
    /// The next ULID.
    pub fn next_ulid(&mut self) -> Result<Ulid> {
        let mut one = self.ulids(1)?;
        one.next().ok_or_else(|| Error::invalid("no ULID is left"))
    }

    /// The next `count` ULIDs, in order.
    pub fn ulids(&mut self, count: u64) -> Result<impl Iterator<Item = Ulid> + use<>> {
        self.counter.take(count)
    }

    /// When this transaction happens, in milliseconds since 1970.
    pub fn time(&self) -> u64 {
        self.counter.time()
    }

    /// Runs a statement with parameters `@P1`, `@P2`, … and returns the rows of its last result
    /// that has any.
    pub async fn query(&self, sql: &str, parameters: &[&dyn ToSql]) -> Result<Vec<Row>> {
        self.session
            .run(async |connection| connection.tried(sql, parameters).await)
            .await
    }

    /// Runs a statement and returns how many rows it changed.
    pub async fn execute(&self, sql: &str, parameters: &[&dyn ToSql]) -> Result<u64> {
        self.session
            .run(async |connection| connection.tried_execute(sql, parameters).await)
            .await
    }

    /// Runs a batch without parameters.
    pub async fn batch(&self, sql: &str) -> Result<()> {
        self.session
            .run(async |connection| connection.tried_batch(sql).await)
            .await
    }

    /// Verifies and commits in one round trip. A transaction that was judged dead meanwhile, or
    /// whose shard has moved, fails here with [`Kind::Busy`] and is rolled back.
    pub async fn commit(self) -> Result<()> {
        crash_point("ulid.commit");
        let mut held = self.session.held.lock().await;
        self.alive.abort();
        self.session.whole()?;
        let commit = match self.session.isolation {
            UlidIsolation::ReadCommitted => COMMIT.to_owned(),
            UlidIsolation::Snapshot => format!("{COMMIT}; {FREE}"),
        };
        let committed = held.connection()?.tried_batch(&commit).await;
        match committed {
            Ok(()) => held.release(),
            Err(error) => {
                held.end().await;
                return Err(db(error));
            }
        }
        Ok(())
    }

    /// Rolls back and frees the shard.
    pub async fn rollback(self) -> Result<()> {
        let mut held = self.session.held.lock().await;
        self.alive.abort();
        held.end().await;
        Ok(())
    }
}

impl Drop for UlidTransaction {
    fn drop(&mut self) {
        self.alive.abort();
    }
}

impl Session {
    async fn run<T>(
        &self,
        statement: impl AsyncFnOnce(&mut Connection) -> Result<T, tiberius::error::Error>,
    ) -> Result<T> {
        let mut held = self.held.lock().await;
        self.whole()?;
        let connection = held.connection()?;
        match statement(connection).await {
            Ok(answer) => Ok(answer),
            Err(error) => {
                // Most errors end the transaction; what came after it would be committed one by
                // one, and nobody would verify it.
                let open = match &error {
                    tiberius::error::Error::Server(_) => connection
                        .one("select @@trancount", &[])
                        .await
                        .is_ok_and(|row| row.take::<i32>(0).is_ok_and(|open| open == 1)),
                    _ => false,
                };
                self.undone.store(!open, Ordering::Release);
                Err(db(error))
            }
        }
    }

    fn whole(&self) -> Result<()> {
        if self.undone.load(Ordering::Acquire) {
            return Err(
                Error::invalid("the ULID transaction was rolled back after an error")
                    .advise("begin another and do it again"),
            );
        }
        Ok(())
    }
}

impl Held {
    fn connection(&mut self) -> Result<&mut Connection> {
        match &mut self.0 {
            Some(connection) => Ok(connection),
            None => Err(Error::new(Kind::Database, "the ULID transaction has ended")),
        }
    }

    fn release(&mut self) {
        drop(self.0.take());
    }

    /// Rolls back and frees the lock; a connection on which that fails is closed.
    async fn end(&mut self) {
        if self.undo().await.is_ok() {
            self.release();
        }
        self.close();
    }

    /// Leaves the session as it was before. In two batches, because on Babelfish the level is set
    /// at the beginning of one.
    async fn undo(&mut self) -> Result<()> {
        let connection = self.connection()?;
        connection.batch(ROLLBACK).await?;
        connection.batch(FREE).await
    }

    fn close(&mut self) {
        if let Some(connection) = self.0.take() {
            connection.close();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.close();
    }
}

/// What the server answers to a begin.
struct Begun {
    state: UlidState,
    transaction: i64,
}

/// One attempt; the error is the server's refusal.
async fn begin(
    connection: &mut Connection,
    options: &UlidOptions,
    hint: &str,
    wait: Duration,
    isolation: UlidIsolation,
) -> Result<Begun, tiberius::error::Error> {
    let (feed, shard) = (options.feed, options.shard);
    let (timeout, wait) = (milliseconds(options.timeout), milliseconds(wait));
    let level = match isolation {
        UlidIsolation::ReadCommitted => "",
        UlidIsolation::Snapshot => {
            // In a batch of its own: on Babelfish the level is set at the beginning of a batch.
            let lock =
                format!("exec changefeed.lock_ulid_shard '{feed}', {shard}, {timeout}, {wait}");
            connection.tried_batch(&lock).await?;
            "set transaction isolation level snapshot; "
        }
    };
    // What is written here is the application's own, and no less than what others write.
    let sql = format!(
        "{level}set deadlock_priority normal; declare @time_hint datetime2(3) = {hint}; begin transaction; \
         exec changefeed.ulid_begin '{feed}', {shard}, {timeout}, @time_hint, {wait}"
    );
    let results = connection.simple(&sql).await?;
    let row = results.into_iter().flatten().next();
    let number = |at: usize| {
        row.as_ref()
            .and_then(|row| row.try_get::<i64, _>(at).ok().flatten())
            .ok_or_else(|| {
                tiberius::error::Error::Protocol("a ULID transaction begins with one row".into())
            })
    };
    Ok(Begun {
        state: UlidState {
            time: number(0)?.cast_unsigned(),
            high: number(1)?.cast_unsigned(),
            low: number(2)?.cast_unsigned(),
        },
        transaction: number(3)?,
    })
}

async fn report_incident(connection: &mut Connection, options: &UlidOptions) -> Result<()> {
    let sql = format!(
        "declare @raised bit; exec changefeed.report_incident '{}', {}, {}, @raised output; \
         select @raised",
        options.feed,
        options.shard,
        milliseconds(options.timeout)
    );
    let rows = connection.call(&sql).await?;
    if first::<bool>(&rows, 0)? == Some(true) {
        tracing::warn!(feed = %options.feed, shard = options.shard,
            "a writer disappeared; its lock was burned");
    }
    Ok(())
}

/// Shows life on the transaction's own connection, which proves that very one; while a statement
/// runs on it, on another, because nothing else can be said there until it ends.
async fn keep_alive(store: SqlServerStore, session: Arc<Session>, beat: String, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        if let Ok(mut held) = session.held.try_lock() {
            let Ok(connection) = held.connection() else {
                return;
            };
            if session.undone.load(Ordering::Acquire)
                || connection
                    .batch("exec changefeed.ulid_alive")
                    .await
                    .is_err()
            {
                return;
            }
            continue;
        }
        if let Err(error) = store.beat(&beat, every).await {
            tracing::debug!(%error, "no sign of life could be given");
        }
    }
}

/// When the transaction happens, as SQL.
fn time_hint(options: &UlidOptions) -> Result<String> {
    const DAY: u64 = 86_400_000;
    match options.time_hint {
        None => Ok("null".to_owned()),
        Some(time) if time > LAST_TIME => Err(Error::invalid(format!(
            "a ULID holds times to the end of the year 9999 here, not {time} ms after 1970"
        ))),
        // The time of day as text: Babelfish does not add milliseconds exactly.
        Some(time) => Ok(format!(
            "convert(datetime2(3), convert(varchar(10), dateadd(day, {}, \
             convert(date, '1970-01-01')), 23) + 'T{:02}:{:02}:{:02}.{:03}', 126)",
            time / DAY,
            time % DAY / 3_600_000,
            time % 3_600_000 / 60_000,
            time % 60_000 / 1000,
            time % 1000
        )),
    }
}

fn milliseconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}
