//! The trigger that publishes every change of a table.

use changefeed_core::{Error, FeedId, Result, fill};

use crate::connection::Connection;
use crate::quote;
use crate::source::Table;
use crate::table_trigger::{self, Patience};

/// Known by this name to `delete from changefeed.feed`, which drops it.
pub(crate) fn trigger_name(feed: FeedId) -> String {
    format!("changefeed_{feed}")
}

/// Creates the trigger for a feed with these shards, in place of the one that is there.
pub(crate) async fn install(
    connection: &mut Connection,
    feed: FeedId,
    table: &Table,
    shard_by: Option<&str>,
    shards: i16,
    patience: Patience,
) -> Result<()> {
    let sql = trigger(feed, table, shard_by, shards)?;
    table_trigger::put(connection, table, &trigger_name(feed), &sql, &[], patience).await
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

/// Checks that a trigger on it would reach our tables with the rights of their common owner. With two
/// owners the server would refuse every write of whoever has no rights on our tables, and nothing
/// would show it before the first one.
pub(crate) fn check_owner(table: &Table) -> Result<()> {
    let Some((its, ours)) = &table.owners else {
        return Ok(());
    };
    Err(Error::invalid(format!(
        "table {} and the schema changefeed have different owners, {its} and {ours}: with a trigger \
         of ours on the table its writers would need rights on our tables, or be refused",
        table.name
    ))
    .advise(format!(
        "alter authorization on schema::changefeed to {}; or, if that is not the owner of all that \
         you capture from: alter authorization on object::{} to {}",
        quote::identifier(its),
        table.sql,
        quote::identifier(ours)
    )))
}

/// Checks that triggers can be put on it.
pub(crate) fn check_kind(table: &Table) -> Result<()> {
    if table.kind != "U" {
        return Err(Error::invalid(format!(
            "{} is a view; changes can only be captured from a table",
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
        Some("sys" | "INFORMATION_SCHEMA") => "the server's",
        _ => return Ok(()),
    };
    Err(Error::invalid(format!(
        "{} is one of {whose} own tables",
        table.name
    )))
}

#[cfg(test)]
mod tests {
    use changefeed_core::TableName;

    use super::*;
    use crate::source::Column;

    fn table(owners: Option<(&str, &str)>) -> Table {
        let name = TableName::qualified("dbo", "orders");
        Table {
            id: 1,
            sql: quote::table(&name),
            name,
            kind: "U".to_owned(),
            owners: owners.map(|(its, ours)| (its.to_owned(), ours.to_owned())),
            key: vec![Column::plain("id", "int")],
            columns: vec![Column::plain("id", "int")],
        }
    }

    #[test]
    fn a_table_of_another_owner_is_refused_with_the_statement_that_helps() {
        check_owner(&table(None)).unwrap();
        let error = check_owner(&table(Some(("sales \"x\"", "dbo")))).unwrap_err();
        let advice = error.advice().unwrap();
        assert!(
            advice.starts_with(
                "alter authorization on schema::changefeed to \"sales \"\"x\"\"\"; or"
            ),
            "{advice}"
        );
        assert!(
            advice.ends_with("alter authorization on object::\"dbo\".\"orders\" to \"dbo\""),
            "{advice}"
        );
    }

    /// Whatever a writer's session is set to, what our indexes and our sequence need is set before
    /// anything is written.
    #[test]
    fn the_settings_of_a_writer_are_not_those_of_the_trigger() {
        let sql = trigger(FeedId(1), &table(None), None, 1).unwrap();
        let first_write = sql.find("insert into").unwrap();
        for setting in [
            "set nocount on;",
            "set rowcount 0;",
            "set ansi_warnings on;",
            "set ansi_padding on;",
            "set concat_null_yields_null on;",
            "set numeric_roundabort off;",
        ] {
            let place = sql.find(setting);
            assert!(place.is_some_and(|place| place < first_write), "{setting}");
        }
    }
}
