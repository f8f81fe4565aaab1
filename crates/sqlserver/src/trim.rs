//! Removing old changes that everybody has read.

use std::time::Duration;

use changefeed_core::{Feed, Result, Retention, Trimmed};

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
        let connection = &mut *self.connection;
        // More than the server's times hold is as good as for ever.
        let parts = |age: Duration| {
            let seconds = i32::try_from(age.as_secs()).unwrap_or(i32::MAX);
            (
                seconds,
                i32::try_from(age.subsec_millis()).unwrap_or_default(),
            )
        };
        let (seconds, milliseconds) = parts(retention.trim_after);
        let (unread_seconds, unread_milliseconds) = retention.trim_unread_after.map(parts).unzip();
        let mut left = i64::try_from(batch).unwrap_or(i64::MAX);
        let mut trimmed = Trimmed::default();
        for shard in &feed.shards {
            let row = connection
                .one(
                    include_str!("sql/trim.sql"),
                    &[
                        &feed.id.0,
                        &shard.shard.0,
                        &seconds,
                        &milliseconds,
                        &left,
                        &unread_seconds,
                        &unread_milliseconds,
                    ],
                )
                .await?;
            let removed: i64 = row.take(0)?;
            if let Some(slowest) = row.maybe::<&str>(1)? {
                trimmed
                    .held_back_by
                    .push(format!("{slowest} (shard {})", shard.shard));
            }
            trimmed.removed += u64::try_from(removed).unwrap_or(0);
            left -= removed;
            if left <= 0 {
                break;
            }
        }
        Ok(trimmed)
    }
}
