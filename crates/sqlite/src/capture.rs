//! The triggers that publish every change of a table.
//!
//! They run in whatever connection writes to the table, also in that of the stock shell, so they
//! use built-in functions only. The conflict clause of the application's statement overrides any
//! in a trigger's body, so they have none.
//!
//! A REPLACE removes rows without firing a delete trigger. Where a table has other unique keys
//! than its primary key, or its rows are spread over shards, a trigger *before* the statement
//! notes the rows that may be removed, and the trigger *after* it publishes those that have left.
//! Rows removed by a unique index that was created after the feed, or that is over an expression,
//! are not seen.

use changefeed_core::{Error, FeedId, Kind, Result};
use rusqlite::Connection;

use crate::error::Explain;
use crate::inspect::{Primary, Table, UniqueIndex};
use crate::quote::{self, fill};

/// All triggers a feed may have.
const TRIGGERS: [&str; 5] = ["stage_insert", "stage_update", "insert", "update", "delete"];

/// The name of a trigger of a feed.
pub(crate) fn trigger_name(feed: FeedId, event: &str) -> String {
    format!("changefeed_{feed}_{event}")
}

/// The shard of a value, as an SQL expression.
pub(crate) fn shard_expression(value: &str, shards: i16) -> String {
    if shards <= 1 {
        return "0".to_owned();
    }
    fill(
        include_str!("../sql/shard.sql"),
        &[("value", value), ("shards", &shards.to_string())],
    )
    .trim_end()
    .to_owned()
}

/// The shard of a row after an alias, by a column of its table.
pub(crate) fn row_shard(alias: &str, shard_by: Option<&str>, shards: i16) -> String {
    match shard_by {
        Some(column) => shard_expression(&format!("{alias}.{}", quote::identifier(column)), shards),
        None => "0".to_owned(),
    }
}

/// The names of our key columns, as many as a key has.
pub(crate) fn key_columns(alias: &str, count: usize) -> Vec<String> {
    (1..=count).map(|n| format!("{alias}key{n}")).collect()
}

/// Creates the triggers of a feed.
pub(crate) fn install(
    connection: &Connection,
    feed: FeedId,
    table: &Table,
    shard_by: Option<&str>,
    shards: i16,
) -> Result<()> {
    if shards > 1 {
        check_encoding(connection)?;
    }
    let unique = table.unique_indexes(connection, Primary::LeftOut)?;
    for index in table.expression_indexes(connection)? {
        tracing::warn!(
            table = table.name,
            index,
            "rows that a REPLACE removes by this index over an expression are not captured"
        );
    }
    for sql in triggers(feed, table, &unique, shard_by, shards) {
        connection.execute_batch(&sql).explained()?;
    }
    // Compiling a write compiles the triggers with it. What is wrong with them must show here and
    // not in the application.
    let key = quote::identifier(table.key.first().map_or("", String::as_str));
    for write in [
        format!("insert into {} default values", table.sql()),
        format!("update {} set {key} = {key}", table.sql()),
        format!("delete from {}", table.sql()),
    ] {
        connection.prepare(&write).explained()?;
    }
    Ok(())
}

/// The shard hash is defined over UTF-8, and SQL sees the bytes as the file stores them.
pub(crate) fn check_encoding(connection: &Connection) -> Result<()> {
    let encoding: String = connection
        .query_row("pragma encoding", [], |row| row.get(0))
        .explained()?;
    if encoding != "UTF-8" {
        return Err(Error::new(
            Kind::Unsupported,
            format!("the database file is in {encoding}: its tables cannot be spread over shards"),
        )
        .advise("use one shard"));
    }
    Ok(())
}

/// Removes the triggers of a feed, wherever its table is by now.
pub(crate) fn remove(connection: &Connection, feed: FeedId) -> Result<()> {
    for event in TRIGGERS {
        let name = quote::identifier(&trigger_name(feed, event));
        connection
            .execute_batch(&format!("drop trigger if exists {name}"))
            .explained()?;
    }
    Ok(())
}

/// Removes the triggers of every feed, also of those that were deleted by SQL.
pub(crate) fn remove_all(connection: &Connection) -> Result<()> {
    let names: Vec<String> = connection
        .prepare("select name from sqlite_master where type = 'trigger'")
        .and_then(|mut s| s.query_map([], |row| row.get(0))?.collect())
        .explained()?;
    for feed in names.iter().filter_map(|name| feed_of(name)) {
        remove(connection, feed)?;
    }
    Ok(())
}

/// The feed whose trigger has this name.
fn feed_of(trigger: &str) -> Option<FeedId> {
    let rest = trigger.strip_prefix("changefeed_")?;
    let (feed, event) = rest.split_once('_')?;
    TRIGGERS
        .contains(&event)
        .then(|| feed.parse().ok())
        .flatten()
}

fn triggers(
    feed: FeedId,
    table: &Table,
    unique: &[UniqueIndex],
    shard_by: Option<&str>,
    shards: i16,
) -> Vec<String> {
    let count = table.key.len();
    let (new_key, old_key) = (table.key_of("new"), table.key_of("old"));
    let row_key = table.key_of("changefeed_row");
    let staged_key = key_columns("s.", count);
    let (old_shard, new_shard) = (
        row_shard("old", shard_by, shards),
        row_shard("new", shard_by, shards),
    );
    let place_shard = row_shard("changefeed_row", shard_by, shards);
    let spread = shards > 1;

    let mut same_place = pairs(&row_key, "is", &staged_key, " and ");
    let mut moved = pairs(&old_key, "is not", &new_key, " or ");
    if spread {
        same_place.push_str(&format!(" and {place_shard} = s.shard"));
        moved.push_str(&format!(" or {old_shard} <> {new_shard}"));
    }
    let name = |event| quote::identifier(&trigger_name(feed, event));
    let common = [
        ("feed", feed.to_string()),
        ("table", table.sql()),
        ("keys", key_columns("", count).join(", ")),
        ("new_key", new_key.join(", ")),
        ("old_key", old_key.join(", ")),
        ("row_key", row_key.join(", ")),
        ("new_shard", new_shard),
        ("old_shard", old_shard),
        ("row_shard", place_shard),
        ("staged_key", staged_key.join(", ")),
        (
            "staged_is_old",
            pairs(&key_columns("", count), "is", &old_key, " and "),
        ),
        ("same_place", same_place),
        ("moved", moved),
    ];
    let make = |template: &str, more: &[(&str, &str)]| {
        let mut places: Vec<(&str, &str)> = common
            .iter()
            .map(|(place, value)| (*place, value.as_str()))
            .collect();
        places.extend_from_slice(more);
        fill(template, &places)
    };

    let conflicts = |index: &UniqueIndex, of_update: bool| {
        let mut condition = in_conflict(index);
        if of_update {
            condition.push_str(&format!(
                " and not ({})",
                pairs(&row_key, "is", &old_key, " and ")
            ));
        }
        make(
            include_str!("../sql/capture_conflict.sql"),
            &[("condition", &condition)],
        )
    };
    // A row replaced through its primary key may have been in another shard.
    let own_key = make(
        include_str!("../sql/capture_conflict.sql"),
        &[("condition", &pairs(&row_key, "=", &new_key, " and "))],
    );
    let mut before_insert: Vec<String> = unique.iter().map(|i| conflicts(i, false)).collect();
    let before_update: Vec<String> = unique.iter().map(|i| conflicts(i, true)).collect();
    if spread {
        before_insert.push(own_key);
    }

    let mut sql = Vec::new();
    if !before_insert.is_empty() {
        sql.push(make(
            include_str!("../sql/capture_stage_insert.sql"),
            &[
                ("trigger", &name("stage_insert")),
                ("conflicts", &before_insert.join("\n  union ")),
            ],
        ));
    }
    if !before_update.is_empty() {
        let mut columns: Vec<&str> = unique
            .iter()
            .flat_map(|index| index.columns.iter().map(|(column, _)| column.as_str()))
            .collect();
        columns.sort_unstable();
        columns.dedup();
        // A generated column changes without being named, and so does the condition of a partial
        // index: then any update may bring a conflict.
        let any_update = unique.iter().any(|index| index.filter.is_some())
            || columns.iter().any(|column| table.is_generated(column));
        let of = if any_update {
            String::new()
        } else {
            let columns: Vec<String> = columns.into_iter().map(quote::identifier).collect();
            format!(" of {}", columns.join(", "))
        };
        sql.push(make(
            include_str!("../sql/capture_stage_update.sql"),
            &[
                ("trigger", &name("stage_update")),
                ("of", &of),
                ("conflicts", &before_update.join("\n  union ")),
            ],
        ));
    }
    let (settle, unstage) = if sql.is_empty() {
        (String::new(), String::new())
    } else {
        (
            make(include_str!("../sql/capture_settle.sql"), &[]),
            make(include_str!("../sql/capture_unstage.sql"), &[]),
        )
    };
    for (event, template) in [
        ("insert", include_str!("../sql/capture_insert.sql")),
        ("update", include_str!("../sql/capture_update.sql")),
        ("delete", include_str!("../sql/capture_delete.sql")),
    ] {
        sql.push(make(
            template,
            &[
                ("trigger", &name(event)),
                ("settle", &settle),
                ("unstage", &unstage),
            ],
        ));
    }
    sql
}

/// Whether a row called `changefeed_row` is in the way of `new`, by a unique index.
pub(crate) fn in_conflict(index: &UniqueIndex) -> String {
    let mut condition: Vec<String> = index
        .columns
        .iter()
        .map(|(column, collation)| {
            let column = quote::identifier(column);
            let collation = quote::identifier(collation);
            format!("changefeed_row.{column} = new.{column} collate {collation}")
        })
        .collect();
    if let Some(filter) = &index.filter {
        condition.push(format!("({filter}\n)"));
    }
    condition.join(" and ")
}

/// `a1 = b1 and a2 = b2`, with any operator and joiner.
pub(crate) fn pairs(left: &[String], operator: &str, right: &[String], joiner: &str) -> String {
    left.iter()
        .zip(right)
        .map(|(l, r)| format!("{l} {operator} {r}"))
        .collect::<Vec<_>>()
        .join(joiner)
}

#[cfg(test)]
mod tests {
    use changefeed_core::{ShardValue, shard_of};
    use proptest::prelude::*;
    use rusqlite::types::Value;

    use super::*;

    fn hashing() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch(&crate::migration_script())
            .unwrap();
        connection
    }

    fn by_sql(connection: &Connection, value: &Value, shards: i16) -> i16 {
        let sql = format!("select {}", shard_expression("?1", shards));
        connection
            .query_row(&sql, [value], |row| row.get(0))
            .unwrap()
    }

    #[test]
    fn sql_and_the_core_agree_on_the_shard_of_a_number() {
        let connection = hashing();
        for n in [i64::MIN, i64::MIN + 1, -17, -1, 0, 1, 2, 1 << 40, i64::MAX] {
            for shards in [2, 3, 16, i16::MAX] {
                let expected = shard_of(ShardValue::Integer(n), shards);
                assert_eq!(
                    by_sql(&connection, &Value::Integer(n), shards),
                    expected,
                    "{n}"
                );
            }
        }
        assert_eq!(by_sql(&connection, &Value::Null, 7), 0);
        // A real goes by its text.
        let expected = shard_of(ShardValue::Text("1.5"), 16);
        assert_eq!(by_sql(&connection, &Value::Real(1.5), 16), expected);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn sql_and_the_core_agree_on_the_shard_of_a_text(
            texts in prop::collection::vec(".{0,300}", 64), shards in 2i16..
        ) {
            let connection = hashing();
            for text in texts {
                let expected = shard_of(ShardValue::Text(&text), shards);
                prop_assert_eq!(by_sql(&connection, &Value::Text(text), shards), expected);
            }
        }
    }
}
