//! The order in which the triggers of a table run.
//!
//! SQLite runs the newest trigger first; a test pins that. Ours *before* a row is written have to run
//! after those of the application, which may bring other rows into its way. Ours *after* it have to
//! run before those of the application, which may change the row, and whose changes come later. So our
//! triggers before have to be the oldest, and those after the newest. Where they are not, the triggers
//! of the table are made again, word for word and in this order, those of the application too.

use changefeed_core::Result;
use rusqlite::Connection;

use crate::error::Explain;
use crate::quote;
use crate::staging::BEFORE;

struct Trigger {
    name: String,
    sql: String,
}

impl Trigger {
    /// Where it belongs.
    fn place(&self) -> u8 {
        let ours = self.name.starts_with("changefeed_");
        match (ours, BEFORE.iter().any(|end| self.name.ends_with(end))) {
            (true, true) => 0,
            (false, _) => 1,
            (true, false) => 2,
        }
    }
}

fn triggers(connection: &Connection, table: &str) -> Result<Vec<Trigger>> {
    connection
        .prepare_cached(
            "select name, sql from sqlite_master \
             where type = 'trigger' and tbl_name = ?1 collate nocase order by rowid",
        )
        .and_then(|mut s| {
            s.query_map([table], |row| {
                Ok(Trigger {
                    name: row.get(0)?,
                    sql: row.get(1)?,
                })
            })?
            .collect()
        })
        .explained()
}

/// Whether the triggers of a table run in the order that capture needs.
pub(crate) fn is_arranged(connection: &Connection, table: &str) -> Result<bool> {
    Ok(triggers(connection, table)?.is_sorted_by_key(Trigger::place))
}

/// Brings the triggers of a table into their order. If SQLite refuses to make one of the
/// application's again, everything stays as it is, with a warning.
pub(crate) fn arrange(connection: &Connection, table: &str) -> Result<()> {
    let mut all = triggers(connection, table)?;
    if all.is_sorted_by_key(Trigger::place) {
        return Ok(());
    }
    all.sort_by_key(Trigger::place);
    connection
        .execute_batch("savepoint changefeed_arrange")
        .explained()?;
    let made = all
        .iter()
        .try_for_each(|trigger| {
            let drop = format!("drop trigger {}", quote::identifier(&trigger.name));
            connection.execute_batch(&drop)
        })
        .and_then(|()| {
            all.iter()
                .try_for_each(|trigger| connection.execute_batch(&trigger.sql))
        });
    if let Err(error) = made {
        connection
            .execute_batch("rollback to changefeed_arrange")
            .explained()?;
        tracing::warn!(
            table,
            %error,
            "a trigger of the application could not be made again, so it runs between the triggers \
             of changefeed: rows that a REPLACE removes because of it may not be captured"
        );
    }
    connection
        .execute_batch("release changefeed_arrange")
        .explained()
}
