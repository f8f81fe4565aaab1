//! What a function has done with a batch.

use std::collections::BTreeMap;
use std::fmt::Display;

use changefeed_core::{Batch, BatchOutcome, Part};
use serde::Deserialize;

/// How many different errors are kept of the rows of one batch.
const ERRORS: usize = 16;

/// What a function has done with a batch: everything, or everything but some rows, which are tried again alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Handled {
    failed: BTreeMap<usize, String>,
}

impl From<()> for Handled {
    fn from((): ()) -> Self {
        Handled::all()
    }
}

impl Handled {
    /// All of it.
    pub fn all() -> Self {
        Handled::default()
    }

    /// All but these changes: each by its place in the batch, counted from 0, and with what went wrong.
    pub fn except<E: Display>(failed: impl IntoIterator<Item = (usize, E)>) -> Self {
        let failed = failed.into_iter();
        Handled {
            failed: failed
                .map(|(place, error)| (place, error.to_string()))
                .collect(),
        }
    }

    /// Whether no row has failed.
    pub fn is_all(&self) -> bool {
        self.failed.is_empty()
    }

    /// Reads what a command or a webhook says: `{"failed": [0, {"index": 4, "error": "no such address"}]}`.
    /// Anything that does not say so is no answer, and everything is handled.
    pub(crate) fn read(said: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "a failed row is its index, or {\"index\": …, \"error\": \"…\"}"
        )]
        enum Row {
            Index(usize),
            Told { index: usize, error: Option<String> },
        }
        #[derive(Deserialize)]
        struct Answer {
            failed: Option<Vec<Row>>,
        }
        if !said.trim_start().starts_with('{') || !said.contains("\"failed\"") {
            return Ok(Handled::all());
        }
        let answer: Answer =
            serde_json::from_str(said).map_err(|e| format!("its answer cannot be read: {e}"))?;
        let failed = answer.failed.unwrap_or_default().into_iter().map(|row| {
            let (index, error) = match row {
                Row::Index(index) => (index, None),
                Row::Told { index, error } => (index, error),
            };
            (
                index,
                error.unwrap_or_else(|| "the function says that it has failed".to_owned()),
            )
        });
        Ok(Handled::except(failed))
    }

    /// What is to be stored about a batch of which these changes were handed over. What has failed comes last: whoever
    /// is stopped in between has done the rest for good.
    pub(super) fn outcomes(
        self,
        batch: &Batch,
        handed: &Batch,
    ) -> Result<Vec<(Part, BatchOutcome)>, String> {
        if self.is_all() {
            return Ok(vec![(Part::Whole, BatchOutcome::Done)]);
        }
        let mut by_error: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        let mut versions = Vec::new();
        for (place, error) in self.failed {
            let Some(change) = handed.changes.get(place) else {
                let rows = handed.changes.len();
                return Err(format!(
                    "it says that row {place} has failed, of a batch of {rows} that begins with 0"
                ));
            };
            versions.push(change.version);
            let kept = by_error.len();
            match by_error.get_mut(&error) {
                Some(rows) => rows.push(change.version),
                None if kept < ERRORS => {
                    by_error.insert(error, vec![change.version]);
                }
                None => {
                    let others = "one of many errors of this batch".to_owned();
                    by_error.entry(others).or_default().push(change.version);
                }
            }
        }
        let mut outcomes = Vec::new();
        if versions.len() < batch.changes.len() {
            outcomes.push((Part::Without(versions), BatchOutcome::Done));
        }
        outcomes.extend(
            by_error
                .into_iter()
                .map(|(error, versions)| (Part::Only(versions), BatchOutcome::Failed { error })),
        );
        Ok(outcomes)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use changefeed_core::{RowChange, RowOperation};
    use serde_json::value::RawValue;

    use super::*;

    fn batch(versions: &[i64]) -> Batch {
        let change = |version: &i64| RowChange {
            operation: RowOperation::Update,
            item: RawValue::NULL.to_owned(),
            version: *version,
            bits: 0,
            columns: None,
            before: None,
            images: None,
        };
        Batch {
            changes: versions.iter().map(change).collect(),
            ..Batch::leased(1, (1, 9), 1, Instant::now())
        }
    }

    #[test]
    fn an_answer_names_rows() {
        let read = |said: &str| Handled::read(said).unwrap();
        for said in [
            "",
            "sent 5 mails",
            "{}",
            "{\"ok\": true}",
            "{\"failed\": []}",
            "{ not json",
        ] {
            assert!(read(said).is_all(), "{said}");
        }
        let said = "\n{\"failed\": [0, {\"index\": 2, \"error\": \"full\"}], \"took\": 5}";
        let unsaid = "the function says that it has failed";
        assert_eq!(read(said), Handled::except([(0, unsaid), (2, "full")]));
        for said in ["{\"failed\": 1}", "{\"failed\": [-1]}", "{\"failed\": [0"] {
            assert!(Handled::read(said).is_err(), "{said}");
        }
    }

    #[test]
    fn what_was_done_is_stored_first_and_what_was_not_by_its_errors() {
        let (whole, handed) = (batch(&[1, 2, 3, 4]), batch(&[2, 4]));
        let outcomes = |handled: Handled| {
            let outcomes = handled.outcomes(&whole, &handed)?;
            Ok::<_, String>(
                outcomes
                    .into_iter()
                    .map(|(part, _)| part)
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(outcomes(Handled::all()).unwrap(), [Part::Whole]);
        let some = Handled::except([(1, "full")]);
        assert_eq!(
            outcomes(some).unwrap(),
            [Part::Without(vec![4]), Part::Only(vec![4])]
        );
        let both = Handled::except([(0, "full"), (1, "gone")]);
        let parts = [
            Part::Without(vec![2, 4]),
            Part::Only(vec![2]),
            Part::Only(vec![4]),
        ];
        assert_eq!(outcomes(both).unwrap(), parts);
        assert!(outcomes(Handled::except([(2, "?")])).is_err());
        let many: Vec<i64> = (1..=1000).collect();
        let many = batch(&many);
        let each = Handled::except((0..1000).map(|n| (n, format!("error {n}"))));
        let outcomes = each.outcomes(&many, &many).unwrap();
        assert_eq!(outcomes.len(), ERRORS + 1);
    }
}
