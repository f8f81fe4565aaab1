//! A database of our own on somebody's server, and an application's way to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use changefeed::{Error, Kind, Result};
use changefeed_core::Store;

use crate::plans::Plan;

/// Rows as texts, NULL as `None`.
pub(crate) type Rows = Vec<Vec<Option<String>>>;

/// A case of one kind of database: its name, how it ended, and how long it took.
pub(crate) type OwnCase = (&'static str, Result<()>, Duration);

/// A scratch database.
#[async_trait]
pub(crate) trait Place: Send + Sync {
    /// What it is called.
    fn name(&self) -> &str;

    /// Its address, as a user would give it with `--db`.
    fn url(&self) -> &str;

    /// The words of its SQL.
    fn words(&self) -> &'static Words;

    /// A connection of an application.
    async fn session(&self) -> Result<Box<dyn Session>>;

    /// Versions and settings that matter.
    async fn facts(&self) -> Result<BTreeMap<String, String>>;

    /// Deadlocks that the server has counted so far, with what it tells of those in this database; nothing where there
    /// are none to count.
    async fn deadlocks(&self) -> Result<Option<Deadlocks>>;

    /// The plans of what these calls execute, those within procedures and functions included.
    async fn plans(&self, calls: &[String]) -> Result<Vec<Plan>>;

    /// The plans of what our store has executed so far, where the server keeps them.
    async fn plans_of_store(&self) -> Result<Vec<Plan>> {
        Ok(Vec::new())
    }

    /// What only this kind of database has.
    async fn own_cases(&self, _store: &Arc<dyn Store>) -> Vec<OwnCase> {
        Vec::new()
    }

    /// Drops it.
    async fn remove(&self) -> Result<()>;
}

/// What a server says of deadlocks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Deadlocks {
    pub(crate) count: i64,
    pub(crate) told: Vec<String>,
}

/// A connection of an application, which knows nothing of us but SQL.
#[async_trait]
pub(crate) trait Session: Send + Sync {
    /// Runs statements.
    async fn run(&self, sql: &str) -> Result<()>;

    /// Runs a query.
    async fn rows(&self, sql: &str) -> Result<Rows>;
}

/// The first two columns of rows, names and values; what has no value is left out.
pub(crate) fn pairs(rows: Rows) -> BTreeMap<String, String> {
    let pair = |row: Vec<Option<String>>| {
        let mut row = row.into_iter().flatten();
        Some((row.next()?, row.next()?))
    };
    rows.into_iter().filter_map(pair).collect()
}

impl dyn Session + '_ {
    /// The first column of the first row, as a number.
    pub(crate) async fn number(&self, sql: &str) -> Result<i64> {
        let rows = self.rows(sql).await?;
        let first = rows.first().and_then(|row| row.first()?.as_deref());
        first
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| Error::new(Kind::Database, format!("no number came from {sql}")))
    }
}

/// What the databases call differently.
#[derive(Debug)]
pub(crate) struct Words {
    /// What comes before our names.
    pub(crate) prefix: &'static str,
    pub(crate) begin: &'static str,
    pub(crate) savepoint: &'static str,
    pub(crate) rollback_to: &'static str,
    /// Draws the next change id within a transaction.
    pub(crate) draw: &'static str,
    /// Whether an id that was drawn stays drawn when its transaction is rolled back.
    pub(crate) draws_are_final: bool,
    /// The type of a text, and of a ULID.
    pub(crate) text: &'static str,
    pub(crate) ulid: &'static str,
    /// A ULID transaction of shard 0 of `{feed}` that writes `{note}` so often, without its commit; nothing where that
    /// is not done by SQL.
    pub(crate) begin_ulids: Option<&'static str>,
    pub(crate) write_ulid: &'static str,
    pub(crate) commit_ulids: &'static str,
    /// Tables of ours that grow with what happens, as plans call them: the beginnings of their names.
    pub(crate) growing: &'static [&'static str],
    /// What an application calls all the time: `{feed}` is a feed with many changes, `{cursor}` a number in its middle.
    pub(crate) calls: &'static [&'static str],
    /// Inserts so many rows (`{count}`) into the table `item`, from the id `{first}` on.
    pub(crate) fill: &'static str,
}

/// What helps where no database can be made.
pub(crate) const MAY_CREATE: &str =
    "--certify makes a database of its own and drops it: name a user that may create databases";

/// A name that nobody else has.
pub(crate) fn fresh_name() -> String {
    format!("changefeed_certify_{:08x}", fastrand::u32(..))
}

/// The same server, another database; of a URL.
pub fn with_database(url: &str, name: &str) -> String {
    let (rest, query) = match url.split_once('?') {
        Some((rest, query)) => (rest, format!("?{query}")),
        None => (url, String::new()),
    };
    let begins = rest.find("://").map_or(0, |at| at + 3);
    let host = match rest[begins..].find('/') {
        Some(slash) => &rest[..begins + slash],
        None => rest,
    };
    format!("{host}/{name}{query}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_database_of_the_same_server() {
        assert_eq!(
            with_database("postgres://u:p@h:1", "x"),
            "postgres://u:p@h:1/x"
        );
        assert_eq!(
            with_database("sqlserver://u:p@h/master?encrypt=off", "x"),
            "sqlserver://u:p@h/x?encrypt=off"
        );
    }
}
