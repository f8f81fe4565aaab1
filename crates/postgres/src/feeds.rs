//! Feeds and shards.

use std::collections::BTreeMap;

use changefeed_core::{
    After, Cursor, Error, Feed, FeedId, FeedName, Kind, NewFeed, Page, Result, Shard, ShardId,
    ShardState, Source, SweepGroup, TableName, Uuid,
};
use tokio_postgres::GenericClient;
use tokio_postgres::error::SqlState;

use crate::error::db;
use crate::patience::{Patience, in_use};
use crate::session::Session;
use crate::source::Table;
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
                "select feed_id, shard, sweep_group, longpoll from changefeed.shard_definition \
                 order by feed_id, shard",
                &[],
            ),
        )
        .map_err(db)?;
        let mut by_feed: BTreeMap<i16, Vec<Shard>> = BTreeMap::new();
        for row in shards {
            by_feed.entry(row.get(0)).or_default().push(Shard {
                shard: ShardId(row.get(1)),
                sweep_group: SweepGroup(row.get(2)),
                longpoll: row.get(3),
            });
        }
        Ok(feeds
            .iter()
            .map(|row| {
                let id: i16 = row.get(0);
                Feed {
                    id: FeedId(id),
                    name: FeedName::trusted(row.get(1)),
                    comment: row.get(2),
                    shards: by_feed.remove(&id).unwrap_or_default(),
                    source: source(row),
                }
            })
            .collect())
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
        Ok(rows
            .iter()
            .map(|row| ShardState {
                shard: ShardId(row.get(0)),
                sweep_group: SweepGroup(row.get(1)),
                last: Cursor::Number(row.get(2)),
                pending: row.get(3),
                since_ms: row.get(4),
            })
            .collect())
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
            .map(|shard| Shard {
                shard: ShardId(shard),
                sweep_group: new.sweep_group,
                longpoll: true,
            })
            .collect(),
        source,
    })
}

/// Writes the comment and the sweep groups of a feed. A sweep of the old group that runs meanwhile
/// holds the shard, and is merely the last of its kind.
pub(crate) async fn change(client: &impl GenericClient, feed: &Feed) -> Result<()> {
    let found = client
        .execute(
            "update changefeed.feed set comment = $2 where feed_id = $1",
            &[&feed.id.0, &feed.comment],
        )
        .await
        .map_err(db)?;
    if found == 0 {
        return Err(gone(feed));
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
        return Err(gone(feed));
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

fn gone(feed: &Feed) -> Error {
    Error::not_found(format!("feed '{}' is already gone", feed.name))
}

/// Inserts the feed, under the next free number if none is given.
pub(crate) async fn insert_feed(client: &impl GenericClient, new: &NewFeed) -> Result<FeedId> {
    let row = client
        .query_one(
            "insert into changefeed.feed (feed_id, name, comment) \
             values (coalesce($1::smallint, (select coalesce(max(feed_id), 0) + 1 from changefeed.feed)), \
                     $2, $3) \
             returning feed_id",
            &[&new.id.map(|id| id.0), &new.name.as_str(), &new.comment],
        )
        .await
        .map_err(|e| {
            let constraint = e
                .as_db_error()
                .and_then(|d| d.constraint())
                .unwrap_or_default();
            let taken = e.code() == Some(&SqlState::UNIQUE_VIOLATION);
            let what = match (taken, constraint, new.id) {
                (true, "feed_pkey", Some(id)) => format!("there is already a feed with id {id}"),
                (true, ..) => format!("there is already a feed '{}'", new.name),
                _ => return db(e),
            };
            Error::new(Kind::AlreadyExists, what).advise("`changefeed feed list` shows the feeds")
        })?;
    Ok(FeedId(row.get(0)))
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
        return Err(
            Error::invalid("a feed of events is made by an event trigger")
                .advise("use `changefeed trigger create … --feed NAME`"),
        );
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
        Source::Captured { .. } => {
            capture::check(&table)?;
            capture::install(client, feed, &table, source.shard_by(), shards).await?;
            Source::Captured {
                table: table.name.clone(),
                shard_by,
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
              ulid_column, key_names, key_places, key_of) \
             values ($1, $2, $3::oid::regclass, $4, $5, $6, $7, $8, $9, $10, $11, \
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
            ],
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
    match row.get::<_, Option<String>>(0) {
        None => Ok(()),
        Some(problem) => {
            let advice: Option<String> = row.get(1);
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
}

fn source(row: &tokio_postgres::Row) -> Option<Source> {
    let kind: Option<String> = row.get(3);
    let table = match (
        row.get::<_, Option<String>>(4),
        row.get::<_, Option<String>>(5),
    ) {
        (Some(schema), Some(name)) => TableName::qualified(schema, name),
        _ => TableName::unqualified("(dropped)"),
    };
    let shard_by: Option<String> = row.get(7);
    Some(match kind?.as_str() {
        "joined" => Source::Joined {
            table,
            change_id_column: row.get(6),
            shard_by,
        },
        "events" => Source::Events,
        "ulid" => Source::Ulid {
            feed: row.get(8),
            table,
            shard_column: row.get(9),
            ulid_column: row.get(10),
        },
        _ => Source::Captured { table, shard_by },
    })
}
