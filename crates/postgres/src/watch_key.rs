//! The primary key of a watched table, in the table itself and in ours.

use changefeed_core::{Error, Result};
use tokio_postgres::GenericClient;

use crate::error::db;
use crate::quote;
use crate::row::Cells;
use crate::source::Table;

/// A column of a watched table's primary key.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KeyColumn {
    pub(crate) name: String,
    /// The number of the column in its table, and of its type.
    pub(crate) place: i16,
    pub(crate) type_oid: u32,
    /// The type in our tables, without a length: the type beneath, by schema and name, which is the
    /// server's own; and text for an enum.
    pub(crate) type_sql: String,
    /// Somebody's own enum: kept by its label. What else is somebody's own has casts, operators and
    /// checks that may be anybody's functions, also behind its input function, and that would run with
    /// our rights; and texts that depend on the writer's settings.
    is_enum: bool,
    /// Where it is not that of the type.
    collation: Option<String>,
    /// The operators of the key's index.
    equal: String,
    pub(crate) greater: String,
}

impl KeyColumn {
    pub(crate) fn sql(&self) -> String {
        quote::identifier(&self.name)
    }

    /// The value of a row's column as our tables have it.
    pub(crate) fn ours(&self, row: &str) -> String {
        let value = format!("{row}.{}", self.sql());
        match self.is_enum {
            false => value,
            true => format!(
                "case when pg_catalog.num_nulls({value}) operator(pg_catalog.=) 0 \
                 then pg_catalog.format('%s', {value}) end"
            ),
        }
    }

    /// A value of our tables as the application's table has it, in a statement whose first parameter
    /// is a row of that table: a type of somebody's own is never named, because another one may be
    /// behind the name by now.
    pub(crate) fn theirs(&self, value: &str) -> String {
        match self.is_enum {
            false => value.to_owned(),
            true => format!(
                "(select e from pg_catalog.unnest(pg_catalog.enum_range(($1).{})) e \
                 where pg_catalog.format('%s', e) operator(pg_catalog.=) {value})",
                self.sql()
            ),
        }
    }

    /// The condition that a row has the value of one of our tables.
    pub(crate) fn is_equal(&self, row: &str, value: &str) -> String {
        format!("{row}.{} {} {}", self.sql(), self.equal, self.theirs(value))
    }

    /// The type and collation that our columns have.
    pub(crate) fn our_type(&self) -> String {
        match &self.collation {
            Some(collation) => format!("{} collate {collation}", self.type_sql),
            None => self.type_sql.clone(),
        }
    }
}

/// The primary key of a table, if it is one that can be noted.
pub(crate) async fn load(client: &impl GenericClient, table: &Table) -> Result<Vec<KeyColumn>> {
    let rows = client
        .query(include_str!("sql/watch_key.sql"), &[&table.oid])
        .await
        .map_err(db)?;
    rows.iter().map(|row| column(table, row)).collect()
}

fn column(table: &Table, row: &tokio_postgres::Row) -> Result<KeyColumn> {
    let name: String = row.take(0)?;
    let (builtin, is_enum): (bool, bool) = (row.take(4)?, row.take(5)?);
    if !builtin && !is_enum {
        return Err(Error::invalid(format!(
            "unsupported key type: column '{name}' of {} is of type {}",
            table.name,
            row.take::<String>(6)?
        ))
        .advise(
            "keys of watched tables can be of PostgreSQL's own types, of domains over these, \
             and of enums",
        ));
    }
    Ok(KeyColumn {
        name,
        place: row.take(1)?,
        type_oid: row.take(2)?,
        type_sql: match builtin {
            true => row.take(3)?,
            false => "pg_catalog.text".to_owned(),
        },
        is_enum: !builtin,
        collation: row.take::<Option<String>>(7)?.filter(|_| builtin),
        equal: row.take(8)?,
        greater: row.take(9)?,
    })
}

/// Joins what is made of each key column, which are counted from 1.
pub(crate) fn join(
    key: &[KeyColumn],
    between: &str,
    make: impl Fn(usize, &KeyColumn) -> String,
) -> String {
    let parts: Vec<String> = key
        .iter()
        .enumerate()
        .map(|(n, c)| make(n + 1, c))
        .collect();
    parts.join(between)
}
