//! The trigger that publishes every change of a table.

use changefeed_core::{Error, FeedId, Result, ShardRange, Source, fill};

use crate::connection::Connection;
use crate::filter::Filter;
use crate::quote;
use crate::source::{Column, Table};
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
    source: &Source,
    shards: ShardRange,
    patience: Patience,
) -> Result<()> {
    install_and(connection, feed, table, source, shards, patience, &[]).await
}

/// The same, and something else in the message that does it.
pub(crate) async fn install_and(
    connection: &mut Connection,
    feed: FeedId,
    table: &Table,
    source: &Source,
    shards: ShardRange,
    patience: Patience,
    then: &[String],
) -> Result<()> {
    let create = trigger(feed, table, source, shards)?;
    let name = trigger_name(feed);
    table_trigger::put(connection, table, &name, &create, then, patience).await
}

/// The trigger as SQL.
pub(crate) fn trigger(
    feed: FeedId,
    table: &Table,
    source: &Source,
    shards: ShardRange,
) -> Result<String> {
    let shard_by = source.shard_by();
    let filter = Filter::of(table, source)?;
    if source.keeps_images() {
        check_types(table, &filter.shown, "make the feed without --images")?;
    }
    let key_column = quote::identifier(table.key.first().map_or("", |c| c.name.as_str()));
    let schema = table.name.schema.as_deref().unwrap_or("dbo");
    fill(
        include_str!("sql/capture.sql"),
        &[
            ("feed", &feed.to_string()),
            ("schema", &quote::identifier(schema)),
            ("trigger", &quote::identifier(&trigger_name(feed))),
            ("table", &table.sql),
            ("same_key", &table.exactly_same_key("i", "d")),
            ("and_old_here", &filter.and_here("d")),
            ("and_new_here", &filter.and_here("i")),
            ("and_differs", &filter.and_differs("d", "i", &key_column)),
            ("key_column", &key_column),
            ("old_image", &filter.image("d")),
            ("new_image", &filter.image("i")),
            ("old_key", &table.key_array("d")),
            ("new_key", &table.key_array("i")),
            ("old_shard", &table.shard_expression("d", shard_by, shards)?),
            ("new_shard", &table.shard_expression("i", shard_by, shards)?),
        ],
    )
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

/// Types that every expression of ours can handle.
pub(crate) const KNOWN_TYPES: [&str; 33] = [
    "bigint",
    "binary",
    "bit",
    "char",
    "date",
    "datetime",
    "datetime2",
    "datetimeoffset",
    "decimal",
    "float",
    "geography",
    "geometry",
    "hierarchyid",
    "int",
    "json",
    "money",
    "nchar",
    "numeric",
    "nvarchar",
    "real",
    "rowversion",
    "smalldatetime",
    "smallint",
    "smallmoney",
    "sql_variant",
    "sysname",
    "time",
    "timestamp",
    "tinyint",
    "uniqueidentifier",
    "varbinary",
    "varchar",
    "xml",
];

/// Refuses columns of the oldest types, which a trigger cannot see, and of types that belong to somebody's own
/// program, which we do not know how to write. That must show now, not in the application's next write.
pub(crate) fn check_types<'a>(
    table: &Table,
    columns: impl IntoIterator<Item = &'a Column>,
    way_out: &str,
) -> Result<()> {
    for column in columns {
        let advice = match column.base_type.as_str() {
            "text" => "alter the column to varchar(max), or ",
            "ntext" => "alter the column to nvarchar(max), or ",
            "image" => "alter the column to varbinary(max), or ",
            known if KNOWN_TYPES.contains(&known) => continue,
            _ => "",
        };
        return Err(Error::invalid(format!(
            "column '{}' of table {} has type {}, which a trigger cannot capture",
            column.name, table.name, column.base_type
        ))
        .advise(format!("{advice}{way_out}")));
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
            advice.starts_with("alter authorization on schema::changefeed to [sales \"x\"]; or"),
            "{advice}"
        );
        assert!(
            advice.ends_with("alter authorization on object::[dbo].[orders] to [dbo]"),
            "{advice}"
        );
    }

    /// Whatever a writer's session is set to, what our indexes and our sequence need is set before
    /// anything is written.
    #[test]
    fn the_settings_of_a_writer_are_not_those_of_the_trigger() {
        let sql = trigger(
            FeedId(1),
            &table(None),
            &Source::captured(TableName::unqualified("t")),
            ShardRange { first: 0, count: 1 },
        )
        .unwrap();
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
