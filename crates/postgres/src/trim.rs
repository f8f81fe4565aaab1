//! Removing old changes that everybody has read.

use std::time::Duration;

use changefeed_core::{Feed, Result, Retention, Trimmed};

use crate::error::db;
use crate::row::Cells;
use crate::session::Session;

impl Session {
    pub(crate) async fn trim(
        &mut self,
        feed: &Feed,
        retention: Retention,
        batch: usize,
    ) -> Result<Trimmed> {
        feed.require_numbers("trimmed")?;
        let client = &mut **self;
        // More than the server's intervals hold is as good as for ever.
        let seconds = |age: Duration| age.as_secs_f64().min(1e11);
        let after = seconds(retention.trim_after);
        let unread_after = retention.trim_unread_after.map(seconds);
        let mut left = i64::try_from(batch).unwrap_or(i64::MAX);
        let mut trimmed = Trimmed::default();
        for shard in &feed.shards {
            let transaction = client.transaction().await.map_err(db)?;
            // Locked in a statement of its own, so that what follows sees the newest state.
            transaction
                .execute(
                    "select from changefeed.shard_definition \
                     where feed_id = $1 and shard = $2 for no key update",
                    &[&feed.id.0, &shard.shard.0],
                )
                .await
                .map_err(db)?;
            let row = transaction
                .query_one(
                    include_str!("sql/trim_limit.sql"),
                    &[&feed.id.0, &shard.shard.0, &after, &unread_after],
                )
                .await
                .map_err(db)?;
            let (old, read_by_all, slowest): (Option<i64>, Option<i64>, Option<String>) =
                (row.take(0)?, row.take(1)?, row.take(2)?);
            let Some(old) = old else { continue };
            let unread: Option<i64> = row.take(3)?;
            let read = old.min(read_by_all.unwrap_or(i64::MAX));
            let upto = read.max(unread.unwrap_or(i64::MIN));
            if let Some(slowest) = slowest.filter(|_| upto < old) {
                trimmed
                    .held_back_by
                    .push(format!("{slowest} (shard {})", shard.shard));
            }
            let row = transaction
                .query_one(
                    include_str!("sql/trim.sql"),
                    &[&feed.id.0, &shard.shard.0, &upto, &left],
                )
                .await
                .map_err(db)?;
            if row.take::<i64>(0)? > 0 {
                transaction
                    .execute(
                        "select changefeed.forget_numbered($1, $2)",
                        &[&feed.id.0, &shard.shard.0],
                    )
                    .await
                    .map_err(db)?;
            }
            transaction.commit().await.map_err(db)?;
            let removed: i64 = row.take(0)?;
            trimmed.removed += u64::try_from(removed).unwrap_or(0);
            left -= removed;
            if left <= 0 {
                break;
            }
        }
        Ok(trimmed)
    }
}
