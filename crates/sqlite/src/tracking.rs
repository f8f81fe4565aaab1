//! What a watched table gets: the triggers that note changed keys, and where they note them.
//!
//! Like those of captured feeds they run in whatever connection writes to the table, so they use
//! built-in functions only and have no conflict clause. Rows that a REPLACE removes are seen as
//! `staging.rs` tells. Rows whose key is NULL cannot be told apart and are not noted.

mod upkeep;

use changefeed_core::{Error, Result, TableName, WatchName, words};
use rusqlite::{Connection, OptionalExtension, params};

use crate::arrange;
use crate::capture::key_columns;
use crate::error::Explain;
use crate::event_row;
use crate::quote::{self, fill};
use crate::source::Table;
use crate::staging::{self, Staging, Trigger, pairs};
use crate::unique::{Primary, Uniques};

pub(crate) use upkeep::{
    Condition, ensure_state, exists, findings, is_sound, keep_up, schema_version,
};

/// All triggers a watched table has.
const TRIGGERS: [&str; 8] = [
    "stage_insert",
    "stage_update",
    "insert",
    "update",
    "delete",
    "settle_insert",
    "settle_update",
    "settle_delete",
];

/// A watched table as it is now.
#[derive(Debug, Clone)]
pub(crate) struct Tracked {
    pub(crate) table: Table,
    pub(crate) table_id: i64,
    /// Whether the columns that were changed are noted.
    pub(crate) columns: bool,
    /// Whether rows are noted as they were.
    pub(crate) before: bool,
}

/// A function that has its table tracked.
pub(crate) struct Wants<'a> {
    pub(crate) function_id: &'a str,
    /// Whether it wants to know which columns were changed.
    pub(crate) columns: bool,
    /// Whether it wants to know what rows were before.
    pub(crate) before: bool,
}

impl Tracked {
    /// The table of a watch, wherever it was renamed to.
    pub(crate) fn load(tx: &Connection, table_id: i64, name: &WatchName) -> Result<Tracked> {
        let stored: Option<(String, bool, bool)> = tx
            .prepare_cached(
                "select coalesce((select tbl_name from sqlite_master \
                   where type = 'trigger' and name = 'changefeed_watch_' || table_id || '_insert'), \
                   table_name), columns, before \
                 from changefeed_watched_table where table_id = ?1",
            )
            .and_then(|mut s| {
                s.query_row([table_id], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                })
                .optional()
            })
            .explained()?;
        let table = match &stored {
            Some((name, ..)) => Table::find(tx, &TableName::unqualified(name)).ok(),
            None => None,
        };
        let table = table.ok_or_else(|| words::watch_table_dropped(name))?;
        Ok(Tracked {
            table,
            table_id,
            columns: stored.as_ref().is_some_and(|(_, columns, _)| *columns),
            before: stored.is_some_and(|(_, _, before)| before),
        })
    }

    /// Makes sure that changes of a table are noted.
    pub(crate) fn ensure(tx: &Connection, name: &TableName, wants: &Wants<'_>) -> Result<Tracked> {
        let table = Table::find(tx, name)?;
        table.check_capture(tx)?;
        if let Some(column) = table
            .key
            .iter()
            .find(|c| c.to_ascii_lowercase().starts_with("_changefeed_"))
        {
            return Err(words::watch_key_reserved(&table.name, column));
        }
        let key = serde_json::to_string(&table.key)
            .map_err(|e| Error::invalid("the key's columns cannot be written").caused_by(e))?;
        let known: Option<(i64, String)> = tx
            .query_row(
                "select w.table_id, w.key from changefeed_watched_table w \
                 left join sqlite_master m on m.type = 'trigger' \
                   and m.name = 'changefeed_watch_' || w.table_id || '_insert' \
                 where coalesce(m.tbl_name, w.table_name) = ?1 collate nocase",
                [&table.name],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .optional()
            .explained()?;
        let table_id = match known {
            Some((table_id, was)) => {
                adapt(tx, table_id, &was, &table)?;
                let condition = Condition::of(tx, table_id, &table)?;
                condition.tell(&table.name);
                condition.doubt_columns(tx, table_id)?;
                table_id
            }
            None => {
                tx.execute(
                    "insert into changefeed_watched_table (table_name, key) values (?1, ?2)",
                    [&table.name, &key],
                )
                .explained()?;
                tx.last_insert_rowid()
            }
        };
        let others: (bool, bool) = tx
            .query_row(
                "select coalesce(max(columns), 0), coalesce(max(before), 0) from changefeed_watch \
                 where table_id = ?1 and function_id <> ?2",
                params![table_id, wants.function_id],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .explained()?;
        let (columns, before) = (wants.columns || others.0, wants.before || others.1);
        tx.execute(
            "update changefeed_watched_table \
             set table_name = ?2, key = ?3, shape = ?4, columns = ?5, before = ?6 \
             where table_id = ?1",
            params![
                table_id,
                table.name,
                key,
                upkeep::shape(tx, &table)?,
                columns,
                before
            ],
        )
        .explained()?;
        let tracked = Tracked {
            table,
            table_id,
            columns,
            before,
        };
        tracked.install(tx)?;
        Ok(tracked)
    }

    pub(crate) fn log(&self) -> String {
        log_name(self.table_id)
    }

    /// The key columns, quoted, each after a prefix.
    pub(crate) fn keys(&self, prefix: &str) -> Vec<String> {
        self.table
            .key
            .iter()
            .map(|c| format!("{prefix}{}", quote::identifier(c)))
            .collect()
    }

    fn install(&self, tx: &Connection) -> Result<()> {
        let log = fill(
            include_str!("sql/watch_log.sql"),
            &[
                ("log", &self.log()),
                (
                    "key_columns",
                    &key_columns("", self.table.key.len()).join(", "),
                ),
            ],
        )?;
        tx.execute_batch(&log).explained()?;
        // Made anew each time: the table may have got other unique keys.
        remove_triggers(tx, self.table_id)?;
        for trigger in self.triggers(tx)? {
            tx.execute_batch(&trigger.sql).explained()?;
        }
        arrange::arrange(tx, &self.table.name)?;
        // Compiling a write compiles the triggers with it. What is wrong with them must show here
        // and not in the application.
        let table = self.table.sql();
        let key = quote::identifier(self.table.key.first().map_or("", String::as_str));
        for write in [
            format!("insert into {table} default values"),
            format!("update {table} set {key} = {key}"),
            format!("delete from {table}"),
        ] {
            tx.prepare(&write).explained()?;
        }
        Ok(())
    }

    fn triggers(&self, tx: &Connection) -> Result<Vec<Trigger>> {
        let table = &self.table;
        let (new_key, old_key) = (table.key_of("new"), table.key_of("old"));
        let keys = key_columns("", table.key.len());
        let not_null = |key: &[String]| {
            let parts: Vec<String> = key.iter().map(|k| format!("{k} is not null")).collect();
            parts.join(" and ")
        };
        let places = [
            ("log", self.log()),
            ("table", table.sql()),
            ("keys", keys.join(", ")),
            ("new_key", new_key.join(", ")),
            ("old_key", old_key.join(", ")),
            ("moved", pairs(&old_key, "is not", &new_key, " or ")),
            ("columns", self.changed_columns()),
            ("old_row", self.row_as_it_was()?),
            (
                "no_row",
                if self.before { "'null'" } else { "null" }.to_owned(),
            ),
            ("new_not_null", not_null(&new_key)),
            ("old_not_null", not_null(&old_key)),
            ("keys_not_null", not_null(&keys)),
        ];
        let make = |template: &str, more: &[(&str, &str)]| {
            let mut all: Vec<(&str, &str)> = places.iter().map(|(p, v)| (*p, v.as_str())).collect();
            all.extend_from_slice(more);
            fill(template, &all)
        };
        let mut conflicts = Uniques::of(tx, table, Primary::Included)?.conflicts;
        conflicts.extend(staging::by_place(table));
        let owner = staging::WATCHES + self.table_id;
        let tell = make(
            include_str!("sql/watch_tell.sql"),
            &[("owner", &owner.to_string())],
        )?;
        let staging = Staging {
            owner,
            table,
            conflicts,
            payload: keys.clone(),
            values: &|alias| Ok(table.key_of(alias)),
            telling: keys.len(),
            tell: &|_| Ok(tell.clone()),
            name: &|event| trigger_name(self.table_id, event),
        };
        let untold = staging.untold()?;
        let mut all = staging.before()?;
        for (event, template) in [
            ("insert", include_str!("sql/watch_insert.sql")),
            ("update", include_str!("sql/watch_update.sql")),
            ("delete", include_str!("sql/watch_delete.sql")),
        ] {
            let name = trigger_name(self.table_id, event);
            let sql = make(
                template,
                &[("trigger", &quote::identifier(&name)), ("untold", &untold)],
            )?;
            all.push(Trigger { name, sql });
        }
        all.extend(staging.after()?);
        Ok(all)
    }

    /// The row before an update or a delete, as JSON.
    fn row_as_it_was(&self) -> Result<String> {
        match self.before {
            true => event_row::object("old", &self.table.columns),
            false => Ok("null".to_owned()),
        }
    }

    /// The columns that an update has changed, as a JSON array of their names. Whatever is not the
    /// same to the byte has changed, also where the column's collation takes no notice.
    fn changed_columns(&self) -> String {
        if !self.columns {
            return "null".to_owned();
        }
        let cases: Vec<String> = self
            .table
            .columns
            .iter()
            .map(|name| {
                let column = quote::identifier(name);
                let name = serde_json::Value::from(name.as_str());
                format!(
                    "case when old.{column} is not new.{column} collate binary \
                     or typeof(old.{column}) <> typeof(new.{column}) then {} else '' end",
                    quote::text(&format!(",{name}"))
                )
            })
            .collect();
        // In groups: an expression must not be too deep.
        let groups: Vec<String> = cases
            .chunks(50)
            .map(|group| format!("({})", group.join(" || ")))
            .collect();
        format!("'[' || substr({}, 2) || ']'", groups.join(" || "))
    }

    /// Makes a function's backlog where it is missing.
    pub(crate) fn ensure_leases(&self, tx: &Connection, leases: &str) -> Result<()> {
        let collations = self.collations(tx)?;
        let columns: Vec<String> = self
            .keys("")
            .into_iter()
            .zip(&collations)
            .map(|(name, collation)| {
                format!("{name} not null collate {}", quote::identifier(collation))
            })
            .collect();
        let sql = fill(
            include_str!("sql/watch_leases.sql"),
            &[
                ("leases", leases),
                ("leases_version", &format!("{leases}_version")),
                ("leases_held", &format!("{leases}_held")),
                ("columns", &columns.join(",\n  ")),
                ("keys", &self.keys("").join(", ")),
            ],
        )?;
        tx.execute_batch(&sql).explained()
    }

    /// How the primary key compares its columns.
    fn collations(&self, tx: &Connection) -> Result<Vec<String>> {
        let index: Option<String> = tx
            .query_row(
                "select name from pragma_index_list(?1, 'main') where origin = 'pk'",
                [&self.table.name],
                |row| row.get(0),
            )
            .optional()
            .explained()?;
        let known: Vec<(String, String)> = match index {
            Some(index) => tx
                .prepare("select name, coll from pragma_index_xinfo(?1, 'main') where key")
                .and_then(|mut s| {
                    s.query_map([index], |row| Ok((row.get(0)?, row.get(1)?)))?
                        .collect()
                })
                .explained()?,
            // An INTEGER PRIMARY KEY has no index of its own.
            None => Vec::new(),
        };
        Ok(self
            .table
            .key
            .iter()
            .map(|column| {
                known
                    .iter()
                    .find(|(name, _)| name == column)
                    .map_or_else(|| "BINARY".to_owned(), |(_, collation)| collation.clone())
            })
            .collect())
    }

    /// A name of a row's number that no key column has.
    pub(crate) fn rowid(&self) -> &'static str {
        ["rowid", "oid", "_rowid_"]
            .into_iter()
            .find(|name| !self.table.key.iter().any(|c| c.eq_ignore_ascii_case(name)))
            .unwrap_or("rowid")
    }
}

/// Brings the names of our columns to those that the key has now.
fn adapt(tx: &Connection, table_id: i64, was: &str, table: &Table) -> Result<()> {
    let was: Vec<String> = serde_json::from_str(was).unwrap_or_default();
    if was == table.key {
        return Ok(());
    }
    if was.len() != table.key.len() {
        return Err(Error::invalid(format!(
            "the primary key of {} is another than when it was first watched",
            table.name
        ))
        .advise("drop its watches (`changefeed watch drop`) and create them again"));
    }
    let leases: Vec<String> = tx
        .prepare(
            "select name from sqlite_master where type = 'table' \
             and (name glob 'changefeed_leases_*_' || ?1 \
                  or name glob 'changefeed_loading_*_' || ?1)",
        )
        .and_then(|mut s| s.query_map([table_id], |row| row.get(0))?.collect())
        .explained()?;
    for leases in leases {
        for (old, new) in was.iter().zip(&table.key).filter(|(old, new)| old != new) {
            tx.execute_batch(&format!(
                "alter table {} rename column {} to {}",
                quote::identifier(&leases),
                quote::identifier(old),
                quote::identifier(new)
            ))
            .explained()?;
        }
    }
    Ok(())
}

pub(crate) fn log_name(table_id: i64) -> String {
    format!("changefeed_changes_{table_id}")
}

/// The name of a function's backlog.
pub(crate) fn leases_name(function_id: &str, table_id: i64) -> String {
    format!("changefeed_leases_{function_id}_{table_id}")
}

fn trigger_name(table_id: i64, event: &str) -> String {
    format!("changefeed_watch_{table_id}_{event}")
}

fn remove_triggers(tx: &Connection, table_id: i64) -> Result<()> {
    for event in TRIGGERS {
        let name = quote::identifier(&trigger_name(table_id, event));
        tx.execute_batch(&format!("drop trigger if exists {name}"))
            .explained()?;
    }
    Ok(())
}

/// Removes what notes the changes of a table that nobody watches any more.
pub(crate) fn remove(tx: &Connection, table_id: i64) -> Result<()> {
    remove_triggers(tx, table_id)?;
    tx.execute_batch(&format!(
        "drop table if exists {}; delete from changefeed_watched_table where table_id = {table_id}; \
         delete from changefeed_staged where owner = {}",
        log_name(table_id),
        staging::WATCHES + table_id
    ))
    .explained()
}

/// Removes the triggers of every watched table.
pub(crate) fn remove_all(tx: &Connection) -> Result<()> {
    let names: Vec<String> = tx
        .prepare("select name from sqlite_master where type = 'trigger'")
        .and_then(|mut s| s.query_map([], |row| row.get(0))?.collect())
        .explained()?;
    let tables = names.iter().filter_map(|name| {
        let (table_id, _) = name.strip_prefix("changefeed_watch_")?.split_once('_')?;
        table_id.parse::<i64>().ok()
    });
    for table_id in tables {
        remove_triggers(tx, table_id)?;
    }
    Ok(())
}
