//! Conditions judged here, over one row as JSON, for what no database filters.
//!
//! As in SQL there are three outcomes, and what is compared with null is neither true nor false. Unlike in SQL texts are
//! compared character by character, without a collation, and `like` knows cases. Values that cannot be compared are an
//! error and not a guess.

use std::cmp::Ordering;

use serde_json::Value;

use super::{Comparison, Condition, Operand, Test};
use crate::{Error, Result};

type Row = serde_json::Map<String, Value>;

impl Condition {
    /// Whether it is true of a row.
    pub fn holds(&self, row: &Row) -> Result<bool> {
        Ok(self.judge(row)? == Some(true))
    }

    fn judge(&self, row: &Row) -> Result<Option<bool>> {
        match self {
            Condition::And(all) => joined(all, row, false),
            Condition::Or(all) => joined(all, row, true),
            Condition::Not(inner) => Ok(inner.judge(row)?.map(|truth| !truth)),
            Condition::Compare(left, comparison, right) => {
                let order: Option<Ordering> = compare(&left.value(row)?, &right.value(row)?)?;
                Ok(order.map(|order| comparison.is(order)))
            }
            Condition::Test { value, not, test } => {
                let truth = test.judge(&value.value(row)?, row)?;
                Ok(truth.map(|truth| truth != *not))
            }
        }
    }
}

/// What decides is `decisive` for `or`, and its opposite for `and`.
fn joined(all: &[Condition], row: &Row, decisive: bool) -> Result<Option<bool>> {
    let mut unknown = false;
    for one in all {
        match one.judge(row)? {
            Some(truth) if truth == decisive => return Ok(Some(decisive)),
            Some(_) => {}
            None => unknown = true,
        }
    }
    Ok((!unknown).then_some(!decisive))
}

impl Test {
    fn judge(&self, value: &Value, row: &Row) -> Result<Option<bool>> {
        match self {
            Test::Null => Ok(Some(value.is_null())),
            Test::Same(other) => {
                let other = other.value(row)?;
                if value.is_null() || other.is_null() {
                    return Ok(Some(value.is_null() && other.is_null()));
                }
                Ok(compare(value, &other)?.map(Ordering::is_eq))
            }
            Test::In(all) => {
                let mut unknown = false;
                for one in all {
                    match compare(value, &one.value(row)?)? {
                        Some(Ordering::Equal) => return Ok(Some(true)),
                        Some(_) => {}
                        None => unknown = true,
                    }
                }
                Ok((!unknown).then_some(false))
            }
            Test::Like(pattern) => match value {
                Value::Null => Ok(None),
                Value::String(text) => {
                    let (text, pattern): (Vec<char>, Vec<char>) =
                        (text.chars().collect(), pattern.chars().collect());
                    Ok(Some(is_like(&text, &pattern)))
                }
                other => Err(Error::invalid(format!(
                    "{other} is no text, which `like` needs"
                ))),
            },
            Test::Between(low, high) => {
                let above = compare(value, &low.value(row)?)?.map(Ordering::is_ge);
                let below = compare(value, &high.value(row)?)?.map(Ordering::is_le);
                Ok(match (above, below) {
                    (Some(false), _) | (_, Some(false)) => Some(false),
                    (Some(true), Some(true)) => Some(true),
                    _ => None,
                })
            }
        }
    }
}

impl Comparison {
    fn is(self, order: Ordering) -> bool {
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
    fn value(&self, row: &Row) -> Result<Value> {
        match self {
            Operand::Column(_, name) => column(row, name).cloned().ok_or_else(|| no_column(name)),
            Operand::Text(text) => Ok(Value::String(text.clone())),
            Operand::Boolean(truth) => Ok(Value::Bool(*truth)),
            // As it was written: a number of this program may have fewer digits.
            Operand::Number(number) => serde_json::from_str(number.trim_start_matches('+'))
                .or_else(|_| Ok(Value::String(number.clone()))),
        }
    }
}

/// A column of a row, by its name as the row has it, or else as databases find names that differ in case.
pub fn column<'a>(row: &'a Row, name: &str) -> Option<&'a Value> {
    row.get(name).or_else(|| {
        let mut all = row.iter();
        all.find(|(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    })
}

/// The error for a column that a row does not have.
pub fn no_column(name: &str) -> Error {
    Error::invalid(format!("a row has no column '{name}'"))
}

/// Nothing if one of them is null.
fn compare(a: &Value, b: &Value) -> Result<Option<Ordering>> {
    let cannot = || Error::invalid(format!("{a} cannot be compared with {b}"));
    Ok(Some(match (a, b) {
        (Value::Null, _) | (_, Value::Null) => return Ok(None),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        // SQLite has no booleans.
        (Value::Bool(a), b) => numbers(if *a { "1" } else { "0" }, &digits(b).ok_or_else(cannot)?)
            .ok_or_else(cannot)?,
        (a, Value::Bool(b)) => numbers(&digits(a).ok_or_else(cannot)?, if *b { "1" } else { "0" })
            .ok_or_else(cannot)?,
        (a, b) => numbers(
            &digits(a).ok_or_else(cannot)?,
            &digits(b).ok_or_else(cannot)?,
        )
        .ok_or_else(cannot)?,
    }))
}

/// What may be a number as text: databases write large ones in quotes.
fn digits(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) => Some(number.to_string()),
        Value::String(text) => Some(text.clone()),
        _ => None,
    }
}

/// A decimal number: `0.DIGITS` times ten to the power. Zero has no digits.
struct Decimal {
    negative: bool,
    digits: Vec<u8>,
    power: i64,
}

impl Decimal {
    fn read(text: &str) -> Option<Decimal> {
        let text = text.trim();
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (rest, 0),
        };
        let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all: Vec<u8> = whole.bytes().chain(part.bytes()).collect();
        if all.is_empty() || !all.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let zeros = all.iter().take_while(|digit| **digit == b'0').count();
        let mut digits = all[zeros..].to_vec();
        while digits.last() == Some(&b'0') {
            digits.pop();
        }
        let length = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        Some(Decimal {
            negative: negative && !digits.is_empty(),
            power: length(whole.len()) - length(zeros) + i64::from(exponent),
            digits,
        })
    }

    fn sign(&self) -> i8 {
        match (self.digits.is_empty(), self.negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        }
    }
}

/// Exactly, whatever their length; nothing if one is no number.
fn numbers(a: &str, b: &str) -> Option<Ordering> {
    let (a, b) = (Decimal::read(a)?, Decimal::read(b)?);
    let size = || a.power.cmp(&b.power).then_with(|| a.digits.cmp(&b.digits));
    Some(a.sign().cmp(&b.sign()).then_with(|| match a.sign() {
        0 => Ordering::Equal,
        1 => size(),
        _ => size().reverse(),
    }))
}

/// `%` stands for any text, `_` for any character.
fn is_like(text: &[char], pattern: &[char]) -> bool {
    // Where the last `%` was, and how much of the text it stands for.
    let (mut at, mut of, mut back) = (0, 0, None);
    while at < text.len() {
        match pattern.get(of) {
            Some('%') => {
                of += 1;
                back = Some((at, of));
            }
            Some(c) if *c == '_' || *c == text[at] => {
                at += 1;
                of += 1;
            }
            _ => match &mut back {
                Some((from, after)) => {
                    *from += 1;
                    (at, of) = (*from, *after);
                }
                None => return false,
            },
        }
    }
    pattern[of..].iter().all(|c| *c == '%')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fold;

    fn judged(condition: &str) -> Result<Option<bool>> {
        let row: Row = serde_json::from_str(
            r#"{"id": 7, "status": "paid", "total": 100.50, "Note": null, "flag": true, "one": 1,
                "big": "9007199254740993", "less": -2.5e3}"#,
        )
        .unwrap();
        Condition::parse_row(condition, Fold::Keep)
            .unwrap()
            .judge(&row)
    }

    #[test]
    fn conditions_are_judged_as_sql_judges_them() {
        for (condition, truth) in [
            ("status = 'paid'", Some(true)),
            ("status <> 'paid'", Some(false)),
            ("STATUS = 'paid' and total > 100", Some(true)),
            ("total = 100.5", Some(true)),
            ("total between 100.51 and 200", Some(false)),
            ("big > 9007199254740992", Some(true)),
            ("big = 9007199254740993", Some(true)),
            ("less < -2499", Some(true)),
            ("less >= -2500.0", Some(true)),
            ("id in (1, 7)", Some(true)),
            ("id not in (1, 2)", Some(true)),
            ("note is null", Some(true)),
            ("note is not null", Some(false)),
            ("note = 'x'", None),
            ("not note = 'x'", None),
            ("note = 'x' or id = 7", Some(true)),
            ("note = 'x' and id = 8", Some(false)),
            ("note = 'x' and id = 7", None),
            ("note is distinct from 'x'", Some(true)),
            ("id is 7", Some(true)),
            ("status like 'p%d'", Some(true)),
            ("status like '_ai_'", Some(true)),
            ("status like 'P%'", Some(false)),
            ("status not like '%aid%x'", Some(true)),
            ("flag = true", Some(true)),
            ("one = true", Some(true)),
            ("total > id", Some(true)),
        ] {
            assert_eq!(judged(condition).unwrap(), truth, "{condition}");
        }
    }

    #[test]
    fn what_cannot_be_compared_is_said() {
        for (condition, said) in [
            ("status > 5", "cannot be compared"),
            ("missing = 5", "no column 'missing'"),
            ("id like '7%'", "is no text"),
        ] {
            let error = judged(condition).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
