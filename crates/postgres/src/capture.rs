//! The trigger that publishes every change of a table.

use changefeed_core::{Error, FeedId, Result, ShardRange, Source};
use tokio_postgres::GenericClient;

use crate::error::db;
use crate::event_capture;
use crate::filter::Filter;
use crate::patience::no_trigger;
use crate::quote;
use crate::row::Cells;
use crate::source::{Column, Table};
use crate::template::{dollar_quote, fill};

/// Sorts before the application's own triggers, so that a trigger of theirs that changes the
/// row again is seen after the change that caused it.
pub(crate) fn trigger_name(feed: FeedId, fires: Fires) -> String {
    match fires {
        Fires::ByRow => format!("!changefeed_{feed}"),
        Fires::OnTruncate => format!("!changefeed_{feed}_truncate"),
    }
}

/// Creates the triggers and their function for a feed with these shards.
pub(crate) async fn install(
    client: &impl GenericClient,
    feed: FeedId,
    table: &Table,
    source: &Source,
    shards: ShardRange,
) -> Result<()> {
    write_function(client, feed, table, source, shards).await?;
    create_triggers(client, feed, table, &[Fires::ByRow, Fires::OnTruncate]).await
}

/// The triggers of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fires {
    ByRow,
    OnTruncate,
}

pub(crate) async fn create_triggers(
    client: &impl GenericClient,
    feed: FeedId,
    table: &Table,
    wanted: &[Fires],
) -> Result<()> {
    for fires in wanted {
        let template = match fires {
            Fires::ByRow => include_str!("sql/capture_row_trigger.sql"),
            Fires::OnTruncate => include_str!("sql/capture_truncate_trigger.sql"),
        };
        let blanks = [
            ("function", function_name(feed)),
            ("trigger", quote::identifier(&trigger_name(feed, *fires))),
            ("table", table.sql.clone()),
        ];
        let sql = fill(
            template,
            &blanks
                .each_ref()
                .map(|(name, value)| (*name, value.as_str())),
        )?;
        client
            .batch_execute(&sql)
            .await
            .map_err(|e| no_trigger(e, table))?;
    }
    Ok(())
}

/// Writes the function of a feed's triggers, or writes it anew: its table was altered, or it is to keep images.
pub(crate) async fn write_function(
    client: &impl GenericClient,
    feed: FeedId,
    table: &Table,
    source: &Source,
    shards: ShardRange,
) -> Result<()> {
    let shard_by = source.shard_by();
    let shard_column = shard_by.map(|name| table.column(name)).transpose()?;
    let read: Vec<&Column> = table.key.iter().chain(shard_column).collect();
    let filter = Filter::of(table, source)?;
    let settings = match source.keeps_images() {
        true => event_capture::settings(table, read.iter().copied(), filter.has_condition()),
        false if read.iter().all(|c| c.text_setting() == Some("")) => String::new(),
        // Also the search path: names of tables and functions are written as it needs them.
        false => {
            "set search_path = pg_catalog, pg_temp set datestyle = 'ISO, YMD' set timezone = 'UTC' \
             set bytea_output = hex set intervalstyle = postgres set extra_float_digits = 1 \
             set lc_monetary = 'C'"
                .to_owned()
        }
    };
    let row = client
        .query_one(
            "select changefeed.place_of($1), changefeed.known_columns($1, 'new')",
            &[&table.oid],
        )
        .await
        .map_err(db)?;
    let (place, all_known): (String, String) = (row.take(0)?, row.take(1)?);
    let keys_known: Vec<String> = read.iter().map(|c| c.is_known("new")).collect();
    let null = || "null".to_owned();
    let (known, before, after, before_now, after_now) = match source.keeps_images() {
        false => (keys_known.join(" and "), null(), null(), null(), null()),
        true => (
            all_known,
            filter.image(client, "old").await?,
            filter.image(client, "new").await?,
            filter.image_now("old"),
            filter.image_now("new"),
        ),
    };
    let key_numbers: Vec<String> = table.key.iter().map(|c| c.place.to_string()).collect();
    let key_names: Vec<String> = table.key.iter().map(|c| quote::literal(&c.name)).collect();
    let shard_column = format!(
        "{}, '{{{}}}'::pg_catalog.int2[], array[{}]::pg_catalog.text[], {}::pg_catalog.int2, {}, {count}",
        quote::literal(&place),
        key_numbers.join(","),
        key_names.join(", "),
        shard_column.map_or("null".to_owned(), |c| c.place.to_string()),
        shard_by.map_or("null".to_owned(), quote::literal),
        count = shards.count,
    );
    let (old_key, new_key) = (table.key_array("old"), table.key_array("new"));
    let old_shard = table.shard_expression("old", shard_by, shards)?;
    let new_shard = table.shard_expression("new", shard_by, shards)?;
    let sql = fill(
        include_str!("sql/capture.sql"),
        &[
            ("feed", &feed.to_string()),
            ("function", &function_name(feed)),
            ("first_shard", &shards.first.to_string()),
            ("last_shard", &shards.last().to_string()),
            ("settings", &settings),
            (
                "quote",
                &dollar_quote(&[
                    &old_key,
                    &old_shard,
                    &known,
                    &shard_column,
                    &before,
                    &before_now,
                ]),
            ),
            ("known", &known),
            ("shard_by", &shard_column),
            ("old_key", &old_key),
            ("new_key", &new_key),
            ("old_shard", &old_shard),
            ("new_shard", &new_shard),
            ("before", &before),
            ("after", &after),
            ("before_now", &before_now),
            ("after_now", &after_now),
            ("filter", &filter.sql()?),
        ],
    )?;
    client.batch_execute(&sql).await.map_err(db)
}

fn function_name(feed: FeedId) -> String {
    quote::identifier(&format!("capture_{feed}"))
}

/// Removes the trigger, wherever its table is by now, and its function.
pub(crate) async fn uninstall(client: &impl GenericClient, feed: FeedId) -> Result<()> {
    client
        .batch_execute(&format!(
            "drop function if exists changefeed.{} cascade",
            function_name(feed)
        ))
        .await
        .map_err(db)
}

/// Checks that changes can be captured from a table, and says why not.
pub(crate) fn check(table: &Table) -> Result<()> {
    check_kind(table)?;
    if table.key.is_empty() {
        return Err(Error::invalid(format!(
            "table {} has no primary key, so its changes could not be told apart",
            table.name
        ))
        .advise("add a primary key to it"));
    }
    Ok(())
}

/// Checks that a key belongs to one row at every moment.
pub(crate) fn check_immediate(table: &Table) -> Result<()> {
    if table.deferrable {
        return Err(Error::invalid(format!(
            "the primary key of table {} is deferrable: two rows may have one key for a while, and a feed could \
             not tell which of them was deleted",
            table.name
        ))
        .advise("make it not deferrable"));
    }
    Ok(())
}

/// Checks that rows can be read from it without running functions of its owner.
pub(crate) fn check_rows(table: &Table) -> Result<()> {
    let what = match table.relkind.as_str() {
        "v" => "a view",
        "f" => "a foreign table",
        _ => return Ok(()),
    };
    Err(Error::invalid(format!(
        "{} is {what}, whose functions would run with the rights of whoever reads the feed",
        table.name
    ))
    .advise("make the feed from a table"))
}

/// Checks that triggers can be put on it.
pub(crate) fn check_kind(table: &Table) -> Result<()> {
    let what = match table.relkind.as_str() {
        "r" | "p" => None,
        "v" => Some("a view"),
        "m" => Some("a materialized view"),
        "f" => Some("a foreign table"),
        _ => Some("not a table"),
    };
    if let Some(what) = what {
        return Err(Error::invalid(format!(
            "{} is {what}; changes can only be captured from a table",
            table.name
        )));
    }
    check_foreign(table)
}

/// Refuses tables of ours and of the server: a feed would show what they hold, digests of tokens and
/// hashes of passwords included, to readers who could not see it otherwise.
pub(crate) fn check_foreign(table: &Table) -> Result<()> {
    let whose = match table.name.schema.as_deref() {
        Some("changefeed") => "changefeed's",
        Some("pg_catalog" | "pg_toast" | "information_schema") => "the server's",
        _ => return Ok(()),
    };
    Err(Error::invalid(format!(
        "{} is one of {whose} own tables",
        table.name
    )))
}
