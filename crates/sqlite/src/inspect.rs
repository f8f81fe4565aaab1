//! What the database says about a table of the application.

use changefeed_core::{Error, Feed, Result, Source, TableName};
use rusqlite::{Connection, OptionalExtension, params};

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
    /// Whether it is not one of those declared WITHOUT ROWID.
    has_rowid: bool,
}

/// Whether the index of the primary key is meant, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Primary {
    Included,
    LeftOut,
}

/// A unique index.
#[derive(Debug, Clone)]
pub(crate) struct UniqueIndex {
    /// Columns with the collation the index compares them by.
    pub(crate) columns: Vec<(String, String)>,
    /// The condition of a partial index.
    pub(crate) filter: Option<String>,
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
            Error::not_found(format!("there is no table {name}"))
                .advise("write its name as in SQL, with quotes if it has blanks or signs")
        })
    }

    /// The table behind a feed, wherever it was renamed to, or an error that says it is gone.
    pub(crate) fn behind(connection: &Connection, feed: &Feed, source: &Source) -> Result<Table> {
        let renamed = match source {
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
        let name: String = renamed.unwrap_or_else(|| given.name.clone());
        Table::load(connection, &name)?.ok_or_else(|| {
            Error::not_found(format!(
                "table {given} behind feed '{}' no longer exists",
                feed.name
            ))
            .advise("`changefeed feed drop` removes the feed")
        })
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
                "select name, pk, hidden <> 0, coalesce(type, '') \
                 from pragma_table_xinfo(?1, 'main') where hidden <> 1 order by cid",
            )
            .explained()?;
        let columns: Vec<(String, i64, bool, String)> = statement
            .query_map([&name], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
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
                Error::not_found(format!("table {} has no column '{name}'", self.name))
                    .advise(format!("its columns are {}", self.columns.join(", ")))
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

    /// Unique indexes that a REPLACE may go by, without those over expressions, which a trigger
    /// cannot follow. Those of a primary key are among them only where there are no rowids, or
    /// where the key is not the rowid itself, and only if asked for.
    pub(crate) fn unique_indexes(
        &self,
        connection: &Connection,
        primary: Primary,
    ) -> Result<Vec<UniqueIndex>> {
        let mut statement = connection
            .prepare(include_str!("../sql/unique_indexes.sql"))
            .explained()?;
        let indexes: Vec<(String, bool, Option<String>)> = statement
            .query_map(params![self.name, primary == Primary::Included], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .and_then(Iterator::collect)
            .explained()?;
        let mut unique = Vec::new();
        for (index, partial, sql) in indexes {
            let mut statement = connection
                .prepare(
                    "select name, coll from pragma_index_xinfo(?1, 'main') where key order by seqno",
                )
                .explained()?;
            let columns: Vec<(Option<String>, String)> = statement
                .query_map([&index], |row| Ok((row.get(0)?, row.get(1)?)))
                .and_then(Iterator::collect)
                .explained()?;
            let named: Option<Vec<(String, String)>> = columns
                .into_iter()
                .map(|(name, collation)| name.map(|name| (name, collation)))
                .collect();
            let Some(columns) = named else {
                continue;
            };
            let filter = sql
                .filter(|_| partial)
                .and_then(|sql| filter_of(&sql).map(str::to_owned))
                .filter(|filter| self.accepts(connection, filter));
            unique.push(UniqueIndex { columns, filter });
        }
        Ok(unique)
    }

    /// The unique indexes over expressions.
    pub(crate) fn expression_indexes(&self, connection: &Connection) -> Result<Vec<String>> {
        connection
            .prepare_cached(
                "select l.name from pragma_index_list(?1, 'main') l \
                 where l.\"unique\" and exists (select 1 from pragma_index_xinfo(l.name, 'main') c \
                                                where c.key and c.name is null) \
                 order by l.name",
            )
            .and_then(|mut s| s.query_map([&self.name], |row| row.get(0))?.collect())
            .explained()
    }

    /// Whether a condition can be asked of this table under another name: a trigger that fails
    /// would fail the application's writes.
    fn accepts(&self, connection: &Connection, filter: &str) -> bool {
        let ask = format!(
            "select 1 from {} as changefeed_row where ({filter})",
            self.sql()
        );
        connection.prepare(&ask).is_ok()
    }
}

/// The longest primary key that fits our tables.
pub(crate) const MAX_KEY: usize = 8;

/// The condition of `create index … on … (…) where …`: what follows the last WHERE outside of
/// quotes, comments and parentheses.
fn filter_of(sql: &str) -> Option<&str> {
    let bytes = sql.as_bytes();
    let (mut at, mut depth, mut found) = (0, 0usize, None);
    while at < bytes.len() {
        let skip = |closing: &str| {
            sql.get(at + 1..)
                .and_then(|rest| rest.find(closing))
                .map_or(bytes.len(), |end| at + 1 + end + closing.len())
        };
        at = match bytes[at] {
            quote @ (b'\'' | b'"' | b'`') => skip(char::from(quote).encode_utf8(&mut [0; 4])),
            b'[' => skip("]"),
            b'-' if bytes.get(at + 1) == Some(&b'-') => skip("\n"),
            b'/' if bytes.get(at + 1) == Some(&b'*') => skip("*/"),
            b'(' => {
                depth += 1;
                at + 1
            }
            b')' => {
                depth = depth.saturating_sub(1);
                at + 1
            }
            c if c.is_ascii_alphabetic() || c == b'_' => {
                let word = bytes[at..]
                    .iter()
                    .take_while(|c| c.is_ascii_alphanumeric() || **c == b'_')
                    .count();
                let end = at + word;
                if depth == 0 && sql[at..end].eq_ignore_ascii_case("where") {
                    found = found.or(Some(end));
                }
                end
            }
            _ => at + 1,
        };
    }
    found.and_then(|from| sql.get(from..)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_condition_of_a_partial_index_is_found() {
        for (sql, filter) in [
            ("create unique index i on t(a) where b > 0", Some("b > 0")),
            (
                "create unique index \"where\" on [where x](a)\nWHERE b='where'",
                Some("b='where'"),
            ),
            (
                "create unique index i on t(a /* where ( */) -- where\n where (c)",
                Some("(c)"),
            ),
            ("create unique index i on t(a)", None),
            ("create unique index nowhere on t(a)", None),
            ("create unique index i on t('it''s') where x", Some("x")),
        ] {
            assert_eq!(filter_of(sql), filter, "{sql}");
        }
    }
}
