//! Cursors of named consumers.

use changefeed_core::{
    Consumer, ConsumerName, Cursor, Error, Feed, FeedId, FeedName, Result, ShardId, Taken,
};

use crate::connection::Connection;
use crate::error::{db, is_constraint, is_duplicate};
use crate::row::{Cells, first};
use crate::session::Session;

/// Moves a consumer's cursor inside the caller's own transaction, so that the cursor and the
/// effects of what was read commit together or not at all: exactly-once effects.
///
/// `from` is the cursor the consumer started from, `None` the first time. If somebody else has
/// moved it meanwhile, to wherever, this fails with [`Kind::Moved`](changefeed_core::Kind::Moved),
/// and the transaction must be rolled back: the same effects may have been committed already.
pub async fn advance_consumer(
    transaction: &mut Connection,
    name: &ConsumerName,
    feed: FeedId,
    shard: ShardId,
    from: Option<Cursor>,
    to: Cursor,
) -> Result<()> {
    match move_from(transaction, name, feed, shard, from, to).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(name.moved(shard)),
        Err(error) => Err(db(error)),
    }
}

/// Commits the effects of a page together with the consumer's cursor, so that they happen exactly once:
/// whoever is killed before the commit gets the page again and has done nothing. When the outcome of the
/// commit is unknown, the next page tells.
pub async fn consume<T, E: From<Error>>(
    connection: &mut Connection,
    taken: &Taken,
    effects: impl AsyncFnOnce(&mut Connection) -> Result<T, E>,
) -> Result<T, E> {
    connection.begin().await?;
    let done = async {
        // First, so that a second caller waits here and has no effects to undo.
        if let Some(to) = taken.to() {
            let (consumer, from) = (&taken.consumer, taken.from);
            advance_consumer(connection, consumer, taken.feed, taken.shard, from, to).await?;
        }
        let done = effects(connection).await?;
        connection.commit().await?;
        Ok(done)
    }
    .await;
    if done.is_err() {
        connection.tidy().await;
    }
    done
}

/// Moves a consumer if it stands where it is believed to stand. Returns whether it did.
async fn move_from(
    connection: &mut Connection,
    name: &ConsumerName,
    feed: FeedId,
    shard: ShardId,
    from: Option<Cursor>,
    to: Cursor,
) -> std::result::Result<bool, tiberius::error::Error> {
    let (name, to) = (name.as_str(), to.to_string());
    let moved = match from {
        Some(from) => {
            connection
                .tried_execute(
                    "update changefeed.consumer \
                     set [cursor] = @P4, updated_at = sysutcdatetime() \
                     where name = convert(varchar(100), @P1) and feed_id = @P2 and shard = @P3 and [cursor] = @P5",
                    &[&name, &feed.0, &shard.0, &to, &from.to_string()],
                )
                .await?
        }
        None => {
            let inserted = connection
                .tried_execute(
                    "insert into changefeed.consumer (name, feed_id, shard, [cursor]) \
                     values (@P1, @P2, @P3, @P4)",
                    &[&name, &feed.0, &shard.0, &to],
                )
                .await;
            match inserted {
                Err(error) if is_duplicate(&error) => 0,
                other => other?,
            }
        }
    };
    Ok(moved == 1)
}

/// The cursor that is stored.
async fn stored(
    connection: &mut Connection,
    name: &ConsumerName,
    feed: FeedId,
    shard: ShardId,
) -> Result<Option<Cursor>> {
    let rows = connection
        .query(
            "select [cursor] from changefeed.consumer \
             where name = convert(varchar(100), @P1) and feed_id = @P2 and shard = @P3",
            &[&name.as_str(), &feed.0, &shard.0],
        )
        .await?;
    let stored = first::<&str>(&rows, 0)?;
    stored.map(str::parse).transpose()
}

impl Session {
    pub(crate) async fn consumers(&mut self) -> Result<Vec<Consumer>> {
        let connection = &mut *self.connection;
        let rows = connection
            .query(include_str!("sql/consumers.sql"), &[])
            .await?;
        rows.iter()
            .map(|row| {
                let cursor: Cursor = row.take::<&str>("cursor")?.parse()?;
                let lag_ms = match (cursor, row.maybe::<i64>("newest_ms")?) {
                    (Cursor::Ulid(ulid), newest) => newest
                        .unwrap_or_default()
                        .saturating_sub_unsigned(ulid.time())
                        .max(0),
                    _ => row.take("lag_ms")?,
                };
                Ok(Consumer {
                    name: ConsumerName::trusted(row.text("name")?),
                    feed: FeedName::trusted(row.text("feed")?),
                    shard: ShardId(row.take("shard")?),
                    cursor,
                    lag_changes: row.take("lag_changes")?,
                    lag_ms,
                    idle_ms: row.take("idle_ms")?,
                    expired: row.says("expired")?,
                })
            })
            .collect()
    }

    pub(crate) async fn consumer_cursor(
        &mut self,
        name: &ConsumerName,
        feed: &Feed,
        shard: ShardId,
    ) -> Result<Option<Cursor>> {
        let connection = &mut *self.connection;
        stored(connection, name, feed.id, shard).await
    }

    pub(crate) async fn store_cursor(
        &mut self,
        name: &ConsumerName,
        feed: &Feed,
        shard: ShardId,
        from: Option<Cursor>,
        to: Cursor,
    ) -> Result<()> {
        feed.shard(shard)?;
        let connection = &mut *self.connection;
        match move_from(connection, name, feed.id, shard, from, to).await {
            Ok(true) => Ok(()),
            // It may have been this very call, whose answer was lost.
            Ok(false) if stored(connection, name, feed.id, shard).await? == Some(to) => Ok(()),
            Ok(false) => Err(name.moved(shard)),
            Err(error) if is_constraint(&error) => Err(feed.unknown_shard(shard)),
            Err(error) => Err(db(error)),
        }
    }

    pub(crate) async fn drop_consumer(&mut self, name: &ConsumerName, feed: &Feed) -> Result<u64> {
        let connection = &mut *self.connection;
        connection
            .execute(
                "delete from changefeed.consumer where name = convert(varchar(100), @P1) and feed_id = @P2",
                &[&name.as_str(), &feed.id.0],
            )
            .await
    }
}
