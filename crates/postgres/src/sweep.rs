//! One sweep is one call of a server-side function: it locks, numbers and commits, and nothing
//! is held when it has returned.

use changefeed_core::{FeedId, Result, ShardId, SweepGroup, SweepReport, SweptShard};

use crate::error::db;
use crate::session::Session;

impl Session {
    pub(crate) async fn sweep_groups(&self) -> Result<Vec<SweepGroup>> {
        let client = &**self;
        let rows = client
            .query(
                "select distinct sweep_group from changefeed.shard_definition order by 1",
                &[],
            )
            .await
            .map_err(db)?;
        Ok(rows.iter().map(|row| SweepGroup(row.get(0))).collect())
    }

    pub(crate) async fn sweep(&self, group: SweepGroup) -> Result<SweepReport> {
        let client = &**self;
        let statement = client
            .prepare_cached(
                "select feed_id, shard, change_count, lag_milliseconds from changefeed.sweep($1)",
            )
            .await
            .map_err(db)?;
        let rows = client
            .query(&statement, &[&i32::from(group.0)])
            .await
            .map_err(db)?;
        let shards = rows
            .iter()
            .map(|row| SweptShard {
                feed_id: FeedId(row.get(0)),
                shard: ShardId(row.get(1)),
                change_count: row.get(2),
                lag_milliseconds: row.get(3),
            })
            .collect();
        Ok(SweepReport { shards })
    }
}
