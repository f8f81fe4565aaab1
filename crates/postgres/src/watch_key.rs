//! The primary key of a watched table, in the table itself and in ours.

use changefeed_core::Result;
use tokio_postgres::GenericClient;

use crate::error::db;
use crate::quote;

/// A column of a watched table's primary key.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KeyColumn {
    pub(crate) name: String,
    /// The number of the column in its table, and of its type.
    pub(crate) place: i16,
    pub(crate) type_oid: u32,
    /// The type in our tables, without a length: the type beneath, by schema and name, if it is the
    /// server's own, and otherwise text. Values of anybody's type are only ever written and read
    /// by its output and input functions; its casts and operators may be anybody's functions, and
    /// would run with our rights.
    pub(crate) type_sql: String,
    /// The type beneath, where it is not the server's own.
    pub(crate) foreign: Option<String>,
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
        match &self.foreign {
            None => value,
            Some(_) => format!(
                "case when pg_catalog.num_nulls({value}) operator(pg_catalog.=) 0 \
                 then pg_catalog.format('%s', {value}) end"
            ),
        }
    }

    /// A value of our tables as the application's table has it.
    pub(crate) fn theirs(&self, value: &str) -> String {
        match &self.foreign {
            None => value.to_owned(),
            // Reads it by the type's input function.
            Some(foreign) => format!(
                "(select x.k from pg_catalog.jsonb_to_record(\
                 pg_catalog.jsonb_build_object('k', {value})) as x(k {foreign}))"
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

/// The primary key of a table.
pub(crate) async fn load(client: &impl GenericClient, table: u32) -> Result<Vec<KeyColumn>> {
    let rows = client
        .query(include_str!("sql/watch_key.sql"), &[&table])
        .await
        .map_err(db)?;
    let column = |row: &tokio_postgres::Row| {
        let (beneath, builtin): (String, bool) = (row.get(3), row.get(4));
        let foreign = (!builtin).then(|| beneath.clone());
        KeyColumn {
            name: row.get(0),
            place: row.get(1),
            type_oid: row.get(2),
            type_sql: match &foreign {
                Some(_) => "pg_catalog.text".to_owned(),
                None => beneath,
            },
            collation: row.get::<_, Option<String>>(5).filter(|_| builtin),
            foreign,
            equal: row.get(6),
            greater: row.get(7),
        }
    };
    Ok(rows.iter().map(column).collect())
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
