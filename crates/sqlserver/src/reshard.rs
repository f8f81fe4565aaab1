//! Another number of shards for a feed that is written to and read.
//!
//! New shards are made beside the old ones, which are closed. Order per row is kept because readers begin with the new
//! ones when they have read the old ones to their ends, and because no row is in both at the same time: making the
//! trigger needs a lock on the table that no open transaction which has written to it gives away, and that nobody else
//! gets before the commit.

use changefeed_core::{Feed, FeedId, Result, ShardRange, Source, fill, words};

use crate::capture;
use crate::connection::Connection;
use crate::row::Cells;
use crate::session::Session;
use crate::source::StoredSource;
use crate::table_trigger::{Patience, give_up};

impl Session {
    pub(crate) async fn reshard(&mut self, feed: &Feed, count: i16) -> Result<Feed> {
        feed.check_reshard(count)?;
        let connection = &mut *self.connection;
        connection.begin().await?;
        let done = match reshard(connection, feed, count).await {
            Ok(()) => connection.commit().await,
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            give_up(connection).await;
            return Err(error);
        }
        self.known.joins.forget(feed.id);
        let feeds = self.feeds().await?;
        let found = feeds.into_iter().find(|f| f.id == feed.id);
        found.ok_or_else(|| words::feed_gone(&feed.name))
    }
}

async fn reshard(connection: &mut Connection, feed: &Feed, count: i16) -> Result<()> {
    // Whoever changes the feed or makes its trigger anew waits here.
    let there = connection
        .execute(
            "update changefeed.feed with (updlock, rowlock) set name = name where feed_id = @P1",
            &[&feed.id.0],
        )
        .await?;
    let stored = StoredSource::load(connection, feed.id).await?;
    let Some(stored) = stored.filter(|_| there > 0) else {
        return Err(words::feed_gone(&feed.name));
    };
    let old = stored.shards;
    if old.count == count {
        return Ok(());
    }
    let table = stored.table(connection, feed).await?;
    let Some(mut source @ Source::Captured { .. }) = feed.source.clone() else {
        return Err(feed.table_dropped());
    };
    source.keep_images(stored.images);
    let row = connection
        .one(
            include_str!("sql/reshard_look.sql"),
            &[&feed.id.0, &old.first, &old.last()],
        )
        .await?;
    if row.says(0)? {
        return Err(words::backfill_at_work(&feed.name));
    }
    if row.says(1)? {
        return Err(words::shards_by_hand(&feed.name));
    }
    let new = ShardRange::checked(&feed.name, row.take(2)?, count)?;
    for shard in new.numbers() {
        connection
            .execute(
                include_str!("sql/reshard_shard.sql"),
                &[&feed.id.0, &old.first, &old.last(), &shard],
            )
            .await?;
    }
    // Last, because nobody can use the table from here to the commit. The shards are closed when the trigger is made:
    // a writer who waits for that must not be one whom the trigger waits for.
    let close = close(feed.id, old, new)?;
    let patience = Patience::Person;
    capture::install_and(
        connection,
        feed.id,
        &table,
        &source,
        new,
        patience,
        &[close],
    )
    .await
}

/// Sends the rows of the table to other shards.
pub(crate) fn close(feed: FeedId, old: ShardRange, new: ShardRange) -> Result<String> {
    fill(
        include_str!("sql/reshard_close.sql"),
        &[
            ("feed", &feed.to_string()),
            ("first", &old.first.to_string()),
            ("last", &old.last().to_string()),
            ("new_first", &new.first.to_string()),
            ("new_count", &new.count.to_string()),
        ],
    )
}
