//! Removing old changes that everybody has read.

use std::time::Duration;

use changefeed_core::{Feed, Result, Retention, ShardId, Trimmed, crash_point};
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::Explain;
use crate::read::Bounds;

pub(crate) fn trim(
    tx: &Connection,
    feed: &Feed,
    retention: Retention,
    batch: usize,
) -> Result<Trimmed> {
    let mut left = i64::try_from(batch).unwrap_or(i64::MAX);
    let mut trimmed = Trimmed::default();
    for shard in &feed.shards {
        if left <= 0 {
            break;
        }
        let shard = shard.shard;
        let old = old_enough(tx, feed, shard, retention.trim_after)?;
        // So old that nobody holds it back.
        let unread = match retention.trim_unread_after {
            Some(age) => old_enough(tx, feed, shard, age)?,
            None => i64::MIN,
        };
        let slowest: Option<(String, i64)> = tx
            .prepare_cached(include_str!("sql/trim_slowest.sql"))
            .and_then(|mut s| {
                s.query_row(params![feed.id.0, shard.0], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })
                .optional()
            })
            .explained()?;
        let upto = match slowest {
            Some((name, cursor)) if cursor.max(unread) < old => {
                let upto = cursor.max(unread);
                if exists_between(tx, feed, shard, upto, old)? {
                    trimmed.held_back_by.push(format!("{name} (shard {shard})"));
                }
                upto
            }
            _ => old,
        };
        let removed = remove(tx, feed, shard, upto, left)?;
        trimmed.removed += u64::try_from(removed).unwrap_or(0);
        left -= removed;
    }
    crash_point("trim.before_commit");
    Ok(trimmed)
}

/// The newest number that is old enough to go.
fn old_enough(tx: &Connection, feed: &Feed, shard: ShardId, age: Duration) -> Result<i64> {
    let bounds = Bounds::load(tx, feed, shard)?;
    let young: Option<i64> = if age.is_zero() {
        None
    } else {
        let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX / 2);
        tx.prepare_cached(include_str!("sql/trim_limit.sql"))
            .and_then(|mut s| {
                s.query_row(params![feed.id.0, shard.0, age], |row| row.get(0))
                    .optional()
            })
            .explained()?
    };
    // What a backfill is still to add lies behind its frontier, and must not be cut off.
    Ok(young
        .unwrap_or(bounds.last)
        .min(bounds.frontier.unwrap_or(i64::MAX)))
}

fn exists_between(
    tx: &Connection,
    feed: &Feed,
    shard: ShardId,
    after: i64,
    upto: i64,
) -> Result<bool> {
    tx.query_row(
        "select exists (select 1 from changefeed_numbered where feed_id = ?1 and shard = ?2 \
         and change_sequence_number > ?3 and change_sequence_number <= ?4)",
        params![feed.id.0, shard.0, after, upto],
        |row| row.get(0),
    )
    .explained()
}

/// Removes up to a number, at most `limit` changes.
fn remove(tx: &Connection, feed: &Feed, shard: ShardId, upto: i64, limit: i64) -> Result<i64> {
    let (reach, count): (Option<i64>, i64) = tx
        .prepare_cached(include_str!("sql/trim_batch.sql"))
        .and_then(|mut s| {
            s.query_row(params![feed.id.0, shard.0, upto, limit], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
        })
        .explained()?;
    let Some(reach) = reach else {
        return Ok(0);
    };
    for sql in [
        "delete from changefeed_numbered \
         where feed_id = ?1 and shard = ?2 and change_sequence_number <= ?3",
        "update changefeed_shard_def set trimmed = ?3 where feed_id = ?1 and shard = ?2",
        include_str!("sql/trim_marks.sql"),
    ] {
        tx.prepare_cached(sql)
            .and_then(|mut s| s.execute(params![feed.id.0, shard.0, reach]))
            .explained()?;
    }
    Ok(count)
}
