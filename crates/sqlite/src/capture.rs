//! The triggers that publish every change of a table.
//!
//! They run in whatever connection writes to the table, also in that of the stock shell, so they
//! use built-in functions only. The conflict clause of the application's statement overrides any
//! in a trigger's body, so they have none.
//!
//! How rows are seen that a REPLACE removes is told in `staging.rs`.

use changefeed_core::{Error, FeedId, Kind, Result, ShardRange, Source};
use rusqlite::Connection;

use crate::arrange;
use crate::error::Explain;
use crate::event_capture::MAX_SQL;
use crate::filter::Filter;
use crate::quote::{self, fill};
use crate::source::Table;
use crate::staging::{self, Staging, Trigger, pairs};
use crate::unique::{Primary, Uniques};

/// All triggers a feed may have.
const TRIGGERS: [&str; 8] = [
    "stage_insert",
    "stage_update",
    "insert",
    "update",
    "delete",
    "settle_insert",
    "settle_update",
    "settle_delete",
];

/// The name of a trigger of a feed.
pub(crate) fn trigger_name(feed: FeedId, event: &str) -> String {
    format!("changefeed_{feed}_{event}")
}

/// The shard of a value, as an SQL expression.
pub(crate) fn shard_expression(value: &str, shards: i16) -> Result<String> {
    if shards <= 1 {
        return Ok("0".to_owned());
    }
    let sql = fill(
        include_str!("sql/shard.sql"),
        &[("value", value), ("shards", &shards.to_string())],
    )?;
    Ok(sql.trim_end().to_owned())
}

/// The shard of a row after an alias, by a column of its table.
pub(crate) fn row_shard(alias: &str, shard_by: Option<&str>, shards: ShardRange) -> Result<String> {
    let ShardRange { first, count } = shards;
    let Some(column) = shard_by.filter(|_| count > 1) else {
        return Ok(first.to_string());
    };
    let value = format!("{alias}.{}", quote::identifier(column));
    let shard = shard_expression(&value, count)?;
    Ok(match first {
        // As it was before the number of shards could be changed: triggers are compared word for word.
        0 => shard,
        _ => format!("({first} + {shard})"),
    })
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
    source: &Source,
    shards: ShardRange,
) -> Result<()> {
    if shards.count > 1 {
        check_encoding(connection)?;
    }
    for trigger in triggers(connection, feed, table, source, shards)? {
        if trigger.sql.len() > MAX_SQL {
            return Err(Error::new(
                Kind::Unsupported,
                format!(
                    "table {} has too many columns to keep images of all of them",
                    table.name
                ),
            )
            .advise("make the feed without --images"));
        }
        connection.execute_batch(&trigger.sql).explained()?;
    }
    arrange::arrange(connection, &table.name)?;
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

/// The triggers of a feed as they should be now.
pub(crate) fn triggers(
    connection: &Connection,
    feed: FeedId,
    table: &Table,
    source: &Source,
    shards: ShardRange,
) -> Result<Vec<Trigger>> {
    let shard_by = source.shard_by();
    let filter = Filter::of(table, source)?;
    let image = |alias: &str| filter.image(alias);
    let count = table.key.len();
    let (new_key, old_key) = (table.key_of("new"), table.key_of("old"));
    let (old_shard, new_shard) = (
        row_shard("old", shard_by, shards)?,
        row_shard("new", shard_by, shards)?,
    );
    let spread = shards.count > 1;
    // Whatever the columns' collations: to a reader, `a` and `A` are two keys.
    let exactly: Vec<String> = old_key
        .iter()
        .map(|k| format!("{k} collate binary"))
        .collect();
    let mut moved = pairs(&exactly, "is not", &new_key, " or ");
    if spread {
        moved.push_str(&format!(" or {old_shard} <> {new_shard}"));
    }
    let keys = key_columns("", count);
    let [left, entered, told] = filter.update(&moved)?;
    let places = [
        ("feed", feed.to_string()),
        ("table", table.sql()),
        ("keys", keys.join(", ")),
        ("new_key", new_key.join(", ")),
        ("old_key", old_key.join(", ")),
        ("new_shard", new_shard),
        ("old_shard", old_shard),
        (
            "update_old_image",
            match source.keeps_images() {
                true => format!("case when {entered} then null else {} end", image("old")?),
                false => "null".to_owned(),
            },
        ),
        ("left", left),
        ("entered", entered),
        ("told", told),
        ("old_here", filter.here("old")),
        ("new_here", filter.here("new")),
        ("old_image", image("old")?),
        ("new_image", image("new")?),
    ];
    let make = |template: &str, more: &[(&str, &str)]| {
        let mut all: Vec<(&str, &str)> = places.iter().map(|(p, v)| (*p, v.as_str())).collect();
        all.extend_from_slice(more);
        fill(template, &all)
    };

    // A row that is replaced through its primary key is a change of this key, which is told anyway;
    // but it may have been in another shard, and where images are kept it is told what it was.
    let primary = match spread || source.keeps_images() {
        true => Primary::Included,
        false => Primary::LeftOut,
    };
    let mut conflicts = Uniques::of(connection, table, primary)?.conflicts;
    if spread
        || source.keeps_images()
        || table.identity() != table.key && !table.is_key_rowid(connection)?
    {
        conflicts.extend(staging::by_place(table));
    }
    let mut payload = keys.clone();
    payload.push("shard".to_owned());
    if source.keeps_images() {
        payload.push("old".to_owned());
    }
    let tell = |alias: &str| {
        if source.keeps_images() {
            return make(include_str!("sql/capture_tell_all.sql"), &[]);
        }
        make(
            include_str!("sql/capture_tell.sql"),
            &[
                (
                    "keys_are_its",
                    &pairs(&keys, "is", &table.key_of(alias), " and "),
                ),
                ("its_shard", &row_shard(alias, shard_by, shards)?),
            ],
        )
    };
    let staging = Staging {
        owner: feed.0.into(),
        table,
        conflicts,
        telling: payload.len(),
        payload,
        values: &|alias| {
            let mut values = table.key_of(alias);
            values.push(row_shard(alias, shard_by, shards)?);
            if source.keeps_images() {
                values.push(image(alias)?);
            }
            Ok(values)
        },
        tell: &tell,
        name: &|event| trigger_name(feed, event),
    };
    let untold = staging.untold()?;
    let mut all = staging.before()?;
    for (event, template) in [
        ("insert", include_str!("sql/capture_insert.sql")),
        ("update", include_str!("sql/capture_update.sql")),
        ("delete", include_str!("sql/capture_delete.sql")),
    ] {
        let name = trigger_name(feed, event);
        let sql = make(
            template,
            &[("trigger", &quote::identifier(&name)), ("untold", &untold)],
        )?;
        all.push(Trigger { name, sql });
    }
    all.extend(staging.after()?);
    Ok(all)
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
        let sql = format!("select {}", shard_expression("?1", shards).unwrap());
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
        // A real goes by its whole part and its fraction.
        for (real, text) in [
            (1.5, "1/2251799813685248"),
            (-0.25, "0/-1125899906842624"),
            (1e300, "e9223372036854775807"),
        ] {
            let expected = shard_of(ShardValue::Text(text), 16);
            assert_eq!(by_sql(&connection, &Value::Real(real), 16), expected);
        }
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
