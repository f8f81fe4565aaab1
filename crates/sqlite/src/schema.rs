//! Installing and removing our tables.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use changefeed_core::{
    Finding, Migration, Result, SCHEMA_VERSION, SchemaState, SchemaStore, Severity, crash_point,
    require_current,
};
use rusqlite::{Connection, ErrorCode, OptionalExtension};

use crate::error::Explain;
use crate::{SqliteStore, capture, event_capture, quote, tracking};

/// Each brings the schema from the version before to its own, which it writes to
/// `changefeed_schema`.
const MIGRATIONS: [&str; 6] = [
    include_str!("../migrations/0001_feeds.sql"),
    include_str!("../migrations/0002_ulids.sql"),
    include_str!("../migrations/0003_events.sql"),
    include_str!("../migrations/0004_watches.sql"),
    include_str!("../migrations/0005_access.sql"),
    include_str!("../migrations/0006_clean_up.sql"),
];

const _: () = assert!(MIGRATIONS.len() == SCHEMA_VERSION as usize);

/// The SQL that installs the current schema in an empty database, for the stock `sqlite3` shell.
pub fn migration_script() -> String {
    format!(
        "pragma journal_mode = wal;\nbegin immediate;\n\n{}\ncommit;\n",
        MIGRATIONS.join("\n")
    )
}

/// What is installed.
pub(crate) fn state(connection: &Connection) -> Result<SchemaState> {
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
    let version: Option<i32> = connection
        .query_row("select max(version) from changefeed_schema", [], |row| {
            row.get(0)
        })
        .optional()
        .explained()?
        .flatten();
    Ok(version.map_or(SchemaState::Missing, SchemaState::At))
}

#[async_trait]
impl SchemaStore for SqliteStore {
    async fn schema(&self) -> Result<SchemaState> {
        self.pool().read(|tx| state(tx)).await
    }

    async fn migrate(&self) -> Result<Migration> {
        self.pool().alone(|connection| use_wal(connection)).await?;
        self.pool()
            .write(|tx| {
                let before = state(tx)?;
                let from = match before {
                    SchemaState::Missing => 0,
                    SchemaState::At(version) => version,
                };
                let mut to = from;
                for version in before.pending()? {
                    let steps = usize::try_from(version - 1)
                        .ok()
                        .and_then(|n| MIGRATIONS.get(n));
                    let Some(sql) = steps else { break };
                    tx.execute_batch(sql).explained()?;
                    to = version;
                }
                require_current(state(tx)?)?;
                crash_point("migrate.before_commit");
                Ok(Migration { from, to })
            })
            .await
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
        .prepare(include_str!("../sql/our_tables.sql"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_migration_goes_on_from_the_one_before_with_data_in_it() {
        let connection = Connection::open_in_memory().unwrap();
        for (n, sql) in MIGRATIONS.iter().enumerate() {
            connection.execute_batch(sql).unwrap();
            let version = i32::try_from(n + 1).unwrap();
            assert_eq!(state(&connection).unwrap(), SchemaState::At(version));
            let feed = format!(
                "insert into changefeed_feed (feed_id, name) values ({n}, 'feed-{n}'); \
                 insert into changefeed_shard (feed_id, shard) values ({n}, 0); \
                 insert into changefeed_change (feed_id, shard) values ({n}, 0);"
            );
            connection.execute_batch(&feed).unwrap();
        }
    }
}
