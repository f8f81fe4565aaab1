//! The one place where names of the application become SQL.

use changefeed_core::Result;

/// A name as SQL. SQLite folds nothing within quotes and compares names without regard to case.
pub(crate) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as an SQL literal.
pub(crate) fn text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Fills the blanks of a statement. Comment lines are left out, because SQLite would store them with
/// every trigger.
pub(crate) fn fill(template: &str, blanks: &[(&str, &str)]) -> Result<String> {
    let sql: Vec<&str> = template
        .lines()
        .filter(|line| !line.trim_start().starts_with("--"))
        .collect();
    changefeed_core::fill(&sql.join("\n"), blanks)
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
        assert_eq!(sql.unwrap(), "select \"{table}\" from \"t\"");
    }
}
