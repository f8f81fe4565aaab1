//! Cursors of named consumers.

use async_trait::async_trait;
use changefeed_core::{
    Consumer, ConsumerName, ConsumerStore, Cursor, Error, Feed, FeedId, FeedName, Result, ShardId,
    Taken,
};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use crate::SqliteStore;
use crate::error::Explain;

/// Moves a consumer's cursor inside the caller's own transaction, so that the cursor and the
/// effects of what was read commit together or not at all: exactly-once effects.
///
/// `from` is the cursor the consumer started from, `None` the first time. If somebody else has
/// moved it meanwhile, to wherever, this fails with [`Kind::Moved`](changefeed_core::Kind::Moved),
/// and the transaction must be rolled back: the same effects may have been committed already.
///
/// ```
/// use changefeed_core::{After, FeedStore, NewFeed, SchemaStore, ShardId};
/// use changefeed_sqlite::rusqlite::TransactionBehavior;
/// use changefeed_sqlite::{SqliteStore, advance_consumer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let store = SqliteStore::open(dir.path().join("app.db")).await?;
/// store.migrate().await?;
/// let feed = store.create_feed(&NewFeed::new("orders".parse()?)).await?;
/// let (shard, me) = (ShardId(0), "mailer".parse()?);
///
/// let mut app = store.connection()?;
/// app.execute_batch(
///     "create table effect (change_id integer); \
///      insert into changefeed_change (feed_id, shard, change_id) values (1, 0, 7);",
/// )?;
/// let page = store.read(&feed, shard, After::First, 100).await?;
/// let effects = app.transaction_with_behavior(TransactionBehavior::Immediate)?;
/// for change in &page.changes {
///     effects.execute("insert into effect values (?1)", [change.change_id])?;
/// }
/// advance_consumer(&effects, &me, feed.id, shard, None, page.next)?;
/// effects.commit()?;
/// # Ok(())
/// # }
/// ```
pub fn advance_consumer(
    connection: &Connection,
    name: &ConsumerName,
    feed: FeedId,
    shard: ShardId,
    from: Option<Cursor>,
    to: Cursor,
) -> Result<()> {
    let moved = match from {
        Some(from) => connection
            .prepare_cached(include_str!("sql/consumer_move.sql"))
            .and_then(|mut s| {
                s.execute(params![
                    name.as_str(),
                    feed.0,
                    shard.0,
                    to.to_string(),
                    from.to_string()
                ])
            }),
        None => connection
            .prepare_cached(include_str!("sql/consumer_first.sql"))
            .and_then(|mut s| s.execute(params![name.as_str(), feed.0, shard.0, to.to_string()])),
    };
    if moved.explained()? == 1 {
        return Ok(());
    }
    Err(name.moved(shard))
}

/// Commits the effects of a page together with the consumer's cursor, so that they happen exactly once:
/// whoever is killed before the commit gets the page again and has done nothing.
///
/// ```
/// # use changefeed_core::{SchemaStore, FeedStore, NewFeed, Taken, ShardId};
/// # use changefeed_sqlite::{SqliteStore, consume};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let store = SqliteStore::open(directory.path().join("shop.db")).await?;
/// # store.migrate().await?;
/// # let mut app = store.connection()?;
/// # app.execute_batch("create table orders (id integer primary key); create table seen (id)")?;
/// # let feed = store.create_feed(&NewFeed::captured("orders")?).await?;
/// # app.execute_batch("insert into orders values (7)")?;
/// let taken = Taken::read(&store, &"mail".parse()?, &feed, ShardId(0), 100).await?;
/// consume(&mut app, &taken, |effects| {
///     for change in &taken.page.changes {
///         effects.execute("insert into seen values (?1)", [change.change_id])?;
///     }
///     Ok::<_, Box<dyn std::error::Error>>(())
/// })?;
/// # let n: i64 = app.query_row("select count(*) from seen", (), |row| row.get(0))?;
/// # assert_eq!(n, 1);
/// # assert!(consume(&mut app, &taken, |_| Ok::<_, changefeed_core::Error>(())).is_err());
/// # Ok(()) }
/// ```
pub fn consume<T, E: From<Error>>(
    connection: &mut Connection,
    taken: &Taken,
    effects: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
) -> Result<T, E> {
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .explained()?;
    // First, so that a second caller has no effects to undo.
    if let Some(to) = taken.to() {
        let (consumer, from) = (&taken.consumer, taken.from);
        advance_consumer(&transaction, consumer, taken.feed, taken.shard, from, to)?;
    }
    let done = effects(&transaction)?;
    transaction.commit().explained()?;
    Ok(done)
}

/// The cursor that is stored.
fn stored(
    connection: &Connection,
    name: &ConsumerName,
    feed: FeedId,
    shard: ShardId,
) -> Result<Option<Cursor>> {
    let cursor: Option<String> = connection
        .prepare_cached(
            "select cursor from changefeed_consumer \
             where name = ?1 and feed_id = ?2 and shard = ?3",
        )
        .and_then(|mut s| {
            s.query_row(params![name.as_str(), feed.0, shard.0], |row| row.get(0))
                .optional()
        })
        .explained()?;
    cursor.map(|cursor| cursor.parse()).transpose()
}

#[async_trait]
impl ConsumerStore for SqliteStore {
    async fn consumers(&self) -> Result<Vec<Consumer>> {
        self.reading(|tx| {
            let mut statement = tx
                .prepare_cached(include_str!("sql/consumers.sql"))
                .explained()?;
            let mut rows = statement.query([]).explained()?;
            let mut consumers = Vec::new();
            while let Some(row) = rows.next().explained()? {
                let cursor: Cursor = row.get::<_, String>("cursor").explained()?.parse()?;
                let (lag_changes, lag_ms) = match cursor {
                    // Only the times of the newest ULID and of the consumer's are known.
                    Cursor::Ulid(ulid) => {
                        let newest: Option<i64> = row.get("newest_ms").explained()?;
                        let lag = newest.unwrap_or(0).saturating_sub_unsigned(ulid.time());
                        (0, lag.max(0))
                    }
                    _ => (
                        row.get("lag_changes").explained()?,
                        row.get("lag_ms").explained()?,
                    ),
                };
                consumers.push(Consumer {
                    name: ConsumerName::trusted(row.get("name").explained()?),
                    feed: FeedName::trusted(row.get("feed").explained()?),
                    shard: ShardId(row.get("shard").explained()?),
                    cursor,
                    lag_changes,
                    lag_ms,
                    idle_ms: row.get("idle_ms").explained()?,
                    expired: row.get("expired").explained()?,
                });
            }
            Ok(consumers)
        })
        .await
    }

    async fn consumer_cursor(
        &self,
        name: &ConsumerName,
        feed: &Feed,
        shard: ShardId,
    ) -> Result<Option<Cursor>> {
        let (name, feed) = (name.clone(), feed.id);
        self.reading(move |tx| stored(tx, &name, feed, shard)).await
    }

    async fn store_cursor(
        &self,
        name: &ConsumerName,
        feed: &Feed,
        shard: ShardId,
        from: Option<Cursor>,
        to: Cursor,
    ) -> Result<()> {
        let (name, feed) = (name.clone(), feed.clone());
        self.writing(move |tx| {
            let known: bool = tx
                .prepare_cached(
                    "select exists (select 1 from changefeed_shard_def \
                     where feed_id = ?1 and shard = ?2)",
                )
                .and_then(|mut s| s.query_row(params![feed.id.0, shard.0], |row| row.get(0)))
                .explained()?;
            if !known {
                return Err(feed.unknown_shard(shard));
            }
            // It may have been this very call, whose answer was lost.
            if stored(tx, &name, feed.id, shard)? == Some(to) && from != Some(to) {
                return Ok(());
            }
            advance_consumer(tx, &name, feed.id, shard, from, to)
        })
        .await
    }

    async fn drop_consumer(&self, name: &ConsumerName, feed: &Feed) -> Result<u64> {
        let (name, feed) = (name.clone(), feed.id);
        self.writing(move |tx| {
            let gone = tx
                .execute(
                    "delete from changefeed_consumer where name = ?1 and feed_id = ?2",
                    params![name.as_str(), feed.0],
                )
                .explained()?;
            Ok(u64::try_from(gone).unwrap_or(u64::MAX))
        })
        .await
    }
}
