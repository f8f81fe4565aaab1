//! Cursors of named consumers.

use changefeed_core::{Consumer, ConsumerName, Cursor, Feed, FeedId, FeedName, Result, ShardId};
use tokio_postgres::GenericClient;
use tokio_postgres::error::SqlState;

use crate::error::db;
use crate::session::Session;

/// Moves a consumer's cursor inside the caller's own transaction, so that the cursor and the
/// effects of what was read commit together or not at all: exactly-once effects.
///
/// `from` is the cursor the consumer started from, `None` the first time. If somebody else has
/// moved it meanwhile this fails with [`Kind::Busy`](changefeed_core::Kind::Busy), and the transaction must be rolled back.
pub async fn advance_consumer(
    transaction: &impl GenericClient,
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
                .execute(
                    "update changefeed.consumer set cursor = $4 \
                     where name = $1 and feed_id = $2 and shard = $3 and cursor = $5",
                    &[&name_text, &feed.0, &shard.0, &to_text, &from.to_string()],
                )
                .await
        }
        None => {
            transaction
                .execute(
                    "insert into changefeed.consumer (name, feed_id, shard, cursor) \
                     values ($1, $2, $3, $4) on conflict do nothing",
                    &[&name_text, &feed.0, &shard.0, &to_text],
                )
                .await
        }
    };
    if moved.map_err(db)? == 1 {
        return Ok(());
    }
    Err(name.moved(shard))
}

impl Session {
    pub(crate) async fn consumers(&self) -> Result<Vec<Consumer>> {
        let client = &**self;
        let rows = client
            .query(include_str!("sql/consumers.sql"), &[])
            .await
            .map_err(db)?;
        rows.iter()
            .map(|row| {
                Ok(Consumer {
                    name: ConsumerName::trusted(row.get(0)),
                    feed: FeedName::trusted(row.get(1)),
                    shard: ShardId(row.get(2)),
                    cursor: row.get::<_, String>(3).parse()?,
                    lag_changes: row.get(4),
                    lag_ms: row.get(5),
                    idle_ms: row.get(6),
                    expired: row.get(7),
                })
            })
            .collect()
    }

    pub(crate) async fn consumer_cursor(
        &self,
        name: &ConsumerName,
        feed: &Feed,
        shard: ShardId,
    ) -> Result<Option<Cursor>> {
        let client = &**self;
        let row = client
            .query_opt(
                "select cursor from changefeed.consumer \
                 where name = $1 and feed_id = $2 and shard = $3",
                &[&name.as_str(), &feed.id.0, &shard.0],
            )
            .await
            .map_err(db)?;
        row.map(|row| row.get::<_, String>(0).parse()).transpose()
    }

    pub(crate) async fn store_cursor(
        &self,
        name: &ConsumerName,
        feed: &Feed,
        shard: ShardId,
        cursor: Cursor,
    ) -> Result<()> {
        feed.shard(shard)?;
        let client = &**self;
        client
            .execute(
                "insert into changefeed.consumer (name, feed_id, shard, cursor) \
                 values ($1, $2, $3, $4) \
                 on conflict (name, feed_id, shard) do update set cursor = excluded.cursor",
                &[&name.as_str(), &feed.id.0, &shard.0, &cursor.to_string()],
            )
            .await
            .map_err(|e| {
                if e.code() == Some(&SqlState::FOREIGN_KEY_VIOLATION) {
                    return feed.unknown_shard(shard);
                }
                db(e)
            })?;
        Ok(())
    }

    pub(crate) async fn drop_consumer(&self, name: &ConsumerName, feed: &Feed) -> Result<u64> {
        let client = &**self;
        client
            .execute(
                "delete from changefeed.consumer where name = $1 and feed_id = $2",
                &[&name.as_str(), &feed.id.0],
            )
            .await
            .map_err(db)
    }
}
