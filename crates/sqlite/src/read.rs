//! Reading pages.

use changefeed_core::{
    After, Change, Content, Cursor, Error, Feed, Incarnation, Op, Page, PageRoom, Result, ShardId,
    Source,
};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::error::Explain;
use crate::source::Table;
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
    /// The life of the database.
    incarnation: String,
    /// Whether nothing is added to it any more.
    closed: bool,
}

impl Bounds {
    pub(crate) fn load(tx: &Connection, feed: &Feed, shard: ShardId) -> Result<Bounds> {
        let found = tx
            .prepare_cached(include_str!("sql/bounds.sql"))
            .and_then(|mut s| {
                s.query_row(params![feed.id.0, shard.0], |row| {
                    Ok(Bounds {
                        start: row.get(0)?,
                        trimmed: row.get(1)?,
                        frontier: row.get(2)?,
                        incarnation: row.get(3)?,
                        last: row.get(4)?,
                        closed: row.get(5)?,
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

    /// Where a reader of a time begins.
    fn at(&self, tx: &Connection, feed: &Feed, shard: ShardId, ms: u64) -> Result<After> {
        let ms = i64::try_from(ms).unwrap_or(i64::MAX);
        let found: Option<i64> = tx
            .prepare_cached(include_str!("sql/place_at.sql"))
            .and_then(|mut s| {
                s.query_row(params![feed.id.0, shard.0, ms], |row| row.get(0))
                    .optional()
            })
            .explained()?;
        // Without a mark that is not older, all that there is was before. The mark of the start is older than all of it.
        let number = found.unwrap_or(self.last);
        let number = (number >= self.start).then_some(number);
        Ok(After::at(number, self.trimmed))
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

/// The life of this database.
pub(crate) fn incarnation(tx: &Connection) -> Result<Incarnation> {
    tx.query_row(
        "select incarnation from changefeed_incarnation order by number desc limit 1",
        [],
        |row| row.get::<_, String>(0),
    )
    .explained()?
    .parse()
}

/// Begins another one.
pub(crate) fn recover(tx: &Connection) -> Result<Incarnation> {
    tx.execute_batch(include_str!("sql/recover.sql"))
        .explained()?;
    incarnation(tx)
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
    let incarnation = bounds.incarnation.parse()?;
    if let Some(columns) = ulid_feeds::Columns::of(tx, feed)? {
        return columns.page(tx, feed, shard, after, limit, incarnation);
    }
    let after = match after {
        After::Time(ms) => bounds.at(tx, feed, shard, ms)?,
        known => known,
    };
    let from = bounds.begin(feed, shard, after)?;
    if from >= bounds.last {
        let mut page = Page::empty(Cursor::Number(from), incarnation);
        page.closed = bounds.closed;
        return Ok(page);
    }
    let (sql, key) = statement(tx, feed)?;
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
        let op: Option<String> = row.get(2).explained()?;
        let mut change = Change {
            cursor,
            change_id: Some(row.get(1).explained()?),
            op: op.as_deref().map(Op::from_letter).transpose()?,
            key: None,
            content: Content::Unknown,
        };
        if feed.source == Some(Source::Events) {
            change.content = match change.op {
                Some(_) => images(row, 3)?,
                // The event was cleaned up.
                None => Content::Gone,
            };
        } else {
            let fixed = FIXED + key.len();
            // Only a row knows the columns of the statement that gave it: SQLite compiles it anew
            // when the table was altered.
            let names = names.get_or_insert_with(|| column_names(row, fixed));
            if !names.is_empty() {
                let (has_key, has_row): (bool, bool) =
                    (row.get(3).explained()?, row.get(4).explained()?);
                if has_key && !key.is_empty() {
                    change.key = Some(value::to_json(row, &key, FIXED)?);
                }
                change.content = match (has_key, has_row) {
                    _ if images_kept(row)? => images(row, 5)?,
                    // Somebody put a change of their own into a captured feed.
                    (false, _) => Content::Unknown,
                    (true, false) => Content::Gone,
                    (true, true) => Content::Row(value::to_json(row, names, fixed)?),
                };
            }
        }
        if !room.takes(&change) {
            more = true;
            break;
        }
        changes.push(change);
    }
    let next = changes
        .last()
        .map_or(Cursor::Number(from), |change| change.cursor);
    Ok(Page {
        closed: bounds.closed && !more && bounds.end(from) == i64::MAX,
        changes,
        next,
        more,
        incarnation,
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

/// Columns of a joined page before those of the key and of the row.
const FIXED: usize = 7;

/// Whether a captured change has kept a row.
fn images_kept(row: &Row<'_>) -> Result<bool> {
    let is_null = |place| Ok::<_, Error>(row.get_ref(place).explained()? == ValueRef::Null);
    Ok(!(is_null(5)? && is_null(6)?))
}

/// The row before and after, in these columns.
fn images(row: &Row<'_>, from: usize) -> Result<Content> {
    Ok(Content::Images {
        old: value::raw(row, from)?,
        new: value::raw(row, from + 1)?,
    })
}

/// The SQL that reads a page of this feed together with its rows, as the table is now, and the names of the key
/// columns that come before those of the row.
fn statement(tx: &Connection, feed: &Feed) -> Result<(String, Vec<String>)> {
    let template = include_str!("sql/page.sql");
    let plain = || {
        let sql = quote::fill(template, &[("columns", ", null"), ("join", "")])?;
        Ok((sql, Vec::new()))
    };
    let Some(source) = &feed.source else {
        return plain();
    };
    if *source == Source::Events {
        let sql = quote::fill(
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
        )?;
        return Ok((sql, Vec::new()));
    }
    let table = Table::behind(tx, feed, source)?;
    let mut key = Vec::new();
    let mut keys = String::new();
    let (has_key, has_row, condition) = match source {
        Source::Captured { .. } => {
            let row_key = table.key_of("changefeed_row");
            let Some(first) = row_key.first() else {
                return Err(Error::not_found(format!(
                    "table {} behind feed '{}' no longer has a primary key",
                    table.name, feed.name
                )));
            };
            key = table.key.clone();
            let stored = capture::key_columns("n.", row_key.len());
            keys = format!(", {}", stored.join(", "));
            let found = crate::staging::pairs(&row_key, "=", &stored, " and ");
            (
                "n.key1 is not null",
                format!("{first} is not null"),
                // A row that has this key by now is another one.
                format!("n.op is not 'D' and n.new is null and {found}"),
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
    let columns = format!(", n.op, {has_key}, {has_row}, n.old, n.new{keys}, changefeed_row.*");
    let join = format!(
        "\n  left join {} as changefeed_row on {condition}",
        table.sql()
    );
    let sql = quote::fill(template, &[("columns", &columns), ("join", &join)])?;
    Ok((sql, key))
}
