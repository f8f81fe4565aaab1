//! Row conditions of event triggers.
//!
//! A condition becomes part of a database trigger and runs within the application's own write.
//! There is no catching an error in a trigger on SQL Server: whatever is raised there dooms the
//! application's transaction. So only what cannot fail is accepted. A condition is parsed here,
//! every value in it has a type, and it is written anew as T-SQL: what is compared has the same
//! type on both sides, integers are counted with as many digits as they may need, a division by
//! zero is NULL, and texts that stand for times are looked at when the trigger is made.

mod tokens;
mod values;

use changefeed_core::{Error, Result};

use crate::source::{Column, Table};
use tokens::{Token, tokens};
use values::{Kind, Value};

/// Longer ones are refused, and deeper ones: they are walked by recursion.
const MAX_LENGTH: usize = 10_000;
const MAX_DEPTH: usize = 50;

/// Which of the two rows of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Old,
    New,
}

/// A part of the condition as SQL.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Piece {
    Sql(String),
    Column(Side, Column),
}

/// A condition that is known to be harmless.
#[derive(Debug, Clone)]
pub(crate) struct Condition {
    pieces: Vec<Piece>,
    /// Texts that are compared with times, and the types they must be readable as.
    pub(crate) times: Vec<(String, String)>,
}

/// What a row of the change is called where the condition is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Row<'a> {
    /// There is no such row: all its columns are null.
    Missing,
    /// By this alias.
    Called(&'a str),
}

impl Condition {
    /// Checks a condition, and says what is wrong with it.
    pub(crate) fn parse(text: &str, table: &Table) -> Result<Condition> {
        if text.len() > MAX_LENGTH {
            return Err(refused("it is too long"));
        }
        let mut parser = Parser {
            tokens: tokens(text)?,
            at: 0,
            depth: 0,
            table,
            times: Vec::new(),
        };
        let pieces = parser.predicate()?;
        match parser.peek() {
            None => Ok(Condition {
                pieces,
                times: parser.times,
            }),
            Some(token) => Err(refused(format!("{token} is not expected where it stands"))),
        }
    }

    /// The condition as SQL, for rows that go by these names.
    pub(crate) fn sql(&self, old: Row<'_>, new: Row<'_>) -> String {
        let mut sql = String::from("(");
        for piece in &self.pieces {
            match piece {
                Piece::Sql(text) => sql.push_str(text),
                Piece::Column(side, column) => {
                    let row = if *side == Side::Old { old } else { new };
                    match row {
                        Row::Called(alias) => {
                            sql.push_str(alias);
                            sql.push('.');
                            sql.push_str(&crate::quote::identifier(&column.name));
                        }
                        Row::Missing => {
                            sql.push_str(&format!("convert({}, null)", column.type_sql));
                        }
                    }
                }
            }
        }
        sql.push(')');
        sql
    }
}

pub(crate) fn refused(why: impl std::fmt::Display) -> Error {
    Error::invalid(format!("the condition cannot be used: {why}")).advise(
        "compare columns of old and new with values, as in new.status = 'paid' and \
         new.total > 100; docs/events.md lists what is possible on SQL Server",
    )
}

fn sql(text: impl Into<String>) -> Piece {
    Piece::Sql(text.into())
}

/// Puts pieces one after the other.
fn joined(parts: impl IntoIterator<Item = Vec<Piece>>) -> Vec<Piece> {
    parts.into_iter().flatten().collect()
}

struct Parser<'a> {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
    table: &'a Table,
    times: Vec<(String, String)>,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn is_word(&self, ahead: usize, word: &str) -> bool {
        self.tokens
            .get(self.at + ahead)
            .is_some_and(|t| t.is_word(word))
    }

    fn take_word(&mut self, word: &str) -> bool {
        let there = self.is_word(0, word);
        self.at += usize::from(there);
        there
    }

    fn take_sign(&mut self, sign: &str) -> bool {
        let there = matches!(self.peek(), Some(Token::Sign(s)) if *s == sign);
        self.at += usize::from(there);
        there
    }

    fn need_sign(&mut self, sign: &str) -> Result<()> {
        if self.take_sign(sign) {
            return Ok(());
        }
        Err(refused(match self.peek() {
            Some(token) => format!("{token} stands where '{sign}' is needed"),
            None => format!("it ends where '{sign}' is needed"),
        }))
    }

    fn deeper<T>(&mut self, walk: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(refused("its parentheses are too deep"));
        }
        let walked = walk(self);
        self.depth -= 1;
        walked
    }

    /// `a and b or not c`
    fn predicate(&mut self) -> Result<Vec<Piece>> {
        self.deeper(|p| {
            let mut all = p.conjunction()?;
            while p.take_word("or") {
                all = joined([all, vec![sql(" or ")], p.conjunction()?]);
            }
            Ok(all)
        })
    }

    fn conjunction(&mut self) -> Result<Vec<Piece>> {
        let mut all = self.negation()?;
        while self.take_word("and") {
            all = joined([all, vec![sql(" and ")], self.negation()?]);
        }
        Ok(all)
    }

    fn negation(&mut self) -> Result<Vec<Piece>> {
        if self.take_word("not") {
            let inner = self.deeper(Self::negation)?;
            return Ok(joined([vec![sql("not (")], inner, vec![sql(")")]]));
        }
        // Parentheses hold either a condition or a value: tried in this order.
        if matches!(self.peek(), Some(Token::Sign("("))) {
            let (at, times) = (self.at, self.times.len());
            self.at += 1;
            if let Ok(inner) = self.predicate()
                && self.take_sign(")")
                && !matches!(self.peek(), Some(Token::Sign(s)) if *s != ")")
            {
                return Ok(joined([vec![sql("(")], inner, vec![sql(")")]]));
            }
            self.at = at;
            self.times.truncate(times);
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Result<Vec<Piece>> {
        let left = self.value()?;
        if let Some(Token::Sign(sign @ ("=" | "<>" | "!=" | "<" | ">" | "<=" | ">="))) = self.peek()
        {
            let sign = *sign;
            self.at += 1;
            let right = self.value()?;
            return self.compared(left, sign, right);
        }
        if self.take_word("is") {
            let not = self.take_word("not");
            if self.take_word("null") {
                let test = if not { " is not null" } else { " is null" };
                return Ok(joined([left.pieces, vec![sql(test)]]));
            }
            if self.take_word("distinct") && self.take_word("from") {
                let right = self.value()?;
                let (left, right) = self.alike(left, right)?;
                let operator = if not {
                    " intersect select "
                } else {
                    " except select "
                };
                return Ok(joined([
                    vec![sql("exists (select ")],
                    left,
                    vec![sql(operator)],
                    right,
                    vec![sql(")")],
                ]));
            }
            return Err(refused("after IS comes NULL, NOT NULL or DISTINCT FROM"));
        }
        let not = self.take_word("not");
        let test = if self.take_word("like") {
            self.like(left)?
        } else if self.take_word("between") {
            let low = self.value()?;
            if !self.take_word("and") {
                return Err(refused("BETWEEN needs AND"));
            }
            let high = self.value()?;
            let low = self.compared(left.clone(), ">=", low)?;
            let high = self.compared(left, "<=", high)?;
            joined([low, vec![sql(" and ")], high])
        } else if self.take_word("in") {
            self.one_of(left)?
        } else {
            return Err(refused(
                "a value stands where a comparison is needed; a bit is compared as in new.paid = 1",
            ));
        };
        let open = if not { "not (" } else { "(" };
        Ok(joined([vec![sql(open)], test, vec![sql(")")]]))
    }

    fn like(&mut self, left: Value) -> Result<Vec<Piece>> {
        let Some(Token::Text(pattern)) = self.peek().cloned() else {
            return Err(refused("after LIKE a pattern in single quotes is needed"));
        };
        if left.kind != Kind::Text {
            return Err(refused("LIKE is for texts"));
        }
        self.at += 1;
        let pattern = crate::quote::literal(&pattern);
        Ok(joined([left.pieces, vec![sql(format!(" like {pattern}"))]]))
    }

    fn one_of(&mut self, left: Value) -> Result<Vec<Piece>> {
        self.need_sign("(")?;
        let mut all = Vec::new();
        loop {
            let one = self.value()?;
            let equal = self.compared(left.clone(), "=", one)?;
            if !all.is_empty() {
                all.push(sql(" or "));
            }
            all.extend(equal);
            if !self.take_sign(",") {
                break;
            }
        }
        self.need_sign(")")?;
        Ok(all)
    }

    fn compared(&mut self, left: Value, sign: &str, right: Value) -> Result<Vec<Piece>> {
        let (left, right) = self.alike(left, right)?;
        Ok(joined([left, vec![sql(format!(" {sign} "))], right]))
    }
}

#[cfg(test)]
mod tests {
    use changefeed_core::TableName;

    use super::*;

    fn table() -> Table {
        let column = |name: &str, base: &str, full: &str| Column {
            type_sql: full.to_owned(),
            ..Column::plain(name, base)
        };
        Table {
            id: 1,
            sql: "\"dbo\".\"orders\"".to_owned(),
            name: TableName::qualified("dbo", "orders"),
            kind: "U".to_owned(),
            owners: None,
            key: vec![],
            columns: vec![
                column("id", "int", "int"),
                column("big", "bigint", "bigint"),
                column("total", "decimal", "decimal(18, 2)"),
                column("fee", "smallmoney", "smallmoney"),
                column("status", "nvarchar", "nvarchar(20)"),
                column("at", "datetime2", "datetime2(3)"),
                column("paid", "bit", "bit"),
                column("key", "uniqueidentifier", "uniqueidentifier"),
                column("blob", "varbinary", "varbinary(max)"),
                column("we\"ird", "float", "float"),
            ],
        }
    }

    fn written(text: &str) -> String {
        let condition = Condition::parse(text, &table()).unwrap();
        condition.sql(Row::Called("d"), Row::Called("i"))
    }

    #[test]
    fn what_is_accepted_is_written_anew() {
        for (text, expected) in [
            (
                "new.status = 'it''s' and old.status <> new.status",
                "(i.[status] = N'it''s' and d.[status] <> i.[status])",
            ),
            (
                "NOT (new.id > 10 OR old.id IS NULL)",
                "(not ((i.[id] > 10 or d.[id] is null)))",
            ),
            (
                "9 / new.id > 2",
                "((convert(bigint, 9) / nullif(convert(bigint, i.[id]), 0)) > 2)",
            ),
            (
                "(new.id + 1) * 2 = 4",
                "((convert(decimal(38, 0), (convert(decimal(38, 0), i.[id]) + \
                 convert(decimal(38, 0), 1))) * convert(decimal(38, 0), 2)) = 4)",
            ),
            (
                "new.at >= '2024-01-01T00:00:00'",
                "(i.[at] >= convert(datetime2(3), N'2024-01-01T00:00:00', 126))",
            ),
            ("new.paid = true", "(i.[paid] = 1)"),
            ("new.\"we\"\"ird\" > 1", "(i.[we\"ird] > convert(float, 1))"),
            (
                "new.status in ('a', 'b')",
                "((i.[status] = N'a' or i.[status] = N'b'))",
            ),
            (
                "new.total not between 1 and 2.5",
                "(not (i.[total] >= 1 and i.[total] <= 2.5))",
            ),
            (
                "new.fee > 250000",
                "(convert(decimal(19, 4), i.[fee]) > 250000)",
            ),
            (
                "old.status is distinct from new.status",
                "(exists (select d.[status] except select i.[status]))",
            ),
            (
                "coalesce(new.status, 'x') like 'a%'",
                "((coalesce(i.[status], N'x') like N'a%'))",
            ),
            ("new.blob is not null", "(i.[blob] is not null)"),
        ] {
            assert_eq!(written(text), expected, "{text}");
        }
    }

    #[test]
    fn a_row_that_is_not_there_is_null() {
        let condition = Condition::parse("old.total is null", &table()).unwrap();
        assert_eq!(
            condition.sql(Row::Missing, Row::Called("i")),
            "(convert(decimal(18, 2), null) is null)"
        );
    }

    #[test]
    fn what_could_fail_or_break_out_is_refused() {
        for text in [
            "",
            "new.nope = 1",
            "true); drop table orders; --",
            "new.status > 10",
            "new.id = 'x'",
            "new.big / new.big > 1",
            "new.big * new.big * new.big = 1",
            "new.total * 2 > 1",
            "new.at = new.id",
            "new.key = 'not a uuid'",
            "new.id = null",
            "(select 1) = 1",
            "exec('x') = 1",
            "new.id = 1 /* x",
            "new.id = @@version",
            "new.id",
            "new.status like new.status",
            "new.blob = new.blob",
            "x.id = 1",
        ] {
            assert!(Condition::parse(text, &table()).is_err(), "{text}");
        }
        let deep = format!("{}new.id = 1{}", "(".repeat(500), ")".repeat(500));
        assert!(Condition::parse(&deep, &table()).is_err());
    }
}
