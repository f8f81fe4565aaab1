//! The trigger that publishes every change of a table.

use changefeed_core::{Error, FeedId, Kind, Result, fill};

use crate::connection::Connection;
use crate::quote;
use crate::source::Table;

/// Known by this name to `delete from changefeed.feed`, which drops it.
pub(crate) fn trigger_name(feed: FeedId) -> String {
    format!("changefeed_{feed}")
}

/// Creates the trigger for a feed with these shards.
pub(crate) async fn install(
    connection: &mut Connection,
    feed: FeedId,
    table: &Table,
    shard_by: Option<&str>,
    shards: i16,
) -> Result<()> {
    let sql = trigger(feed, table, shard_by, shards)?;
    connection
        .batch(&sql)
        .await
        .map_err(|error| match error.kind() {
            Kind::Permission => may_not_create_trigger(table, error),
            _ => error,
        })
}

pub(crate) fn may_not_create_trigger(table: &Table, error: Error) -> Error {
    Error::new(
        Kind::Permission,
        format!(
            "the database user may not create a trigger on {}",
            table.name
        ),
    )
    .advise(format!("grant alter on {} to this user", table.sql))
    .caused_by(error)
}

/// The trigger as SQL.
pub(crate) fn trigger(
    feed: FeedId,
    table: &Table,
    shard_by: Option<&str>,
    shards: i16,
) -> Result<String> {
    let schema = table.name.schema.as_deref().unwrap_or("dbo");
    Ok(fill(
        include_str!("sql/capture.sql"),
        &[
            ("feed", &feed.to_string()),
            ("schema", &quote::identifier(schema)),
            ("trigger", &quote::identifier(&trigger_name(feed))),
            ("table", &table.sql),
            ("same_key", &table.same_key("i", "d")),
            ("old_key", &table.key_array("d")),
            ("new_key", &table.key_array("i")),
            ("old_shard", &table.shard_expression("d", shard_by, shards)?),
            ("new_shard", &table.shard_expression("i", shard_by, shards)?),
        ],
    ))
}

/// Removes the trigger, wherever its table is by now.
pub(crate) async fn uninstall(connection: &mut Connection, feed: FeedId) -> Result<()> {
    let rows = connection
        .query(
            "select schema_name(o.schema_id) from sys.triggers t \
             join sys.objects o on o.object_id = t.object_id where t.name = @P1",
            &[&trigger_name(feed)],
        )
        .await?;
    for row in rows {
        let schema = row.get::<&str, _>(0).unwrap_or("dbo");
        let drop = format!(
            "drop trigger {}.{}",
            quote::identifier(schema),
            quote::identifier(&trigger_name(feed))
        );
        connection.batch(&drop).await?;
    }
    Ok(())
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

/// Checks that triggers can be put on it.
pub(crate) fn check_kind(table: &Table) -> Result<()> {
    if table.kind != "U" {
        return Err(Error::invalid(format!(
            "{} is a view; changes can only be captured from a table",
            table.name
        )));
    }
    if table.name.schema.as_deref() == Some("changefeed") {
        return Err(Error::invalid(format!(
            "{} is one of changefeed's own tables",
            table.name
        )));
    }
    Ok(())
}
