//! The backlog of a function: moving changes there, leasing, settling. Each of these is one message to
//! the server that begins with the table's lock and ends with its commit, so that a process which is
//! stopped at any moment holds nothing.

mod moving;
mod rows;
mod statements;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use changefeed_core::{
    Batch, BatchOutcome, Error, Kind, ParkedRows, Result, Settled, Take, Watch, WatchSettings,
    crash_point, words,
};
pub(crate) use moving::missed_sql;
use tiberius::{Row, ToSql};

use crate::connection::Connection;
use crate::error::{db, is_undefined};
use crate::platform::Platform;
use crate::row::{Cells, first, only};
use crate::session::Session;
use crate::tracking::{Tracked, Way, leases_name, trigger_state};

/// How often the state is kept, and it is made sure that the table is what it was.
const UPKEEP: Duration = Duration::from_secs(1);

/// Change tracking was switched off: the server's own word for it, and ours.
const NOT_TRACKED: [u32; 2] = [22105, 55701];
/// Snapshot isolation is not allowed in the database.
const NO_SNAPSHOT: u32 = 3952;

/// What this process knows about the backlogs that it works on.
#[derive(Default)]
pub(crate) struct Backlogs(Mutex<HashMap<String, Arc<Backlog>>>);

impl Backlogs {
    pub(crate) fn known(&self, leases: &str) -> Option<Arc<Backlog>> {
        let backlogs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        backlogs.get(leases).cloned()
    }

    fn remember(&self, leases: &str, backlog: Arc<Backlog>) {
        let mut backlogs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        backlogs.insert(leases.to_owned(), backlog);
    }

    pub(crate) fn forget(&self, leases: &str) {
        let mut backlogs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        backlogs.remove(leases);
    }
}

/// A function's backlog.
pub(crate) struct Backlog {
    pub(crate) tracked: Tracked,
    leases: String,
    function_id: String,
    /// Which functions the moving knows.
    generation: i64,
    functions: Vec<String>,
    /// What the table was when this was read.
    signature: String,
    /// Whether a row that somebody writes to can be read only in a snapshot without waiting.
    versioned: bool,
    seen: Mutex<Seen>,
}

#[derive(Debug, Clone, Default)]
struct Seen {
    /// Whether there may be more to do, so that nobody has to look first.
    busy: bool,
    /// When the state was last kept.
    kept: Option<Instant>,
    /// Whether it was said that nobody notes the changes.
    complained: bool,
}

/// What a take has found.
#[derive(Default)]
pub(crate) struct Taken {
    pub(crate) batch: Option<Batch>,
    /// Functions came or went since the backlog was read.
    pub(crate) stale: bool,
    /// Existing rows are still to be handed over.
    pub(crate) loading: bool,
}

struct Leased {
    generation: i64,
    versions: (i64, i64),
    attempt: u32,
    rows: i32,
    asked: Instant,
}

impl Session {
    /// Does something with a backlog; what this process knows of it is forgotten after an error,
    /// because another table may be behind the same name next time.
    pub(crate) async fn with_backlog<T>(
        &mut self,
        watch: &Watch,
        act: impl AsyncFnOnce(&mut Connection, &Backlog) -> Result<T>,
    ) -> Result<T> {
        let connection = &mut *self.connection;
        let done = async {
            let backlog = match self.known.backlogs.known(&watch.leases_table) {
                Some(backlog) => backlog,
                None => {
                    let backlog = Arc::new(Backlog::load(connection, watch).await?);
                    let backlogs = &self.known.backlogs;
                    backlogs.remember(&watch.leases_table, backlog.clone());
                    backlog
                }
            };
            act(connection, &backlog).await
        }
        .await;
        if done.is_err() {
            self.known.backlogs.forget(&watch.leases_table);
            // It may be in the middle of a transaction, or at another isolation level.
            connection.tidy().await;
        }
        done
    }
}

impl Backlog {
    pub(crate) async fn load(connection: &mut Connection, watch: &Watch) -> Result<Backlog> {
        let table_id = i32::try_from(watch.table_id).unwrap_or(-1);
        let (tracked, stored) = Tracked::load(connection, table_id, &watch.name).await?;
        let rows = connection
            .query(
                "select w.function_id, convert(bit, case when exists (select 1 from sys.objects o \
                   where o.schema_id = schema_id(N'changefeed') \
                     and o.name = concat(N'leases_', w.function_id, N'_', w.table_id)) \
                   then 1 else 0 end) \
                 from changefeed.watch w where w.table_id = @P1 order by w.function_id",
                &[&table_id],
            )
            .await?;
        let (mut known, mut functions) = (false, Vec::new());
        for row in &rows {
            let function = row.take::<&str>(0)?;
            known |= function == watch.function_id;
            if row.says(1)? {
                functions.push(function.to_owned());
            }
        }
        if !functions.contains(&watch.function_id) {
            return Err(match known {
                true => words::watch_state_deleted(watch),
                false => watch.name.unknown(),
            });
        }
        let versioned = connection
            .one(
                "select convert(bit, case when d.is_read_committed_snapshot_on = 0 \
                   and d.snapshot_isolation_state = 1 then 1 else 0 end) \
                 from sys.databases d where d.name = db_name()",
                &[],
            )
            .await?
            .says(0)?;
        let mut backlog = Backlog::new(tracked, &watch.function_id, stored.generation, functions);
        backlog.versioned = versioned;
        let row = connection.one(&backlog.signature_sql()?, &[]).await?;
        row.take::<&str>(0)?.clone_into(&mut backlog.signature);
        Ok(backlog)
    }

    pub(crate) fn new(
        tracked: Tracked,
        function_id: &str,
        generation: i64,
        functions: Vec<String>,
    ) -> Backlog {
        Backlog {
            leases: leases_name(function_id, i64::from(tracked.id())),
            tracked,
            function_id: function_id.to_owned(),
            generation,
            functions,
            signature: String::new(),
            versioned: false,
            seen: Mutex::new(Seen {
                // There may be very much to do.
                busy: true,
                ..Seen::default()
            }),
        }
    }

    fn seen(&self) -> Seen {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.clone()
    }

    fn learn(&self, learn: impl FnOnce(&mut Seen)) {
        learn(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn table_id(&self) -> String {
        self.tracked.id().to_string()
    }

    /// Leases the next batch and reads its rows.
    pub(crate) async fn take(&self, connection: &mut Connection, take: Take<'_>) -> Result<Taken> {
        if self.seen().kept.is_none_or(|at| at.elapsed() >= UPKEEP) {
            self.keep_up(connection).await?;
        }
        if !self.seen().busy {
            let rows = send(connection, &self.look_sql(take.owner)?).await?;
            let free = first(&rows, 0)? == Some(true);
            let waiting = first(&rows, 1)? == Some(true);
            if !free && !waiting {
                return Ok(Taken::default());
            }
        }
        let asked = Instant::now();
        let rows = send(connection, &self.take_sql(&take)?).await?;
        crash_point("watch.leased");
        let row = rows.first().ok_or_else(words::server_unexpected)?;
        if let Some(missed) = row.maybe::<&str>(6)? {
            tracing::error!(
                table = %self.tracked.table.name, missed,
                "a watch has fallen behind change tracking: all rows of the table are handed over \
                 again, as updates; of rows that were deleted meanwhile no function is told"
            );
        }
        let mut taken = Taken {
            batch: None,
            stale: row.says(5)?,
            loading: row.maybe::<i16>(7)?.is_some(),
        };
        let leased = leased(row, asked)?;
        let batch = i32::try_from(take.settings.batch).unwrap_or(i32::MAX);
        self.learn(|known| known.busy = leased.as_ref().is_some_and(|l| l.rows >= batch));
        if let Some(leased) = leased {
            taken.batch = Some(self.rows(connection, leased, take.settings).await?);
        }
        Ok(taken)
    }

    /// Keeps the state, and makes sure that the table is what it was.
    async fn keep_up(&self, connection: &mut Connection) -> Result<()> {
        send(connection, &self.upkeep_sql()?).await?;
        let rows = send(connection, &self.signature_sql()?).await?;
        if first::<&str>(&rows, 0)? != Some(&self.signature) {
            return Err(altered());
        }
        if self.tracked.way == Way::Native {
            let rows = send(connection, &self.still_tracked_sql()?).await?;
            if first(&rows, 0)? == Some(false) {
                // The next move of changes finds out, and reacts.
                self.learn(|known| known.busy = true);
            }
        }
        if self.tracked.way == Way::Trigger
            && !self.seen().complained
            && trigger_state(connection, self.tracked.id()).await? != Some(true)
        {
            tracing::error!(
                table = %self.tracked.table.name,
                "the trigger that notes changes is missing or disabled: start the watch again, and \
                 all rows are handed over again"
            );
            self.learn(|known| known.complained = true);
        }
        self.learn(|known| known.kept = Some(Instant::now()));
        Ok(())
    }

    /// The batches of an owner, without their rows.
    pub(crate) async fn held_by(
        &self,
        connection: &mut Connection,
        owner: &str,
    ) -> Result<Vec<Batch>> {
        let asked = Instant::now();
        let rows = send(connection, &self.held_sql(owner)?).await?;
        let batch = |row: &Row| {
            let attempt = u32::try_from(row.take::<i32>(3)?).unwrap_or(u32::MAX);
            let versions = (row.take(1)?, row.take(2)?);
            Ok(Batch::leased(row.take(0)?, versions, attempt, asked))
        };
        rows.iter().map(batch).collect()
    }

    pub(crate) async fn renew(
        &self,
        connection: &mut Connection,
        batch: &Batch,
        lease: Duration,
    ) -> Result<u64> {
        let rows = send_about(connection, &self.renew_sql(lease), batch).await?;
        only(&rows)?.count::<i64, _>(0)
    }

    pub(crate) async fn settle(
        &self,
        connection: &mut Connection,
        batch: &Batch,
        outcome: &BatchOutcome,
        settings: &WatchSettings,
    ) -> Result<Settled> {
        let sql = self.settle_sql(batch, outcome, settings);
        let rows = send_about(connection, &sql?, batch).await?;
        if !matches!(outcome, BatchOutcome::Failed { .. }) {
            // A newer change of a row may wait, or what was given back.
            self.learn(|known| known.busy = true);
        }
        let row = only(&rows)?;
        Ok(Settled {
            rows: row.count::<i64, _>(0)?,
            parked: row.count::<i64, _>(1)?,
        })
    }

    pub(crate) async fn retry_parked(
        &self,
        connection: &mut Connection,
        which: ParkedRows,
    ) -> Result<u64> {
        let rows = send(connection, &self.retry_sql(which)?).await?;
        only(&rows)?.count::<i64, _>(0)
    }
}

/// The lock that every writer of a table's backlogs holds: the update of a row, which every
/// server respects. Babelfish takes no locks for hints.
pub(crate) fn lock(table_id: i32) -> String {
    format!(
        "update changefeed.watched_table set last_version = last_version + 1 \
         where table_id = {table_id};"
    )
}

/// Sends statements as one message and returns the rows of the last result that has any.
pub(crate) async fn send(connection: &mut Connection, sql: &str) -> Result<Vec<Row>> {
    let results = connection.simple(sql).await.map_err(explain)?;
    let mut with_rows = results.into_iter().rev();
    Ok(with_rows.find(|rows| !rows.is_empty()).unwrap_or_default())
}

/// The same about the rows that a batch holds.
async fn send_about(connection: &mut Connection, sql: &str, batch: &Batch) -> Result<Vec<Row>> {
    let (first, last) = batch.versions;
    let which: [&dyn ToSql; 3] = [&first, &last, &batch.generation];
    connection.tried(sql, &which).await.map_err(explain)
}

/// What went wrong with a statement about a watched table.
pub(crate) fn explain(error: tiberius::error::Error) -> Error {
    if is_undefined(&error) {
        return words::watch_table_missing().caused_by(error);
    }
    match error.code() {
        Some(code) if NOT_TRACKED.contains(&code) => Error::new(
            Kind::Database,
            "change tracking of the watched table was switched off, or the user may not see it",
        )
        .advise(
            "grant view change tracking on the table; or start the watch again: a trigger of ours \
             notes its changes then, and all rows are handed over again",
        )
        .caused_by(error),
        Some(NO_SNAPSHOT) => Error::new(
            Kind::Database,
            "the database no longer allows snapshot isolation",
        )
        .advise("alter database current set allow_snapshot_isolation on")
        .caused_by(error),
        _ => db(error),
    }
}

fn altered() -> Error {
    Error::not_found("the table was altered")
}

fn leased(row: &Row, asked: Instant) -> Result<Option<Leased>> {
    let Some(rows) = row.maybe::<i32>(4)?.filter(|rows| *rows > 0) else {
        return Ok(None);
    };
    Ok(Some(Leased {
        generation: row.take(0)?,
        versions: (row.take(1)?, row.take(2)?),
        attempt: u32::try_from(row.take::<i32>(3)?).unwrap_or(u32::MAX),
        rows,
        asked,
    }))
}

/// Whether rows are read in a snapshot: only a SQL Server ever waits for them otherwise.
fn reads_in_snapshot(platform: Platform, versioned: bool) -> bool {
    platform == Platform::SqlServer && versioned
}
