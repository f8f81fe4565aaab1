//! What a watched table gets: the trigger that notes changed keys, and where it notes them.
//! `migrations/0001/watches.sql` explains it.

mod adapt;
mod trigger;

use changefeed_core::{Error, Kind, Result, TableName, WatchName, words};
use deadpool_postgres::{ClientWrapper, Transaction};
use tokio_postgres::GenericClient;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use crate::error::db;
use crate::row::Cells;
use crate::source::Table;
use crate::template::fill;
use crate::watch_before::Before;
use crate::watch_columns::Columns;
use crate::watch_key::{self as key, KeyColumn, join};
use crate::{capture, quote, watch_rights};

/// A table that can be watched, as it is now.
#[derive(Debug, Clone)]
pub(crate) struct Tracked {
    pub(crate) table: Table,
    pub(crate) table_id: i64,
    pub(crate) key: Vec<KeyColumn>,
    pub(crate) columns: Columns,
    pub(crate) before: Before,
    /// The type of its rows.
    row_type: u32,
}

impl Tracked {
    /// Looks at a table and says why it cannot be watched.
    pub(crate) async fn find(client: &impl GenericClient, name: &TableName) -> Result<Tracked> {
        let table = Table::find(client, name).await?;
        capture::check(&table)?;
        let tracked = Tracked::of(client, table).await?;
        tracked.check(client).await?;
        Ok(tracked)
    }

    /// The table behind a number of ours.
    pub(crate) async fn load(
        client: &impl GenericClient,
        table_id: i64,
        name: &WatchName,
    ) -> Result<Tracked> {
        let row = client
            .query_opt(
                "select source::oid, columns, key, key_types, key_places, before \
                 from changefeed.watched_table where table_id = $1",
                &[&table_id],
            )
            .await
            .map_err(db)?;
        let row = row.ok_or_else(|| name.unknown())?;
        let table = Table::load(client, row.take(0)?).await?;
        let table = table.ok_or_else(|| words::watch_table_dropped(name))?;
        let mut tracked = Tracked::of(client, table).await?;
        tracked.table_id = table_id;
        tracked.columns = Columns::new(row.take(1)?);
        tracked.before = Before::new(row.take(5)?);
        let known: (Vec<String>, Vec<String>, Vec<i16>) =
            (row.take(2)?, row.take(3)?, row.take(4)?);
        if known != (tracked.names(), tracked.types(), tracked.places()) {
            return Err(words::watch_key_altered(&tracked.table.name));
        }
        Ok(tracked)
    }

    async fn of(client: &impl GenericClient, table: Table) -> Result<Tracked> {
        let key = key::load(client, &table).await?;
        let row = client
            .query_opt("select reltype from pg_class where oid = $1", &[&table.oid])
            .await
            .map_err(db)?;
        let row_type = row.map_or(Ok(0), |row| row.take(0))?;
        Ok(Tracked {
            table_id: i64::from(table.oid),
            table,
            key,
            columns: Columns::Ignored,
            before: Before::Ignored,
            row_type,
        })
    }

    async fn check(&self, client: &impl GenericClient) -> Result<()> {
        let name = &self.table.name;
        if let Some(column) = self.key.iter().find(|c| c.name.starts_with("_changefeed_")) {
            return Err(words::watch_key_reserved(name, &column.name));
        }
        let row = client
            .query_one(
                "select has_table_privilege($1::oid, 'select'), row_security_active($1::oid), \
                 current_user::text, has_table_privilege(n.nspowner, $1::oid, 'select'), \
                 n.nspowner::regrole::text, u.problem, u.advice \
                 from pg_namespace n, changefeed.unreadable($1::oid) u where n.nspname = 'changefeed'",
                &[&self.table.oid],
            )
            .await
            .map_err(db)?;
        let (may_read, hidden, user): (bool, bool, String) =
            (row.take(0)?, row.take(1)?, row.take(2)?);
        let user = quote::identifier(&user);
        let (owner_may_read, owner): (bool, String) = (row.take(3)?, row.take(4)?);
        let (problem, advice) = if !owner_may_read {
            // What notes the rows that are truncated runs with these rights.
            (
                format!("{owner}, who owns the schema changefeed, may not read {name}"),
                format!("grant select on {} to {owner}", self.table.sql),
            )
        } else if !may_read {
            (
                format!("the database user may not read {name}"),
                format!("grant select on {} to {user}", self.table.sql),
            )
        } else if let Some(problem) = row.take::<Option<String>>(5)? {
            (problem, row.take(6)?)
        } else {
            return Ok(());
        };
        let kind = match may_read && owner_may_read && !hidden {
            true => Kind::Unsupported,
            false => Kind::Permission,
        };
        Err(Error::new(kind, problem).advise(advice))
    }

    /// The table in a query. Tables that inherit from it have keys of their own, and are not watched.
    pub(crate) fn rows_of(&self) -> String {
        match self.table.relkind.as_str() {
            "r" => format!("only {}", self.table.sql),
            _ => self.table.sql.clone(),
        }
    }

    /// The type of the first parameter of every statement that reads the table: what says by number,
    /// and not by name, of which table the rows are.
    pub(crate) fn row_type(&self) -> Type {
        let pseudo = tokio_postgres::types::Kind::Pseudo;
        Type::new("row".to_owned(), self.row_type, pseudo, String::new())
    }

    /// The statement that locks the table for reading.
    pub(crate) fn lock_sql(&self) -> String {
        format!("lock table only {} in access share mode", self.table.sql)
    }

    /// What makes sure of what was locked, and that it has these columns, which are SQL.
    pub(crate) fn hold_sql(&self, signature: &str) -> String {
        format!(
            "select changefeed.hold_table({}, {signature})",
            self.table.oid
        )
    }

    pub(crate) fn log(&self) -> String {
        log_name(self.table_id)
    }

    fn function(&self) -> String {
        format!("track_{}", self.table_id)
    }

    /// Sorts before the application's own triggers, see `capture`.
    fn trigger(&self) -> String {
        format!("!changefeed_watch_{}", self.table_id)
    }

    /// The key columns, quoted, each after a prefix.
    pub(crate) fn keys(&self, prefix: &str) -> String {
        join(&self.key, ", ", |_, c| format!("{prefix}{}", c.sql()))
    }

    fn columns(&self) -> String {
        join(&self.key, ",\n    ", |_, c| {
            format!("{} {}", c.sql(), c.our_type())
        })
    }

    fn names(&self) -> Vec<String> {
        self.key.iter().map(|c| c.name.clone()).collect()
    }

    fn places(&self) -> Vec<i16> {
        self.key.iter().map(|c| c.place).collect()
    }

    /// The condition that a row's key is behind the values.
    pub(crate) fn is_behind(&self, row: &str, value: impl Fn(usize) -> String) -> String {
        let key = &self.key;
        if key.iter().all(|c| c.greater == key[0].greater) {
            let columns = join(key, ", ", |_, c| format!("{row}.{}", c.sql()));
            let values = join(key, ", ", |n, c| c.theirs(&value(n)));
            return format!("({columns}) {} ({values})", key[0].greater);
        }
        key.iter()
            .enumerate()
            .rfold("false".to_owned(), |rest, (n, c)| {
                let value = value(n + 1);
                format!(
                    "({row}.{} {} {} or {} and {rest})",
                    c.sql(),
                    c.greater,
                    c.theirs(&value),
                    c.is_equal(row, &value)
                )
            })
    }

    fn types(&self) -> Vec<String> {
        self.key.iter().map(KeyColumn::our_type).collect()
    }

    /// Makes sure that changes of the table are noted. The table's lock is held.
    pub(crate) async fn ensure(&self, client: &impl GenericClient) -> Result<()> {
        let known = client
            .query_opt(
                "select key, key_types, key_places, columns, before from changefeed.watched_table \
                 where table_id = $1",
                &[&self.table_id],
            )
            .await
            .map_err(db)?;
        let columns = self.columns == Columns::Noted;
        let before = self.before == Before::Noted;
        match known {
            Some(row) => {
                let known = adapt::Known {
                    names: row.take(0)?,
                    types: row.take(1)?,
                    places: row.take(2)?,
                };
                self.adapt(client, &known).await.map_err(|e| {
                    owners_work(e, &format!("the key of {} was altered", self.table.name))
                })?;
                if (columns, before) != (row.take::<bool>(3)?, row.take::<bool>(4)?) {
                    // Movers of changes must know.
                    client
                        .execute(
                            "update changefeed.watched_table \
                             set columns = $2, before = $3, generation = generation + 1 \
                             where table_id = $1",
                            &[&self.table_id, &columns, &before],
                        )
                        .await
                        .map_err(|e| {
                            let what = format!(
                                "what the trigger on {} notes has to change",
                                self.table.name
                            );
                            owners_work(db(e), &what)
                        })?;
                }
            }
            None => {
                watch_rights::may_make(client).await?;
                client
                    .execute(
                        "insert into changefeed.watched_table \
                           (table_id, source, key, key_types, key_places, columns, before) \
                         values ($1, $2::oid::regclass, $3, $4, $5, $6, $7)",
                        &[
                            &self.table_id,
                            &self.table.oid,
                            &self.names(),
                            &self.types(),
                            &self.places(),
                            &columns,
                            &before,
                        ],
                    )
                    .await
                    .map_err(db)?;
            }
        }
        let log = self.log();
        if exists(client, &log).await? {
            return self.ensure_trigger(client).await;
        }
        watch_rights::may_make(client).await?;
        let create = fill(
            include_str!("sql/watch_log.sql"),
            &[
                ("log", &log),
                ("index", &format!("{log}_xid")),
                ("columns", &self.columns()),
            ],
        )?;
        client.batch_execute(&create).await.map_err(db)?;
        self.forget_order(client).await?;
        self.ensure_trigger(client).await
    }

    /// Changes are counted anew, and what waits already is older than any of them.
    async fn forget_order(&self, client: &impl GenericClient) -> Result<()> {
        for leases in self.backlogs(client).await? {
            let forget = format!(
                "update changefeed.{} set _changefeed_order = 0",
                quote::identifier(&leases)
            );
            client.batch_execute(&forget).await.map_err(db)?;
        }
        Ok(())
    }

    /// The backlogs of all functions that watch the table.
    async fn backlogs(&self, client: &impl GenericClient) -> Result<Vec<String>> {
        let rows = client
            .query(
                "select c.relname::text from pg_class c \
                 where c.relnamespace = 'changefeed'::regnamespace and c.relkind = 'r' \
                   and c.relname ~ ('^leases_[0-9a-f]{16}_' || $1 || '$')",
                &[&self.table_id.to_string()],
            )
            .await
            .map_err(db)?;
        rows.iter().map(|row| row.take(0)).collect()
    }

    /// Makes a function's backlog where it is missing. The table's lock is held.
    pub(crate) async fn ensure_leases(
        &self,
        client: &impl GenericClient,
        leases: &str,
    ) -> Result<()> {
        if exists(client, leases).await? {
            return Ok(());
        }
        watch_rights::may_make(client).await?;
        let create = fill(
            include_str!("sql/watch_leases.sql"),
            &[
                ("leases", leases),
                ("index", &format!("{leases}_version")),
                ("columns", &self.columns()),
                ("keys", &self.keys("")),
            ],
        )?;
        client.batch_execute(&create).await.map_err(db)
    }

    /// Removes what notes the changes of a table that nobody watches any more.
    pub(crate) async fn remove(client: &impl GenericClient, table_id: i64) -> Result<()> {
        // The triggers go with their functions, wherever their table is by now.
        let sql = format!(
            "drop function if exists changefeed.track_{table_id}, changefeed.truncate_{table_id} cascade; \
             drop table if exists changefeed.changes_{table_id}; \
             delete from changefeed.watched_table where table_id = {table_id};"
        );
        client.batch_execute(&sql).await.map_err(db)
    }
}

/// Whether there is a table or view of ours.
pub(crate) async fn exists(client: &impl GenericClient, name: &str) -> Result<bool> {
    let row = client
        .query_one(
            "select to_regclass('changefeed.' || quote_ident($1)) is not null",
            &[&name],
        )
        .await
        .map_err(db)?;
    row.take(0)
}

/// Says who can do what only the owner of our tables and functions can do.
fn owners_work(error: Error, what: &str) -> Error {
    if error.kind() != Kind::Permission {
        return error;
    }
    Error::new(
        Kind::Permission,
        format!("{what}, and this database user does not own the watch's tables"),
    )
    .advise("start the watch once as the role that owns the schema changefeed, or a member of it")
    .caused_by(error)
}

/// The table where the trigger of a watched table notes changes.
pub(crate) fn log_name(table_id: i64) -> String {
    format!("changes_{table_id}")
}

/// The name of a function's backlog.
pub(crate) fn leases_name(function_id: &str, table_id: i64) -> String {
    format!("leases_{function_id}_{table_id}")
}

/// The lock that every writer of a table's backlogs holds, as an expression.
pub(crate) fn lock(table_id: i64) -> String {
    format!("pg_advisory_xact_lock(hashtextextended('changefeed/watch/{table_id}', 0))")
}

/// Begins a transaction.
pub(crate) async fn begin(client: &mut ClientWrapper) -> Result<Transaction<'_>> {
    client.transaction().await.map_err(db)
}

/// Takes the lock for the rest of a transaction.
pub(crate) async fn lock_table(client: &impl GenericClient, table_id: i64) -> Result<()> {
    client
        .batch_execute(&format!("select {}", lock(table_id)))
        .await
        .map_err(|error| match error.code() {
            Some(&SqlState::LOCK_NOT_AVAILABLE) => lock_kept().caused_by(error),
            _ => db(error),
        })
}

/// Somebody keeps what the workers of a watched table need, which anybody can.
pub(crate) fn lock_kept() -> Error {
    Error::new(
        Kind::Busy,
        "somebody keeps the watched table, or the lock of its workers, for long",
    )
    .advise("`changefeed doctor` names the session that does")
}
