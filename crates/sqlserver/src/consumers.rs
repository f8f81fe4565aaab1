//! Cursors of named consumers.

use async_trait::async_trait;
use changefeed_core::{
    Consumer, ConsumerName, ConsumerStore, Cursor, Feed, FeedId, FeedName, Result, ShardId,
};

use crate::SqlServerStore;
use crate::connection::Connection;
use crate::error::{db, is_constraint, is_duplicate};

/// Moves a consumer's cursor inside the caller's own transaction, so that the cursor and the
/// effects of what was read commit together or not at all: exactly-once effects.
///
/// `from` is the cursor the consumer started from, `None` the first time. If somebody else has
/// moved it meanwhile this fails with [`Kind::Busy`](changefeed_core::Kind::Busy), and the transaction must be rolled back.
pub async fn advance_consumer(
    transaction: &mut Connection,
    name: &ConsumerName,
    feed: FeedId,
    shard: ShardId,
    from: Option<Cursor>,
    to: Cursor,
) -> Result<()> {
    let (name_text, to_text) = (name.as_str(), to.to_string());
    let moved = match from {
        Some(from) => {
            transaction
                .tried_execute(
                    "update changefeed.consumer \
                     set [cursor] = @P4, updated_at = sysutcdatetime() \
                     where name = convert(varchar(100), @P1) and feed_id = @P2 and shard = @P3 and [cursor] = @P5",
                    &[&name_text, &feed.0, &shard.0, &to_text, &from.to_string()],
                )
                .await
        }
        None => {
            let inserted = transaction
                .tried_execute(
                    "insert into changefeed.consumer (name, feed_id, shard, [cursor]) \
                     values (@P1, @P2, @P3, @P4)",
                    &[&name_text, &feed.0, &shard.0, &to_text],
                )
                .await;
            match inserted {
                Err(error) if is_duplicate(&error) => Ok(0),
                other => other,
            }
        }
    };
    if moved.map_err(db)? == 1 {
        return Ok(());
    }
    Err(name.moved(shard))
}

#[async_trait]
impl ConsumerStore for SqlServerStore {
    async fn consumers(&self) -> Result<Vec<Consumer>> {
        let mut connection = self.connection().await?;
        let rows = connection
            .query(include_str!("sql/consumers.sql"), &[])
            .await?;
        let text =
            |row: &tiberius::Row, at: usize| row.get::<&str, _>(at).unwrap_or_default().to_owned();
        rows.iter()
            .map(|row| {
                let cursor: Cursor = text(row, 3).parse()?;
                let lag_ms = match (cursor, row.get::<i64, _>(8)) {
                    (Cursor::Ulid(ulid), newest) => newest
                        .unwrap_or_default()
                        .saturating_sub_unsigned(ulid.time())
                        .max(0),
                    _ => row.get(5).unwrap_or_default(),
                };
                Ok(Consumer {
                    name: ConsumerName::trusted(text(row, 0)),
                    feed: FeedName::trusted(text(row, 1)),
                    shard: ShardId(row.get(2).unwrap_or_default()),
                    cursor,
                    lag_changes: row.get(4).unwrap_or_default(),
                    lag_ms,
                    idle_ms: row.get(6).unwrap_or_default(),
                    expired: row.get::<bool, _>(7) == Some(true),
                })
            })
            .collect()
    }

    async fn consumer_cursor(
        &self,
        name: &ConsumerName,
        feed: &Feed,
        shard: ShardId,
    ) -> Result<Option<Cursor>> {
        let mut connection = self.connection().await?;
        let rows = connection
            .query(
                "select [cursor] from changefeed.consumer \
                 where name = convert(varchar(100), @P1) and feed_id = @P2 and shard = @P3",
                &[&name.as_str(), &feed.id.0, &shard.0],
            )
            .await?;
        let stored = rows.first().and_then(|row| row.get::<&str, _>(0));
        stored.map(str::parse).transpose()
    }

    async fn store_cursor(
        &self,
        name: &ConsumerName,
        feed: &Feed,
        shard: ShardId,
        cursor: Cursor,
    ) -> Result<()> {
        feed.shard(shard)?;
        let mut connection = self.connection().await?;
        let (name, cursor) = (name.as_str(), cursor.to_string());
        let parameters: [crate::connection::Parameter<'_>; 4] =
            [&name, &feed.id.0, &shard.0, &cursor];
        let update = "update changefeed.consumer \
             set [cursor] = @P4, updated_at = sysutcdatetime() \
             where name = convert(varchar(100), @P1) and feed_id = @P2 and shard = @P3";
        if connection.execute(update, &parameters).await? == 1 {
            return Ok(());
        }
        let inserted = connection
            .tried_execute(
                "insert into changefeed.consumer (name, feed_id, shard, [cursor]) \
                 values (@P1, @P2, @P3, @P4)",
                &parameters,
            )
            .await;
        match inserted {
            Ok(_) => Ok(()),
            // Another instance was faster.
            Err(error) if is_duplicate(&error) => {
                connection.execute(update, &parameters).await.map(drop)
            }
            Err(error) if is_constraint(&error) => Err(feed.unknown_shard(shard)),
            Err(error) => Err(db(error)),
        }
    }

    async fn drop_consumer(&self, name: &ConsumerName, feed: &Feed) -> Result<u64> {
        let mut connection = self.connection().await?;
        connection
            .execute(
                "delete from changefeed.consumer where name = convert(varchar(100), @P1) and feed_id = @P2",
                &[&name.as_str(), &feed.id.0],
            )
            .await
    }
}
