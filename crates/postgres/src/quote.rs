//! The one place where names and texts become SQL.

use changefeed_core::TableName;

/// An identifier.
pub(crate) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A table with its schema, if it has one.
pub(crate) fn table(table: &TableName) -> String {
    match &table.schema {
        Some(schema) => format!("{}.{}", identifier(schema), identifier(&table.name)),
        None => identifier(&table.name),
    }
}

/// A text. A backslash means the same whatever the session that reads it has set.
pub(crate) fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\\') {
        format!("E'{}'", quoted.replace('\\', "\\\\"))
    } else {
        format!("'{quoted}'")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_cannot_break_out() {
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("a\\' or 1"), "E'a\\\\'' or 1'");
    }

    #[test]
    fn names_cannot_break_out() {
        assert_eq!(identifier("order"), "\"order\"");
        assert_eq!(
            identifier("a\"; drop table x; --"),
            "\"a\"\"; drop table x; --\""
        );
        assert_eq!(
            table(&TableName::qualified("s", "UPPER case")),
            "\"s\".\"UPPER case\""
        );
    }
}
