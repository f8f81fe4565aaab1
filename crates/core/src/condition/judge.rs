//! Whether a condition is true of a row that is given as JSON: for rows that no database can be asked about any more.
//!
//! It is SQL's logic with its third value. Numbers are compared as numbers, however long they are; texts by their
//! characters, where case matters; what is neither, like a timestamp, is the text that the database writes. A number
//! and a text are compared as numbers if the text is one.

use std::cmp::Ordering;
use std::collections::HashMap;

use serde_json::value::RawValue;

use super::{Comparison, Condition, Operand, Test};
use crate::Fold;

/// A row by its columns.
#[derive(Debug)]
pub struct JsonRow<'a> {
    columns: HashMap<String, &'a RawValue>,
    fold: Fold,
}

impl<'a> JsonRow<'a> {
    /// Reads a row; nothing of what is no JSON object.
    pub fn read(row: &'a RawValue, fold: Fold) -> Option<Self> {
        let columns: HashMap<String, &RawValue> = serde_json::from_str(row.get()).ok()?;
        let columns = columns
            .into_iter()
            .map(|(name, v)| (known_as(&name, fold), v));
        Some(JsonRow {
            columns: columns.collect(),
            fold,
        })
    }

    /// The value of a column, as it was written.
    pub fn column(&self, name: &str) -> Option<&'a RawValue> {
        self.columns.get(&known_as(name, self.fold)).copied()
    }
}

/// Two names of columns that are the same here are one column.
pub(crate) fn known_as(name: &str, fold: Fold) -> String {
    match fold {
        Fold::Lower => name.to_owned(),
        Fold::Keep => name.to_ascii_lowercase(),
    }
}

/// A value that is not null.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Number(String),
    Text(String),
    Boolean(bool),
}

impl Condition {
    /// Whether it is true of a row: not if it is false, and not if it cannot be said, because of a null.
    pub fn is_true_of(&self, row: &JsonRow<'_>) -> bool {
        self.judge(row) == Some(true)
    }

    fn judge(&self, row: &JsonRow<'_>) -> Option<bool> {
        match self {
            Condition::And(all) => joined(all, row, false),
            Condition::Or(all) => joined(all, row, true),
            Condition::Not(inner) => inner.judge(row).map(|judged| !judged),
            Condition::Compare(left, comparison, right) => {
                let order = compare(&left.of(row)?, &right.of(row)?);
                Some(comparison.holds(order))
            }
            Condition::Test { value, not, test } => {
                test.judge(value.of(row), row).map(|judged| judged != *not)
            }
        }
    }
}

/// All of them, or one of them: as soon as one decides.
fn joined(all: &[Condition], row: &JsonRow<'_>, deciding: bool) -> Option<bool> {
    let mut joined = Some(!deciding);
    for one in all {
        match one.judge(row) {
            Some(judged) if judged == deciding => return Some(deciding),
            Some(_) => {}
            None => joined = None,
        }
    }
    joined
}

impl Test {
    fn judge(&self, value: Option<Value>, row: &JsonRow<'_>) -> Option<bool> {
        match self {
            Test::Null => Some(value.is_none()),
            Test::Same(other) => Some(match (value, other.of(row)) {
                (Some(one), Some(other)) => compare(&one, &other).is_eq(),
                (one, other) => one == other,
            }),
            Test::In(all) => {
                let value = value?;
                let mut found = Some(false);
                for one in all {
                    match one.of(row) {
                        Some(one) if compare(&value, &one).is_eq() => return Some(true),
                        Some(_) => {}
                        None => found = None,
                    }
                }
                found
            }
            Test::Like(pattern) => Some(is_like(&value?.text(), pattern)),
            Test::Between(low, high) => {
                let value = value?;
                let above = low.of(row).map(|low| compare(&value, &low).is_ge());
                let below = high.of(row).map(|high| compare(&value, &high).is_le());
                match (above, below) {
                    (Some(false), _) | (_, Some(false)) => Some(false),
                    (Some(true), Some(true)) => Some(true),
                    _ => None,
                }
            }
        }
    }
}

impl Comparison {
    fn holds(self, order: Ordering) -> bool {
        match self {
            Comparison::Equal => order.is_eq(),
            Comparison::NotEqual => order.is_ne(),
            Comparison::Less => order.is_lt(),
            Comparison::LessOrEqual => order.is_le(),
            Comparison::Greater => order.is_gt(),
            Comparison::GreaterOrEqual => order.is_ge(),
        }
    }
}

impl Operand {
    /// Its value in a row; nothing for null.
    fn of(&self, row: &JsonRow<'_>) -> Option<Value> {
        match self {
            Operand::Column(_, name) => {
                let raw = row.columns.get(&known_as(name, row.fold))?.get();
                Some(match raw.as_bytes().first()? {
                    b'n' => return None,
                    b't' => Value::Boolean(true),
                    b'f' => Value::Boolean(false),
                    b'"' => Value::Text(serde_json::from_str(raw).ok()?),
                    b'-' | b'0'..=b'9' => Value::Number(raw.to_owned()),
                    _ => Value::Text(raw.to_owned()),
                })
            }
            Operand::Text(text) => Some(Value::Text(text.clone())),
            Operand::Number(number) => Some(Value::Number(number.clone())),
            Operand::Boolean(value) => Some(Value::Boolean(*value)),
        }
    }
}

impl Value {
    fn text(&self) -> String {
        match self {
            Value::Number(text) | Value::Text(text) => text.clone(),
            Value::Boolean(value) => value.to_string(),
        }
    }

    /// As a number, if it is one. Databases without truth values write 1 and 0.
    fn number(&self) -> Option<Decimal> {
        match self {
            Value::Number(text) | Value::Text(text) => Decimal::read(text.trim()),
            Value::Boolean(value) => Decimal::read(if *value { "1" } else { "0" }),
        }
    }
}

fn compare(left: &Value, right: &Value) -> Ordering {
    let as_numbers = match (left, right) {
        (Value::Text(_), Value::Text(_)) | (Value::Boolean(_), Value::Boolean(_)) => false,
        // A truth value and the text of one.
        (Value::Boolean(_), Value::Text(_)) | (Value::Text(_), Value::Boolean(_)) => false,
        _ => true,
    };
    match (left.number(), right.number()) {
        (Some(left), Some(right)) if as_numbers && left.is_same_float(&right) => Ordering::Equal,
        (Some(left), Some(right)) if as_numbers => left.order(&right),
        _ => left.text().cmp(&right.text()),
    }
}

/// A number of any length: digits without zeros at their ends, and where the point is.
#[derive(Debug)]
struct Decimal {
    negative: bool,
    digits: Vec<u8>,
    /// The point is before the first digit if this is 0.
    point: i64,
}

impl Decimal {
    fn read(text: &str) -> Option<Decimal> {
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (rest, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all: Vec<u8> = whole.bytes().chain(fraction.bytes()).collect();
        if all.is_empty() || !all.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let zeros = all.iter().take_while(|digit| **digit == b'0').count();
        let mut digits = all[zeros..].to_vec();
        while digits.last() == Some(&b'0') {
            digits.pop();
        }
        let whole = i64::try_from(whole.len()).ok()? - i64::try_from(zeros).ok()?;
        Some(Decimal {
            negative: negative && !digits.is_empty(),
            point: if digits.is_empty() {
                0
            } else {
                whole + i64::from(exponent)
            },
            digits,
        })
    }

    /// Whether both are the same floating-point number: one of them was written with all the digits that such a
    /// number can have, as SQLite's rows as they were are.
    fn is_same_float(&self, other: &Decimal) -> bool {
        let is_long = |d: &Decimal| {
            let digits = d.digits.len() as i64;
            (16..=17).contains(&digits) && digits > d.point
        };
        (is_long(self) || is_long(other)) && self.float() == other.float()
    }

    fn float(&self) -> Option<f64> {
        let sign = if self.negative { "-" } else { "" };
        let digits = std::str::from_utf8(&self.digits).ok()?;
        format!("{sign}0.{digits}0e{}", self.point).parse().ok()
    }

    fn order(&self, other: &Decimal) -> Ordering {
        // Zero is below every positive and above every negative number.
        let sign = |d: &Decimal| match (d.digits.is_empty(), d.negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        };
        let size = (self.point, &self.digits).cmp(&(other.point, &other.digits));
        let size = if self.negative { size.reverse() } else { size };
        sign(self).cmp(&sign(other)).then(size)
    }
}

/// `%` stands for any text, `_` for any character.
fn is_like(text: &str, pattern: &str) -> bool {
    let (text, pattern): (Vec<char>, Vec<char>) =
        (text.chars().collect(), pattern.chars().collect());
    let (mut t, mut p) = (0, 0);
    // Where to go on if what follows the last % does not fit.
    let mut again: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('%') => {
                again = Some((t, p + 1));
                p += 1;
            }
            Some(c) if *c == '_' || *c == text[t] => {
                t += 1;
                p += 1;
            }
            _ => match again {
                Some((from, after)) => {
                    again = Some((from + 1, after));
                    (t, p) = (from + 1, after);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '%')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn judged(condition: &str, row: &str) -> bool {
        let raw = RawValue::from_string(row.to_owned()).unwrap();
        let row = JsonRow::read(&raw, Fold::Lower).unwrap();
        Condition::parse_row(condition, Fold::Lower)
            .unwrap()
            .is_true_of(&row)
    }

    #[test]
    fn conditions_are_judged_as_sql_would() {
        let row = r#"{"id":7,"total":100.50,"status":"paid","note":null,"vip":true,"flag":1,
                      "big":9007199254740993,"real":0.10000000000000001,"at":"2026-01-02T03:04:05+00:00","code":"12"}"#;
        for truth in [
            "status = 'paid' and total > 100",
            "total = 100.5 and total between 100 and 100.50",
            "status in ('new', 'paid')",
            "status like 'p_i%' and not status like 'P%'",
            "note is null and status is not null",
            "note is distinct from 'x' and note is not distinct from note",
            "vip = true and flag = true and vip <> false",
            "big > 9007199254740992 and big < 9007199254740994",
            "at >= '2026-01-01' and at < '2026-02-01'",
            "real = 0.1 and real < 0.11 and real > 0.09",
            "code = 12 and id = '7' and total > -1e3",
            "note = 'x' or id = 7",
        ] {
            assert!(judged(truth, row), "{truth}");
        }
        for other in [
            "status = 'Paid'",
            "note = 'x'",
            "not note = 'x'",
            "note <> 'x'",
            "note in ('x', 'y') or total < 0",
            "status in ('x', note)",
            "status not in ('x', note)",
            "unknown = 1",
            "total > 100.50",
            "note like '%'",
        ] {
            assert!(!judged(other, row), "{other}");
        }
    }

    proptest! {
        #[test]
        fn numbers_of_any_form_are_in_order(a in -1_000_000i64..1_000_000, b in -1_000_000i64..1_000_000, e in 0u32..4) {
            let scaled = format!("{}e-{e}", i128::from(a) * 10_i128.pow(e));
            let (left, right) = (Decimal::read(&scaled).unwrap(), Decimal::read(&format!("{b}.000")).unwrap());
            prop_assert_eq!(left.order(&right), a.cmp(&b));
        }

        #[test]
        fn a_text_is_like_what_was_made_from_it(text in "[ab]{0,8}", cut in 0usize..8) {
            let cut = cut.min(text.len());
            let begins = format!("{}%", &text[..cut]);
            let ends = format!("%{}", &text[cut..]);
            let any = "_".repeat(text.len());
            prop_assert!(is_like(&text, &begins) && is_like(&text, &ends) && is_like(&text, &any));
            let longer = format!("{any}_");
            prop_assert!(!is_like(&text, &longer));
        }
    }
}
