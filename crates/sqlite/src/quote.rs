//! The one place where names of the application become SQL.

/// A name as SQL. SQLite folds nothing within quotes and compares names without regard to case.
pub(crate) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as an SQL literal.
pub(crate) fn text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Fills the `{places}` of a statement, in one pass: what is filled in is never looked at again,
/// so a table called `{shard}` is just a table. Comment lines are left out, because SQLite would
/// store them with every trigger.
pub(crate) fn fill(template: &str, places: &[(&str, &str)]) -> String {
    let sql: Vec<&str> = template
        .lines()
        .filter(|line| !line.trim_start().starts_with("--"))
        .collect();
    let sql = sql.join("\n");
    let mut filled = String::with_capacity(sql.len() * 2);
    let mut rest = sql.as_str();
    while let Some(open) = rest.find('{') {
        let (before, from_open) = rest.split_at(open);
        filled.push_str(before);
        let known = from_open.find('}').and_then(|close| {
            let name = &from_open[1..close];
            places
                .iter()
                .find(|(place, _)| *place == name)
                .map(|(_, value)| (*value, &from_open[close + 1..]))
        });
        match known {
            Some((value, after)) => {
                filled.push_str(value);
                rest = after;
            }
            None => {
                debug_assert!(false, "unknown place in {template}");
                filled.push('{');
                rest = &from_open[1..];
            }
        }
    }
    filled.push_str(rest);
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_and_quotes_doubled() {
        assert_eq!(identifier("order"), "\"order\"");
        assert_eq!(identifier("weird]name"), "\"weird]name\"");
        assert_eq!(identifier("a\"b"), "\"a\"\"b\"");
    }

    #[test]
    fn what_is_filled_in_is_not_filled_again() {
        let sql = fill(
            "-- why\nselect {column} from {table}",
            &[("column", "\"{table}\""), ("table", "\"t\"")],
        );
        assert_eq!(sql, "select \"{table}\" from \"t\"");
    }
}
