//! Reading pages.

use changefeed_core::{
    After, Change, Content, Cursor, Error, Feed, Operation, Page, PageRoom, Result, ShardId, Source,
};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::error::Explain;
use crate::inspect::Table;
use crate::{capture, quote, ulid_feeds, value};

/// The ends of a shard.
pub(crate) struct Bounds {
    /// The number before the first live one.
    pub(crate) start: i64,
    /// Everything up to here was trimmed.
    pub(crate) trimmed: i64,
    /// The newest backfilled number, while a backfill is at work.
    pub(crate) frontier: Option<i64>,
    /// The newest number given.
    pub(crate) last: i64,
}

impl Bounds {
    pub(crate) fn load(tx: &Connection, feed: &Feed, shard: ShardId) -> Result<Bounds> {
        let found = tx
            .prepare_cached(include_str!("../sql/bounds.sql"))
            .and_then(|mut s| {
                s.query_row(params![feed.id.0, shard.0], |row| {
                    Ok(Bounds {
                        start: row.get(0)?,
                        trimmed: row.get(1)?,
                        frontier: row.get(2)?,
                        last: row.get(3)?,
                    })
                })
                .optional()
            })
            .explained()?;
        found.ok_or_else(|| feed.unknown_shard(shard))
    }

    /// The number after which to read, or why that is not possible.
    fn begin(&self, feed: &Feed, shard: ShardId, after: After) -> Result<i64> {
        let ends = changefeed_core::Bounds {
            last: self.last,
            trimmed_to: self.trimmed,
        };
        ends.begin(feed, shard, after)
    }

    /// The number up to which a reader may go. While a backfill is at work, a reader of
    /// backfilled numbers stops at its frontier; it would jump over what is still to come.
    fn end(&self, from: i64) -> i64 {
        match self.frontier {
            Some(frontier) if from < self.start => frontier,
            _ => i64::MAX,
        }
    }
}

/// Reads a page; the transaction makes it one moment of the database.
pub(crate) fn page(
    tx: &Connection,
    feed: &Feed,
    shard: ShardId,
    after: After,
    limit: usize,
) -> Result<Page> {
    let bounds = Bounds::load(tx, feed, shard)?;
    if let Some(columns) = ulid_feeds::Columns::of(tx, feed)? {
        return columns.page(tx, feed, shard, after, limit);
    }
    let from = bounds.begin(feed, shard, after)?;
    if from >= bounds.last {
        return Ok(Page::empty(Cursor::Number(from)));
    }
    let sql = statement(tx, feed)?;
    let mut statement = tx.prepare_cached(&sql).explained()?;
    let mut rows = statement
        .query(params![feed.id.0, shard.0, from, bounds.end(from)])
        .explained()?;
    let mut changes: Vec<Change> = Vec::with_capacity(limit.min(1000));
    let mut names: Option<Vec<String>> = None;
    let mut room = PageRoom::default();
    let mut more = false;
    while let Some(row) = rows.next().explained()? {
        let cursor = Cursor::Number(row.get(0).explained()?);
        // Several rows may carry the same change_id; the first stands for the change.
        if changes.last().is_some_and(|change| change.cursor == cursor) {
            continue;
        }
        if changes.len() == limit {
            more = true;
            break;
        }
        let content = if feed.source == Some(Source::Events) {
            event(row)?
        } else {
            // Only a row knows the columns of the statement that gave it: SQLite compiles it anew
            // when the table was altered.
            content(row, names.get_or_insert_with(|| column_names(row, FIXED)))?
        };
        if !room.takes(&content) {
            more = true;
            break;
        }
        changes.push(Change {
            cursor,
            change_id: Some(row.get(1).explained()?),
            content,
        });
    }
    let next = changes
        .last()
        .map_or(Cursor::Number(from), |change| change.cursor);
    Ok(Page {
        changes,
        next,
        more,
    })
}

/// The names of a row's columns from the given one on.
pub(crate) fn column_names(row: &Row<'_>, from: usize) -> Vec<String> {
    let all = row.as_ref().column_names();
    all.iter()
        .skip(from)
        .map(|name| (*name).to_owned())
        .collect()
}

/// Columns of a joined page before those of the row.
const FIXED: usize = 4;

fn content(row: &Row<'_>, names: &[String]) -> Result<Content> {
    if names.is_empty() {
        return Ok(Content::Unknown);
    }
    let (has_key, has_row): (bool, bool) = (row.get(2).explained()?, row.get(3).explained()?);
    Ok(match (has_key, has_row) {
        // Somebody put a change of their own into a captured feed.
        (false, _) => Content::Unknown,
        (true, false) => Content::Gone,
        (true, true) => Content::Row(value::to_json(row, names, FIXED)?),
    })
}

fn event(row: &Row<'_>) -> Result<Content> {
    let Some(op) = row.get::<_, Option<String>>(2).explained()? else {
        return Ok(Content::Gone);
    };
    Ok(Content::Event {
        op: Operation::from_letter(&op)?,
        old: value::raw(row, 3)?,
        new: value::raw(row, 4)?,
    })
}

/// The SQL that reads a page of this feed together with its rows, as the table is now.
fn statement(tx: &Connection, feed: &Feed) -> Result<String> {
    let template = include_str!("../sql/page.sql");
    let plain = || Ok(quote::fill(template, &[("columns", ""), ("join", "")]));
    let Some(source) = &feed.source else {
        return plain();
    };
    if *source == Source::Events {
        return Ok(quote::fill(
            template,
            &[
                ("columns", ", e.op, e.old, e.new"),
                (
                    "join",
                    // Only events of this feed: whoever may publish can enter any change_id.
                    "\n  left join changefeed_event e \
                     on e.change_id = n.change_id and e.feed_id = n.feed_id",
                ),
            ],
        ));
    }
    let table = Table::behind(tx, feed, source)?;
    let (has_key, has_row, condition) = match source {
        Source::Captured { .. } => {
            let row_key = table.key_of("changefeed_row");
            let Some(first) = row_key.first() else {
                return Err(Error::not_found(format!(
                    "table {} behind feed '{}' no longer has a primary key",
                    table.name, feed.name
                )));
            };
            let keys = capture::key_columns("n.", row_key.len());
            (
                "n.key1 is not null",
                format!("{first} is not null"),
                crate::staging::pairs(&row_key, "=", &keys, " and "),
            )
        }
        Source::Joined {
            change_id_column, ..
        } => {
            let column = quote::identifier(table.column(change_id_column)?);
            (
                "1",
                format!("changefeed_row.{column} is not null"),
                format!("changefeed_row.{column} = n.change_id"),
            )
        }
        // Its rows themselves are the feed; and events were dealt with above.
        Source::Ulid { .. } | Source::Events => return plain(),
    };
    let columns = format!(", {has_key}, {has_row}, changefeed_row.*");
    let join = format!(
        "\n  left join {} as changefeed_row on {condition}",
        table.sql()
    );
    Ok(quote::fill(
        template,
        &[("columns", &columns), ("join", &join)],
    ))
}
