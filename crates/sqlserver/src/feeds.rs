//! Feeds and shards.

use std::collections::BTreeMap;
use std::time::Duration;

use changefeed_core::{
    After, Backfill, Cursor, Error, Feed, FeedId, FeedName, Kind, NewFeed, Page, Result, Shard,
    ShardId, ShardState, Source, SweepGroup, TableName, Trimmed, Uuid, crash_point,
};
use tiberius::Row;

use crate::connection::Connection;
use crate::error::{db, is_duplicate};
use crate::session::Session;
use crate::source::{StoredSource, Table};
use crate::table_trigger::{self, Patience};
use crate::{capture, quote, ulid_feeds};

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
        // Whoever may not drop it must not have emptied it.
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
                "select feed_id, shard, sweep_group, longpoll from changefeed.shard \
                 order by feed_id, shard",
                &[],
            )
            .await?;
        let feeds = connection.query(include_str!("sql/feeds.sql"), &[]).await?;
        let mut by_feed: BTreeMap<i16, Vec<Shard>> = BTreeMap::new();
        for row in shards {
            by_feed.entry(number(&row, 0)).or_default().push(Shard {
                shard: ShardId(number(&row, 1)),
                sweep_group: SweepGroup(number(&row, 2)),
                longpoll: row.get::<bool, _>(3) == Some(true),
            });
        }
        Ok(feeds
            .iter()
            .map(|row| {
                let id = number(row, 0);
                Feed {
                    id: FeedId(id),
                    name: FeedName::trusted(text(row, 1).unwrap_or_default()),
                    comment: text(row, 2),
                    shards: by_feed.remove(&id).unwrap_or_default(),
                    source: source(row),
                }
            })
            .collect())
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
        Ok(rows
            .iter()
            .map(|row| ShardState {
                shard: ShardId(number(row, 0)),
                sweep_group: SweepGroup(number(row, 1)),
                last: Cursor::Number(row.get(2).unwrap_or_default()),
                pending: row.get(3).unwrap_or_default(),
                since_ms: row.get(4).unwrap_or_default(),
            })
            .collect())
    }

    pub(crate) async fn backfill(&mut self, feed: &Feed, batch: usize) -> Result<Backfill> {
        feed.require_numbers("backfilled")?;
        self.backfill_batch(feed, batch).await
    }

    pub(crate) async fn trim(
        &mut self,
        feed: &Feed,
        age: Duration,
        batch: usize,
    ) -> Result<Trimmed> {
        feed.require_numbers("trimmed")?;
        self.trim_batch(feed, age, batch).await
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
pub(crate) async fn change(connection: &mut Connection, feed: &Feed) -> Result<()> {
    let sql = format!(
        "update changefeed.feed set comment = {} where feed_id = @P1",
        quote::nullable(feed.comment.as_deref())
    );
    if connection.execute(&sql, &[&feed.id.0]).await? == 0 {
        return Err(gone(feed));
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
        if row.get::<i32, _>(0).unwrap_or_default() < EMPTY_BATCH {
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
        return Err(gone(feed));
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

fn gone(feed: &Feed) -> Error {
    Error::not_found(format!("feed '{}' is already gone", feed.name))
}

/// Inserts the feed, under the next free number if none is given.
pub(crate) async fn insert_feed(connection: &mut Connection, new: &NewFeed) -> Result<FeedId> {
    let sql = format!(
        "declare @feed_id smallint = @P1; \
         if @feed_id is null \
             select @feed_id = convert(smallint, isnull(max(feed_id), 0) + 1) \
             from changefeed.feed with (updlock, holdlock); \
         insert into changefeed.feed (feed_id, name, comment) values (@feed_id, @P2, {}); \
         select @feed_id",
        quote::nullable(new.comment.as_deref())
    );
    let inserted = connection
        .tried(&sql, &[&new.id.map(|id| id.0), &new.name.as_str()])
        .await;
    match inserted {
        Ok(rows) => Ok(FeedId(rows.first().map_or(0, |row| number(row, 0)))),
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
                    (row.get::<i32, _>(0) == Some(1)).then_some(id)
                }
                None => None,
            };
            let what = match by_id {
                Some(id) => format!("there is already a feed with id {id}"),
                None => format!("there is already a feed '{}'", new.name),
            };
            Err(Error::new(Kind::AlreadyExists, what)
                .advise("`changefeed feed list` shows the feeds"))
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
        return Err(
            Error::invalid("a feed of events is made by an event trigger")
                .advise("use `changefeed trigger create … --feed NAME`"),
        );
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
        Source::Captured { .. } => {
            capture::check(&table)?;
            capture::check_owner(&table)?;
            capture::install(
                connection,
                feed,
                &table,
                shard_by.as_deref(),
                shards,
                Patience::Person,
            )
            .await?;
            Source::Captured {
                table: table.name.clone(),
                shard_by: shard_by.clone(),
            }
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
    ]
    .map(|text| quote::nullable(text.as_deref()))
    .into();
    let sql = format!(
        "insert into changefeed.feed_source \
         (feed_id, kind, table_id, shards, change_id_column, shard_by, ulid_feed, shard_column, \
          ulid_column) \
         values (@P1, @P2, @P3, @P4, {})",
        values.join(", ")
    );
    connection
        .execute(&sql, &[&feed.0, &stored.kind, &table.id, &shards])
        .await?;
    Ok(named)
}

/// The columns of `feed_source` that depend on its kind.
#[derive(Default)]
struct Stored {
    kind: &'static str,
    change_id_column: Option<String>,
    ulid_feed: Option<Uuid>,
    shard_column: Option<String>,
    ulid_column: Option<String>,
}

fn source(row: &Row) -> Option<Source> {
    let kind = text(row, 3)?;
    let table = match (text(row, 4), text(row, 5)) {
        (Some(schema), Some(name)) => TableName::qualified(schema, name),
        _ => TableName::unqualified("(dropped)"),
    };
    let shard_by = text(row, 7);
    Some(match kind.as_str() {
        "joined" => Source::Joined {
            table,
            change_id_column: text(row, 6).unwrap_or_default(),
            shard_by,
        },
        "events" => Source::Events,
        "ulid" => Source::Ulid {
            feed: row.get(8).unwrap_or_default(),
            table,
            shard_column: text(row, 9).unwrap_or_default(),
            ulid_column: text(row, 10).unwrap_or_default(),
        },
        _ => Source::Captured { table, shard_by },
    })
}

fn number(row: &Row, at: usize) -> i16 {
    row.get(at).unwrap_or_default()
}

fn text(row: &Row, at: usize) -> Option<String> {
    row.get::<&str, _>(at).map(str::to_owned)
}
