//! One sweep is one call of a server-side function: it locks, numbers and commits, and nothing
//! is held when it has returned.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use changefeed_core::{Error, FeedId, Kind, Result, ShardId, SweepGroup, SweepReport, SweptShard};

use crate::error::db;
use crate::row::Cells;
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
        rows.iter().map(|row| row.take(0).map(SweepGroup)).collect()
    }

    pub(crate) async fn sweep(&self, group: SweepGroup) -> Result<SweepReport> {
        let client = &**self;
        let statement = client
            .prepare_cached(include_str!("sql/sweep.sql"))
            .await
            .map_err(db)?;
        let began = Instant::now();
        let known = self.known.quiet.since(group, began);
        let (snapshot, at) = known.unzip();
        let rows = client
            .query(&statement, &[&i32::from(group.0), &snapshot, &at])
            .await
            .map_err(db)?;
        let first = rows
            .first()
            .ok_or_else(|| Error::new(Kind::Database, "the server did not say what it swept"))?;
        let look = Look {
            snapshot: first.take(0)?,
            at: first.take(1)?,
        };
        let mut shards = Vec::with_capacity(rows.len());
        for row in &rows {
            if let Some(feed) = row.take(2)? {
                shards.push(SweptShard {
                    feed_id: FeedId(feed),
                    shard: ShardId(row.take(3)?),
                    change_count: row.take(4)?,
                    lag_milliseconds: row.take(5)?,
                });
            }
        }
        let nothing = shards.is_empty();
        self.known.quiet.looked(group, began, look, nothing);
        Ok(SweepReport { shards })
    }
}

/// What a look found that saw nothing new.
struct Look {
    snapshot: String,
    at: SystemTime,
}

/// Groups in which a sweep has found nothing, and what could be seen then.
#[derive(Default)]
pub(crate) struct Quiet(Mutex<HashMap<SweepGroup, (Instant, Look)>>);

/// A snapshot is believed for so long. A sweep also visits shards that were locked the last time, and all of
/// them now and then; and the server may be another one that looks the same.
const BELIEVED: Duration = Duration::from_secs(1);

impl Quiet {
    /// The snapshot before the last sweep, if it found nothing, and when nothing new was seen last.
    fn since(&self, group: SweepGroup, now: Instant) -> Option<(String, SystemTime)> {
        let groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (swept, look) = groups.get(&group)?;
        (now.duration_since(*swept) < BELIEVED).then(|| (look.snapshot.clone(), look.at))
    }

    fn looked(&self, group: SweepGroup, began: Instant, look: Look, nothing: bool) {
        let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match groups.get_mut(&group) {
            _ if !nothing => {
                groups.remove(&group);
            }
            // Nothing was committed since: the sweep is the one of then.
            Some((swept, seen))
                if seen.snapshot == look.snapshot && began.duration_since(*swept) < BELIEVED =>
            {
                seen.at = look.at;
            }
            _ => {
                groups.insert(group, (began, look));
            }
        }
    }
}
