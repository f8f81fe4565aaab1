//! Which net changes of rows a function is handed, and what of them.

use serde_json::value::RawValue;

use crate::condition::{JsonRow, known_as};
use crate::{
    Batch, BatchFormat, Condition, Error, Fold, Images, Result, RowChange, RowOperation, TableName,
};

/// Which changes a function is handed. Everything, unless something is asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowFilter {
    /// Only these operations; all if empty.
    pub on: Vec<RowOperation>,
    /// Only rows of which this condition is true. To the function, a table has just these rows: one that comes to be
    /// like that is an insert, one that is not like that any more is a delete.
    pub when: Option<String>,
    /// Only these columns, beside the key, and no update that changed none of them; all if empty.
    pub columns: Vec<String>,
}

impl RowFilter {
    /// Whether it has to be noted which columns were changed.
    pub fn needs_columns(&self) -> bool {
        !self.columns.is_empty()
    }

    /// Whether it has to be noted what rows were before they were changed.
    pub fn needs_before(&self) -> bool {
        self.when.is_some()
    }

    /// Checks what can be checked without a database.
    pub fn validate(&self) -> Result<()> {
        self.sieve(Fold::Keep, BatchFormat::default()).map(drop)
    }

    /// Checks that a table has the columns that are named.
    pub fn check_columns<S: AsRef<str>>(
        &self,
        table: &TableName,
        columns: &[S],
        fold: Fold,
    ) -> Result<()> {
        let sieve = self.sieve(fold, BatchFormat::default())?;
        let asked = sieve.when.iter().flat_map(Condition::columns);
        for name in asked.chain(sieve.columns.iter().map(String::as_str)) {
            let same = |column: &S| known_as(column.as_ref(), fold) == known_as(name, fold);
            if !columns.iter().any(same) {
                let known: Vec<&str> = columns.iter().map(AsRef::as_ref).collect();
                return Err(Error::invalid(format!("{table} has no column '{name}'"))
                    .advise(format!("its columns are {}", known.join(", "))));
            }
        }
        Ok(())
    }

    /// Prepares it for a database.
    pub fn sieve(&self, fold: Fold, format: BatchFormat) -> Result<RowSieve> {
        let when = self.when.as_deref();
        let columns = self.columns.iter();
        Ok(RowSieve {
            on: self.on.clone(),
            when: when.map(|c| Condition::parse_row(c, fold)).transpose()?,
            columns: columns
                .map(|c| TableName::parse_column(c, fold))
                .collect::<Result<_>>()?,
            before: format.before,
            fold,
        })
    }
}

/// A filter at work.
#[derive(Debug, Clone)]
pub struct RowSieve {
    on: Vec<RowOperation>,
    when: Option<Condition>,
    columns: Vec<String>,
    before: bool,
    fold: Fold,
}

impl RowSieve {
    /// Whether everything goes through as it is.
    pub fn is_open(&self) -> bool {
        self.on.is_empty() && self.when.is_none() && self.columns.is_empty() && !self.before
    }

    /// The changes of a batch that a function is handed.
    pub fn sift(&self, batch: &Batch) -> Vec<RowChange> {
        let changes = batch.changes.iter();
        changes
            .filter_map(|c| self.hand_over(c, &batch.key))
            .collect()
    }

    fn hand_over(&self, change: &RowChange, key: &[String]) -> Option<RowChange> {
        let operation = self.operation(change)?;
        if !(self.on.is_empty() || self.on.contains(&operation)) {
            return None;
        }
        let listed = |name: &str| self.columns.iter().any(|c| self.same(c, name));
        let mut columns = change.columns.clone();
        if let Some(changed) = columns.as_mut().filter(|_| !self.columns.is_empty()) {
            changed.retain(|name| listed(name));
            if changed.is_empty() && operation == RowOperation::Update {
                return None;
            }
        }
        let is_key = |name: &str| key.iter().any(|k| self.same(k, name));
        let shown = |name: &str| self.columns.is_empty() || listed(name) || is_key(name);
        let item = match (operation, change.operation) {
            (RowOperation::Delete, RowOperation::Delete) => change.item.clone(),
            (RowOperation::Delete, _) => only(&change.item, is_key),
            _ if self.columns.is_empty() => change.item.clone(),
            _ => only(&change.item, shown),
        };
        let before = change.images.as_ref().and_then(Images::first);
        Some(RowChange {
            operation,
            item,
            version: change.version,
            bits: change.bits,
            columns,
            before: before
                .filter(|_| self.before && operation != RowOperation::Insert)
                .map(|row| only(row, shown)),
            images: None,
        })
    }

    /// What a change is to a function that has only been handed rows for which the condition was true; nothing
    /// where the row is none of them and never was.
    fn operation(&self, change: &RowChange) -> Option<RowOperation> {
        let Some(when) = &self.when else {
            return Some(change.operation);
        };
        let is_true =
            |row: &RawValue| JsonRow::read(row, self.fold).is_some_and(|row| when.is_true_of(&row));
        // What was not noted is what the database believes: the function may have been handed it.
        let known = change.operation != RowOperation::Insert;
        let images = change.images.as_ref();
        if change.operation != RowOperation::Delete && is_true(&change.item) {
            let had = images.map_or(known, |images| images.first().is_some_and(is_true));
            return Some(match had {
                true => RowOperation::Update,
                false => RowOperation::Insert,
            });
        }
        // A reader may have been handed any of them, between two of the changes.
        let had = images.map_or(known, |images| {
            images.more || images.rows.iter().flatten().any(|row| is_true(row))
        });
        had.then_some(RowOperation::Delete)
    }

    fn same(&self, one: &str, other: &str) -> bool {
        known_as(one, self.fold) == known_as(other, self.fold)
    }
}

/// A row with some of its columns, as the database wrote them.
fn only(row: &RawValue, wanted: impl Fn(&str) -> bool) -> Box<RawValue> {
    struct Columns<'a>(Vec<(String, &'a RawValue)>);
    impl<'de: 'a, 'a> serde::Deserialize<'de> for Columns<'a> {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Visitor;
            impl<'de> serde::de::Visitor<'de> for Visitor {
                type Value = Vec<(String, &'de RawValue)>;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("a row")
                }
                fn visit_map<A: serde::de::MapAccess<'de>>(
                    self,
                    mut map: A,
                ) -> Result<Self::Value, A::Error> {
                    let mut columns = Vec::new();
                    while let Some(column) = map.next_entry()? {
                        columns.push(column);
                    }
                    Ok(columns)
                }
            }
            deserializer.deserialize_map(Visitor).map(Columns)
        }
    }
    let Ok(Columns(columns)) = serde_json::from_str::<Columns<'_>>(row.get()) else {
        return row.to_owned();
    };
    let mut text = String::from("{");
    for (name, value) in columns.iter().filter(|(name, _)| wanted(name)) {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&serde_json::Value::from(name.as_str()).to_string());
        text.push(':');
        text.push_str(value.get());
    }
    text.push('}');
    RawValue::from_string(text).unwrap_or_else(|_| row.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    fn change(operation: RowOperation, item: &str, images: Option<&str>) -> RowChange {
        RowChange {
            operation,
            item: raw(item),
            version: 1,
            bits: 0,
            columns: None,
            before: None,
            images: images.map(|text| Images::read(text).unwrap()),
        }
    }

    fn sifted(filter: &RowFilter, change: &RowChange) -> Option<(RowOperation, String)> {
        let format = BatchFormat::default();
        let sieve = filter.sieve(Fold::Lower, format).unwrap();
        let handed = sieve.hand_over(change, &["id".to_owned()])?;
        Some((handed.operation, handed.item.get().to_owned()))
    }

    #[test]
    fn a_row_comes_and_goes_with_the_condition() {
        use RowOperation::{Delete, Insert, Update};
        let paid = RowFilter {
            when: Some("paid = true".to_owned()),
            ..RowFilter::default()
        };
        let (yes, no, gone) = (
            r#"{"id":1,"paid":true}"#,
            r#"{"id":1,"paid":false}"#,
            r#"{"id":1}"#,
        );
        let told = |operation, item, images: Option<String>| {
            sifted(&paid, &change(operation, item, images.as_deref()))
        };
        let list = |rows: &[&str]| Some(format!("[{}]", rows.join(",")));
        let handed = |operation, item: &str| Some((operation, item.to_owned()));
        assert_eq!(told(Insert, yes, list(&["null"])), handed(Insert, yes));
        assert_eq!(told(Insert, no, list(&["null"])), None);
        assert_eq!(told(Update, yes, list(&[no])), handed(Insert, yes));
        assert_eq!(told(Update, yes, list(&[yes])), handed(Update, yes));
        assert_eq!(told(Update, no, list(&[yes])), handed(Delete, gone));
        assert_eq!(told(Update, no, list(&[no])), None);
        assert_eq!(told(Delete, gone, list(&[yes])), handed(Delete, gone));
        assert_eq!(told(Delete, gone, list(&[no])), None);
        // It was one of them for a moment, in which it may have been handed over.
        assert_eq!(told(Update, no, list(&[no, yes])), handed(Delete, gone));
        assert_eq!(told(Update, no, list(&[no, "true"])), handed(Delete, gone));
        // Nobody knows what it was.
        assert_eq!(told(Update, no, None), handed(Delete, gone));
        assert_eq!(told(Update, yes, None), handed(Update, yes));
        assert_eq!(told(Insert, no, None), None);
        assert_eq!(told(Delete, gone, None), handed(Delete, gone));
    }

    #[test]
    fn columns_are_shown_with_the_key_and_others_change_nothing() {
        let filter = RowFilter {
            columns: vec!["b".to_owned()],
            ..RowFilter::default()
        };
        let item = r#"{"a":1.50,"id":1,"b":"x","c":null}"#;
        let mut update = change(
            RowOperation::Update,
            item,
            Some(r#"[{"id":1,"a":2,"b":"y"}]"#),
        );
        let (_, shown) = sifted(&filter, &update).unwrap();
        assert_eq!(shown, r#"{"id":1,"b":"x"}"#);
        update.columns = Some(vec!["a".to_owned()]);
        assert_eq!(sifted(&filter, &update), None);
        update.columns = Some(vec!["a".to_owned(), "b".to_owned()]);
        let format = BatchFormat {
            before: true,
            ..BatchFormat::default()
        };
        let sieve = filter.sieve(Fold::Lower, format).unwrap();
        let handed = sieve.hand_over(&update, &["id".to_owned()]).unwrap();
        assert_eq!(handed.columns.unwrap(), ["b"]);
        assert_eq!(handed.before.unwrap().get(), r#"{"id":1,"b":"y"}"#);
    }

    #[test]
    fn only_some_operations() {
        let filter = RowFilter {
            on: vec![RowOperation::Delete],
            ..RowFilter::default()
        };
        assert!(sifted(&filter, &change(RowOperation::Insert, "{}", None)).is_none());
        assert!(sifted(&filter, &change(RowOperation::Delete, "{}", None)).is_some());
    }

    #[test]
    fn a_column_that_is_not_there_is_named() {
        let filter = RowFilter {
            when: Some("stauts = 'paid'".to_owned()),
            ..RowFilter::default()
        };
        let table = TableName::unqualified("orders");
        let error = filter
            .check_columns(&table, &["id", "status"], Fold::Lower)
            .unwrap_err();
        assert_eq!(error.to_string(), "orders has no column 'stauts'");
        let any_case = RowFilter {
            columns: vec!["STATUS".to_owned()],
            ..RowFilter::default()
        };
        assert!(
            any_case
                .check_columns(&table, &["id", "Status"], Fold::Keep)
                .is_ok()
        );
    }
}
