//! The primary key of a watched table, in the table itself and in ours.

use changefeed_core::{Error, Result, words};
use serde::{Deserialize, Serialize};

use crate::capture::KNOWN_TYPES;
use crate::quote;
use crate::source::{Column, Table};

/// Types that no key of ours can have: they are not the same in our tables, or as JSON.
const NO_KEYS: [&str; 6] = [
    "geography",
    "geometry",
    "hierarchyid",
    "json",
    "sql_variant",
    "xml",
];

/// How many bytes a clustered index takes, which is what our tables have.
const LONGEST_KEY: i32 = 900;

/// A key column as our tables have it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoredKey {
    pub(crate) name: String,
    pub(crate) place: i32,
    #[serde(rename = "type")]
    pub(crate) type_sql: String,
}

impl From<&Column> for StoredKey {
    fn from(column: &Column) -> Self {
        StoredKey {
            name: column.name.clone(),
            place: column.place,
            type_sql: column.our_type(),
        }
    }
}

/// Says why a key cannot be noted.
pub(crate) fn check(table: &Table) -> Result<()> {
    let name = &table.name;
    for column in &table.key {
        if column.name.to_lowercase().starts_with("_changefeed_") {
            return Err(words::watch_key_reserved(name, &column.name));
        }
        let base = column.base_type.as_str();
        if !KNOWN_TYPES.contains(&base) || NO_KEYS.contains(&base) {
            return Err(Error::invalid(format!(
                "unsupported key type: column '{}' of {name} is of type {}",
                column.name, column.base_type
            ))
            .advise(
                "keys of watched tables can be of SQL Server's own types, except sql_variant, \
                 hierarchyid, geometry and geography",
            ));
        }
    }
    Ok(())
}

/// Refuses a key whose values may be longer than those of an index of ours can be.
pub(crate) fn check_length(table: &Table) -> Result<()> {
    let bytes: i32 = table.key.iter().map(|column| column.bytes.max(0)).sum();
    if bytes <= LONGEST_KEY {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the primary key of {} may take {bytes} bytes, and keys of watched tables {LONGEST_KEY}",
        table.name
    ))
    .advise("let the columns of the key be no longer than their values, or watch a table with another key"))
}

/// Joins what is made of each key column, which are counted from 1.
pub(crate) fn join(
    key: &[Column],
    between: &str,
    make: impl Fn(usize, &Column) -> String,
) -> String {
    let parts: Vec<String> = key
        .iter()
        .enumerate()
        .map(|(n, c)| make(n + 1, c))
        .collect();
    parts.join(between)
}

/// The key columns, quoted, each after a prefix.
pub(crate) fn names(key: &[Column], prefix: &str) -> String {
    join(key, ", ", |_, c| {
        format!("{prefix}{}", quote::identifier(&c.name))
    })
}

/// `k1, k2`, each after a prefix: as they are called in table variables.
pub(crate) fn numbered(key: &[Column], prefix: &str) -> String {
    join(key, ", ", |n, _| format!("{prefix}k{n}"))
}

/// The key columns of a table variable.
pub(crate) fn numbered_types(key: &[Column]) -> String {
    join(key, ", ", |n, c| format!("k{n} {} not null", c.our_type()))
}

/// The condition that two rows have the same key.
pub(crate) fn same(key: &[Column], a: &str, b: &str) -> String {
    join(key, " and ", |_, c| {
        let name = quote::identifier(&c.name);
        format!("{a}.{name} = {b}.{name}")
    })
}

/// The same, of a row of ours and one of a table variable.
pub(crate) fn same_numbered(key: &[Column], row: &str, variable: &str) -> String {
    join(key, " and ", |n, c| {
        format!("{row}.{} = {variable}.k{n}", quote::identifier(&c.name))
    })
}
