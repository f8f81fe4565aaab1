//! A net change of a row, and a batch of them as its function gets it.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::{Error, Result};

/// What happened to a row since the function was last handed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowOperation {
    /// The function has not seen the row yet.
    Insert,
    /// The row is another than before.
    Update,
    /// The row is gone.
    Delete,
}

impl RowOperation {
    /// The number that stands for it in batches and in our tables.
    pub fn number(self) -> i16 {
        match self {
            RowOperation::Insert => 0,
            RowOperation::Update => 1,
            RowOperation::Delete => 2,
        }
    }

    /// The operation behind a number.
    pub fn from_number(number: i64) -> Result<Self> {
        match number {
            0 => Ok(RowOperation::Insert),
            1 => Ok(RowOperation::Update),
            2 => Ok(RowOperation::Delete),
            other => Err(Error::invalid(format!("{other} is not an operation"))
                .advise("0 is an insert, 1 an update, 2 a delete")),
        }
    }
}

impl fmt::Display for RowOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RowOperation::Insert => "insert",
            RowOperation::Update => "update",
            RowOperation::Delete => "delete",
        })
    }
}

impl Serialize for RowOperation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i16(self.number())
    }
}

impl<'de> Deserialize<'de> for RowOperation {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(deserializer)?;
        RowOperation::from_number(number).map_err(serde::de::Error::custom)
    }
}

/// A net change of one row. As JSON it is `{"Operation": 1, "Item": {…}}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RowChange<T = Box<RawValue>> {
    /// What happened.
    #[serde(rename = "Operation")]
    pub operation: RowOperation,
    /// The row as it is now with all its columns; only the key if it is gone.
    #[serde(rename = "Item")]
    pub item: T,
    /// The version of this change: grows with every change of the table's rows.
    #[serde(skip)]
    pub version: i64,
    /// Chance, drawn when this version was first handed over: a database that was restored from a backup gives
    /// the same version again, to another change.
    #[serde(skip)]
    pub bits: i64,
    /// The columns that were written anew since the function was last handed the row. Only of
    /// updates, where the watch asks for them; nothing where any column may have changed.
    #[serde(skip)]
    pub columns: Option<Vec<String>>,
}

/// What a batch tells besides operations and items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchFormat {
    /// `"Version"`, the version of each change.
    pub version: bool,
    /// `"ChangedColumns"` of each update; null where any column may have changed.
    pub columns: bool,
}

/// A batch as its function gets it: the JSON array of its changes.
pub fn batch_json(changes: &[RowChange], format: BatchFormat) -> Result<String> {
    #[derive(Serialize)]
    struct Formatted<'a> {
        #[serde(flatten)]
        change: &'a RowChange,
        // A text, because JSON readers round large numbers.
        #[serde(rename = "Version", skip_serializing_if = "Option::is_none")]
        version: Option<String>,
        #[serde(rename = "ChangedColumns", skip_serializing_if = "Option::is_none")]
        columns: Option<&'a Option<Vec<String>>>,
    }
    let formatted: Vec<Formatted<'_>> = changes
        .iter()
        .map(|change| Formatted {
            change,
            version: format.version.then(|| change.version.to_string()),
            columns: (format.columns && change.operation == RowOperation::Update)
                .then_some(&change.columns),
        })
        .collect();
    serde_json::to_string(&formatted)
        .map_err(|e| Error::invalid("a batch cannot be written as JSON").caused_by(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_an_array_of_operations_and_items_as_the_database_wrote_them() {
        let item = RawValue::from_string("{\"id\":9223372036854775807,\"x\":1.50}".into()).unwrap();
        let change = RowChange {
            operation: RowOperation::Update,
            item,
            version: 17,
            bits: 0,
            columns: Some(vec!["x".into()]),
        };
        let unknown = RowChange {
            columns: None,
            ..change.clone()
        };
        let json = |changes: &[RowChange], version, columns| {
            batch_json(changes, BatchFormat { version, columns }).unwrap()
        };
        let one = "{\"Operation\":1,\"Item\":{\"id\":9223372036854775807,\"x\":1.50}";
        let changes = [change, unknown];
        assert_eq!(json(&changes[..1], false, false), format!("[{one}}}]"));
        assert_eq!(
            json(&changes, true, true),
            format!(
                "[{one},\"Version\":\"17\",\"ChangedColumns\":[\"x\"]}},\
                 {one},\"Version\":\"17\",\"ChangedColumns\":null}}]"
            )
        );
        let deleted = RowChange {
            operation: RowOperation::Delete,
            ..changes[0].clone()
        };
        assert!(json(&[deleted], false, true).ends_with("1.50}}]"));
    }
}
