//! The unique indexes of a table, as conditions under which a row of the table is in the way of
//! another one that is about to be written.
//!
//! SQLite shows indexes over expressions, and the conditions of partial ones, only as the text of
//! their creator, so that text is taken apart here.

use changefeed_core::Result;
use rusqlite::Connection;

use crate::error::Explain;
use crate::quote;
use crate::source::Table;

/// Whether the index of the primary key is meant, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Primary {
    Included,
    LeftOut,
}

/// What a table says about its unique indexes.
#[derive(Debug, Default)]
pub(crate) struct Uniques {
    /// For each index, whether a row called `changefeed_row` is in the way of `new`, as SQL.
    pub(crate) conflicts: Vec<String>,
    /// The indexes that SQL cannot follow.
    pub(crate) unfollowed: Vec<String>,
}

impl Uniques {
    /// Looks at all unique indexes. That of an INTEGER PRIMARY KEY is the rowid, and not among them.
    pub(crate) fn of(connection: &Connection, table: &Table, primary: Primary) -> Result<Uniques> {
        let indexes: Vec<(String, bool, Option<String>)> = connection
            .prepare_cached(
                "select l.name, l.partial, m.sql from pragma_index_list(?1, 'main') l \
                 left join sqlite_master m on m.type = 'index' and m.name = l.name \
                 where l.\"unique\" and (?2 or l.origin <> 'pk') order by l.seq",
            )
            .and_then(|mut s| {
                s.query_map((&table.name, primary == Primary::Included), |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                })?
                .collect()
            })
            .explained()?;
        let mut found = Uniques::default();
        for (index, partial, sql) in indexes {
            let columns: Vec<(Option<String>, String)> = connection
                .prepare_cached(
                    "select name, coll from pragma_index_xinfo(?1, 'main') where key order by seqno",
                )
                .and_then(|mut s| {
                    s.query_map([&index], |row| Ok((row.get(0)?, row.get(1)?)))?
                        .collect()
                })
                .explained()?;
            let filter = sql
                .as_deref()
                .filter(|_| partial)
                .and_then(filter_of)
                .filter(|filter| accepts(connection, table, filter));
            let terms = sql.as_deref().map(terms_of).unwrap_or_default();
            match conflict(connection, table, &columns, &terms, filter) {
                Some(condition) => found.conflicts.push(condition),
                None => found.unfollowed.push(index),
            }
        }
        Ok(found)
    }
}

fn conflict(
    connection: &Connection,
    table: &Table,
    columns: &[(Option<String>, String)],
    terms: &[&str],
    filter: Option<&str>,
) -> Option<String> {
    let mut parts = Vec::new();
    for (place, (column, collation)) in columns.iter().enumerate() {
        let collation = quote::identifier(collation);
        let (row, new) = match column {
            Some(column) => (
                format!("changefeed_row.{}", quote::identifier(column)),
                table.written("new", column),
            ),
            None => {
                let term = terms.get(place).filter(|t| accepts(connection, table, t))?;
                // Rows outside of a partial index are looked at, too, and must not fail the write.
                if filter.is_some() && !cannot_fail(term) {
                    return None;
                }
                (format!("({term}\n)"), of_new(table, term, filter))
            }
        };
        parts.push(format!("{row} = {new} collate {collation}"));
    }
    if let Some(filter) = filter {
        parts.push(format!("({filter}\n)"));
    }
    Some(parts.join(" and "))
}

/// An expression of an index over the row to be written. Outside of the index it is not looked at:
/// there it might fail, and with it the application's write.
fn of_new(table: &Table, term: &str, filter: Option<&str>) -> String {
    // Only those that it may name: SQLite refuses to drop a column that a trigger names.
    let text = format!("{term} {}", filter.unwrap_or_default()).to_lowercase();
    let columns: Vec<String> = table
        .columns
        .iter()
        .filter(|c| text.contains(&c.replace('"', "\"\"").to_lowercase()))
        .map(|c| format!("{} as {}", table.written("new", c), quote::identifier(c)))
        .collect();
    let columns = match columns.is_empty() {
        true => "1".to_owned(),
        false => columns.join(", "),
    };
    format!(
        "(select case when ({}\n) then ({term}\n) end from (select {columns}) as changefeed_new)",
        filter.unwrap_or("1")
    )
}

/// Whether an expression can be asked of this table under another name: a trigger that fails
/// would fail the application's writes.
fn accepts(connection: &Connection, table: &Table, expression: &str) -> bool {
    let ask = format!(
        "select ({expression}\n) from {} as changefeed_row",
        table.sql()
    );
    connection.prepare(&ask).is_ok()
}

/// Functions that give a value for whatever they are given.
const SAFE: [&str; 17] = [
    "coalesce", "date", "datetime", "hex", "ifnull", "instr", "length", "lower", "ltrim", "nullif",
    "quote", "round", "rtrim", "substr", "trim", "typeof", "upper",
];
/// Words that may stand before a parenthesis without being functions.
const WORDS: [&str; 11] = [
    "and", "or", "not", "in", "is", "between", "when", "then", "else", "like", "glob",
];

/// Whether an expression gives a value for every row.
fn cannot_fail(expression: &str) -> bool {
    let mut before = None;
    for (at, piece, _) in pieces(expression) {
        match piece {
            Piece::Word(word) => before = Some(word.to_ascii_lowercase()),
            Piece::Open => match before.take().as_deref() {
                Some(word) if SAFE.contains(&word) || WORDS.contains(&word) => {}
                Some(_) => return false,
                None if expression[..at].trim_end().ends_with(['"', '`', ']']) => return false,
                None => {}
            },
            Piece::Other if expression[at..].starts_with(char::is_whitespace) => {}
            Piece::Other if expression[at..].starts_with("->") => return false,
            Piece::Close | Piece::Comma | Piece::Other => before = None,
        }
    }
    true
}

/// A step through an SQL text: what stands there, and where it ends.
enum Piece<'a> {
    Word(&'a str),
    Open,
    Close,
    Comma,
    Other,
}

/// The pieces of an SQL text outside of quotes and comments, with their places.
fn pieces(sql: &str) -> Vec<(usize, Piece<'_>, usize)> {
    let bytes = sql.as_bytes();
    let mut at = 0;
    let mut found = Vec::new();
    while at < bytes.len() {
        let skip = |closing: &str| {
            sql.get(at + 1..)
                .and_then(|rest| rest.find(closing))
                .map_or(bytes.len(), |end| at + 1 + end + closing.len())
        };
        let (piece, end) = match bytes[at] {
            quote @ (b'\'' | b'"' | b'`') => {
                let closing = char::from(quote).to_string();
                (Piece::Other, skip(&closing))
            }
            b'[' => (Piece::Other, skip("]")),
            b'-' if bytes.get(at + 1) == Some(&b'-') => (Piece::Other, skip("\n")),
            b'/' if bytes.get(at + 1) == Some(&b'*') => (Piece::Other, skip("*/")),
            b'(' => (Piece::Open, at + 1),
            b')' => (Piece::Close, at + 1),
            b',' => (Piece::Comma, at + 1),
            c if c.is_ascii_alphabetic() || c == b'_' => {
                let word = bytes[at..]
                    .iter()
                    .take_while(|c| c.is_ascii_alphanumeric() || **c == b'_')
                    .count();
                (Piece::Word(&sql[at..at + word]), at + word)
            }
            _ => (Piece::Other, at + 1),
        };
        found.push((at, piece, end));
        at = end;
    }
    found
}

/// The condition of `create index … on … (…) where …`: what follows the WHERE outside of quotes,
/// comments and parentheses.
fn filter_of(sql: &str) -> Option<&str> {
    let mut depth = 0usize;
    for (_, piece, end) in pieces(sql) {
        match piece {
            Piece::Open => depth += 1,
            Piece::Close => depth = depth.saturating_sub(1),
            Piece::Word(word) if depth == 0 && word.eq_ignore_ascii_case("where") => {
                return sql.get(end..).map(str::trim);
            }
            Piece::Word(_) | Piece::Comma | Piece::Other => {}
        }
    }
    None
}

/// What `create index … on … (…)` is over, without the direction.
fn terms_of(sql: &str) -> Vec<&str> {
    let mut depth = 0usize;
    let mut from = 0;
    let mut terms = Vec::new();
    for (at, piece, end) in pieces(sql) {
        match piece {
            Piece::Open => {
                if depth == 0 {
                    from = end;
                }
                depth += 1;
            }
            Piece::Close => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    terms.extend(sql.get(from..at));
                    break;
                }
            }
            Piece::Comma if depth == 1 => {
                terms.extend(sql.get(from..at));
                from = end;
            }
            Piece::Word(_) | Piece::Comma | Piece::Other => {}
        }
    }
    terms.into_iter().map(undirected).collect()
}

fn undirected(term: &str) -> &str {
    let term = term.trim();
    match term.rsplit_once(char::is_whitespace) {
        Some((rest, last)) if ["asc", "desc"].contains(&last.to_ascii_lowercase().as_str()) => {
            rest.trim_end()
        }
        _ => term,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_condition_of_a_partial_index_is_found() {
        for (sql, filter) in [
            ("create unique index i on t(a) where b > 0", Some("b > 0")),
            (
                "create unique index \"where\" on [where x](a)\nWHERE b='where'",
                Some("b='where'"),
            ),
            (
                "create unique index i on t(a /* where ( */) -- where\n where (c)",
                Some("(c)"),
            ),
            ("create unique index i on t(a)", None),
            ("create unique index nowhere on t(a)", None),
            ("create unique index i on t('it''s') where x", Some("x")),
        ] {
            assert_eq!(filter_of(sql), filter, "{sql}");
        }
    }

    #[test]
    fn what_may_fail_is_known() {
        for safe in [
            "a + b",
            "lower (a)",
            "(a) || (b)",
            "coalesce(a, not (b))",
            "a in (1)",
        ] {
            assert!(cannot_fail(safe), "{safe}");
        }
        for unsafe_ in [
            "json_extract(a, '$')",
            "abs (a)",
            "a -> 'b'",
            "\"abs\"(a)",
            "a+[abs] (a)",
        ] {
            assert!(!cannot_fail(unsafe_), "{unsafe_}");
        }
    }

    #[test]
    fn the_expressions_of_an_index_are_found() {
        for (sql, terms) in [
            ("create unique index i on t(a)", &["a"][..]),
            (
                "create unique index \"(\" on [a(b](lower(a), b+1 DESC, ',' || \")\" collate nocase asc) where (c)",
                &["lower(a)", "b+1", "',' || \")\" collate nocase"],
            ),
            ("create unique index i on t( (a,b) )", &["(a,b)"]),
        ] {
            assert_eq!(terms_of(sql), terms, "{sql}");
        }
    }
}
