//! A scratch file beside somebody's database: on the same disk, with the same ways to lock.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use changefeed::sqlite::rusqlite::fallible_iterator::FallibleIterator;
use changefeed::sqlite::rusqlite::types::ValueRef;
use changefeed::sqlite::rusqlite::{self, Batch, Connection};
use changefeed::{Error, Kind, Result};

use crate::place::{Deadlocks, Place, Rows, Session, Words};
use crate::plans::{Access, Plan};

const WORDS: Words = Words {
    prefix: "changefeed_",
    begin: "begin immediate",
    savepoint: "savepoint s",
    rollback_to: "rollback to savepoint s",
    draw: "update changefeed_change_id set value = value + 1; select value from changefeed_change_id",
    draws_are_final: false,
    text: "text",
    ulid: "blob",
    // ULID transactions are those of the library here.
    begin_ulids: None,
    write_ulid: "",
    commit_ulids: "",
    growing: &[
        "changefeed_numbered",
        "changefeed_captured",
        "changefeed_change_row",
        "changefeed_event",
        "changefeed_event_attempt",
        "changefeed_changes_",
        "changefeed_leases_",
    ],
    calls: &[
        "select change_sequence_number, change_id from changefeed_change where feed_id = {feed} and shard = 0 \
         and change_sequence_number > {cursor} order by change_sequence_number limit 100",
        "insert into item values (-1, 'a')",
        "update item set note = 'b' where id = -1",
        "delete from item where id = -1",
    ],
    fill: "with recursive n(i) as (select {first} union all select i + 1 from n where i < {first} + {count} - 1) \
           insert into item select i, 'note ' || i from n",
};

pub(crate) struct Scratch {
    directory: Mutex<Option<tempfile::TempDir>>,
    path: String,
    url: String,
}

impl Scratch {
    pub(crate) fn create(beside: &str) -> Result<Self> {
        let beside = Path::new(beside)
            .parent()
            .filter(|p| !p.as_os_str().is_empty());
        let directory = tempfile::Builder::new()
            .prefix("changefeed_certify_")
            .tempdir_in(beside.unwrap_or(Path::new(".")))
            .map_err(|e| {
                Error::new(
                    Kind::Permission,
                    "no directory for the scratch database can be made",
                )
                .advise("run it where you may write")
                .caused_by(e)
            })?;
        let path = directory
            .path()
            .join("scratch.db")
            .to_string_lossy()
            .into_owned();
        Ok(Scratch {
            url: format!("sqlite:{path}"),
            path,
            directory: Mutex::new(Some(directory)),
        })
    }

    fn open(&self) -> Result<SqliteSession> {
        let connection = Connection::open(&self.path).map_err(said)?;
        connection
            .busy_timeout(Duration::from_secs(30))
            .map_err(said)?;
        Ok(SqliteSession {
            connection: Arc::new(Mutex::new(connection)),
        })
    }
}

#[async_trait]
impl Place for Scratch {
    fn name(&self) -> &str {
        &self.path
    }

    fn url(&self) -> &str {
        &self.url
    }

    fn words(&self) -> &'static Words {
        &WORDS
    }

    async fn session(&self) -> Result<Box<dyn Session>> {
        Ok(Box::new(self.open()?))
    }

    async fn facts(&self) -> Result<BTreeMap<String, String>> {
        let session = self.open()?;
        let mut facts = BTreeMap::from([("version".to_owned(), rusqlite::version().to_owned())]);
        for name in ["journal_mode", "synchronous", "page_size", "encoding"] {
            let rows = session.rows(&format!("pragma {name}")).await?;
            if let Some(Some(value)) = rows.into_iter().flatten().next() {
                facts.insert(name.to_owned(), value);
            }
        }
        Ok(facts)
    }

    async fn deadlocks(&self) -> Result<Option<Deadlocks>> {
        Ok(None)
    }

    async fn plans(&self, calls: &[String]) -> Result<Vec<Plan>> {
        let session = self.open()?;
        session.run("analyze").await?;
        let mut plans = Vec::new();
        for call in calls {
            let rows = session.rows(&format!("explain query plan {call}")).await?;
            let steps: Vec<String> = rows
                .into_iter()
                .filter_map(|row| row.into_iter().nth(3)?)
                .collect();
            let access = steps.iter().filter_map(|step| access(step)).collect();
            plans.push(Plan::judged(call, access, WORDS.growing, steps.join("\n")));
        }
        Ok(plans)
    }

    async fn remove(&self) -> Result<()> {
        let directory = self
            .directory
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let closed = directory.map_or(Ok(()), tempfile::TempDir::close);
        closed.map_err(|e| {
            Error::new(Kind::Permission, "the scratch database cannot be removed").caused_by(e)
        })
    }
}

/// `SCAN table …` or `SEARCH table USING …`.
fn access(step: &str) -> Option<Access> {
    let mut words = step.split_whitespace();
    let (how, table) = (words.next()?, words.next()?);
    matches!(how, "SCAN" | "SEARCH").then(|| Access {
        table: table.to_owned(),
        how: how.to_owned(),
        whole: how == "SCAN",
    })
}

struct SqliteSession {
    connection: Arc<Mutex<Connection>>,
}

impl SqliteSession {
    /// The busy handler blocks its thread.
    async fn with<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let connection = self.connection.clone();
        let act = move || act(&connection.lock().unwrap_or_else(PoisonError::into_inner));
        let done = tokio::task::spawn_blocking(act).await;
        done.map_err(|e| {
            Error::new(Kind::Database, "a statement did not come to its end").caused_by(e)
        })?
        .map_err(said)
    }
}

#[async_trait]
impl Session for SqliteSession {
    async fn run(&self, sql: &str) -> Result<()> {
        let sql = sql.to_owned();
        self.with(move |connection| connection.execute_batch(&sql))
            .await
    }

    async fn rows(&self, sql: &str) -> Result<Rows> {
        let sql = sql.to_owned();
        self.with(move |connection| {
            let mut rows = Rows::new();
            let mut batch = Batch::new(connection, &sql);
            while let Some(mut statement) = batch.next()? {
                let columns = statement.column_count();
                let mut found = statement.query([])?;
                while let Some(row) = found.next()? {
                    let texts = (0..columns).map(|at| row.get_ref(at).map(text));
                    rows.push(texts.collect::<rusqlite::Result<_>>()?);
                }
            }
            Ok(rows)
        })
        .await
    }
}

fn said(error: rusqlite::Error) -> Error {
    Error::new(Kind::Database, error.to_string()).caused_by(error)
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
