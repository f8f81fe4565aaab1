//! Removing old changes that everybody has read.

use std::time::Duration;

use changefeed_core::{Feed, Result, Trimmed};

use crate::session::Session;

impl Session {
    pub(crate) async fn trim_batch(
        &mut self,
        feed: &Feed,
        age: Duration,
        batch: usize,
    ) -> Result<Trimmed> {
        let connection = &mut *self.connection;
        // More than the server's times hold is as good as for ever.
        let seconds = i32::try_from(age.as_secs()).unwrap_or(i32::MAX);
        let mut left = i64::try_from(batch).unwrap_or(i64::MAX);
        let mut trimmed = Trimmed::default();
        for shard in &feed.shards {
            let milliseconds = i32::try_from(age.subsec_millis()).unwrap_or_default();
            let row = connection
                .one(
                    include_str!("sql/trim.sql"),
                    &[&feed.id.0, &shard.shard.0, &seconds, &milliseconds, &left],
                )
                .await?;
            let removed: i64 = row.get(0).unwrap_or_default();
            if let Some(slowest) = row.get::<&str, _>(1) {
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
