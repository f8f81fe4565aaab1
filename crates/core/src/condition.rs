//! Conditions that come over HTTP: a small language of ours.
//!
//! A condition runs inside the database, with the rights of whoever captures. SQL from a stranger
//! would be a way to call any function of the server, and a catalogue cannot tell which built-in
//! functions an expression calls. So what comes over HTTP is read here into a tree that has no
//! functions, and written anew for the database that it is for.
//!
//! ```text
//! condition   = conjunction { or conjunction }
//! conjunction = negation { and negation }
//! negation    = not negation | ( condition ) | comparison
//! comparison  = value ( = | <> | < | <= | > | >= ) value
//!             | value is [not] null
//!             | value is [not] [distinct from] value
//!             | value [not] in ( value { , value } )
//!             | value [not] like text
//!             | value [not] between value and value
//! value       = new.COLUMN | old.COLUMN | text | number | true | false
//! ```
//!
//! Which rows are in a feed is a condition over one row: there, a value is `COLUMN`.

mod judge;
mod parser;

use std::fmt::{self, Write};

pub use judge::JsonRow;
pub(crate) use judge::known_as;

use crate::Fold;

/// What is different between databases about names and conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dialect {
    /// What happens to names without quotes.
    pub fold: Fold,
    /// Whether a backslash in a text may mean something, depending on the session: texts that have
    /// one are then written as `E'…'`.
    pub backslashes: bool,
    /// Whether it knows `is distinct from`; otherwise `is not` says it.
    pub distinct_from: bool,
}

/// A condition over the old and the new row of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// All of them, two or more.
    And(Vec<Condition>),
    /// One of them, two or more.
    Or(Vec<Condition>),
    /// Not this one.
    Not(Box<Condition>),
    /// Two values are compared.
    Compare(Operand, Comparison, Operand),
    /// A value is tested.
    Test {
        /// The value.
        value: Operand,
        /// Whether the opposite is asked for.
        not: bool,
        /// For what.
        test: Test,
    },
}

/// What a value is tested for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    /// It is null.
    Null,
    /// It is the same as this, where null is the same as null.
    Same(Operand),
    /// It is one of these, of which there is at least one.
    In(Vec<Operand>),
    /// It is like this pattern, which has no backslashes: `%` stands for any text, `_` for any character.
    Like(String),
    /// It is between these two, or one of them.
    Between(Operand, Operand),
}

/// How two values are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `=`
    Equal,
    /// `<>`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
}

impl Comparison {
    const ALL: [(Comparison, &'static str); 6] = [
        (Comparison::Equal, "="),
        (Comparison::NotEqual, "<>"),
        (Comparison::Less, "<"),
        (Comparison::LessOrEqual, "<="),
        (Comparison::Greater, ">"),
        (Comparison::GreaterOrEqual, ">="),
    ];

    fn of(sign: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(_, known)| *known == sign);
        found.map(|(comparison, _)| *comparison)
    }

    fn sign(self) -> &'static str {
        let found = Self::ALL.iter().find(|(known, _)| *known == self);
        found.map_or("=", |(_, sign)| sign)
    }
}

/// Which of the two rows of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The row as it was.
    Old,
    /// The row as it is.
    New,
}

/// A value in a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operand {
    /// That of a column.
    Column(Side, String),
    /// A text without control characters.
    Text(String),
    /// A number as it is written: digits, perhaps with a sign, a fraction and an exponent.
    Number(String),
    /// True or false.
    Boolean(bool),
}

/// How a condition is written.
#[derive(Clone, Copy)]
struct Form<'a> {
    dialect: Dialect,
    /// The name of the row, if it is over one.
    row: Option<&'a str>,
}

impl Condition {
    /// As SQL for a database. It contains nothing but columns of `old` and `new` in quotes, literals,
    /// and the words and signs of the grammar.
    pub fn sql(&self, dialect: Dialect) -> String {
        self.written(Form { dialect, row: None })
    }

    /// The same over one row, which goes by this name.
    pub fn sql_of(&self, row: &str, dialect: Dialect) -> String {
        let row = Some(row);
        self.written(Form { dialect, row })
    }

    /// The columns that it looks at, as often as it does.
    pub fn columns(&self) -> Vec<&str> {
        let operands: Vec<&Operand> = match self {
            Condition::And(all) | Condition::Or(all) => {
                return all.iter().flat_map(Condition::columns).collect();
            }
            Condition::Not(inner) => return inner.columns(),
            Condition::Compare(left, _, right) => vec![left, right],
            Condition::Test { value, test, .. } => match test {
                Test::Null | Test::Like(_) => vec![value],
                Test::Same(other) => vec![value, other],
                Test::In(all) => std::iter::once(value).chain(all).collect(),
                Test::Between(low, high) => vec![value, low, high],
            },
        };
        operands
            .into_iter()
            .filter_map(|operand| match operand {
                Operand::Column(_, name) => Some(name.as_str()),
                _ => None,
            })
            .collect()
    }

    fn written(&self, form: Form<'_>) -> String {
        let mut sql = String::new();
        // Writing to a text cannot fail.
        let _ = self.write(&mut sql, form);
        sql
    }

    fn write(&self, sql: &mut String, form: Form<'_>) -> fmt::Result {
        match self {
            Condition::And(all) => self.joined(all, " and ", sql, form),
            Condition::Or(all) => self.joined(all, " or ", sql, form),
            Condition::Not(inner) => {
                sql.push_str("not ");
                self.part(inner, sql, form)
            }
            Condition::Compare(left, comparison, right) => {
                left.write(sql, form)?;
                write!(sql, " {} ", comparison.sign())?;
                right.write(sql, form)
            }
            Condition::Test { value, not, test } => {
                value.write(sql, form)?;
                test.write(*not, sql, form)
            }
        }
    }

    fn joined(
        &self,
        all: &[Condition],
        word: &str,
        sql: &mut String,
        form: Form<'_>,
    ) -> fmt::Result {
        for (n, one) in all.iter().enumerate() {
            if n > 0 {
                sql.push_str(word);
            }
            self.part(one, sql, form)?;
        }
        Ok(())
    }

    /// A part of this condition, in parentheses where it would be read otherwise without.
    fn part(&self, part: &Condition, sql: &mut String, form: Form<'_>) -> fmt::Result {
        let binds = match (self, part) {
            (_, Condition::Or(_)) => false,
            (Condition::Or(_), Condition::And(_)) => true,
            (_, Condition::And(_)) => false,
            _ => true,
        };
        if binds {
            return part.write(sql, form);
        }
        sql.push('(');
        part.write(sql, form)?;
        sql.push(')');
        Ok(())
    }
}

impl Test {
    fn write(&self, not: bool, sql: &mut String, form: Form<'_>) -> fmt::Result {
        let negated = if not { " not" } else { "" };
        match self {
            Test::Null => write!(sql, " is{negated} null"),
            Test::Same(other) => {
                sql.push_str(match (form.dialect.distinct_from, not) {
                    (true, true) => " is distinct from ",
                    (true, false) => " is not distinct from ",
                    (false, true) => " is not ",
                    (false, false) => " is ",
                });
                other.write(sql, form)
            }
            Test::In(all) => {
                write!(sql, "{negated} in (")?;
                for (n, one) in all.iter().enumerate() {
                    if n > 0 {
                        sql.push_str(", ");
                    }
                    one.write(sql, form)?;
                }
                sql.push(')');
                Ok(())
            }
            Test::Like(pattern) => {
                write!(sql, "{negated} like {}", text(pattern, form.dialect))
            }
            Test::Between(low, high) => {
                write!(sql, "{negated} between ")?;
                low.write(sql, form)?;
                sql.push_str(" and ");
                high.write(sql, form)
            }
        }
    }
}

impl Operand {
    fn write(&self, sql: &mut String, form: Form<'_>) -> fmt::Result {
        match self {
            Operand::Column(side, name) => {
                let row = form.row.unwrap_or(match side {
                    Side::Old => "old",
                    Side::New => "new",
                });
                write!(sql, "{row}.\"{}\"", name.replace('"', "\"\""))
            }
            Operand::Text(value) => {
                sql.push_str(&text(value, form.dialect));
                Ok(())
            }
            Operand::Number(number) => {
                sql.push_str(number);
                Ok(())
            }
            Operand::Boolean(value) => write!(sql, "{value}"),
        }
    }
}

fn text(value: &str, dialect: Dialect) -> String {
    let quoted = value.replace('\'', "''");
    if dialect.backslashes && quoted.contains('\\') {
        format!("E'{}'", quoted.replace('\\', "\\\\"))
    } else {
        format!("'{quoted}'")
    }
}

#[cfg(test)]
mod tests;
