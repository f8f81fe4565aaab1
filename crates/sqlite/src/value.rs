//! Rows as JSON.
//!
//! Integers are exact, reals are the shortest text that reads back as the same number (infinity,
//! which JSON cannot hold, is the text `"Infinity"`), blobs are `\x` and lower-case hex as
//! PostgreSQL writes them, and bytes in a text that are not UTF-8 become `U+FFFD`.

use std::fmt::Write;

use changefeed_core::{Error, Kind, Result};
use rusqlite::types::ValueRef;
use rusqlite::{Row, RowIndex};
use serde::ser::{Error as _, SerializeMap};
use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use crate::error::Explain;

/// The columns of a row from the given one on, as a JSON object.
pub(crate) fn to_json(row: &Row<'_>, names: &[String], from: usize) -> Result<Box<RawValue>> {
    to_raw_value(&Columns { row, names, from }).map_err(|error| {
        Error::new(Kind::Database, "a row could not be written as JSON").caused_by(error)
    })
}

/// JSON that a trigger of ours wrote, in this column. Bytes that are not UTF-8 were in a text of
/// the application, see above.
pub(crate) fn raw(row: &Row<'_>, column: impl RowIndex) -> Result<Option<Box<RawValue>>> {
    let bytes = match row.get_ref(column).explained()? {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes,
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => return Ok(None),
    };
    let text = String::from_utf8_lossy(bytes);
    // Whatever it is, it must not keep others from being read: what is no JSON becomes a text.
    RawValue::from_string(text.clone().into_owned())
        .or_else(|_| to_raw_value(&text))
        .map(Some)
        .map_err(|error| {
            Error::new(Kind::Database, "an event could not be read as JSON").caused_by(error)
        })
}

struct Columns<'a> {
    row: &'a Row<'a>,
    names: &'a [String],
    from: usize,
}

impl Serialize for Columns<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(Some(self.names.len()))?;
        for (place, name) in self.names.iter().enumerate() {
            let value = self
                .row
                .get_ref(self.from + place)
                .map_err(S::Error::custom)?;
            object.serialize_entry(name, &Json(value))?;
        }
        object.end()
    }
}

struct Json<'a>(ValueRef<'a>);

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            ValueRef::Null => serializer.serialize_unit(),
            ValueRef::Integer(n) => serializer.serialize_i64(n),
            ValueRef::Real(n) if n == f64::INFINITY => serializer.serialize_str("Infinity"),
            ValueRef::Real(n) if n == f64::NEG_INFINITY => serializer.serialize_str("-Infinity"),
            ValueRef::Real(n) => serializer.serialize_f64(n),
            ValueRef::Text(bytes) => serializer.serialize_str(&String::from_utf8_lossy(bytes)),
            ValueRef::Blob(bytes) => {
                let mut hex = String::with_capacity(2 + 2 * bytes.len());
                hex.push_str("\\x");
                for byte in bytes {
                    write!(hex, "{byte:02x}").map_err(S::Error::custom)?;
                }
                serializer.serialize_str(&hex)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    #[test]
    fn every_kind_of_value_has_its_json() {
        let connection = Connection::open_in_memory().unwrap();
        let mut statement = connection
            .prepare(
                "select 9223372036854775807 as a, -1 as \"b\"\"c\", 0.1 + 0.2 as d, 1.0 as e, \
                 9e999 as f, -9e999 as g, 'q\"uote' || char(10) as h, x'00ffab' as i, null as j, \
                 cast(x'61ff62' as text) as k",
            )
            .unwrap();
        let names: Vec<String> = statement
            .column_names()
            .iter()
            .map(|n| n.to_string())
            .collect();
        let mut rows = statement.query([]).unwrap();
        let row = rows.next().unwrap().unwrap();
        let json = super::to_json(row, &names, 0).unwrap();
        assert_eq!(
            json.get(),
            "{\"a\":9223372036854775807,\"b\\\"c\":-1,\"d\":0.30000000000000004,\"e\":1.0,\
             \"f\":\"Infinity\",\"g\":\"-Infinity\",\"h\":\"q\\\"uote\\n\",\
             \"i\":\"\\\\x00ffab\",\"j\":null,\"k\":\"a\u{fffd}b\"}"
        );
    }
}
