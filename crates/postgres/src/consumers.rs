//! Cursors of named consumers.

use changefeed_core::{
    Consumer, ConsumerName, Cursor, Error, Feed, FeedId, FeedName, Result, ShardId, Taken,
};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, GenericClient, Transaction};

use crate::error::db;
use crate::row::Cells;
use crate::session::Session;

/// Moves a consumer's cursor inside the caller's own transaction, so that the cursor and the
/// effects of what was read commit together or not at all: exactly-once effects.
///
/// `from` is the cursor the consumer started from, `None` the first time. If somebody else has
/// moved it meanwhile, to wherever, this fails with [`Kind::Moved`](changefeed_core::Kind::Moved),
/// and the transaction must be rolled back: the same effects may have been committed already.
pub async fn advance_consumer(
    transaction: &impl GenericClient,
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
///
/// ```no_run
/// # use changefeed_core::{Error, Taken};
/// # async fn example(mut app: changefeed_postgres::tokio_postgres::Client, taken: Taken)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use changefeed_postgres::consume;
///
/// consume(&mut app, &taken, async |effects| {
///     for change in &taken.page.changes {
///         let sql = "insert into seen values ($1)";
///         effects.execute(sql, &[&change.change_id]).await?;
///     }
///     Ok::<_, Box<dyn std::error::Error>>(())
/// })
/// .await?;
/// # Ok(()) }
/// ```
pub async fn consume<T, E: From<Error>>(
    client: &mut Client,
    taken: &Taken,
    effects: impl AsyncFnOnce(&Transaction<'_>) -> Result<T, E>,
) -> Result<T, E> {
    let transaction = client.transaction().await.map_err(db)?;
    // First, so that a second caller waits here and has no effects to undo.
    if let Some(to) = taken.to() {
        let (consumer, from) = (&taken.consumer, taken.from);
        advance_consumer(&transaction, consumer, taken.feed, taken.shard, from, to).await?;
    }
    let done = effects(&transaction).await?;
    transaction.commit().await.map_err(db)?;
    Ok(done)
}

/// Moves a consumer if it stands where it is believed to stand. Returns whether it did.
async fn move_from(
    client: &impl GenericClient,
    name: &ConsumerName,
    feed: FeedId,
    shard: ShardId,
    from: Option<Cursor>,
    to: Cursor,
) -> std::result::Result<bool, tokio_postgres::Error> {
    let (name, to) = (name.as_str(), to.to_string());
    let moved = match from {
        Some(from) => {
            client
                .execute(
                    "update changefeed.consumer set cursor = $4 \
                     where name = $1 and feed_id = $2 and shard = $3 and cursor = $5",
                    &[&name, &feed.0, &shard.0, &to, &from.to_string()],
                )
                .await?
        }
        None => {
            client
                .execute(
                    "insert into changefeed.consumer (name, feed_id, shard, cursor) \
                     values ($1, $2, $3, $4) on conflict do nothing",
                    &[&name, &feed.0, &shard.0, &to],
                )
                .await?
        }
    };
    Ok(moved == 1)
}

/// The cursor that is stored.
async fn stored(
    client: &impl GenericClient,
    name: &ConsumerName,
    feed: FeedId,
    shard: ShardId,
) -> Result<Option<Cursor>> {
    let row = client
        .query_opt(
            "select cursor from changefeed.consumer \
             where name = $1 and feed_id = $2 and shard = $3",
            &[&name.as_str(), &feed.0, &shard.0],
        )
        .await
        .map_err(db)?;
    row.map(|row| row.take::<String>(0)?.parse()).transpose()
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
                    name: ConsumerName::trusted(row.take("name")?),
                    feed: FeedName::trusted(row.take("feed")?),
                    shard: ShardId(row.take("shard")?),
                    cursor: row.take::<String>("cursor")?.parse()?,
                    lag_changes: row.take("lag_changes")?,
                    lag_ms: row.take("lag_ms")?,
                    idle_ms: row.take("idle_ms")?,
                    expired: row.take("expired")?,
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
        stored(&***self, name, feed.id, shard).await
    }

    pub(crate) async fn store_cursor(
        &self,
        name: &ConsumerName,
        feed: &Feed,
        shard: ShardId,
        from: Option<Cursor>,
        to: Cursor,
    ) -> Result<()> {
        feed.shard(shard)?;
        let client = &***self;
        match move_from(client, name, feed.id, shard, from, to).await {
            Ok(true) => Ok(()),
            // It may have been this very call, whose answer was lost.
            Ok(false) if stored(client, name, feed.id, shard).await? == Some(to) => Ok(()),
            Ok(false) => Err(name.moved(shard)),
            Err(error) if error.code() == Some(&SqlState::FOREIGN_KEY_VIOLATION) => {
                Err(feed.unknown_shard(shard))
            }
            Err(error) => Err(db(error)),
        }
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
