//! Row conditions of event triggers.
//!
//! A condition becomes part of a database trigger, and runs within the application's own write, in
//! whatever SQLite the application uses. SQLite cannot catch an error within a statement, so a
//! condition that fails at run time would fail that write. Therefore only what cannot fail is
//! accepted: columns of `old` and `new`, literals, operators, and functions that every SQLite since
//! 3.38 has and that raise nothing. JSON functions do raise, at text that is not JSON; they are
//! accepted on a column, and the condition is then not true where that column holds no JSON.

use changefeed_core::{Error, Result};

use crate::quote;
use crate::source::Table;

/// Words of an expression that are neither functions nor columns.
const WORDS: [&str; 34] = [
    "and",
    "or",
    "not",
    "in",
    "is",
    "null",
    "isnull",
    "notnull",
    "like",
    "glob",
    "escape",
    "between",
    "case",
    "when",
    "then",
    "else",
    "end",
    "cast",
    "as",
    "true",
    "false",
    "collate",
    "binary",
    "nocase",
    "rtrim",
    "integer",
    "int",
    "text",
    "real",
    "numeric",
    "blob",
    "current_date",
    "current_time",
    "current_timestamp",
];

/// Functions that take whatever they are given. (`abs` is not among them: it raises an error for
/// the smallest integer.)
const FUNCTIONS: [&str; 24] = [
    "char",
    "coalesce",
    "date",
    "datetime",
    "hex",
    "ifnull",
    "instr",
    "julianday",
    "length",
    "lower",
    "ltrim",
    "max",
    "min",
    "nullif",
    "quote",
    "round",
    "rtrim",
    "sign",
    "strftime",
    "substr",
    "time",
    "trim",
    "typeof",
    "upper",
];

/// Functions over a column that holds JSON: the column, then a path.
const JSON_FUNCTIONS: [&str; 2] = ["json_extract", "json_type"];

/// A LIKE or GLOB pattern that is longer raises an error.
const MAX_PATTERN: usize = 10_000;

/// Which of the two rows of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Old,
    New,
}

impl Side {
    fn of(word: &str) -> Option<Side> {
        match word.to_ascii_lowercase().as_str() {
            "old" => Some(Side::Old),
            "new" => Some(Side::New),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Side::Old => "old",
            Side::New => "new",
        }
    }
}

/// What a row of the change is called where the condition is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Row<'a> {
    /// As in the condition.
    Itself,
    /// There is no such row: all its columns are null.
    Missing,
    /// It is a row of the table under this name.
    Called(&'a str),
}

/// A condition that is known to be harmless.
#[derive(Debug, Clone)]
pub(crate) struct Condition {
    text: String,
    /// The columns it asks for, as their creator wrote them.
    asked: Vec<(Side, String)>,
    /// Those that must hold JSON.
    json: Vec<(Side, String)>,
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    /// A name in quotes.
    Name(String),
    Text(String),
    Number,
    Sign(&'static str),
}

impl Condition {
    /// Checks a condition, and says what is wrong with it.
    pub(crate) fn parse(text: &str, table: &Table) -> Result<Condition> {
        let tokens = tokens(text)?;
        let mut condition = Condition {
            text: text.to_owned(),
            asked: Vec::new(),
            json: Vec::new(),
        };
        let mut depth = 0i32;
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            match token {
                Token::Sign("(") => depth += 1,
                Token::Sign(")") => depth -= 1,
                Token::Sign("->" | "->>") => check_arrow(&tokens, at)?,
                Token::Word(word) | Token::Name(word) => {
                    if let Some(side) = Side::of(word)
                        && let Some(column) = column_after(&tokens, at)
                    {
                        let column = table.column(column)?.to_owned();
                        if is_arrow(tokens.get(at + 3)) {
                            condition.json.push((side, column.clone()));
                        }
                        condition.asked.push((side, column));
                        at += 3;
                        continue;
                    }
                    if let Token::Name(name) = token {
                        return Err(refused(format!("the name \"{name}\" stands alone"))
                            .advise("write old.COLUMN or new.COLUMN, and texts in single quotes"));
                    }
                    if let Some(json) = check_word(&tokens, at, word, table)? {
                        condition.json.push(json);
                    }
                }
                Token::Text(_) | Token::Number | Token::Sign(_) => {}
            }
            if depth < 0 {
                break;
            }
            at += 1;
        }
        if depth != 0 {
            return Err(refused("its parentheses do not match"));
        }
        Ok(condition)
    }

    /// The condition as SQL, for rows that go by these names.
    pub(crate) fn sql(&self, old: Row<'_>, new: Row<'_>) -> String {
        let column =
            |side: Side, name: &str| format!("{}.{}", side.name(), quote::identifier(name));
        let mut condition = format!("({}\n)", self.text);
        if !self.json.is_empty() {
            let guards: Vec<String> = self
                .json
                .iter()
                .map(|(side, name)| {
                    let value = column(*side, name);
                    format!(
                        "({value} is null or (typeof({value}) <> 'blob' and json_valid({value})))"
                    )
                })
                .collect();
            condition = format!("case when {} then {condition} end", guards.join(" and "));
        }
        let stand_ins: Vec<String> = [(Side::Old, old), (Side::New, new)]
            .into_iter()
            .filter_map(|(side, row)| self.stand_in(side, row))
            .collect();
        if stand_ins.is_empty() {
            format!("({condition})")
        } else {
            format!("(select {condition} from {})", stand_ins.join(", "))
        }
    }

    /// A row of this name for the condition to see, if it needs one.
    fn stand_in(&self, side: Side, row: Row<'_>) -> Option<String> {
        let mut columns: Vec<&str> = self
            .asked
            .iter()
            .filter(|(asked, _)| *asked == side)
            .map(|(_, column)| column.as_str())
            .collect();
        columns.sort_unstable();
        columns.dedup();
        if columns.is_empty() || row == Row::Itself {
            return None;
        }
        let columns: Vec<String> = columns
            .into_iter()
            .map(|column| {
                let column = quote::identifier(column);
                match row {
                    Row::Called(name) => format!("{name}.{column} as {column}"),
                    Row::Itself | Row::Missing => format!("null as {column}"),
                }
            })
            .collect();
        Some(format!(
            "(select {}) as {}",
            columns.join(", "),
            side.name()
        ))
    }
}

fn refused(why: impl std::fmt::Display) -> Error {
    Error::invalid(format!("the condition cannot be used: {why}"))
}

fn is_arrow(token: Option<&Token>) -> bool {
    matches!(token, Some(Token::Sign("->" | "->>")))
}

/// The column of `old . column` or `new . column`.
fn column_after(tokens: &[Token], at: usize) -> Option<&str> {
    match (tokens.get(at + 1), tokens.get(at + 2)) {
        (Some(Token::Sign(".")), Some(Token::Word(name) | Token::Name(name))) => Some(name),
        _ => None,
    }
}

/// Left of an arrow is a column, or another arrow with its path; right of it is a literal.
fn check_arrow(tokens: &[Token], at: usize) -> Result<()> {
    let before = |n: usize| at.checked_sub(n).and_then(|at| tokens.get(at));
    let of_column = before(2) == Some(&Token::Sign("."));
    let of_arrow = matches!(before(1), Some(Token::Text(_) | Token::Number)) && is_arrow(before(2));
    if !of_column && !of_arrow {
        return Err(refused("-> and ->> work only on a column"));
    }
    match tokens.get(at + 1) {
        Some(Token::Number) => Ok(()),
        Some(Token::Text(path)) if !path.starts_with('$') => Ok(()),
        Some(Token::Text(path)) => check_path(path),
        _ => Err(refused("after -> and ->> a literal is needed")),
    }
}

/// A path that no JSON text makes an error of.
fn check_path(path: &str) -> Result<()> {
    let mut rest = path.strip_prefix('$').unwrap_or("?");
    while !rest.is_empty() {
        let name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        rest = if let Some(after) = rest.strip_prefix('.')
            && after.starts_with(name)
        {
            after.trim_start_matches(name)
        } else if let Some((index, after)) = rest.strip_prefix('[').and_then(|r| r.split_once(']'))
            && !index.is_empty()
            && index.chars().all(|c| c.is_ascii_digit())
        {
            after
        } else {
            return Err(refused(format!("'{path}' is not a JSON path"))
                .advise("write paths like $.name.other[0]"));
        };
    }
    Ok(())
}

/// Checks a word and what belongs to it. Returns the column that it needs to hold JSON.
fn check_word(
    tokens: &[Token],
    at: usize,
    word: &str,
    table: &Table,
) -> Result<Option<(Side, String)>> {
    let lower = word.to_ascii_lowercase();
    let next = tokens.get(at + 1);
    let called = next == Some(&Token::Sign("("));
    match lower.as_str() {
        "like" | "glob" => match next {
            Some(Token::Text(pattern)) if pattern.len() <= MAX_PATTERN => Ok(None),
            _ => Err(refused(format!(
                "after {lower} a pattern in single quotes is needed"
            ))),
        },
        "escape" => match next {
            Some(Token::Text(text)) if text.chars().count() == 1 => Ok(None),
            _ => Err(refused(
                "after escape one character in single quotes is needed",
            )),
        },
        "collate" => match next {
            Some(Token::Word(name))
                if ["binary", "nocase", "rtrim"].contains(&name.to_ascii_lowercase().as_str()) =>
            {
                Ok(None)
            }
            _ => Err(refused(
                "other SQLite programs know only the collations binary, nocase and rtrim",
            )),
        },
        json if called && JSON_FUNCTIONS.contains(&json) => {
            let side = match tokens.get(at + 2) {
                Some(Token::Word(word) | Token::Name(word)) => Side::of(word),
                _ => None,
            };
            match (
                side,
                column_after(tokens, at + 2),
                tokens.get(at + 5..at + 8),
            ) {
                (
                    Some(side),
                    Some(column),
                    Some([Token::Sign(","), Token::Text(path), Token::Sign(")")]),
                ) => {
                    check_path(path)?;
                    Ok(Some((side, table.column(column)?.to_owned())))
                }
                _ => Err(
                    refused(format!("{json} works only on a column and one path"))
                        .advise(format!("write {json}(new.COLUMN, '$.path')")),
                ),
            }
        }
        function if called && FUNCTIONS.contains(&function) => Ok(None),
        plain if WORDS.contains(&plain) => Ok(None),
        "select" | "exists" => Err(refused("it may only look at old and new, not at tables")),
        function if called => Err(refused(format!(
            "the function {function} may fail, or is missing in other SQLite programs, and would \
             then fail the application's writes"
        ))
        .advise(format!("use {}", FUNCTIONS.join(", ")))),
        _ => Err(refused(format!("it does not say what '{word}' is"))
            .advise("write old.COLUMN or new.COLUMN, and texts in single quotes")),
    }
}

const SIGNS: [&str; 22] = [
    "->>", "->", "||", "<=", ">=", "<>", "!=", "==", "<<", ">>", "<", ">", "=", "+", "-", "*", "/",
    "%", "&", "|", "~", ",",
];

fn tokens(text: &str) -> Result<Vec<Token>> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        if rest.starts_with("--") || rest.starts_with("/*") {
            return Err(refused("it contains a comment"));
        }
        let letter = |c: char| c.is_alphanumeric() || c == '_' || c == '$' || !c.is_ascii();
        let token = match first {
            '\'' => {
                let (text, after) = quoted(rest, '\'')?;
                rest = after;
                Token::Text(text)
            }
            'x' | 'X' if rest[1..].starts_with('\'') => {
                let (text, after) = quoted(&rest[1..], '\'')?;
                rest = after;
                Token::Text(text)
            }
            '"' | '`' => {
                let (name, after) = quoted(rest, first)?;
                rest = after;
                Token::Name(name)
            }
            '[' => {
                let (name, after) = rest[1..]
                    .split_once(']')
                    .ok_or_else(|| refused("a quote is not closed"))?;
                rest = after;
                Token::Name(name.to_owned())
            }
            '0'..='9' => {
                // 1e-5 has a sign within, and older programs do not know 1_000.
                let mut before = ' ';
                let hex = rest.starts_with("0x") || rest.starts_with("0X");
                let end = rest
                    .find(|c: char| {
                        let sign = (c == '-' || c == '+') && matches!(before, 'e' | 'E') && !hex;
                        before = c;
                        !(c.is_ascii_alphanumeric() || c == '.' || c == '_' || sign)
                    })
                    .unwrap_or(rest.len());
                let (number, after) = rest.split_at(end);
                let fine = |c: char| {
                    c.is_ascii_digit() || ".eE+-".contains(c) || hex && c.is_ascii_hexdigit()
                };
                if !number.chars().skip(if hex { 2 } else { 0 }).all(fine) {
                    return Err(refused(format!("'{number}' is not a number")));
                }
                rest = after;
                Token::Number
            }
            c if c.is_alphabetic() || c == '_' || !c.is_ascii() => {
                let end = rest.find(|c: char| !letter(c)).unwrap_or(rest.len());
                let (word, after) = rest.split_at(end);
                rest = after;
                Token::Word(word.to_owned())
            }
            '(' | ')' | '.' => {
                rest = &rest[1..];
                Token::Sign(match first {
                    '(' => "(",
                    ')' => ")",
                    _ => ".",
                })
            }
            other => match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
                Some(sign) => {
                    rest = &rest[sign.len()..];
                    Token::Sign(sign)
                }
                None => return Err(refused(format!("'{other}' does not belong there"))),
            },
        };
        found.push(token);
        rest = rest.trim_start();
    }
    Ok(found)
}

/// What stands in quotes, where a doubled quote stands for itself, and what follows.
fn quoted(text: &str, quote: char) -> Result<(String, &str)> {
    let mut inside = String::new();
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        if c != quote {
            inside.push(c);
        } else if chars.peek().is_some_and(|(_, next)| *next == quote) {
            inside.push(c);
            chars.next();
        } else {
            return Ok((inside, &text[at + c.len_utf8()..]));
        }
    }
    Err(refused("a quote is not closed"))
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    fn table() -> Table {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch("create table t (id integer primary key, a, \"b c\", doc text)")
            .unwrap();
        Table::load(&connection, "t").unwrap().unwrap()
    }

    #[test]
    fn harmless_conditions_are_accepted() {
        for text in [
            "new.a > 5",
            "old.a is not new.a and (new.a in (1, 2, 'x') or new.\"b c\" like 'a%' escape '!')",
            "NEW.A = 1e-5 or new.a = x'00ff' or new.a between -1 and 0x1F",
            "lower(trim(new.a)) = 'it''s' collate nocase",
            "case when old.id is null then 1 else cast(new.a as integer) % 2 end",
            "json_extract(new.doc, '$.a[0].b') = 3 or new.doc ->> 'k' -> '$.x' is null",
            "(new.a, new.id) = (1, 2)",
        ] {
            let condition = Condition::parse(text, &table());
            assert!(condition.is_ok(), "{text}: {condition:?}");
        }
    }

    #[test]
    fn what_could_fail_in_a_write_is_refused() {
        for (text, sentence) in [
            ("new.a > abs(new.id)", "the function abs"),
            ("json(new.a) = 1", "the function json "),
            ("json_extract('{', '$.a')", "works only on a column"),
            ("json_extract(new.doc, new.a)", "works only on a column"),
            ("json_extract(new.doc, '$.a[')", "is not a JSON path"),
            ("'{' -> 'a'", "only on a column"),
            ("new.doc -> new.a", "a literal is needed"),
            ("new.a like new.doc", "a pattern in single quotes"),
            ("new.a like 'x' escape 'xx'", "one character"),
            ("new.a = (select 1)", "not at tables"),
            ("exists (select 1 from t)", "not at tables"),
            ("raise(abort, 'no')", "the function raise"),
            ("\"load_extension\"('x')", "stands alone"),
            ("new.a = \"text\"", "stands alone"),
            ("a > 5", "what 'a' is"),
            ("t.a > 5", "what 't' is"),
            ("new.nope > 5", "has no column 'nope'"),
            ("new.a = ?1", "does not belong"),
            ("new.a = :x", "does not belong"),
            ("1; drop table t", "does not belong"),
            ("1) or (1", "parentheses"),
            ("(1", "parentheses"),
            ("1 -- x", "a comment"),
            ("new.a /* x */ = 1", "a comment"),
            ("new.a = 'x", "not closed"),
            ("new.a = 1_000", "not a number"),
            ("new.a = 'x' collate mine", "collations"),
            ("new.a is distinct from 1", "what 'distinct' is"),
            ("new.a in t", "what 't' is"),
            ("new.a regexp 'x'", "what 'regexp' is"),
        ] {
            let error = Condition::parse(text, &table()).unwrap_err();
            assert!(error.message().contains(sentence), "{text}: {error:?}");
        }
    }
}
