//! Feeds and shards.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use changefeed_core::{
    After, Backfill, Cursor, Dialect, Error, Feed, FeedId, FeedName, FeedStore, Fold, Kind,
    NewFeed, Page, Result, Shard, ShardId, ShardState, Source, SweepGroup, TableName, Trimmed,
    Uuid,
};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::error::Explain;
use crate::inspect::Table;
use crate::{SqliteStore, backfill, capture, read, triggers, trim, ulid_feeds};

#[async_trait]
impl FeedStore for SqliteStore {
    fn dialect(&self) -> Dialect {
        Dialect {
            fold: Fold::Keep,
            backslashes: false,
            // Programs with an SQLite from before 3.39 write to captured tables as well.
            distinct_from: false,
        }
    }

    async fn create_feed(&self, new: &NewFeed) -> Result<Feed> {
        new.validate()?;
        let new = new.clone();
        self.writing(move |tx| create(tx, new)).await
    }

    async fn drop_feed(&self, feed: &Feed) -> Result<()> {
        let feed = feed.clone();
        self.writing(move |tx| drop(tx, &feed)).await
    }

    async fn feeds(&self) -> Result<Vec<Feed>> {
        self.reading(|tx| list(tx)).await
    }

    async fn read(&self, feed: &Feed, shard: ShardId, after: After, limit: usize) -> Result<Page> {
        let limit = Page::check_limit(limit)?;
        let feed = feed.clone();
        self.reading(move |tx| read::page(tx, &feed, shard, after, limit))
            .await
    }

    async fn shard_states(&self, feed: &Feed) -> Result<Vec<ShardState>> {
        let feed = feed.clone();
        self.reading(move |tx| states(tx, &feed)).await
    }

    async fn backfill(&self, feed: &Feed, batch: usize) -> Result<Backfill> {
        feed.require_numbers("backfilled")?;
        let feed = feed.clone();
        let step = self
            .writing(move |tx| backfill::step(tx, &feed, batch))
            .await?;
        changefeed_core::crash_point("backfill.after_commit");
        self.announce();
        Ok(step)
    }

    async fn trim(&self, feed: &Feed, age: Duration, batch: usize) -> Result<Trimmed> {
        feed.require_numbers("trimmed")?;
        let feed = feed.clone();
        self.writing(move |tx| trim::trim(tx, &feed, age, batch))
            .await
    }
}

pub(crate) fn create(tx: &Connection, new: NewFeed) -> Result<Feed> {
    let id = match new.id {
        Some(id) => id,
        None => next_free_id(tx)?,
    };
    check_free(tx, id, &new.name)?;
    // A feed that was deleted by SQL left its triggers, which would now write into this one.
    capture::remove(tx, id)?;
    tx.execute(
        "insert into changefeed_feed (feed_id, name, comment) values (?1, ?2, ?3)",
        params![id.0, new.name.as_str(), new.comment],
    )
    .explained()?;
    for shard in 0..new.shards {
        tx.execute(
            "insert into changefeed_shard \
             (feed_id, shard, sweep_group, last_change_sequence_number) values (?1, ?2, ?3, ?4)",
            params![id.0, shard, new.sweep_group.0, new.start],
        )
        .explained()?;
    }
    let source = match &new.source {
        Some(source) => Some(attach(tx, id, source, new.shards)?),
        None => None,
    };
    Ok(Feed {
        id,
        name: new.name,
        comment: new.comment,
        shards: (0..new.shards)
            .map(|shard| Shard {
                shard: ShardId(shard),
                sweep_group: new.sweep_group,
                longpoll: true,
            })
            .collect(),
        source,
    })
}

/// Writes the comment and the sweep groups of a feed.
pub(crate) fn change(tx: &Connection, feed: &Feed) -> Result<()> {
    let found = tx
        .execute(
            "update changefeed_feed set comment = ?2 where feed_id = ?1",
            params![feed.id.0, feed.comment],
        )
        .explained()?;
    if found == 0 {
        return Err(gone(feed));
    }
    for shard in &feed.shards {
        tx.execute(
            "update changefeed_shard set sweep_group = ?3 where feed_id = ?1 and shard = ?2",
            params![feed.id.0, shard.shard.0, shard.sweep_group.0],
        )
        .explained()?;
    }
    Ok(())
}

pub(crate) fn drop(tx: &Connection, feed: &Feed) -> Result<()> {
    triggers::check_unused(tx, feed)?;
    capture::remove(tx, feed.id)?;
    backfill::drop_index(tx, feed.id)?;
    // A trigger of ours takes everything else with it.
    let dropped = tx
        .execute(
            "delete from changefeed_feed where feed_id = ?1",
            [feed.id.0],
        )
        .explained()?;
    if dropped == 0 {
        return Err(gone(feed));
    }
    Ok(())
}

fn gone(feed: &Feed) -> Error {
    Error::not_found(format!("feed '{}' is already gone", feed.name))
}

/// One more than the largest, so that the id of a dropped feed is not given again soon.
fn next_free_id(tx: &Connection) -> Result<FeedId> {
    let taken: Vec<i16> = tx
        .prepare("select feed_id from changefeed_feed order by feed_id")
        .and_then(|mut s| s.query_map([], |row| row.get(0))?.collect())
        .explained()?;
    let after_largest = taken.last().map_or(Some(1), |last| last.checked_add(1));
    after_largest
        .map(|id| id.max(1))
        .or_else(|| (1..=i16::MAX).find(|id| taken.binary_search(id).is_err()))
        .map(FeedId)
        .ok_or_else(|| Error::invalid("there is no free feed id left"))
}

fn check_free(tx: &Connection, id: FeedId, name: &FeedName) -> Result<()> {
    let taken: Option<String> = tx
        .query_row(
            "select name from changefeed_feed where feed_id = ?1 or name = ?2 \
             order by name = ?2 desc limit 1",
            params![id.0, name.as_str()],
            |row| row.get(0),
        )
        .optional()
        .explained()?;
    let what = match taken {
        None => return Ok(()),
        Some(taken) if taken == name.as_str() => format!("there is already a feed '{name}'"),
        Some(_) => format!("there is already a feed with id {id}"),
    };
    Err(Error::new(Kind::AlreadyExists, what).advise("`changefeed feed list` shows the feeds"))
}

/// Records where the rows are and, for a captured table, creates its triggers. Returns the source
/// with the names as the catalogue spells them.
fn attach(tx: &Connection, feed: FeedId, source: &Source, shards: i16) -> Result<Source> {
    let Some(given) = source.table() else {
        mark_events(tx, feed)?;
        return Ok(Source::Events);
    };
    let table = Table::find(tx, given)?;
    table.check_foreign(tx)?;
    let shard_by = source.shard_by().map(|c| table.column(c)).transpose()?;
    let name = TableName {
        schema: given.schema.clone(),
        name: table.name.clone(),
    };
    let column = |column: &str| column.to_owned();
    let at = name.clone();
    let (kind, named) = match source {
        // It has no table, so it was dealt with above.
        Source::Events => return Ok(Source::Events),
        Source::Captured { .. } => {
            table.check_capture(tx)?;
            capture::install(tx, feed, &table, shard_by, shards)?;
            let named = Source::Captured {
                table: name,
                shard_by: shard_by.map(column),
            };
            ("captured", named)
        }
        Source::Joined {
            change_id_column, ..
        } => {
            let named = Source::Joined {
                table: name,
                change_id_column: table.column(change_id_column)?.to_owned(),
                shard_by: shard_by.map(column),
            };
            ("joined", named)
        }
        Source::Ulid {
            feed: ulids,
            shard_column,
            ulid_column,
            ..
        } => {
            let columns = ulid_feeds::Columns::find(&table, shard_column, ulid_column)?;
            let named = Source::Ulid {
                feed: *ulids,
                table: name,
                shard_column: columns.shard.clone(),
                ulid_column: columns.ulid.clone(),
            };
            tx.execute(
                "insert into changefeed_ulid_source \
                 (feed_id, ulid_feed, table_schema, table_name, shard_column, ulid_column) \
                 values (?1, ?2, ?3, ?4, ?5, ?6)",
                params![
                    feed.0,
                    ulids.to_string(),
                    at.schema,
                    at.name,
                    columns.shard,
                    columns.ulid
                ],
            )
            .explained()?;
            return Ok(named);
        }
    };
    let change_id_column = match &named {
        Source::Captured { .. } | Source::Ulid { .. } | Source::Events => None,
        Source::Joined {
            change_id_column, ..
        } => Some(change_id_column),
    };
    tx.execute(
        "insert into changefeed_feed_source \
         (feed_id, kind, table_schema, table_name, change_id_column, shard_by, shards) \
         values (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![
            feed.0,
            kind,
            at.schema,
            at.name,
            change_id_column,
            named.shard_by(),
            shards
        ],
    )
    .explained()?;
    Ok(named)
}

/// Says that event triggers write to a feed.
pub(crate) fn mark_events(tx: &Connection, feed: FeedId) -> Result<()> {
    tx.execute(
        "insert into changefeed_event_feed (feed_id) values (?1) on conflict do nothing",
        [feed.0],
    )
    .explained()?;
    Ok(())
}

pub(crate) fn list(tx: &Connection) -> Result<Vec<Feed>> {
    let mut shards: BTreeMap<i16, Vec<Shard>> = BTreeMap::new();
    let mut statement = tx
        .prepare_cached(
            "select feed_id, shard, sweep_group, longpoll <> 0 from changefeed_shard_def \
             order by feed_id, shard",
        )
        .explained()?;
    let mut rows = statement.query([]).explained()?;
    while let Some(row) = rows.next().explained()? {
        let shard = Shard {
            shard: ShardId(row.get(1).explained()?),
            sweep_group: SweepGroup(row.get(2).explained()?),
            longpoll: row.get(3).explained()?,
        };
        shards
            .entry(row.get(0).explained()?)
            .or_default()
            .push(shard);
    }
    let mut statement = tx
        .prepare_cached(include_str!("../sql/feeds.sql"))
        .explained()?;
    let feeds = statement
        .query_map([], |row| {
            let id: i16 = row.get(0)?;
            Ok(Feed {
                id: FeedId(id),
                name: FeedName::trusted(row.get(1)?),
                comment: row.get(2)?,
                shards: shards.remove(&id).unwrap_or_default(),
                source: source(row)?,
            })
        })
        .explained()?;
    feeds.collect::<rusqlite::Result<_>>().explained()
}

fn source(row: &Row<'_>) -> rusqlite::Result<Option<Source>> {
    if row.get(10)? {
        return Ok(Some(Source::Events));
    }
    let Some(name) = row.get(4)? else {
        return Ok(None);
    };
    let table = TableName {
        schema: row.get(3)?,
        name,
    };
    if let Some(ulids) = row.get::<_, Option<String>>(7)? {
        let feed = Uuid::parse_str(&ulids).map_err(|error| {
            rusqlite::Error::FromSqlConversionFailure(7, Type::Text, Box::new(error))
        })?;
        return Ok(Some(Source::Ulid {
            feed,
            table,
            shard_column: row.get(8)?,
            ulid_column: row.get(9)?,
        }));
    }
    let shard_by = row.get(6)?;
    Ok(Some(match row.get(5)? {
        Some(change_id_column) => Source::Joined {
            table,
            change_id_column,
            shard_by,
        },
        None => Source::Captured { table, shard_by },
    }))
}

fn states(tx: &Connection, feed: &Feed) -> Result<Vec<ShardState>> {
    let mut statement = tx
        .prepare_cached(include_str!("../sql/shard_states.sql"))
        .explained()?;
    let states = statement
        .query_map([feed.id.0], |row| {
            Ok(ShardState {
                shard: ShardId(row.get(0)?),
                sweep_group: SweepGroup(row.get(1)?),
                last: Cursor::Number(row.get(2)?),
                // A change has its number as soon as it is committed.
                pending: 0,
                since_ms: row.get(3)?,
            })
        })
        .explained()?;
    let mut states: Vec<ShardState> = states.collect::<rusqlite::Result<_>>().explained()?;
    if let Some(columns) = ulid_feeds::Columns::of(tx, feed)? {
        for state in &mut states {
            columns.state(tx, feed, state)?;
        }
    }
    Ok(states)
}
