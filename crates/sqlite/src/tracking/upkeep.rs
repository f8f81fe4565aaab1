//! What somebody may do to our tables and triggers while a function is at work, and how that is
//! noticed and mended. A table that is rebuilt, as SQLite's own instructions for ALTER TABLE have it,
//! loses its triggers; and a trigger that misses its table fails the application's writes.

use changefeed_core::{Error, Finding, Result, Severity, TableName, Watch};
use rusqlite::Connection;

use super::{TRIGGERS, Tracked, Wants, log_name, trigger_name};
use crate::backlog::NOW;
use crate::error::Explain;
use crate::quote::fill;
use crate::source::Table;
use crate::unique::{Primary, Uniques};

/// What notes the changes of a table, as it was found.
pub(crate) struct Condition {
    /// Whether every trigger is on the table.
    pub(crate) triggers: bool,
    /// Whether there is where they note changes.
    pub(crate) log: bool,
    /// Whether the table is what they were made for.
    shape: bool,
    /// Whether the tables that all watches share are there.
    pub(crate) state: bool,
}

impl Condition {
    pub(crate) fn of(tx: &Connection, table_id: i64, table: &Table) -> Result<Condition> {
        let mut triggers = true;
        for event in TRIGGERS {
            triggers &= tx
                .prepare_cached(
                    "select exists (select 1 from sqlite_master where type = 'trigger' \
                       and name = ?1 and tbl_name = ?2 collate nocase)",
                )
                .and_then(|mut s| {
                    s.query_row([&trigger_name(table_id, event), &table.name], |row| {
                        row.get::<_, bool>(0)
                    })
                })
                .explained()?;
        }
        let known: (String, String) = tx
            .prepare_cached(
                "select table_name, shape from changefeed_watched_table where table_id = ?1",
            )
            .and_then(|mut s| s.query_row([table_id], |row| Ok((row.get(0)?, row.get(1)?))))
            .explained()?;
        Ok(Condition {
            triggers,
            log: exists(tx, &log_name(table_id))?,
            shape: known == (table.name.clone(), shape(tx, table)?),
            state: exists(tx, "changefeed_global_state")?
                && exists(tx, "changefeed_watch_counter")?,
        })
    }

    fn is_sound(&self) -> bool {
        self.triggers && self.log && self.shape && self.state
    }

    /// Says what may have been lost.
    pub(crate) fn tell(&self, table: &str) {
        if !self.triggers {
            tracing::warn!(
                table,
                "the triggers of a watched table were gone, and are made again: what was changed \
                 meanwhile is not known; `changefeed watch reset --from beginning` hands over all rows"
            );
        }
        if !self.log {
            tracing::warn!(
                table,
                "the table with the noted changes was deleted, and is made again: what it held is \
                 lost; `changefeed watch reset --from beginning` hands over all rows"
            );
        }
    }

    /// What was noted by triggers that may not have known all columns: any of them may have changed.
    pub(super) fn doubt_columns(&self, tx: &Connection, table_id: i64) -> Result<()> {
        if self.shape || !self.log {
            return Ok(());
        }
        let doubt = format!("update {} set columns = null", log_name(table_id));
        tx.execute(&doubt, []).explained()?;
        Ok(())
    }
}

/// What the triggers of a table depend on besides its key: its columns and unique indexes.
pub(super) fn shape(tx: &Connection, table: &Table) -> Result<String> {
    let indexes = Uniques::of(tx, table, Primary::LeftOut)?.conflicts;
    serde_json::to_string(&(&table.columns, indexes))
        .map_err(|e| Error::invalid("the table's columns cannot be written").caused_by(e))
}

/// Grows with every change of what tables and triggers there are.
pub(crate) fn schema_version(tx: &Connection) -> Result<i64> {
    tx.prepare_cached("pragma schema_version")
        .and_then(|mut s| s.query_row([], |row| row.get(0)))
        .explained()
}

/// Mends what is not as it should be; does nothing where it is.
pub(crate) fn keep_up(tx: &Connection, watch: &Watch) -> Result<()> {
    let tracked = Tracked::load(tx, watch.table_id, &watch.name)?;
    if Condition::of(tx, watch.table_id, &tracked.table)?.is_sound() {
        return Ok(());
    }
    ensure_state(tx)?;
    let name = TableName::unqualified(&tracked.table.name);
    let wants = Wants {
        function_id: &watch.function_id,
        columns: tracked.columns,
        before: tracked.before,
    };
    let now = Tracked::ensure(tx, &name, &wants)?;
    if now.table_id != watch.table_id {
        return Err(watch.name.unknown());
    }
    Ok(())
}

/// Whether nothing has to be mended.
pub(crate) fn is_sound(tx: &Connection, watch: &Watch) -> Result<bool> {
    let tracked = Tracked::load(tx, watch.table_id, &watch.name)?;
    Ok(Condition::of(tx, watch.table_id, &tracked.table)?.is_sound())
}

/// What keeps changes from being noted or handed over.
pub(crate) fn findings(tx: &Connection, watch: &Watch) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut add = |severity, message: String, advice: String| {
        findings.push(Finding {
            severity,
            subject: format!("watch {}", watch.name),
            message,
            advice: Some(advice),
        });
    };
    let start = "start the watch, or restart it: it is made again";
    let Ok(tracked) = Tracked::load(tx, watch.table_id, &watch.name) else {
        add(
            Severity::Problem,
            "its table was dropped".to_owned(),
            format!("`changefeed watch drop {}` removes the watch", watch.name),
        );
        return Ok(findings);
    };
    let (condition, table) = (
        Condition::of(tx, watch.table_id, &tracked.table)?,
        &tracked.table.name,
    );
    if !condition.triggers {
        let message = format!("the triggers that note changes of table {table} are missing");
        add(Severity::Problem, message, start.to_owned());
    }
    if !condition.log {
        let message = format!(
            "{} was deleted: writes to table {table} fail",
            tracked.log()
        );
        add(Severity::Problem, message, start.to_owned());
    }
    if !condition.state || !exists(tx, &watch.leases_table)? {
        let message = "its state was deleted".to_owned();
        add(Severity::Problem, message, start.to_owned());
    }
    Ok(findings)
}

/// Makes the tables that all watches share where they are missing.
pub(crate) fn ensure_state(tx: &Connection) -> Result<()> {
    let sql = fill(include_str!("../sql/watch_state.sql"), &[("now", NOW)])?;
    tx.execute_batch(&sql).explained()
}

/// Whether there is a table of this name.
pub(crate) fn exists(tx: &Connection, name: &str) -> Result<bool> {
    tx.prepare_cached(
        "select exists (select 1 from sqlite_master where type = 'table' and name = ?1)",
    )
    .and_then(|mut s| s.query_row([name], |row| row.get(0)))
    .explained()
}
