//! Emptying what was kept of a row.

use changefeed_core::{Erased, Result, Source, TableName, key_values};
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use crate::error::Explain;
use crate::source::Table;
use crate::{capture, feeds};

/// Of an object in JSON: that it has these members, whose names and values come from this parameter on.
fn has(object: &str, count: usize, from: usize) -> String {
    let tests = (0..count).map(|n| {
        let (name, value, number) = (from + 3 * n, from + 3 * n + 1, from + 3 * n + 2);
        format!(
            "exists (select 1 from json_each({object}) j where j.key = ?{name} and (cast(j.value as text) = ?{value} \
             or j.type in ('integer', 'real') and j.value = ?{number}))"
        )
    });
    tests.collect::<Vec<_>>().join(" and ")
}

/// Of a column of a stored key: that it has this value, as rows show it or as SQLite writes it.
fn is(column: &str, value: usize, number: usize) -> String {
    format!(
        "(cast({column} as text) = ?{value} or typeof({column}) in ('integer', 'real') and {column} = ?{number} \
         or typeof({column}) = 'blob' and '\\x' || lower(hex({column})) = ?{value})"
    )
}

/// A text as the number that it is; null if it is none.
fn number(text: &str) -> Value {
    let real = || text.parse().ok().filter(|n: &f64| n.is_finite());
    match text.parse() {
        Ok(whole) => Value::Integer(whole),
        Err(_) => real().map_or(Value::Null, Value::Real),
    }
}

const EMPTY: &str =
    "old = case when old is not null then '{}' end, new = case when new is not null then '{}' end";

pub(crate) fn erase(tx: &Connection, name: &TableName, key: &[(String, String)]) -> Result<Erased> {
    let table = Table::find(tx, name)?;
    let names: Vec<&str> = table.key.iter().map(String::as_str).collect();
    let values = key_values(name, &names, key)?;
    let mut erased = Erased::default();
    let same: Vec<String> = capture::key_columns("", names.len())
        .iter()
        .enumerate()
        .map(|(n, column)| is(column, 2 * n + 2, 2 * n + 3))
        .collect();
    for feed in feeds::list(tx)? {
        let Some(source @ Source::Captured { .. }) = &feed.source else {
            continue;
        };
        if !Table::behind(tx, &feed, source).is_ok_and(|t| t.name == table.name) {
            continue;
        }
        let sql = format!(
            "update changefeed_numbered set {EMPTY} \
             where feed_id = ?1 and (old is not null or new is not null) and {}",
            same.join(" and ")
        );
        let each = values
            .iter()
            .flat_map(|v| [Value::Text(v.clone()), number(v)]);
        let all = std::iter::once(Value::Integer(feed.id.0.into())).chain(each);
        let count = tx.execute(&sql, params_from_iter(all)).explained()?;
        erased.changes += u64::try_from(count).unwrap_or(0);
    }
    let matching = format!(
        "trigger_id in (select trigger_id from changefeed_event_trigger where table_name = ?1 collate nocase) \
         and ({} or {})",
        has("old", names.len(), 2),
        has("new", names.len(), 2)
    );
    let given = || {
        let named = names.iter().zip(&values);
        let each = named.flat_map(|(n, v)| {
            [
                Value::Text((*n).to_owned()),
                Value::Text(v.clone()),
                number(v),
            ]
        });
        params_from_iter(std::iter::once(Value::Text(table.name.clone())).chain(each))
    };
    let execute = |sql: &str| -> Result<u64> {
        let count = tx.execute(sql, given()).explained()?;
        Ok(u64::try_from(count).unwrap_or(0))
    };
    let pending = format!("select count(*) from changefeed_event where state = 'p' and {matching}");
    erased.pending = tx
        .query_row(&pending, given(), |row| row.get::<_, i64>(0))
        .explained()?
        .try_into()
        .unwrap_or(0);
    execute(&format!(
        "update changefeed_event_attempt set request = null, response = null, error = null \
         where change_id in (select change_id from changefeed_event where state <> 'p' and {matching})"
    ))?;
    erased.events = execute(&format!(
        "update changefeed_event set {EMPTY}, session_variables = null, trace_context = null \
         where state <> 'p' and {matching}"
    ))?;
    Ok(erased)
}
