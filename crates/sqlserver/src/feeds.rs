//! Feeds and shards.

use std::collections::BTreeMap;

use changefeed_core::{
    After, Backfill, Cursor, Error, Feed, FeedId, FeedName, NewFeed, Page, Result, Retention,
    Shard, ShardId, ShardRange, ShardState, Source, SweepGroup, TableName, Uuid, crash_point, fill,
    words,
};
use tiberius::Row;

use crate::connection::Connection;
use crate::error::{db, is_duplicate};
use crate::filter::Filter;
use crate::row::{Cells, only};
use crate::session::Session;
use crate::source::{StoredSource, Table};
use crate::table_trigger::{self, Patience};
use crate::{capture, event_install, quote, ulid_feeds};

/// Changes that one transaction removes of a feed that is dropped.
const EMPTY_BATCH: i32 = 4000;

impl Session {
    pub(crate) async fn create_feed(&mut self, new: &NewFeed) -> Result<Feed> {
        let connection = &mut *self.connection;
        connection.begin().await?;
        let feed = create(connection, new).await?;
        connection.commit().await?;
        self.known.joins.forget(feed.id);
        Ok(feed)
    }

    pub(crate) async fn drop_feed(&mut self, feed: &Feed) -> Result<()> {
        let connection = &mut *self.connection;
        // A user that may not drop it must not empty it.
        connection
            .execute(
                "delete from changefeed.feed where feed_id = @P1 and 1 = 0",
                &[&feed.id.0],
            )
            .await?;
        // The trigger first: nobody may lose a change to a feed that could not be dropped after all.
        connection.begin().await?;
        remove_trigger(connection, feed).await?;
        connection.commit().await?;
        empty(connection, feed).await?;
        connection.begin().await?;
        drop(connection, feed).await?;
        connection.commit().await?;
        self.known.joins.forget(feed.id);
        Ok(())
    }

    pub(crate) async fn feeds(&mut self) -> Result<Vec<Feed>> {
        let connection = &mut *self.connection;
        let shards = connection
            .query(
                "select feed_id, shard, sweep_group, longpoll, generation, closed from changefeed.shard \
                 order by feed_id, shard",
                &[],
            )
            .await?;
        let feeds = connection.query(include_str!("sql/feeds.sql"), &[]).await?;
        let mut by_feed: BTreeMap<i16, Vec<Shard>> = BTreeMap::new();
        for row in shards {
            by_feed.entry(row.take(0)?).or_default().push(Shard {
                shard: ShardId(row.take(1)?),
                sweep_group: SweepGroup(row.take(2)?),
                longpoll: row.says(3)?,
                generation: row.take(4)?,
                closed: row.says(5)?,
            });
        }
        feeds
            .iter()
            .map(|row| {
                let id = row.take(0)?;
                Ok(Feed {
                    id: FeedId(id),
                    name: FeedName::trusted(row.text(1)?),
                    comment: row.maybe_text(2)?,
                    shards: by_feed.remove(&id).unwrap_or_default(),
                    source: source(row)?,
                    retention: Retention::of_milliseconds(row.maybe(12)?, row.maybe(13)?),
                })
            })
            .collect()
    }

    pub(crate) async fn read(
        &mut self,
        feed: &Feed,
        shard: ShardId,
        after: After,
        limit: usize,
    ) -> Result<Page> {
        match &feed.source {
            Some(Source::Ulid { .. }) => self.read_ulids(feed, shard, after, limit).await,
            _ => self.read_page(feed, shard, after, limit).await,
        }
    }

    pub(crate) async fn shard_states(&mut self, feed: &Feed) -> Result<Vec<ShardState>> {
        if let Some(Source::Ulid { .. }) = &feed.source {
            return self.ulid_states(feed).await;
        }
        let connection = &mut *self.connection;
        let rows = connection
            .query(include_str!("sql/shard_states.sql"), &[&feed.id.0])
            .await?;
        rows.iter()
            .map(|row| {
                Ok(ShardState {
                    shard: ShardId(row.take(0)?),
                    sweep_group: SweepGroup(row.take(1)?),
                    last: Cursor::Number(row.take(2)?),
                    pending: row.take(3)?,
                    since_ms: row.maybe(4)?.unwrap_or_default(),
                })
            })
            .collect()
    }

    pub(crate) async fn backfill(&mut self, feed: &Feed, batch: usize) -> Result<Backfill> {
        feed.require_numbers("backfilled")?;
        self.backfill_batch(feed, batch).await
    }
}

pub(crate) async fn create(connection: &mut Connection, new: &NewFeed) -> Result<Feed> {
    new.validate()?;
    let id = insert_feed(connection, new).await?;
    for shard in 0..new.shards {
        connection
            .execute(
                "insert into changefeed.shard \
                 (feed_id, shard, sweep_group, last_change_sequence_number) \
                 values (@P1, @P2, @P3, @P4)",
                &[&id.0, &shard, &new.sweep_group.0, &new.start],
            )
            .await?;
    }
    let source = match &new.source {
        Some(source) => Some(attach(connection, id, source, new.shards).await?),
        None => None,
    };
    Ok(Feed {
        id,
        name: new.name.clone(),
        comment: new.comment.clone(),
        shards: (0..new.shards)
            .map(|shard| Shard::first(shard, new.sweep_group))
            .collect(),
        source,
        retention: new.retention,
    })
}

/// Writes the comment, the retention and the sweep groups of a feed, and whether it keeps images.
pub(crate) async fn change(connection: &mut Connection, feed: &Feed) -> Result<()> {
    let sql = format!(
        "update changefeed.feed set comment = {}, trim_after_ms = @P2, trim_unread_after_ms = @P3 where feed_id = @P1",
        quote::nullable(feed.comment.as_deref())
    );
    let (after, unread) = Retention::milliseconds(feed.retention.as_ref());
    if connection
        .execute(&sql, &[&feed.id.0, &after, &unread])
        .await?
        == 0
    {
        return Err(words::feed_gone(&feed.name));
    }
    for shard in &feed.shards {
        connection
            .execute(
                "update changefeed.shard set sweep_group = @P3 \
                 where feed_id = @P1 and shard = @P2 and sweep_group <> @P3",
                &[&feed.id.0, &shard.shard.0, &shard.sweep_group.0],
            )
            .await?;
    }
    let Some(source @ Source::Captured { images, .. }) = &feed.source else {
        return Ok(());
    };
    let changed = connection
        .execute(
            "update changefeed.feed_source set images = @P2 where feed_id = @P1 and images <> @P2",
            &[&feed.id.0, images],
        )
        .await?;
    if changed > 0
        && let Some(stored) = StoredSource::load(connection, feed.id).await?
    {
        let table = stored.table(connection, feed).await?;
        let patience = Patience::Person;
        capture::install(connection, feed.id, &table, source, stored.shards, patience).await?;
    }
    Ok(())
}

/// Removes what has a number, some at a time: in one transaction the locks of millions of changes
/// would be more than the server has memory for.
async fn empty(connection: &mut Connection, feed: &Feed) -> Result<()> {
    loop {
        let row = connection
            .one(
                include_str!("sql/feed_empty.sql"),
                &[&feed.id.0, &EMPTY_BATCH],
            )
            .await?;
        crash_point("feed.emptied");
        if row.take::<i32>(0)? < EMPTY_BATCH {
            return Ok(());
        }
    }
}

pub(crate) async fn drop(connection: &mut Connection, feed: &Feed) -> Result<()> {
    // The trigger first: nobody can publish into the feed any more.
    remove_trigger(connection, feed).await?;
    if matches!(feed.source, Some(Source::Captured { .. })) {
        connection
            .execute(include_str!("sql/feed_unlink.sql"), &[&feed.id.0])
            .await?;
    }
    let dropped = connection
        .execute(
            "delete from changefeed.feed where feed_id = @P1",
            &[&feed.id.0],
        )
        .await?;
    if dropped == 0 {
        connection.rollback().await?;
        return Err(words::feed_gone(&feed.name));
    }
    Ok(())
}

async fn remove_trigger(connection: &mut Connection, feed: &Feed) -> Result<()> {
    match StoredSource::load(connection, feed.id).await? {
        Some(source) if source.captured => {
            let name = capture::trigger_name(feed.id);
            table_trigger::remove(connection, &name, source.table_id, Patience::Person).await
        }
        _ => Ok(()),
    }
}

pub(crate) fn insert_sql(comment: Option<&str>) -> Result<String> {
    let comment = quote::nullable(comment);
    fill(
        include_str!("sql/feed_insert.sql"),
        &[("comment", &comment)],
    )
}

/// Inserts the feed, under the next free number if none is given.
pub(crate) async fn insert_feed(connection: &mut Connection, new: &NewFeed) -> Result<FeedId> {
    let sql = insert_sql(new.comment.as_deref())?;
    let (after, unread) = Retention::milliseconds(new.retention.as_ref());
    let inserted = connection
        .tried(
            &sql,
            &[&new.id.map(|id| id.0), &new.name.as_str(), &after, &unread],
        )
        .await;
    match inserted {
        Ok(rows) => Ok(FeedId(only(&rows)?.take(0)?)),
        Err(error) if is_duplicate(&error) => {
            // An error has ended the transaction, so this sees what others have committed.
            connection.rollback().await?;
            let by_id = match new.id {
                Some(id) => {
                    let row = connection
                        .one(
                            "select convert(int, count(*)) from changefeed.feed \
                             where feed_id = @P1",
                            &[&id.0],
                        )
                        .await?;
                    (row.maybe::<i32>(0)? == Some(1)).then_some(id)
                }
                None => None,
            };
            Err(match by_id {
                Some(id) => words::feed_id_taken(id),
                None => words::feed_name_taken(&new.name),
            })
        }
        Err(error) => Err(db(error)),
    }
}

/// Records where the rows are and, for a captured table, creates its trigger. Returns the source
/// with the table's full name.
async fn attach(
    connection: &mut Connection,
    feed: FeedId,
    source: &Source,
    shards: i16,
) -> Result<Source> {
    let Some(table) = source.table() else {
        return Err(words::feed_of_events());
    };
    let table = Table::find(connection, table).await?;
    capture::check_foreign(&table)?;
    let shard_by = match source.shard_by() {
        Some(column) => Some(table.column(column)?.name.clone()),
        None => None,
    };
    let mut stored = Stored {
        kind: "captured",
        ..Stored::default()
    };
    let named = match source {
        Source::Captured { when, columns, .. } => {
            capture::check(&table)?;
            capture::check_owner(&table)?;
            let filter = Filter::of(&table, source)?;
            event_install::check_times(connection, filter.condition.as_ref()).await?;
            let shown = columns.is_some().then_some(filter.shown);
            let named = Source::Captured {
                table: table.name.clone(),
                shard_by: shard_by.clone(),
                images: source.keeps_images(),
                when: when.clone(),
                columns: shown.map(|all| all.into_iter().map(|c| c.name).collect()),
            };
            let patience = Patience::Person;
            let range = ShardRange {
                first: 0,
                count: shards,
            };
            capture::install(connection, feed, &table, &named, range, patience).await?;
            stored.images = named.keeps_images();
            stored.condition = when.clone();
            stored.columns = named
                .columns()
                .map(|c| serde_json::Value::from(c).to_string());
            stored.key_columns = Some(table.key_numbers());
            named
        }
        Source::Joined {
            change_id_column, ..
        } => {
            let column = table.column(change_id_column)?.name.clone();
            stored.kind = "joined";
            stored.change_id_column = Some(column.clone());
            Source::Joined {
                table: table.name.clone(),
                change_id_column: column,
                shard_by: shard_by.clone(),
            }
        }
        Source::Ulid {
            feed: ulid_feed,
            shard_column,
            ulid_column,
            ..
        } => {
            ulid_feeds::check(&table, shard_column, ulid_column)?;
            stored = Stored {
                kind: "ulid",
                ulid_feed: Some(*ulid_feed),
                shard_column: Some(shard_column.clone()),
                ulid_column: Some(ulid_column.clone()),
                ..Stored::default()
            };
            Source::Ulid {
                feed: *ulid_feed,
                table: table.name.clone(),
                shard_column: shard_column.clone(),
                ulid_column: ulid_column.clone(),
            }
        }
        Source::Events => Source::Events,
    };
    let ulid_feed = stored.ulid_feed.map(|id| id.to_string());
    let values: Vec<String> = [
        &stored.change_id_column,
        &shard_by,
        &ulid_feed,
        &stored.shard_column,
        &stored.ulid_column,
        &stored.key_columns,
        &stored.condition,
        &stored.columns,
    ]
    .map(|text| quote::nullable(text.as_deref()))
    .into();
    let sql = format!(
        "insert into changefeed.feed_source \
         (feed_id, kind, table_id, shards, images, change_id_column, shard_by, ulid_feed, shard_column, \
          ulid_column, key_columns, condition, columns) \
         values (@P1, @P2, @P3, @P4, @P5, {})",
        values.join(", ")
    );
    connection
        .execute(
            &sql,
            &[&feed.0, &stored.kind, &table.id, &shards, &stored.images],
        )
        .await?;
    Ok(named)
}

/// The names of columns as they are stored.
pub(crate) fn columns_of(json: Option<String>) -> Result<Option<Vec<String>>> {
    let names = json.map(|json| serde_json::from_str(&json)).transpose();
    names.map_err(|e| {
        Error::defect("the columns of a feed are not stored as they should be").caused_by(e)
    })
}

/// The columns of `feed_source` that depend on its kind.
#[derive(Default)]
struct Stored {
    kind: &'static str,
    change_id_column: Option<String>,
    ulid_feed: Option<Uuid>,
    shard_column: Option<String>,
    ulid_column: Option<String>,
    images: bool,
    key_columns: Option<String>,
    condition: Option<String>,
    columns: Option<String>,
}

fn source(row: &Row) -> Result<Option<Source>> {
    let Some(kind) = row.maybe_text(3)? else {
        return Ok(None);
    };
    let table = match (row.maybe_text(4)?, row.maybe_text(5)?) {
        (Some(schema), Some(name)) => TableName::qualified(schema, name),
        _ => TableName::unqualified("(dropped)"),
    };
    let shard_by = row.maybe_text(7)?;
    Ok(Some(match kind.as_str() {
        "joined" => Source::Joined {
            table,
            change_id_column: row.text(6)?,
            shard_by,
        },
        "events" => Source::Events,
        "ulid" => Source::Ulid {
            feed: row.take(8)?,
            table,
            shard_column: row.text(9)?,
            ulid_column: row.text(10)?,
        },
        _ => Source::Captured {
            table,
            shard_by,
            images: row.says(11)?,
            when: row.maybe_text(14)?,
            columns: columns_of(row.maybe_text(15)?)?,
        },
    }))
}
