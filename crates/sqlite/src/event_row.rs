//! Rows as JSON, written by SQL alone: the same forms as in `value.rs`, with what every SQLite
//! program has.

use changefeed_core::Result;

use crate::quote::{self, fill};

/// The columns of one call of a function: some SQLite programs allow a hundred arguments.
const COLUMNS_PER_CALL: usize = 50;

/// A column of a row as JSON, as an SQL expression.
pub(crate) fn value(alias: &str, column: &str) -> Result<String> {
    let value = format!("{alias}.{}", quote::identifier(column));
    let sql = fill(include_str!("sql/json_value.sql"), &[("value", &value)])?;
    Ok(sql.trim_end().to_owned())
}

/// Columns of a row as a JSON object, as an SQL expression.
pub(crate) fn object(alias: &str, columns: &[String]) -> Result<String> {
    let mut parts = Vec::new();
    let calls = columns.len().div_ceil(COLUMNS_PER_CALL);
    for (n, columns) in columns.chunks(COLUMNS_PER_CALL).enumerate() {
        let names: Vec<String> = columns
            .iter()
            .map(|column| format!("{}:%s", name(column).replace('%', "%%")))
            .collect();
        let open = if n == 0 { "{" } else { "," };
        let close = if n + 1 == calls { "}" } else { "" };
        let form = format!("{open}{}{close}", names.join(","));
        let values: Result<Vec<String>> = columns.iter().map(|c| value(alias, c)).collect();
        parts.push(format!(
            "printf({}, {})",
            quote::text(&form),
            values?.join(", ")
        ));
    }
    Ok(joined(&parts, " || "))
}

fn name(column: &str) -> String {
    serde_json::Value::from(column).to_string()
}

/// Joins terms as a balanced tree: SQLite limits how deep an expression may be.
pub(crate) fn joined(terms: &[String], joiner: &str) -> String {
    match terms {
        [] => String::new(),
        [one] => one.clone(),
        _ if terms.len() <= 8 => terms.join(joiner),
        _ => {
            let (left, right) = terms.split_at(terms.len() / 2);
            format!(
                "({}){joiner}({})",
                joined(left, joiner),
                joined(right, joiner)
            )
        }
    }
}
