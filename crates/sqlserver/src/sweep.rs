//! One sweep is one call of a stored procedure: it locks, numbers and commits, and nothing is held
//! when it has returned.

use changefeed_core::{FeedId, Result, ShardId, SweepGroup, SweepReport, SweptShard};

use crate::row::Cells;
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
        rows.iter().map(|row| row.take(0).map(SweepGroup)).collect()
    }

    pub(crate) async fn sweep(&mut self, group: SweepGroup) -> Result<SweepReport> {
        let connection = &mut *self.connection;
        let rows = connection
            .call(&format!("exec changefeed.sweep {}", group.0))
            .await?;
        let shards = rows
            .iter()
            .map(|row| {
                Ok(SweptShard {
                    feed_id: FeedId(row.take(0)?),
                    shard: ShardId(row.take(1)?),
                    change_count: row.take(2)?,
                    lag_milliseconds: row.maybe(3)?.unwrap_or_default(),
                })
            })
            .collect::<Result<_>>()?;
        Ok(SweepReport { shards })
    }
}
