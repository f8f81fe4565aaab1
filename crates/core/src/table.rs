//! Table names as a person writes them in SQL.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Error, Result};

/// A table, with its schema if one was given. Both are exact names, not SQL: quoting is done by
/// each dialect, in one place.
///
/// As text and in JSON it is `orders` or `sales.orders`. A part that is not a plain word is in double
/// quotes: `sales."a b"`. Nothing is folded, so the same text is always the same table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TableName {
    /// The schema, or none for the database's default.
    pub schema: Option<String>,
    /// The table.
    pub name: String,
}

/// What a database does with a name that is written without quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fold {
    /// PostgreSQL: to lower case.
    Lower,
    /// SQLite, SQL Server: kept; the database compares without regard to case.
    Keep,
}

impl TableName {
    /// A table in the default schema.
    pub fn unqualified(name: impl Into<String>) -> Self {
        TableName {
            schema: None,
            name: name.into(),
        }
    }

    /// A table in a schema.
    pub fn qualified(schema: impl Into<String>, name: impl Into<String>) -> Self {
        TableName {
            schema: Some(schema.into()),
            name: name.into(),
        }
    }

    /// Reads `orders`, `sales.orders`, `sales."Order"`, `[Order]` or `` `order` ``.
    pub fn parse(text: &str, fold: Fold) -> Result<Self> {
        let mut parts = parse_identifiers(text, fold)
            .ok_or_else(|| {
                Error::invalid(format!("'{text}' is not a table name"))
                    .advise("write it as in SQL: orders, sales.orders or sales.\"Order\"")
            })?
            .into_iter();
        match (parts.next(), parts.next(), parts.next()) {
            (Some(name), None, None) => Ok(TableName { schema: None, name }),
            (Some(schema), Some(name), None) => Ok(TableName {
                schema: Some(schema),
                name,
            }),
            _ => Err(
                Error::invalid(format!("'{text}' has too many parts for a table name"))
                    .advise("write SCHEMA.TABLE or TABLE"),
            ),
        }
    }

    /// Reads a column name by the same rules.
    pub fn parse_column(text: &str, fold: Fold) -> Result<String> {
        match parse_identifiers(text, fold).as_deref() {
            Some([column]) => Ok(column.clone()),
            _ => Err(Error::invalid(format!("'{text}' is not a column name"))
                .advise("write it as in SQL: customer_id or \"Customer Id\"")),
        }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(schema) = &self.schema {
            write_part(f, schema)?;
            f.write_str(".")?;
        }
        write_part(f, &self.name)
    }
}

fn write_part(f: &mut fmt::Formatter<'_>, part: &str) -> fmt::Result {
    if is_plain(part) {
        f.write_str(part)
    } else {
        write!(f, "\"{}\"", part.replace('"', "\"\""))
    }
}

/// Whether a name can be written without quotes.
fn is_plain(word: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || c == '_' || c == '$' || c == '#';
    !word.is_empty() && !word.starts_with(|c: char| c.is_ascii_digit()) && word.chars().all(plain)
}

impl Serialize for TableName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TableName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        TableName::parse(&text, Fold::Keep).map_err(serde::de::Error::custom)
    }
}

/// Splits dotted identifiers; `None` if the text is not a list of identifiers.
fn parse_identifiers(text: &str, fold: Fold) -> Option<Vec<String>> {
    let mut parts = Vec::new();
    let mut rest = text.trim();
    loop {
        let (part, after) = match rest.chars().next()? {
            '"' => quoted(&rest[1..], '"')?,
            '[' => quoted(&rest[1..], ']')?,
            '`' => quoted(&rest[1..], '`')?,
            _ => {
                let end = rest.find('.').unwrap_or(rest.len());
                let (word, after) = rest.split_at(end);
                if !is_plain(word) {
                    return None;
                }
                let word = match fold {
                    Fold::Lower => word.to_lowercase(),
                    Fold::Keep => word.to_owned(),
                };
                (word, after)
            }
        };
        if part.is_empty() || part.contains('\0') {
            return None;
        }
        parts.push(part);
        if after.is_empty() {
            return Some(parts);
        }
        rest = after.strip_prefix('.')?;
    }
}

/// Reads up to the closing quote, where a doubled quote stands for itself.
fn quoted(text: &str, close: char) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if c != close {
            name.push(c);
        } else if chars.peek().is_some_and(|(_, next)| *next == close) {
            name.push(close);
            chars.next();
        } else {
            return Some((name, &text[at + c.len_utf8()..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_written_as_in_sql() {
        let lower = |t: &str| TableName::parse(t, Fold::Lower).unwrap();
        let keep = |t: &str| TableName::parse(t, Fold::Keep).unwrap();
        assert_eq!(lower("Orders"), TableName::unqualified("orders"));
        assert_eq!(keep("Orders"), TableName::unqualified("Orders"));
        assert_eq!(
            lower("sales.\"Order\""),
            TableName::qualified("sales", "Order")
        );
        assert_eq!(keep("[weird]]name]"), TableName::unqualified("weird]name"));
        assert_eq!(lower("\"a\"\"b.c\""), TableName::unqualified("a\"b.c"));
        assert_eq!(lower("`UPPER case`"), TableName::unqualified("UPPER case"));
    }

    #[test]
    fn a_table_has_one_form_as_text() {
        for (text, table) in [
            ("orders", TableName::unqualified("orders")),
            ("dbo.Orders", TableName::qualified("dbo", "Orders")),
            (
                "sales.\"a.b \"\"c\"\"\"",
                TableName::qualified("sales", "a.b \"c\""),
            ),
            ("\"1st\"", TableName::unqualified("1st")),
        ] {
            assert_eq!(table.to_string(), text);
            let json = serde_json::to_string(&table).unwrap();
            assert_eq!(serde_json::from_str::<TableName>(&json).unwrap(), table);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for bad in [
            "", "a b", "a.", ".a", "a..b", "a.b.c", "\"open", "\"\"", "a;drop", "1a", "a'b",
        ] {
            assert!(TableName::parse(bad, Fold::Lower).is_err(), "{bad:?}");
        }
        assert!(TableName::parse_column("a.b", Fold::Lower).is_err());
    }
}
