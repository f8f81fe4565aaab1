//! What a subscription shows of its feed: some rows, or some columns. As in feeds that are made so, a row that is left out
//! has no image, and everything else follows from that: to the sink it comes and goes with its image.

use changefeed_core::{
    Change, Condition, Content, Error, Fold, JsonRow, Op, Result, SubscriptionDefinition,
    TableName, raw_json,
};
use serde_json::value::RawValue;

/// Leaves out what a subscription does not show.
#[derive(Debug)]
pub(super) struct Filter {
    when: Option<Condition>,
    columns: Option<Vec<String>>,
    fold: Fold,
}

impl Filter {
    pub(super) fn new(definition: &SubscriptionDefinition, fold: Fold) -> Result<Self> {
        let when = definition.when.as_deref();
        let columns = definition.columns.iter().flatten();
        let columns = columns.map(|name| TableName::parse_column(name, fold));
        let columns = columns.collect::<Result<Vec<_>>>()?;
        Ok(Filter {
            when: when
                .map(|when| Condition::parse_row(when, fold))
                .transpose()?,
            columns: definition.columns.is_some().then_some(columns),
            fold,
        })
    }

    /// What the sink gets of these changes. An error names the change that cannot be judged.
    pub(super) fn shown(&self, changes: Vec<Change>) -> Result<Vec<Change>> {
        if self.when.is_none() && self.columns.is_none() {
            return Ok(changes);
        }
        let mut shown = Vec::with_capacity(changes.len());
        for change in changes {
            let cursor = change.cursor;
            let judged = self.change(change);
            shown.extend(judged.map_err(|e| {
                Error::new(e.kind(), format!("change {cursor} cannot be judged: {e}"))
            })?);
        }
        Ok(shown)
    }

    fn change(&self, mut change: Change) -> Result<Option<Change>> {
        let Content::Images { old, new } = &change.content else {
            // A truncated table has no rows to be judged.
            return Ok(Some(change));
        };
        if old.is_none() && new.is_none() {
            return Ok(Some(change));
        }
        let before = old
            .as_deref()
            .map(|row| self.image(row))
            .transpose()?
            .flatten();
        let after = new
            .as_deref()
            .map(|row| self.image(row))
            .transpose()?
            .flatten();
        change.op = match (&before, &after) {
            (None, None) => return Ok(None),
            (Some(before), Some(after)) => {
                if self.columns.is_some() && before.get() == after.get() {
                    return Ok(None);
                }
                change.op
            }
            (None, Some(_)) if change.op == Some(Op::Update) => Some(Op::Insert),
            (Some(_), None) if change.op == Some(Op::Update) => Some(Op::Delete),
            _ => change.op,
        };
        change.content = Content::Images {
            old: before,
            new: after,
        };
        Ok(Some(change))
    }

    /// The row as it is shown, if it is.
    fn image(&self, row: &RawValue) -> Result<Option<Box<RawValue>>> {
        let read = JsonRow::read(row, self.fold)
            .ok_or_else(|| Error::defect("an image is no JSON object"))?;
        // A column that was dropped or renamed is told: leaving out every row would not be noticed.
        let value = |name: &str| {
            let missing = || Error::invalid(format!("a row has no column '{name}'"));
            read.column(name).ok_or_else(missing)
        };
        if let Some(when) = &self.when {
            when.columns()
                .into_iter()
                .try_for_each(|name| value(name).map(drop))?;
            if !when.is_true_of(&read) {
                return Ok(None);
            }
        }
        let Some(columns) = &self.columns else {
            return Ok(Some(row.to_owned()));
        };
        let mut text = String::from("{");
        for name in columns {
            let value = value(name)?;
            if text.len() > 1 {
                text.push(',');
            }
            text.push_str(&serde_json::Value::from(name.as_str()).to_string());
            text.push(':');
            text.push_str(value.get());
        }
        text.push('}');
        raw_json(text).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use changefeed_core::{Cursor, Sink};

    use super::*;

    fn told(op: Op, old: Option<&str>, new: Option<&str>) -> Change {
        let row = |text: &str| raw_json(text.to_owned()).unwrap();
        Change {
            cursor: Cursor::Number(1),
            change_id: None,
            op: Some(op),
            key: None,
            content: Content::Images {
                old: old.map(row),
                new: new.map(row),
            },
        }
    }

    fn filter(when: Option<&str>, columns: Option<&[&str]>) -> Filter {
        let mut definition =
            SubscriptionDefinition::new("s".parse().unwrap(), "f".parse().unwrap(), Sink::Stdout);
        definition.when = when.map(str::to_owned);
        definition.columns = columns.map(|all| all.iter().map(|&c| c.to_owned()).collect());
        Filter::new(&definition, Fold::Lower).unwrap()
    }

    fn seen(filter: &Filter, change: Change) -> Option<(Op, String, String)> {
        let change = filter.shown(vec![change]).unwrap().pop()?;
        let Content::Images { old, new } = change.content else {
            panic!("no images")
        };
        let text = |row: Option<Box<RawValue>>| row.map_or(String::new(), |r| r.get().to_owned());
        Some((change.op.unwrap(), text(old), text(new)))
    }

    #[test]
    fn a_row_comes_and_goes_with_the_condition() {
        let filter = filter(Some("a > 5"), None);
        let (low, high) = (r#"{"a":1}"#, r#"{"a":9}"#);
        let some = |op, old: &str, new: &str| Some((op, old.to_owned(), new.to_owned()));
        let ask = |op, old, new| seen(&filter, told(op, old, new));
        assert_eq!(ask(Op::Insert, None, Some(low)), None);
        assert_eq!(
            ask(Op::Insert, None, Some(high)),
            some(Op::Insert, "", high)
        );
        assert_eq!(
            ask(Op::Update, Some(low), Some(high)),
            some(Op::Insert, "", high)
        );
        assert_eq!(
            ask(Op::Update, Some(high), Some(low)),
            some(Op::Delete, high, "")
        );
        assert_eq!(ask(Op::Update, Some(low), Some(low)), None);
        assert_eq!(
            ask(Op::Delete, Some(high), None),
            some(Op::Delete, high, "")
        );
        assert_eq!(ask(Op::Backfill, None, Some(low)), None);
        assert!(ask(Op::Truncate, None, None).is_some());
    }

    #[test]
    fn columns_are_shown_as_they_were_written() {
        let filter = filter(None, Some(&["b", "a"]));
        let row = |a, c| format!(r#"{{"a":{a}, "b":1.000000000000000000001,"c":{c}}}"#);
        let ask = |old: &str, new: &str| seen(&filter, told(Op::Update, Some(old), Some(new)));
        assert_eq!(
            ask(&row(1, 1), &row(1, 2)),
            None,
            "nothing that is shown has changed"
        );
        let (_, _, new) = ask(&row(1, 1), &row(2, 1)).unwrap();
        assert_eq!(new, r#"{"b":1.000000000000000000001,"a":2}"#);
        let missing = filter.shown(vec![told(Op::Insert, None, Some(r#"{"a":1}"#))]);
        let error = missing.unwrap_err().to_string();
        assert!(error.contains("no column 'b'"), "{error}");
    }
}
