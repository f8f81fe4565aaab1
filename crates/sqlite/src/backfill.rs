//! Giving numbers below the start to rows that are older than the feed.
//!
//! The numbers go up from 10^15 below the start, or from 1 where the start is lower than that, or
//! from whatever was put there by hand. Rows come in the order of their primary key (of their
//! change_id, for a joined table), in batches; the position is kept in the same transaction as
//! the numbers, so a batch happens once or not at all. A row that is written while the backfill
//! is at work may appear twice: by its own change, and as one of the rows that were there.

use std::collections::BTreeMap;

use changefeed_core::{Backfill, Error, Feed, FeedId, Result, ShardId, Source, crash_point};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

use crate::error::Explain;
use crate::filter::Filter;
use crate::source::{MAX_KEY, Table};
use crate::{capture, feeds, quote};

/// How far below the start the numbers begin.
const ROOM: i64 = 1_000_000_000_000_000;

/// The state of a backfill between two steps.
struct State {
    done: i64,
    total: i64,
    finished: bool,
    /// The key of the last row that was looked at.
    position: Option<Vec<Value>>,
}

/// What a step needs to know of the feed's table.
struct Rows {
    table: Table,
    /// The column with the change id, if the application gives it.
    change_id: Option<String>,
    /// The shard of a row, as SQL.
    shard: String,
    /// What is kept of it, as SQL.
    image: String,
    images: bool,
}

/// A row that gets a number.
struct Found {
    shard: i16,
    /// Whether the application has put it into the feed already.
    published: bool,
    /// The row as JSON, if the feed keeps images.
    image: Value,
    key: Vec<Value>,
}

/// Numbers the next `batch` rows.
pub(crate) fn step(tx: &Connection, feed: &Feed, batch: usize) -> Result<Backfill> {
    if batch == 0 {
        return Err(Error::invalid("a backfill batch needs at least one row"));
    }
    let rows = Rows::of(tx, feed)?;
    let mut state = match State::load(tx, feed.id, rows.width())? {
        Some(state) => state,
        None => begin(tx, feed, &rows)?,
    };
    if state.finished {
        return Ok(state.report(0));
    }
    let found = rows.next(tx, feed.id, state.position.as_deref(), batch)?;
    state.finished = found.len() < batch;
    if let Some(last) = found.last() {
        state.position = Some(last.key.clone());
    }
    // A row without an image is not in a feed that keeps them.
    let here = |row: &Found| !rows.images || row.image != Value::Null;
    let fresh: Vec<Found> = found
        .into_iter()
        .filter(|row| !row.published && here(row))
        .collect();
    number(tx, feed, &rows, &fresh)?;
    let added = i64::try_from(fresh.len()).unwrap_or(i64::MAX);
    state.done += added;
    state.save(tx, feed.id)?;
    if state.finished {
        tx.execute(
            "update changefeed_shard_def set frontier = null where feed_id = ?1",
            [feed.id.0],
        )
        .explained()?;
        drop_index(tx, feed.id)?;
    }
    crash_point("backfill.before_commit");
    Ok(state.report(added))
}

/// Removes the index that only a backfill needs.
pub(crate) fn drop_index(tx: &Connection, feed: FeedId) -> Result<()> {
    tx.execute_batch(&format!("drop index if exists {}", index_name(feed)))
        .explained()
}

fn index_name(feed: FeedId) -> String {
    quote::identifier(&format!("changefeed_{feed}_backfill"))
}

/// Marks out the numbers for every shard and counts the rows.
fn begin(tx: &Connection, feed: &Feed, rows: &Rows) -> Result<State> {
    let mut room = i64::MAX;
    for (shard, bounds) in frontiers(tx, feed.id)? {
        if bounds.trimmed > bounds.start {
            return Err(Error::invalid(format!(
                "feed '{}' can no longer be backfilled: changes of shard {shard} up to {} were \
                 trimmed, so nobody would read what is put below them",
                feed.name, bounds.trimmed
            ))
            .advise("create a new feed and backfill that"));
        }
        room = room.min(bounds.start - bounds.begin);
        tx.execute(
            "update changefeed_shard_def set frontier = ?3 where feed_id = ?1 and shard = ?2",
            params![feed.id.0, shard, bounds.begin],
        )
        .explained()?;
    }
    let total = rows.count(tx)?;
    if total > room {
        check_room(tx, feed, rows)?;
    }
    if rows.change_id.is_some() {
        // Finds out quickly whether a row is in the feed already. The id is written out, because
        // an index over a part of the table is used only for a condition known beforehand.
        tx.execute_batch(&format!(
            "create index if not exists {} on changefeed_numbered (change_id) where feed_id = {}",
            index_name(feed.id),
            feed.id
        ))
        .explained()?;
    }
    tx.execute(
        "insert into changefeed_backfill (feed_id, total) values (?1, ?2)",
        params![feed.id.0, total],
    )
    .explained()?;
    Ok(State {
        done: 0,
        total,
        finished: false,
        position: None,
    })
}

/// The numbers of a shard that a backfill may use.
struct Range {
    start: i64,
    trimmed: i64,
    /// The number before the next one.
    begin: i64,
}

fn frontiers(tx: &Connection, feed: FeedId) -> Result<BTreeMap<i16, Range>> {
    let mut statement = tx
        .prepare_cached(include_str!("sql/backfill_ranges.sql"))
        .explained()?;
    let ranges = statement
        .query_map(params![feed.0, ROOM], |row| {
            let range = Range {
                start: row.get(1)?,
                trimmed: row.get(2)?,
                begin: row.get(3)?,
            };
            Ok((row.get(0)?, range))
        })
        .explained()?;
    ranges.collect::<rusqlite::Result<_>>().explained()
}

/// Counts by shard, which is only worth its cost where it is needed.
fn check_room(tx: &Connection, feed: &Feed, rows: &Rows) -> Result<()> {
    let ranges = frontiers(tx, feed.id)?;
    let sql = format!(
        "select {} as shard, count(*) from {} as changefeed_row where {} group by 1",
        rows.shard,
        rows.table.sql(),
        rows.condition()
    );
    let mut statement = tx.prepare(&sql).explained()?;
    let mut counts = statement.query([]).explained()?;
    while let Some(row) = counts.next().explained()? {
        let (shard, count): (i16, i64) = (row.get(0).explained()?, row.get(1).explained()?);
        if ranges
            .get(&shard)
            .is_some_and(|r| count > r.start - r.begin)
        {
            return Err(feed.no_room_for(&rows.table.name));
        }
    }
    Ok(())
}

/// Gives the rows their numbers and moves the frontiers.
fn number(tx: &Connection, feed: &Feed, rows: &Rows, fresh: &[Found]) -> Result<()> {
    let mut ranges = frontiers(tx, feed.id)?;
    let count = i64::try_from(fresh.len()).unwrap_or(i64::MAX);
    let mut own_id: i64 = match rows.change_id {
        Some(_) => 0,
        None => {
            tx.query_row(
                "update changefeed_change_id set value = value + ?1 returning value",
                [count],
                |row| row.get::<_, i64>(0),
            )
            .explained()?
                - count
        }
    };
    let mut columns = vec!["feed_id", "shard", "change_sequence_number", "change_id"];
    let keys = capture::key_columns("", rows.width());
    if rows.change_id.is_none() {
        columns.extend(["op", "new"]);
        columns.extend(keys.iter().map(String::as_str));
    }
    let sql = format!(
        "insert into changefeed_numbered ({}) values (?{})",
        columns.join(", "),
        ", ?".repeat(columns.len() - 1)
    );
    let mut insert = tx.prepare_cached(&sql).explained()?;
    for row in fresh {
        let Some(range) = ranges.get_mut(&row.shard) else {
            return Err(feed.unknown_shard(ShardId(row.shard)));
        };
        range.begin += 1;
        if range.begin > range.start {
            return Err(feed.no_room_for(&rows.table.name));
        }
        own_id += 1;
        let mut values: Vec<Value> = vec![
            Value::Integer(feed.id.0.into()),
            Value::Integer(row.shard.into()),
            Value::Integer(range.begin),
        ];
        if rows.change_id.is_some() {
            values.extend(row.key.iter().take(1).cloned());
        } else {
            values.push(Value::Integer(own_id));
            values.extend([Value::Text("B".to_owned()), row.image.clone()]);
            values.extend(row.key.iter().cloned());
        }
        insert.execute(params_from_iter(values)).explained()?;
    }
    for (shard, range) in ranges {
        tx.prepare_cached(
            "update changefeed_shard_def set frontier = ?3 where feed_id = ?1 and shard = ?2",
        )
        .and_then(|mut s| s.execute(params![feed.id.0, shard, range.begin]))
        .explained()?;
    }
    Ok(())
}

impl Rows {
    fn of(tx: &Connection, feed: &Feed) -> Result<Rows> {
        let Some(source) = &feed.source else {
            return Err(Error::invalid(format!(
                "feed '{}' does not know where its rows are, so there is nothing to backfill",
                feed.name
            ))
            .advise("create feeds with --from TABLE or --rows TABLE"));
        };
        if *source == Source::Events {
            return Err(Error::invalid(format!(
                "feed '{}' holds events of triggers, so there are no rows to backfill it from",
                feed.name
            ))
            .advise("`changefeed trigger backfill` makes events of existing rows"));
        }
        let shards = feeds::shards(tx, feed.id)?
            .ok_or_else(|| Error::not_found(format!("feed '{}' is already gone", feed.name)))?;
        let table = Table::behind(tx, feed, source)?;
        let shard_by = source.shard_by().map(|c| table.column(c)).transpose()?;
        let shard = capture::row_shard("changefeed_row", shard_by, shards)?;
        let change_id = match source {
            Source::Captured { .. } | Source::Ulid { .. } | Source::Events => None,
            Source::Joined {
                change_id_column, ..
            } => Some(table.column(change_id_column)?.to_owned()),
        };
        let image = match source {
            Source::Captured { .. } => Filter::of(&table, source)?.image("changefeed_row")?,
            _ => "null".to_owned(),
        };
        Ok(Rows {
            table,
            change_id,
            shard,
            image,
            images: source.keeps_images(),
        })
    }

    /// The columns by which the rows are ordered.
    fn order(&self) -> Vec<String> {
        match &self.change_id {
            Some(column) => vec![format!("changefeed_row.{}", quote::identifier(column))],
            None => self.table.key_of("changefeed_row"),
        }
    }

    fn width(&self) -> usize {
        self.order().len().min(MAX_KEY)
    }

    /// Rows that can be found again by their key, or have a change id at all.
    fn condition(&self) -> String {
        let order = self.order();
        let tests = order.iter().map(|column| match self.change_id {
            Some(_) => format!("typeof({column}) = 'integer'"),
            None => format!("{column} is not null"),
        });
        tests.collect::<Vec<_>>().join(" and ")
    }

    fn count(&self, tx: &Connection) -> Result<i64> {
        let counted = match &self.change_id {
            Some(column) => format!("count(changefeed_row.{})", quote::identifier(column)),
            None => "count(*)".to_owned(),
        };
        let sql = format!(
            "select {counted} from {} as changefeed_row",
            self.table.sql()
        );
        tx.query_row(&sql, [], |row| row.get(0)).explained()
    }

    /// The next rows after a position.
    fn next(
        &self,
        tx: &Connection,
        feed: FeedId,
        position: Option<&[Value]>,
        batch: usize,
    ) -> Result<Vec<Found>> {
        let order = self.order();
        let resume = match position {
            None => String::new(),
            Some(key) => {
                let places: Vec<String> = (1..=key.len()).map(|n| format!("?{n}")).collect();
                format!("and ({}) > ({})", order.join(", "), places.join(", "))
            }
        };
        let (published, group) = match &self.change_id {
            // Several rows may carry the same change_id: they are one change.
            Some(_) => (
                format!(
                    "exists (select 1 from changefeed_numbered n \
                     where n.feed_id = {feed} and n.change_id = {})",
                    order.join("")
                ),
                format!("group by {}", order.join("")),
            ),
            None => ("0".to_owned(), String::new()),
        };
        let sql = quote::fill(
            include_str!("sql/backfill_rows.sql"),
            &[
                ("shard", &self.shard),
                ("published", &published),
                ("image", &self.image),
                ("key", &order.join(", ")),
                ("table", &self.table.sql()),
                ("condition", &self.condition()),
                ("resume", &resume),
                ("group", &group),
                ("batch", &batch.to_string()),
            ],
        )?;
        let width = order.len();
        let found = |row: &Row<'_>| {
            Ok(Found {
                shard: row.get(0)?,
                published: row.get(1)?,
                image: row.get(2)?,
                key: (3..3 + width)
                    .map(|n| row.get(n))
                    .collect::<rusqlite::Result<_>>()?,
            })
        };
        tx.prepare_cached(&sql)
            .and_then(|mut s| {
                s.query_map(params_from_iter(position.unwrap_or_default()), found)?
                    .collect()
            })
            .explained()
    }
}

impl State {
    fn load(tx: &Connection, feed: FeedId, width: usize) -> Result<Option<State>> {
        tx.query_row(
            "select done, total, finished, key1, key2, key3, key4, key5, key6, key7, key8 \
             from changefeed_backfill where feed_id = ?1",
            [feed.0],
            |row| {
                let key: Vec<Value> = (3..3 + width)
                    .map(|n| row.get(n))
                    .collect::<rusqlite::Result<_>>()?;
                Ok(State {
                    done: row.get(0)?,
                    total: row.get(1)?,
                    finished: row.get(2)?,
                    position: (key.first() != Some(&Value::Null)).then_some(key),
                })
            },
        )
        .optional()
        .explained()
    }

    fn save(&self, tx: &Connection, feed: FeedId) -> Result<()> {
        let mut values = vec![
            Value::Integer(feed.0.into()),
            Value::Integer(self.done),
            Value::Integer(self.finished.into()),
        ];
        values.extend(self.position.iter().flatten().cloned());
        values.resize(3 + MAX_KEY, Value::Null);
        tx.execute(
            "update changefeed_backfill set done = ?2, finished = ?3, key1 = ?4, key2 = ?5, \
             key3 = ?6, key4 = ?7, key5 = ?8, key6 = ?9, key7 = ?10, key8 = ?11 \
             where feed_id = ?1",
            params_from_iter(values),
        )
        .explained()?;
        Ok(())
    }

    fn report(&self, added: i64) -> Backfill {
        let count = |n: i64| u64::try_from(n).unwrap_or(0);
        Backfill {
            added: count(added),
            done: count(self.done),
            total: count(self.total),
            finished: self.finished,
        }
    }
}
