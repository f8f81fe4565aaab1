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

impl std::str::FromStr for RowOperation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [
            RowOperation::Insert,
            RowOperation::Update,
            RowOperation::Delete,
        ]
        .into_iter()
        .find(|operation| operation.to_string() == text)
        .ok_or_else(|| {
            Error::invalid(format!("'{text}' is not an operation"))
                .advise("use insert, update and delete")
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
    /// The row as it was before the first of the changes that are one here. Only of updates and deletes, where the
    /// watch asks for it; nothing where that is not known.
    #[serde(skip)]
    pub before: Option<T>,
    /// What was noted of the row as it was, where some function of the table asks for it: what filters go by.
    #[serde(skip)]
    pub images: Option<Images>,
}

/// The row as it was before each of the changes that are one, oldest first.
#[derive(Debug, Clone, Default)]
pub struct Images {
    /// Nothing for a row that was not there.
    pub rows: Vec<Option<Box<RawValue>>>,
    /// Whether there were more, after the first.
    pub more: bool,
}

impl PartialEq for Images {
    fn eq(&self, other: &Self) -> bool {
        let texts = |images: &Images| -> Vec<Option<String>> {
            let rows = images.rows.iter();
            rows.map(|row| row.as_ref().map(|row| row.get().to_owned()))
                .collect()
        };
        self.more == other.more && texts(self) == texts(other)
    }
}

impl Images {
    /// How many a backlog keeps of a row; of more than these only the first.
    pub const KEPT: usize = 16;

    /// Reads them as stores keep them: a JSON array with a row, `null` where there was none, and `true` where some
    /// were left out. Nothing where it is something else.
    pub fn read(text: &str) -> Option<Images> {
        let all: Vec<Box<RawValue>> = serde_json::from_str(text).ok()?;
        let mut images = Images::default();
        for one in all {
            match one.get() {
                "null" => images.rows.push(None),
                "true" => images.more = true,
                _ => images.rows.push(Some(one)),
            }
        }
        (!images.rows.is_empty()).then_some(images)
    }

    /// The row as it was before the first change.
    pub fn first(&self) -> Option<&RawValue> {
        self.rows.first()?.as_deref()
    }
}

/// What a batch tells besides operations and items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchFormat {
    /// `"Version"`, the version of each change.
    pub version: bool,
    /// `"ChangedColumns"` of each update; null where any column may have changed.
    pub columns: bool,
    /// `"Before"` of each update and delete, the row as it was; null where that is not known.
    pub before: bool,
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
        #[serde(rename = "Before", skip_serializing_if = "Option::is_none")]
        before: Option<Option<&'a RawValue>>,
    }
    let formatted: Vec<Formatted<'_>> = changes
        .iter()
        .map(|change| Formatted {
            change,
            version: format.version.then(|| change.version.to_string()),
            columns: (format.columns && change.operation == RowOperation::Update)
                .then_some(&change.columns),
            before: (format.before && change.operation != RowOperation::Insert)
                .then_some(change.before.as_deref()),
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
            before: None,
            images: None,
        };
        let unknown = RowChange {
            columns: None,
            ..change.clone()
        };
        let json = |changes: &[RowChange], version, columns| {
            let format = BatchFormat {
                version,
                columns,
                before: false,
            };
            batch_json(changes, format).unwrap()
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
        assert!(json(std::slice::from_ref(&deleted), false, true).ends_with("1.50}}]"));
        let before = RawValue::from_string("{\"id\":1}".into()).unwrap();
        let known = RowChange {
            before: Some(before),
            ..changes[0].clone()
        };
        let format = BatchFormat {
            before: true,
            ..BatchFormat::default()
        };
        let text = batch_json(&[known, deleted], format).unwrap();
        assert!(text.contains("\"Before\":{\"id\":1}}"), "{text}");
        assert!(text.ends_with("\"Before\":null}]"), "{text}");
    }

    #[test]
    fn images_are_read_as_they_are_kept() {
        let images = Images::read("[null,{\"a\":1.50},true]").unwrap();
        assert_eq!((images.rows.len(), images.more), (2, true));
        assert!(images.first().is_none());
        assert_eq!(images.rows[1].as_deref().unwrap().get(), "{\"a\":1.50}");
        assert!(Images::read("[]").is_none() && Images::read("{}").is_none());
    }
}
