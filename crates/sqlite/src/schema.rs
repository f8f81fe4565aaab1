//! Installing and removing our tables.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use changefeed_core::{
    Finding, Migration, MigrationStep, Result, SCHEMA_VERSION, SchemaState, SchemaStore, Severity,
    crash_point,
};
use rusqlite::{Connection, ErrorCode};

use crate::error::Explain;
use crate::{SqliteStore, capture, event_capture, quote, tracking};

/// Every step, by ascending version.
pub const MIGRATIONS: &[MigrationStep] = &[MigrationStep {
    version: 1,
    files: &[
        include_str!("../migrations/0001/feeds.sql"),
        include_str!("../migrations/0001/ulids.sql"),
        include_str!("../migrations/0001/events.sql"),
        include_str!("../migrations/0001/watches.sql"),
        include_str!("../migrations/0001/access.sql"),
    ],
}];

const _: () = assert!(MIGRATIONS.len() == SCHEMA_VERSION as usize);

/// Where it is noted which of them were applied.
const RECORD: &str = "changefeed_schema";

/// The SQL that installs the current schema in an empty database, for the stock `sqlite3` shell.
pub fn migration_script() -> String {
    let steps: Vec<String> = MIGRATIONS.iter().map(|s| s.recorded_in(RECORD)).collect();
    format!(
        "pragma journal_mode = wal;\nbegin immediate;\n\n{}\ncommit;\n",
        steps.join("\n")
    )
}

/// What is installed.
pub(crate) fn state(connection: &Connection) -> Result<SchemaState> {
    state_among(connection, MIGRATIONS)
}

fn state_among(connection: &Connection, steps: &[MigrationStep]) -> Result<SchemaState> {
    let installed: bool = connection
        .prepare_cached(
            "select exists (select 1 from sqlite_master \
             where type = 'table' and name = 'changefeed_schema')",
        )
        .and_then(|mut s| s.query_row([], |row| row.get(0)))
        .explained()?;
    if !installed {
        return Ok(SchemaState::Missing);
    }
    let mut applied = connection
        .prepare_cached("select version, checksum from changefeed_schema")
        .explained()?;
    let applied = applied
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .and_then(Iterator::collect::<rusqlite::Result<Vec<(i32, String)>>>)
        .explained()?;
    Ok(SchemaState::of(&applied, steps))
}

impl SqliteStore {
    /// What a program with these migrations does: `migrate` has its own.
    #[doc(hidden)]
    pub async fn migrate_by(&self, steps: &'static [MigrationStep]) -> Result<Migration> {
        self.pool().alone(|connection| use_wal(connection)).await?;
        self.pool()
            .write(move |tx| {
                let (migration, pending) = state_among(tx, steps)?.pending(steps)?;
                for step in pending {
                    tx.execute_batch(&step.recorded_in(RECORD)).explained()?;
                }
                crash_point("migrate.before_commit");
                Ok(migration)
            })
            .await
    }
}

#[async_trait]
impl SchemaStore for SqliteStore {
    async fn schema(&self) -> Result<SchemaState> {
        self.pool().read(|tx| state(tx)).await
    }

    async fn migrate(&self) -> Result<Migration> {
        self.migrate_by(MIGRATIONS).await
    }

    async fn uninstall(&self) -> Result<()> {
        self.forget_schema();
        self.pool()
            .write(|tx| {
                if state(tx)? == SchemaState::Missing {
                    return Ok(());
                }
                capture::remove_all(tx)?;
                event_capture::remove_all(tx)?;
                tracking::remove_all(tx)?;
                for (kind, name) in ours(tx)? {
                    // A table takes its own triggers and indexes with it.
                    let drop = format!("drop {kind} if exists {}", quote::identifier(&name));
                    tx.execute_batch(&drop).explained()?;
                }
                Ok(())
            })
            .await
    }

    async fn server_findings(&self) -> Result<Vec<Finding>> {
        let mode: String = self
            .pool()
            .read(|tx| {
                tx.query_row("pragma journal_mode", [], |row| row.get(0))
                    .explained()
            })
            .await?;
        let version = format!("SQLite {}, journal mode {mode}", rusqlite::version());
        Ok(vec![if mode == "wal" {
            Finding::new(Severity::Ok, "file", version, None)
        } else {
            Finding::new(
                Severity::Warning,
                "file",
                format!("{version}: readers and the writer wait for each other"),
                "`changefeed migrate` switches to WAL, unless the file system cannot do it"
                    .to_owned(),
            )
        }])
    }
}

/// Our tables and views, views first because they depend on tables.
fn ours(connection: &Connection) -> Result<Vec<(String, String)>> {
    let mut statement = connection
        .prepare(include_str!("sql/our_tables.sql"))
        .explained()?;
    let rows = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .explained()?;
    rows.collect::<rusqlite::Result<_>>().explained()
}

/// Whether a name is that of a table or view of ours.
pub(crate) fn is_ours(connection: &Connection, name: &str) -> Result<bool> {
    Ok(ours(connection)?
        .iter()
        .any(|(_, ours)| ours.eq_ignore_ascii_case(name)))
}

/// Switches the file to WAL, so that readers and the writer do not wait for each other. The
/// switch needs the file for itself and does not wait for others by itself, so we do. A file
/// system that cannot do it keeps the mode it has; everything works there too, with more waiting.
fn use_wal(connection: &Connection) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let mode = connection.query_row("pragma journal_mode = wal", [], |row| {
            row.get::<_, String>(0)
        });
        match mode {
            Ok(mode) => {
                if mode != "wal" {
                    tracing::warn!(mode, "the database file cannot use WAL");
                }
                return Ok(());
            }
            Err(error) => {
                let busy = matches!(
                    error.sqlite_error_code(),
                    Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
                );
                if !busy || Instant::now() > until {
                    return Err(error).explained();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}
