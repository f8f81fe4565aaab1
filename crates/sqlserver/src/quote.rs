//! The one place where names and texts become SQL.

use changefeed_core::TableName;

/// An identifier. In brackets, which mean the same whatever QUOTED_IDENTIFIER is: on Babelfish a trigger has that
/// of whoever writes. Babelfish does not know `]]`, so a name with a bracket is in double quotes; every
/// session of ours has QUOTED_IDENTIFIER on, and on SQL Server every module of ours.
pub(crate) fn identifier(name: &str) -> String {
    if name.contains(']') {
        return format!("\"{}\"", name.replace('"', "\"\""));
    }
    format!("[{name}]")
}

/// A table with its schema, if it has one.
pub(crate) fn table(table: &TableName) -> String {
    match &table.schema {
        Some(schema) => format!("{}.{}", identifier(schema), identifier(&table.name)),
        None => identifier(&table.name),
    }
}

/// A text.
pub(crate) fn literal(text: &str) -> String {
    format!("N'{}'", text.replace('\'', "''"))
}

/// A text or NULL. The driver sends a missing text as a type that Babelfish does not know.
pub(crate) fn nullable(text: Option<&str>) -> String {
    text.map_or_else(|| "null".to_owned(), literal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_cannot_break_out() {
        assert_eq!(literal("it's"), "N'it''s'");
        assert_eq!(literal("'; drop table x; --"), "N'''; drop table x; --'");
    }

    #[test]
    fn names_cannot_break_out() {
        assert_eq!(identifier("order"), "[order]");
        assert_eq!(
            identifier("a\"; drop table x; --"),
            "[a\"; drop table x; --]"
        );
        assert_eq!(
            identifier("a]\"; drop table x; --"),
            "\"a]\"\"; drop table x; --\""
        );
        assert_eq!(
            table(&TableName::qualified("s", "weird]name")),
            "[s].\"weird]name\""
        );
    }
}
