//! Feeds and shards.

use std::collections::BTreeMap;

use async_trait::async_trait;
use changefeed_core::{
    After, Backfill, Cursor, Dialect, Erased, Error, Feed, FeedId, FeedName, FeedStore,
    Incarnation, NewFeed, Page, Result, Retention, Shard, ShardId, ShardRange, ShardState, Source,
    SweepGroup, TableName, Trimmed, Uuid, words,
};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::error::Explain;
use crate::filter::DIALECT;
use crate::source::Table;
use crate::{SqliteStore, backfill, capture, erase, read, reshard, triggers, trim, ulid_feeds};

#[async_trait]
impl FeedStore for SqliteStore {
    fn dialect(&self) -> Dialect {
        DIALECT
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

    async fn reshard(&self, feed: &Feed, shards: i16) -> Result<Feed> {
        feed.check_reshard(shards)?;
        let feed = feed.clone();
        self.writing(move |tx| reshard::reshard(tx, &feed, shards))
            .await
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

    async fn trim(&self, feed: &Feed, retention: Retention, batch: usize) -> Result<Trimmed> {
        feed.require_numbers("trimmed")?;
        let feed = feed.clone();
        self.writing(move |tx| trim::trim(tx, &feed, retention, batch))
            .await
    }

    async fn erase(&self, table: &TableName, key: &[(String, String)]) -> Result<Erased> {
        let (table, key) = (table.clone(), key.to_vec());
        self.writing(move |tx| erase::erase(tx, &table, &key)).await
    }

    async fn incarnation(&self) -> Result<Incarnation> {
        self.reading(|tx| read::incarnation(tx)).await
    }

    async fn recover(&self) -> Result<Incarnation> {
        self.writing(|tx| read::recover(tx)).await
    }
}

pub(crate) fn create(tx: &Connection, new: NewFeed) -> Result<Feed> {
    let id = match new.id {
        Some(id) => id,
        None => next_free_id(tx)?,
    };
    check_free(tx, id, &new.name)?;
    let (after, unread) = Retention::milliseconds(new.retention.as_ref());
    // A feed that was deleted by SQL left its triggers, which would now write into this one.
    capture::remove(tx, id)?;
    tx.execute(
        "insert into changefeed_feed (feed_id, name, comment, trim_after_ms, trim_unread_after_ms) \
         values (?1, ?2, ?3, ?4, ?5)",
        params![id.0, new.name.as_str(), new.comment, after, unread],
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
            .map(|shard| Shard::first(shard, new.sweep_group))
            .collect(),
        source,
        retention: new.retention,
    })
}

/// Writes the comment, the retention and the sweep groups of a feed, and whether it keeps images.
pub(crate) fn change(tx: &Connection, feed: &Feed) -> Result<()> {
    let (after, unread) = Retention::milliseconds(feed.retention.as_ref());
    let found = tx
        .execute(
            "update changefeed_feed set comment = ?2, trim_after_ms = ?3, trim_unread_after_ms = ?4 \
             where feed_id = ?1",
            params![feed.id.0, feed.comment, after, unread],
        )
        .explained()?;
    if found == 0 {
        return Err(words::feed_gone(&feed.name));
    }
    for shard in &feed.shards {
        tx.execute(
            "update changefeed_shard set sweep_group = ?3 where feed_id = ?1 and shard = ?2",
            params![feed.id.0, shard.shard.0, shard.sweep_group.0],
        )
        .explained()?;
    }
    let Some(source @ Source::Captured { images, .. }) = &feed.source else {
        return Ok(());
    };
    let changed = tx
        .execute(
            "update changefeed_feed_source set images = ?2 where feed_id = ?1 and images <> ?2",
            params![feed.id.0, images],
        )
        .explained()?;
    if changed > 0
        && let Some(shards) = shards(tx, feed.id)?
    {
        let table = Table::behind(tx, feed, source)?;
        capture::remove(tx, feed.id)?;
        capture::install(tx, feed.id, &table, source, shards)?;
    }
    Ok(())
}

/// The shards that the rows of a feed's table are spread over.
pub(crate) fn shards(tx: &Connection, feed: FeedId) -> Result<Option<ShardRange>> {
    tx.prepare_cached("select first_shard, shards from changefeed_feed_source where feed_id = ?1")
        .and_then(|mut s| {
            s.query_row([feed.0], |row| {
                Ok(ShardRange {
                    first: row.get(0)?,
                    count: row.get(1)?,
                })
            })
            .optional()
        })
        .explained()
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
        return Err(words::feed_gone(&feed.name));
    }
    Ok(())
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
    match taken {
        None => Ok(()),
        Some(taken) if taken == name.as_str() => Err(words::feed_name_taken(name)),
        Some(_) => Err(words::feed_id_taken(id)),
    }
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
        Source::Captured { when, columns, .. } => {
            table.check_capture(tx)?;
            let columns = columns.as_ref().map(|columns| {
                let named = columns.iter().map(|c| table.column(c).map(str::to_owned));
                named.collect::<Result<Vec<_>>>()
            });
            let named = Source::Captured {
                table: name,
                shard_by: shard_by.map(column),
                images: source.keeps_images(),
                when: when.clone(),
                columns: columns.transpose()?,
            };
            let range = ShardRange {
                first: 0,
                count: shards,
            };
            capture::install(tx, feed, &table, &named, range)?;
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
         (feed_id, kind, table_schema, table_name, change_id_column, shard_by, shards, images, \
          key_names, condition, columns) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        params![
            feed.0,
            kind,
            at.schema,
            at.name,
            change_id_column,
            named.shard_by(),
            shards,
            named.keeps_images(),
            matches!(named, Source::Captured { .. }).then(|| table.key_names()),
            named.when(),
            named
                .columns()
                .map(|c| serde_json::Value::from(c).to_string())
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
            "select feed_id, shard, sweep_group, longpoll <> 0, generation, closed \
             from changefeed_shard_def \
             order by feed_id, shard",
        )
        .explained()?;
    let mut rows = statement.query([]).explained()?;
    while let Some(row) = rows.next().explained()? {
        let shard = Shard {
            shard: ShardId(row.get(1).explained()?),
            sweep_group: SweepGroup(row.get(2).explained()?),
            longpoll: row.get(3).explained()?,
            generation: row.get(4).explained()?,
            closed: row.get(5).explained()?,
        };
        shards
            .entry(row.get(0).explained()?)
            .or_default()
            .push(shard);
    }
    let mut statement = tx
        .prepare_cached(include_str!("sql/feeds.sql"))
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
                retention: Retention::of_milliseconds(row.get(12)?, row.get(13)?),
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
        None => Source::Captured {
            table,
            shard_by,
            images: row.get(11)?,
            when: row.get(14)?,
            columns: match row.get::<_, Option<String>>(15)? {
                None => None,
                Some(names) => Some(serde_json::from_str(&names).map_err(|error| {
                    rusqlite::Error::FromSqlConversionFailure(15, Type::Text, Box::new(error))
                })?),
            },
        },
    }))
}

fn states(tx: &Connection, feed: &Feed) -> Result<Vec<ShardState>> {
    let mut statement = tx
        .prepare_cached(include_str!("sql/shard_states.sql"))
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
