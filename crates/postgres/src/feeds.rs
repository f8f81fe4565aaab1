//! Feeds and shards.

use std::collections::BTreeMap;

use changefeed_core::{
    After, Cursor, Error, Feed, FeedId, FeedName, NewFeed, Page, Result, Retention, Shard, ShardId,
    ShardRange, ShardState, Source, SweepGroup, TableName, Uuid, words,
};
use tokio_postgres::GenericClient;
use tokio_postgres::error::SqlState;

use crate::error::db;
use crate::filter::Filter;
use crate::patience::{Patience, in_use};
use crate::row::Cells;
use crate::session::Session;
use crate::source::{StoredSource, Table};
use crate::{capture, ulid_feeds};

impl Session {
    pub(crate) async fn create_feed(&mut self, new: &NewFeed) -> Result<Feed> {
        let client = &mut **self;
        let transaction = client.transaction().await.map_err(db)?;
        Patience::Person.set(&*transaction).await?;
        let feed = create(&*transaction, new).await?;
        transaction.commit().await.map_err(db)?;
        Ok(feed)
    }

    pub(crate) async fn drop_feed(&mut self, feed: &Feed) -> Result<()> {
        let client = &mut **self;
        let transaction = client.transaction().await.map_err(db)?;
        Patience::Person.set(&*transaction).await?;
        drop(&*transaction, feed).await?;
        transaction.commit().await.map_err(db)?;
        Ok(())
    }

    pub(crate) async fn feeds(&self) -> Result<Vec<Feed>> {
        let client = &**self;
        let (feeds, shards) = tokio::try_join!(
            client.query(include_str!("sql/feeds.sql"), &[]),
            client.query(
                "select feed_id, shard, sweep_group, longpoll, generation, closed \
                 from changefeed.shard_definition \
                 order by feed_id, shard",
                &[],
            ),
        )
        .map_err(db)?;
        let mut by_feed: BTreeMap<i16, Vec<Shard>> = BTreeMap::new();
        for row in shards {
            by_feed.entry(row.take(0)?).or_default().push(Shard {
                shard: ShardId(row.take(1)?),
                sweep_group: SweepGroup(row.take(2)?),
                longpoll: row.take(3)?,
                generation: row.take(4)?,
                closed: row.take(5)?,
            });
        }
        feeds
            .iter()
            .map(|row| {
                let id: i16 = row.take(0)?;
                Ok(Feed {
                    id: FeedId(id),
                    name: FeedName::trusted(row.take(1)?),
                    comment: row.take(2)?,
                    shards: by_feed.remove(&id).unwrap_or_default(),
                    source: source(row)?,
                    retention: Retention::of_milliseconds(row.take(12)?, row.take(13)?),
                })
            })
            .collect()
    }

    pub(crate) async fn read(
        &self,
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

    pub(crate) async fn shard_states(&self, feed: &Feed) -> Result<Vec<ShardState>> {
        if let Some(Source::Ulid { .. }) = &feed.source {
            return self.ulid_states(feed).await;
        }
        let client = &**self;
        let rows = client
            .query(include_str!("sql/shard_states.sql"), &[&feed.id.0])
            .await
            .map_err(db)?;
        rows.iter()
            .map(|row| {
                Ok(ShardState {
                    shard: ShardId(row.take(0)?),
                    sweep_group: SweepGroup(row.take(1)?),
                    last: Cursor::Number(row.take(2)?),
                    pending: row.take(3)?,
                    since_ms: row.take(4)?,
                })
            })
            .collect()
    }
}

pub(crate) async fn create(client: &impl GenericClient, new: &NewFeed) -> Result<Feed> {
    new.validate()?;
    let id = insert_feed(client, new).await?;
    for shard in 0..new.shards {
        client
            .execute(
                "insert into changefeed.shard \
                 (feed_id, shard, sweep_group, last_change_sequence_number) \
                 values ($1, $2, $3, $4)",
                &[&id.0, &shard, &new.sweep_group.0, &new.start],
            )
            .await
            .map_err(db)?;
    }
    let source = match &new.source {
        Some(source) => Some(attach(client, id, source, new.shards).await?),
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

/// Writes the comment, the retention and the sweep groups of a feed, and whether it keeps images. A sweep of the old group that runs meanwhile
/// holds the shard, and is merely the last of its kind.
pub(crate) async fn change(client: &impl GenericClient, feed: &Feed) -> Result<()> {
    let (after, unread) = Retention::milliseconds(feed.retention.as_ref());
    let found = client
        .execute(
            "update changefeed.feed set comment = $2, trim_after_ms = $3, trim_unread_after_ms = $4 \
             where feed_id = $1",
            &[&feed.id.0, &feed.comment, &after, &unread],
        )
        .await
        .map_err(db)?;
    if found == 0 {
        return Err(words::feed_gone(&feed.name));
    }
    for shard in &feed.shards {
        client
            .execute(
                "update changefeed.shard_definition set sweep_group = $3 \
                 where feed_id = $1 and shard = $2 and sweep_group <> $3",
                &[&feed.id.0, &shard.shard.0, &shard.sweep_group.0],
            )
            .await
            .map_err(db)?;
    }
    let Some(source @ Source::Captured { images, .. }) = &feed.source else {
        return Ok(());
    };
    let changed = client
        .execute(
            "update changefeed.feed_source set images = $2 where feed_id = $1 and images <> $2",
            &[&feed.id.0, images],
        )
        .await
        .map_err(db)?;
    if changed > 0
        && let Some(stored) = StoredSource::load(client, feed.id).await?
    {
        let table = stored.captured_table(client, feed).await?;
        capture::write_function(client, feed.id, &table, source, stored.shards).await?;
    }
    Ok(())
}

pub(crate) async fn drop(client: &impl GenericClient, feed: &Feed) -> Result<()> {
    // As everybody who removes changes: first the shards, or we and a trim would wait for each other. Sweeps
    // pass them by.
    client
        .execute(
            "select from changefeed.shard_definition where feed_id = $1 \
             order by shard for no key update",
            &[&feed.id.0],
        )
        .await
        .map_err(db)?;
    // What there is goes first, however much: once the trigger goes nobody can use its table until the
    // commit, and once the feed goes nobody can publish.
    unlink(client, feed).await?;
    client
        .execute(
            "delete from changefeed.numbered where feed_id = $1",
            &[&feed.id.0],
        )
        .await
        .map_err(db)?;
    capture::uninstall(client, feed.id).await.map_err(|e| {
        match feed.source.as_ref().and_then(Source::table) {
            Some(table) => in_use(e, table),
            None => e,
        }
    })?;
    // What came meanwhile.
    unlink(client, feed).await?;
    let dropped = client
        .execute(
            "delete from changefeed.feed where feed_id = $1",
            &[&feed.id.0],
        )
        .await
        .map_err(|e| in_use(db(e), &"a captured table or a feed"))?;
    if dropped == 0 {
        return Err(words::feed_gone(&feed.name));
    }
    Ok(())
}

/// Removes what connects the changes of a captured feed with their rows.
async fn unlink(client: &impl GenericClient, feed: &Feed) -> Result<()> {
    if matches!(feed.source, Some(Source::Captured { .. })) {
        client
            .execute(
                "delete from changefeed.change_row r using changefeed.change c \
                 where c.feed_id = $1 and r.change_id = c.change_id and r.feed_id = c.feed_id",
                &[&feed.id.0],
            )
            .await
            .map_err(db)?;
    }
    Ok(())
}

/// Inserts the feed, under the next free number if none is given.
pub(crate) async fn insert_feed(client: &impl GenericClient, new: &NewFeed) -> Result<FeedId> {
    let (after, unread) = Retention::milliseconds(new.retention.as_ref());
    let row = client
        .query_one(
            "insert into changefeed.feed (feed_id, name, comment, trim_after_ms, trim_unread_after_ms) \
             values (coalesce($1::smallint, (select coalesce(max(feed_id), 0) + 1 from changefeed.feed)), \
                     $2, $3, $4, $5) \
             returning feed_id",
            &[
                &new.id.map(|id| id.0),
                &new.name.as_str(),
                &new.comment,
                &after,
                &unread,
            ],
        )
        .await
        .map_err(|e| {
            let constraint = e
                .as_db_error()
                .and_then(|d| d.constraint())
                .unwrap_or_default();
            let taken = e.code() == Some(&SqlState::UNIQUE_VIOLATION);
            match (taken, constraint, new.id) {
                (true, "feed_pkey", Some(id)) => words::feed_id_taken(id),
                (true, ..) => words::feed_name_taken(&new.name),
                _ => db(e),
            }
        })?;
    Ok(FeedId(row.take(0)?))
}

/// The shards of a new feed.
fn first_shards(count: i16) -> ShardRange {
    ShardRange { first: 0, count }
}

/// Records where the rows are and, for a captured table, creates its trigger. Returns the source
/// with the table's full name.
async fn attach(
    client: &impl GenericClient,
    feed: FeedId,
    source: &Source,
    shards: i16,
) -> Result<Source> {
    let Some(table) = source.table() else {
        return Err(words::feed_of_events());
    };
    let table = Table::find(client, table).await?;
    capture::check_foreign(&table)?;
    if let Some(column) = source.shard_by() {
        table.column(column)?;
    }
    let shard_by = source.shard_by().map(str::to_owned);
    let mut stored = Stored {
        kind: "captured",
        ..Stored::default()
    };
    let named = match source {
        Source::Captured { when, columns, .. } => {
            capture::check(&table)?;
            capture::check_immediate(&table)?;
            Filter::of(&table, source)?.check(client).await?;
            capture::install(client, feed, &table, source, first_shards(shards)).await?;
            stored.images = source.keeps_images();
            stored.condition = when.as_deref();
            stored.columns = columns.as_deref();
            Source::Captured {
                table: table.name.clone(),
                shard_by,
                images: stored.images,
                when: when.clone(),
                columns: columns.clone(),
            }
        }
        Source::Joined {
            change_id_column, ..
        } => {
            capture::check_rows(&table)?;
            table.column(change_id_column)?;
            stored = Stored {
                kind: "joined",
                change_id_column: Some(change_id_column),
                ..Stored::default()
            };
            Source::Joined {
                table: table.name.clone(),
                change_id_column: change_id_column.clone(),
                shard_by,
            }
        }
        Source::Ulid {
            feed: ulid_feed,
            shard_column,
            ulid_column,
            ..
        } => {
            capture::check_rows(&table)?;
            ulid_feeds::check(&table, shard_column, ulid_column)?;
            stored = Stored {
                kind: "ulid",
                ulid_feed: Some(*ulid_feed),
                shard_column: Some(shard_column),
                ulid_column: Some(ulid_column),
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
    let key_names: Vec<&str> = table.key.iter().map(|c| c.name.as_str()).collect();
    let key_places: Vec<i16> = table.key.iter().map(|c| c.place).collect();
    client
        .execute(
            "insert into changefeed.feed_source \
             (feed_id, kind, source, change_id_column, shard_by, shards, ulid_feed, shard_column, \
              ulid_column, key_names, key_places, images, condition, columns, key_of) \
             values ($1, $2, $3::oid::regclass, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, \
                     changefeed.place_of($3))",
            &[
                &feed.0,
                &stored.kind,
                &table.oid,
                &stored.change_id_column,
                &source.shard_by(),
                &shards,
                &stored.ulid_feed,
                &stored.shard_column,
                &stored.ulid_column,
                &key_names,
                &key_places,
                &stored.images,
                &stored.condition,
                &stored.columns,
            ],
        )
        .await
        .map_err(db)?;
    client
        .execute(
            "update changefeed.shard_definition set captured = true where feed_id = $1 and $2 = 'captured'",
            &[&feed.0, &stored.kind],
        )
        .await
        .map_err(db)?;
    refuse_unreadable(client, feed, stored.kind).await?;
    Ok(named)
}

/// Refuses a feed whose rows nobody could read: whatever its key is by then, a foreign table is not read,
/// and neither is a value of a type that brings its owner's functions.
async fn refuse_unreadable(client: &impl GenericClient, feed: FeedId, kind: &str) -> Result<()> {
    let row = client
        .query_one(include_str!("sql/feed_unreadable.sql"), &[&feed.0, &kind])
        .await
        .map_err(db)?;
    match row.take::<Option<String>>(0)? {
        None => Ok(()),
        Some(problem) => {
            let advice: Option<String> = row.take(1)?;
            Err(Error::invalid(problem).advise(advice.unwrap_or_default()))
        }
    }
}

/// The columns of `feed_source` that depend on its kind.
#[derive(Default)]
struct Stored<'a> {
    kind: &'a str,
    change_id_column: Option<&'a str>,
    ulid_feed: Option<Uuid>,
    shard_column: Option<&'a str>,
    ulid_column: Option<&'a str>,
    images: bool,
    condition: Option<&'a str>,
    columns: Option<&'a [String]>,
}

fn source(row: &tokio_postgres::Row) -> Result<Option<Source>> {
    let Some(kind) = row.take::<Option<String>>(3)? else {
        return Ok(None);
    };
    let table = match (
        row.take::<Option<String>>(4)?,
        row.take::<Option<String>>(5)?,
    ) {
        (Some(schema), Some(name)) => TableName::qualified(schema, name),
        _ => TableName::unqualified("(dropped)"),
    };
    let shard_by: Option<String> = row.take(7)?;
    Ok(Some(match kind.as_str() {
        "joined" => Source::Joined {
            table,
            change_id_column: row.take(6)?,
            shard_by,
        },
        "events" => Source::Events,
        "ulid" => Source::Ulid {
            feed: row.take(8)?,
            table,
            shard_column: row.take(9)?,
            ulid_column: row.take(10)?,
        },
        _ => Source::Captured {
            table,
            shard_by,
            images: row.take(11)?,
            when: row.take(14)?,
            columns: row.take(15)?,
        },
    }))
}
