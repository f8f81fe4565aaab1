//! A table of the application, and the one behind a feed, as the database describes them now.

use changefeed_core::{Error, Feed, Kind, Result, Source, TableName, words};
use rusqlite::{Connection, OptionalExtension};

use crate::error::Explain;
use crate::{capture, quote, schema};

/// What kind of thing stands behind a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Table,
    View,
    Virtual,
}

/// A table as it is now.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    /// Its name as its creator wrote it.
    pub(crate) name: String,
    pub(crate) shape: Shape,
    /// Visible columns in order, generated ones included.
    pub(crate) columns: Vec<String>,
    /// The declared primary key, in its order.
    pub(crate) key: Vec<String>,
    /// Those of the columns that are computed from others.
    generated: Vec<String>,
    /// The declared type of each column, in their order; empty where there is none.
    types: Vec<String>,
    /// What stands for NULL in each column under a REPLACE, as SQL; only where NULL is not allowed.
    defaults: Vec<Option<String>>,
    /// Whether it is not one of those declared WITHOUT ROWID.
    has_rowid: bool,
}

impl Table {
    /// Looks a table or view up, without regard to case, as SQLite does.
    pub(crate) fn find(connection: &Connection, name: &TableName) -> Result<Table> {
        if let Some(schema) = &name.schema
            && !schema.eq_ignore_ascii_case("main")
        {
            return Err(Error::invalid(format!(
                "{name} is not in the main database: feeds follow only tables of their own file"
            ))
            .advise("write the table without a schema"));
        }
        Table::load(connection, &name.name)?.ok_or_else(|| {
            words::no_table(name)
                .advise("write its name as in SQL, with quotes if it has blanks or signs")
        })
    }

    /// The table behind a feed, wherever it was renamed to, or an error that says that it is gone or has
    /// got another key.
    pub(crate) fn behind(connection: &Connection, feed: &Feed, source: &Source) -> Result<Table> {
        let renamed: Option<String> = match source {
            // The trigger follows its table, so it knows the name of today.
            Source::Captured { .. } => connection
                .prepare_cached(
                    "select tbl_name from sqlite_master where type = 'trigger' and name = ?1",
                )
                .and_then(|mut s| {
                    s.query_row([capture::trigger_name(feed.id, "insert")], |row| row.get(0))
                        .optional()
                })
                .explained()?,
            Source::Joined { .. } | Source::Ulid { .. } | Source::Events => None,
        };
        let Some(given) = source.table() else {
            return Err(Error::invalid(format!(
                "feed '{}' holds events of triggers, not the rows of a table",
                feed.name
            )));
        };
        let name = renamed.as_ref().unwrap_or(&given.name);
        let table = Table::load(connection, name)?.filter(|table| {
            // A view in place of a captured table would serve rows that were never captured.
            table.shape == Shape::Table || !matches!(source, Source::Captured { .. })
        });
        let table = table.ok_or_else(|| {
            Error::not_found(format!(
                "table {given} behind feed '{}' no longer exists",
                feed.name
            ))
            .advise("`changefeed feed drop` removes the feed")
        })?;
        // Only a table that was rebuilt gets another key, and that has lost its triggers.
        if renamed.is_none() && matches!(source, Source::Captured { .. }) {
            table.check_known_key(connection, feed)?;
        }
        Ok(table)
    }

    /// The primary key as it is stored with a feed.
    pub(crate) fn key_names(&self) -> String {
        serde_json::Value::from(self.key.clone()).to_string()
    }

    /// Checks that the feed knows the rows by the primary key of now.
    fn check_known_key(&self, connection: &Connection, feed: &Feed) -> Result<()> {
        let known: Option<String> = connection
            .prepare_cached("select key_names from changefeed_feed_source where feed_id = ?1")
            .and_then(|mut s| s.query_row([feed.id.0], |row| row.get(0)).optional())
            .explained()?
            .flatten();
        let Some(known) = known else {
            return Ok(());
        };
        let names: Vec<String> = serde_json::from_str(&known).unwrap_or_default();
        let same = names.len() == self.key.len()
            && names
                .iter()
                .zip(&self.key)
                .all(|(then, now)| then.eq_ignore_ascii_case(now));
        if same {
            return Ok(());
        }
        Err(Error::new(
            Kind::Unsupported,
            format!(
                "the primary key of table {} is ({}) now, but feed '{}' knows its rows by ({})",
                self.name,
                self.key.join(", "),
                feed.name,
                names.join(", ")
            ),
        )
        .advise("drop the feed and make it again: its key is another one now"))
    }

    pub(crate) fn load(connection: &Connection, name: &str) -> Result<Option<Table>> {
        let found: Option<(String, bool, bool)> = connection
            .prepare_cached(
                "select name, type = 'view', rootpage = 0 from sqlite_master \
                 where type in ('table', 'view') and name = ?1 collate nocase",
            )
            .and_then(|mut s| {
                s.query_row([name], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
                    .optional()
            })
            .explained()?;
        let Some((name, is_view, has_no_pages)) = found else {
            return Ok(None);
        };
        let shape = match (is_view, has_no_pages) {
            (true, _) => Shape::View,
            (false, true) => Shape::Virtual,
            (false, false) => Shape::Table,
        };
        // A hidden column of kind 1 belongs to a virtual table; 2 and 3 are generated columns,
        // which `select *` shows.
        let mut statement = connection
            .prepare_cached(
                "select name, pk, hidden <> 0, coalesce(type, ''), \
                   case when \"notnull\" then dflt_value end \
                 from pragma_table_xinfo(?1, 'main') where hidden <> 1 order by cid",
            )
            .explained()?;
        let columns: Vec<(String, i64, bool, String, Option<String>)> = statement
            .query_map([&name], |row| {
                Ok((
                    row.get(0)?,
                    row.get(1)?,
                    row.get(2)?,
                    row.get(3)?,
                    row.get(4)?,
                ))
            })
            .and_then(Iterator::collect)
            .explained()?;
        let mut key: Vec<_> = columns.iter().filter(|(_, place, ..)| *place > 0).collect();
        key.sort_by_key(|(_, place, ..)| *place);
        let key = key.into_iter().map(|(name, ..)| name.clone()).collect();
        let generated = columns
            .iter()
            .filter(|c| c.2)
            .map(|c| c.0.clone())
            .collect();
        let types = columns.iter().map(|c| c.3.clone()).collect();
        let defaults = columns
            .iter()
            .map(|c| c.4.as_deref().map(|text| default(connection, text)))
            .collect();
        let has_rowid: Option<bool> = connection
            .prepare_cached("select not wr from pragma_table_list(?1) where schema = 'main'")
            .and_then(|mut s| s.query_row([&name], |row| row.get(0)).optional())
            .explained()?;
        Ok(Some(Table {
            name,
            shape,
            columns: columns.into_iter().map(|(name, ..)| name).collect(),
            key,
            generated,
            types,
            defaults,
            has_rowid: has_rowid.unwrap_or(true),
        }))
    }

    /// Checks that a column exists; returns its name as its creator wrote it.
    pub(crate) fn column(&self, name: &str) -> Result<&str> {
        self.columns
            .iter()
            .find(|c| c.eq_ignore_ascii_case(name))
            .map(String::as_str)
            .ok_or_else(|| {
                let known: Vec<&str> = self.columns.iter().map(String::as_str).collect();
                words::no_column(&self.name, name, &known)
            })
    }

    /// The declared type of a column, in capitals; empty where there is none.
    pub(crate) fn declared_type(&self, column: &str) -> String {
        self.columns
            .iter()
            .zip(&self.types)
            .find(|(name, _)| *name == column)
            .map_or_else(String::new, |(_, declared)| declared.to_ascii_uppercase())
    }

    /// What tells one row from another at any moment, as names to be quoted: the rowid, under a
    /// name that no column has taken, or else the primary key.
    pub(crate) fn identity(&self) -> Vec<String> {
        let free = |alias: &&str| !self.columns.iter().any(|c| c.eq_ignore_ascii_case(alias));
        let rowid = ["rowid", "_rowid_", "oid"].into_iter().find(free);
        match rowid {
            Some(rowid) if self.has_rowid => vec![rowid.to_owned()],
            _ => self.key.clone(),
        }
    }

    /// A column of a row that is about to be written, after an alias: a REPLACE writes the default
    /// in place of a NULL that is not allowed.
    pub(crate) fn written(&self, alias: &str, column: &str) -> String {
        let value = format!("{alias}.{}", quote::identifier(column));
        let default = self
            .columns
            .iter()
            .zip(&self.defaults)
            .find_map(|(name, default)| default.as_ref().filter(|_| name == column));
        match default {
            Some(default) => format!("coalesce({value}, {default})"),
            None => value,
        }
    }

    /// Whether its rowid is its primary key.
    pub(crate) fn is_key_rowid(&self, connection: &Connection) -> Result<bool> {
        let indexed: bool = connection
            .prepare_cached(
                "select exists (select 1 from pragma_index_list(?1, 'main') where origin = 'pk')",
            )
            .and_then(|mut s| s.query_row([&self.name], |row| row.get(0)))
            .explained()?;
        Ok(self.has_rowid && !indexed)
    }

    /// Whether a column is computed from others.
    pub(crate) fn is_generated(&self, column: &str) -> bool {
        self.generated.iter().any(|c| c == column)
    }

    /// Checks that changes can be captured from this table and linked to its rows.
    pub(crate) fn check_capture(&self, connection: &Connection) -> Result<()> {
        self.check_triggers(connection)?;
        match self.key.len() {
            0 => Err(Error::invalid(format!(
                "table {} has no primary key, so its changes could not be told apart",
                self.name
            ))
            .advise("add a primary key to it")),
            1..=MAX_KEY => Ok(()),
            n => Err(Error::invalid(format!(
                "the primary key of table {} has {n} columns; at most {MAX_KEY} can be captured",
                self.name
            ))),
        }
    }

    /// Checks that this is a table of the application, which can have triggers.
    pub(crate) fn check_triggers(&self, connection: &Connection) -> Result<()> {
        let what = match self.shape {
            Shape::Table => None,
            Shape::View => Some("a view"),
            Shape::Virtual => Some("a virtual table"),
        };
        if let Some(what) = what {
            return Err(Error::invalid(format!(
                "{} is {what}; changes can only be captured from a table",
                self.name
            )));
        }
        self.check_foreign(connection)
    }

    /// Refuses tables of ours and of SQLite: a feed would show what they hold to its readers.
    pub(crate) fn check_foreign(&self, connection: &Connection) -> Result<()> {
        if schema::is_ours(connection, &self.name)? {
            return Err(Error::invalid(format!(
                "{} is one of changefeed's own tables",
                self.name
            )));
        }
        if self.name.to_ascii_lowercase().starts_with("sqlite_") {
            return Err(Error::invalid(format!(
                "{} is one of SQLite's own tables",
                self.name
            )));
        }
        Ok(())
    }

    /// The name, quoted.
    pub(crate) fn sql(&self) -> String {
        quote::identifier(&self.name)
    }

    /// The key columns of a row, quoted, after an alias such as `new`.
    pub(crate) fn key_of(&self, alias: &str) -> Vec<String> {
        self.key
            .iter()
            .map(|c| format!("{alias}.{}", quote::identifier(c)))
            .collect()
    }
}

/// A default as an expression. SQLite takes a bare or double-quoted name there for a text.
fn default(connection: &Connection, text: &str) -> String {
    let quoted = text
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .map(|inner| inner.replace("\"\"", "\""));
    match quoted {
        Some(name) => quote::text(&name),
        None if connection.prepare(&format!("select ({text}\n)")).is_ok() => {
            format!("({text}\n)")
        }
        None => quote::text(text),
    }
}

/// The longest primary key that fits our tables.
pub(crate) const MAX_KEY: usize = 8;
