//! One sweep is one call of a stored procedure: it locks, numbers and commits, and nothing is held
//! when it has returned.

use changefeed_core::{FeedId, Result, ShardId, SweepGroup, SweepReport, SweptShard};

use crate::session::Session;

impl Session {
    pub(crate) async fn sweep_groups(&mut self) -> Result<Vec<SweepGroup>> {
        let connection = &mut *self.connection;
        let rows = connection
            .query(
                "select distinct sweep_group from changefeed.shard order by sweep_group",
                &[],
            )
            .await?;
        Ok(rows
            .iter()
            .filter_map(|row| row.get(0).map(SweepGroup))
            .collect())
    }

    pub(crate) async fn sweep(&mut self, group: SweepGroup) -> Result<SweepReport> {
        let connection = &mut *self.connection;
        let rows = connection
            .call(&format!("exec changefeed.sweep {}", group.0))
            .await?;
        let shards = rows
            .iter()
            .map(|row| SweptShard {
                feed_id: FeedId(row.get(0).unwrap_or_default()),
                shard: ShardId(row.get(1).unwrap_or_default()),
                change_count: row.get(2).unwrap_or_default(),
                lag_milliseconds: row.get(3).unwrap_or_default(),
            })
            .collect();
        Ok(SweepReport { shards })
    }
}
