//! `changefeed feed create`

use std::time::Duration;

use changefeed::{Changefeed, NewFeed, Result, Retention, Source};

use crate::args::CreateFeed;
use crate::commands::columns;
use crate::output::Out;

pub(super) async fn run(db: &Changefeed, args: CreateFeed, out: &mut Out) -> Result<()> {
    let new = new_feed(db, args)?;
    let feed = db.create_feed(&new).await?;
    let definition = feed.definition();
    if out.is_json() {
        return out.object(definition);
    }
    let shards = match definition.shards.len() {
        1 => "1 shard".to_owned(),
        n => format!("{n} shards"),
    };
    out.line(format!(
        "feed {} created with id {} and {shards}",
        definition.name, definition.id
    ))?;
    match &definition.source {
        Some(source @ Source::Captured { table, .. }) => {
            let what = match source.is_filtered() {
                true => "what the feed shows of every insert, update and delete",
                false => "every insert, update and delete",
            };
            out.line(format!(
                "{what} of {table} is published from now on; \
                 `changefeed feed backfill {}` adds the rows that are there already",
                definition.name
            ))
        }
        _ => Ok(()),
    }
}

/// The feed that was typed, or written in a file.
pub(crate) fn new_feed(db: &Changefeed, args: CreateFeed) -> Result<NewFeed> {
    if args.shard_by.is_some() && args.from.is_none() && args.rows.is_none() {
        return Err(crate::usage("--shard-by needs a table to look at")
            .advise("add --from TABLE or --rows TABLE"));
    }
    let shard_by = args.shard_by.as_deref().map(|c| db.column(c)).transpose()?;
    let source = match (&args.from, &args.rows) {
        (Some(table), _) => Some(Source::Captured {
            table: db.table(table)?,
            shard_by,
            images: args.images || args.when.is_some() || args.columns.is_some(),
            when: args.when,
            columns: args
                .columns
                .map(|names| columns::parse(db, &names))
                .transpose()?,
        }),
        (None, Some(table)) => Some(Source::Joined {
            table: db.table(table)?,
            change_id_column: db.column(&args.change_id_column)?,
            shard_by,
        }),
        (None, None) => ulids(db, &args)?,
    };
    Ok(NewFeed {
        name: args.name,
        id: args.id,
        comment: args.comment,
        shards: args.shards,
        sweep_group: args.sweep_group,
        start: args.start,
        source,
        retention: retention(args.trim_after, args.trim_unread_after),
    })
}

/// How long changes are kept, as it was typed.
pub(super) fn retention(
    trim_after: Option<Duration>,
    trim_unread_after: Option<Duration>,
) -> Option<Retention> {
    Some(Retention {
        trim_after: trim_after?,
        trim_unread_after,
    })
}

/// The rows of ULID transactions. The command line gives all four or none of these.
fn ulids(db: &Changefeed, args: &CreateFeed) -> Result<Option<Source>> {
    let (Some(feed), Some(table), Some(shard_column), Some(ulid_column)) = (
        args.ulid_feed,
        &args.ulid_table,
        &args.shard_column,
        &args.ulid_column,
    ) else {
        return Ok(None);
    };
    Ok(Some(Source::Ulid {
        feed,
        table: db.table(table)?,
        shard_column: db.column(shard_column)?,
        ulid_column: db.column(ulid_column)?,
    }))
}
