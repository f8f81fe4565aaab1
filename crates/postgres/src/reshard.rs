//! Another number of shards for a feed that is written to and read.
//!
//! New shards are made beside the old ones, which are closed. Order per row is kept because readers begin with the new
//! ones when they have read the old ones to their ends, and because no row is in both at the same time: while the
//! trigger is changed nobody has written to the table in a transaction that is still open, or can write to it. The same
//! goes for those who publish to the feed by hand.

use changefeed_core::{Error, Feed, Kind, Result, ShardRange, Source, words};
use tokio_postgres::GenericClient;

use crate::capture;
use crate::error::db;
use crate::patience::{Patience, in_use};
use crate::row::Cells;
use crate::session::Session;
use crate::source::{StoredSource, Table};

impl Session {
    pub(crate) async fn reshard(&mut self, feed: &Feed, count: i16) -> Result<Feed> {
        feed.check_reshard(count)?;
        let transaction = self.transaction().await.map_err(db)?;
        Patience::Person.set(&*transaction).await?;
        reshard(&*transaction, feed, count).await?;
        transaction.commit().await.map_err(db)?;
        let feeds = self.feeds().await?;
        let found = feeds.into_iter().find(|f| f.id == feed.id);
        found.ok_or_else(|| words::feed_gone(&feed.name))
    }
}

async fn reshard(client: &impl GenericClient, feed: &Feed, count: i16) -> Result<()> {
    // Whoever changes the feed or mends its triggers waits here, or passes it by.
    let held = client
        .query_opt(
            "select from changefeed.feed where feed_id = $1 for update",
            &[&feed.id.0],
        )
        .await
        .map_err(db)?;
    let stored = StoredSource::load(client, feed.id).await?;
    let Some(stored) = stored.filter(|_| held.is_some()) else {
        return Err(words::feed_gone(&feed.name));
    };
    if stored.shards.count == count {
        return Ok(());
    }
    let table = stored.captured_table(client, feed).await?;
    let Some(mut source @ Source::Captured { .. }) = feed.source.clone() else {
        return Err(feed.table_dropped());
    };
    source.keep_images(stored.images);
    // Before the table: who has published to the feed by hand may still want to write to it. See change_insert().
    client
        .execute(
            "select from changefeed.feed_source where feed_id = $1 for update",
            &[&feed.id.0],
        )
        .await
        .map_err(|error| in_use(db(error), &format_args!("feed '{}'", feed.name)))?;
    hold(client, &table).await?;
    let new = make(client, feed, stored.shards, count).await?;
    client
        .execute(
            "update changefeed.feed_source set first_shard = $2, shards = $3 where feed_id = $1",
            &[&feed.id.0, &new.first, &new.count],
        )
        .await
        .map_err(db)?;
    capture::write_function(client, feed.id, &table, &source, new).await
}

/// Waits for the transactions that have written to the table, and keeps others out until the commit. With its
/// partitions, which can be written to directly. A session that comes after us runs the new function, whatever its
/// snapshot: the server looks functions up when it has the lock.
async fn hold(client: &impl GenericClient, table: &Table) -> Result<()> {
    let sql = format!("lock table {} in share row exclusive mode", table.sql);
    client.batch_execute(&sql).await.map_err(|e| {
        let error = db(e);
        match error.kind() {
            Kind::Permission => Error::new(
                Kind::Permission,
                format!("the database user may not lock {}", table.name),
            )
            .advise(format!(
                "run this as the owner of the table, or grant delete on {} to this user",
                table.sql
            ))
            .caused_by(error),
            _ => in_use(error, &table.name),
        }
    })
}

/// Makes the shards of the next generation, registers the consumers of the old ones there, and closes the old ones.
async fn make(
    client: &impl GenericClient,
    feed: &Feed,
    old: ShardRange,
    count: i16,
) -> Result<ShardRange> {
    let row = client
        .query_one(
            include_str!("sql/reshard_look.sql"),
            &[&feed.id.0, &old.first, &old.last()],
        )
        .await
        .map_err(db)?;
    if row.take(0)? {
        return Err(words::backfill_at_work(&feed.name));
    }
    if row.take(1)? {
        return Err(words::shards_by_hand(&feed.name));
    }
    let new = ShardRange::checked(&feed.name, row.take(2)?, count)?;
    let written = client
        .query_one(
            include_str!("sql/reshard.sql"),
            &[&feed.id.0, &old.first, &old.last(), &new.first, &new.last()],
        )
        .await
        .map_err(db)?;
    debug_assert_eq!(written.take::<i64>(0)?, i64::from(new.count));
    client
        .execute(
            "select pg_notify('changefeed', format('%s/%s/%s', s.feed_id, s.shard, s.last_change_sequence_number)) \
             from changefeed.shard s where s.feed_id = $1 and s.shard between $2 and $3 and s.longpoll",
            &[&feed.id.0, &old.first, &old.last()],
        )
        .await
        .map_err(db)?;
    Ok(new)
}
