//! Another number of shards for a feed that is written to and read. New shards are made beside the old ones, which are
//! closed. There is one writer at a time, and everything has its number when it is committed, so all of this is one
//! moment.

use changefeed_core::{Feed, Result, ShardRange, Source, words};
use rusqlite::{Connection, params};

use crate::error::Explain;
use crate::source::Table;
use crate::{capture, feeds};

pub(crate) fn reshard(tx: &Connection, feed: &Feed, count: i16) -> Result<Feed> {
    let found = |tx: &Connection| {
        let mut all = feeds::list(tx)?.into_iter();
        all.find(|f| f.id == feed.id)
            .ok_or_else(|| words::feed_gone(&feed.name))
    };
    let feed = found(tx)?;
    let (Some(old), Some(source @ Source::Captured { .. })) =
        (feeds::shards(tx, feed.id)?, &feed.source)
    else {
        return Err(words::feed_gone(&feed.name));
    };
    if old.count == count {
        return Ok(feed);
    }
    let table = Table::behind(tx, &feed, source)?;
    let (busy, by_hand, first): (bool, bool, i32) = tx
        .query_row(
            include_str!("sql/reshard_look.sql"),
            params![feed.id.0, old.first, old.last()],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .explained()?;
    if busy {
        return Err(words::backfill_at_work(&feed.name));
    }
    if by_hand {
        return Err(words::shards_by_hand(&feed.name));
    }
    let new = ShardRange::checked(&feed.name, first, count)?;
    for shard in new.numbers() {
        for sql in [
            include_str!("sql/reshard_shard.sql"),
            include_str!("sql/reshard_progress.sql"),
            include_str!("sql/reshard_consumers.sql"),
        ] {
            let parameters = params![feed.id.0, old.first, shard];
            let mut statement = tx.prepare_cached(sql).explained()?;
            statement.execute(parameters).explained()?;
        }
    }
    tx.execute(
        "update changefeed_shard_def set closed = 1 where feed_id = ?1 and shard between ?2 and ?3",
        params![feed.id.0, old.first, old.last()],
    )
    .explained()?;
    tx.execute(
        "update changefeed_feed_source set first_shard = ?2, shards = ?3 where feed_id = ?1",
        params![feed.id.0, new.first, new.count],
    )
    .explained()?;
    capture::remove(tx, feed.id)?;
    capture::install(tx, feed.id, &table, source, new)?;
    found(tx)
}
