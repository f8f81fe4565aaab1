//! SQLite.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use changefeed_core::{Store, Ulid, UlidOptions};
use changefeed_sqlite::{SqliteStore, begin_ulid};
use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::types::ValueRef;
use rusqlite::{Batch, Connection};
use tempfile::TempDir;

use super::{Backend, Rows, Session, SqlError, Words};
use crate::ulids::{UlidWrite, insert};

/// A fresh file.
#[derive(Debug)]
pub struct SqliteBackend {
    dir: TempDir,
}

impl SqliteBackend {
    /// In a temporary directory.
    pub async fn fresh() -> Self {
        SqliteBackend {
            dir: tempfile::Builder::new()
                .prefix("changefeed-sqlite.")
                .tempdir()
                .unwrap(),
        }
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("test.db")
    }
}

#[async_trait]
impl Backend for SqliteBackend {
    fn url(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    fn words(&self) -> Words {
        Words {
            prefix: "changefeed_",
            begin: "begin immediate",
            draw_change_id: "update changefeed_change_id set value = value + 1; \
                             select value from changefeed_change_id",
            // The counter is a table, so a rollback takes back what was drawn.
            draws_are_final: false,
            one_writer: true,
            beside_us: true,
            ulid_type: "blob",
            install_newer: "update changefeed_schema set version = 999",
            keeps_case: true,
            two_phase: false,
            say: "insert into changefeed_session (session_variables, trace_context) \
                  values ('{variables}', '{trace}')",
            said: "delete from changefeed_session",
            guard: "create table stolen (change_id integer, from_whom text, by_whom text); \
                    create trigger zz_stolen after update on changefeed_event \
                    when old.lease_owner is not null and new.generation <> old.generation \
                         and old.due_at > \
                             cast((julianday('now') - 2440587.5) * 86400000.0 as integer) \
                         and new.state = 'p' \
                    begin insert into stolen \
                          values (old.change_id, old.lease_owner, new.lease_owner); end",
            pairs_changed_keys: true,
            triggers_survive_renames: true,
            put_two: super::PUT_TWO,
            truncate: None,
            keep_foreign_keys: Some("pragma foreign_keys = on"),
            put_order: "insert into orders values ({id}, '{note}') \
                        on conflict (id) do update set note = excluded.note",
            puts_clash: false,
            hold_backlogs: "select 1",
            columns_by_value: true,
            long_ago: "1577836800000",
            upsert: super::UPSERT,
            insert_missing: super::INSERT_MISSING,
        }
    }

    async fn store(&self) -> Arc<dyn Store> {
        // One connection to read with, as with the other databases: see there.
        Arc::new(SqliteStore::open_with(&self.path(), 1).await.unwrap())
    }

    async fn write_ulids(
        &self,
        options: UlidOptions,
        write: UlidWrite,
    ) -> changefeed_core::Result<Vec<Ulid>> {
        let path = self.path();
        tokio::task::spawn_blocking(move || {
            let mut connection = Connection::open(&path).unwrap();
            let mut transaction = begin_ulid(&mut connection, &options)?;
            let mut given = Vec::new();
            for note in &write.notes {
                let ulid = transaction.next_ulid()?;
                let sql = insert(options.shard, ulid, note, |hex| format!("x'{hex}'"));
                transaction.execute_batch(&sql).unwrap();
                given.push(ulid);
            }
            if write.commit {
                transaction.commit()?;
            } else {
                transaction.rollback()?;
            }
            Ok(given)
        })
        .await
        .unwrap()
    }

    fn shell(&self, sql: &str) -> Command {
        let mut sqlite3 = Command::new("sqlite3");
        sqlite3
            .args(["-bail", "-cmd", ".timeout 30000"])
            .arg(self.path())
            .arg(sql);
        sqlite3
    }

    async fn try_session(&self) -> Result<Box<dyn Session>, SqlError> {
        Ok(Box::new(SqliteSession::open(&self.path())))
    }
}

/// A connection by the driver alone.
#[derive(Debug)]
pub struct SqliteSession {
    connection: Arc<Mutex<Connection>>,
}

impl SqliteSession {
    /// Opens the file as an application would.
    pub fn open(path: &Path) -> Self {
        let connection = Connection::open(path).unwrap();
        connection.busy_timeout(Duration::from_secs(30)).unwrap();
        SqliteSession {
            connection: Arc::new(Mutex::new(connection)),
        }
    }

    async fn with<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, SqlError> {
        let connection = Arc::clone(&self.connection);
        // The busy handler blocks its thread.
        tokio::task::spawn_blocking(move || {
            act(&connection.lock().unwrap_or_else(PoisonError::into_inner))
        })
        .await
        .unwrap()
        .map_err(|error| SqlError {
            message: error.to_string(),
            connection_lost: false,
        })
    }
}

#[async_trait]
impl Session for SqliteSession {
    async fn execute(&self, sql: &str) -> Result<(), SqlError> {
        let sql = sql.to_owned();
        self.with(move |connection| connection.execute_batch(&sql))
            .await
    }

    async fn query(&self, sql: &str) -> Result<Rows, SqlError> {
        let sql = sql.to_owned();
        self.with(move |connection| {
            let mut rows = Rows::new();
            let mut batch = Batch::new(connection, &sql);
            // As on other databases, the rows of all statements.
            while let Some(mut statement) = batch.next()? {
                let columns = statement.column_count();
                let mut found = statement.query([])?;
                while let Some(row) = found.next()? {
                    rows.push(
                        (0..columns)
                            .map(|column| row.get_ref(column).map(text))
                            .collect::<rusqlite::Result<_>>()?,
                    );
                }
            }
            Ok(rows)
        })
        .await
    }

    async fn kill(self: Box<Self>) {
        // A connection within this process cannot be cut; closing it in mid-transaction is what
        // the operating system does to the files of a dead process.
        drop(self);
    }
}

fn text(value: ValueRef<'_>) -> Option<String> {
    match value {
        ValueRef::Null => None,
        ValueRef::Integer(n) => Some(n.to_string()),
        ValueRef::Real(n) => Some(n.to_string()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            Some(String::from_utf8_lossy(bytes).into_owned())
        }
    }
}
