//! What keeps changes from being numbered: shards that somebody keeps locked.

use std::time::Duration;

use changefeed_core::{Finding, Kind, Result, Severity};

use crate::error::db;
use crate::session::Session;

/// Longer than a sweep keeps a lock.
const PATIENCE: Duration = Duration::from_millis(1500);

/// A transaction that may have locked a shard.
struct Locker {
    transaction: String,
    who: String,
    advice: String,
}

impl Session {
    pub(crate) async fn look_at_numbering(&self) -> Result<Vec<Finding>> {
        let before = self.lockers().await?;
        if before.is_empty() {
            return Ok(Vec::new());
        }
        tokio::time::sleep(PATIENCE).await;
        let mut lockers = self.lockers().await?;
        lockers.retain(|l| before.iter().any(|b| b.transaction == l.transaction));
        if lockers.is_empty() {
            return Ok(Vec::new());
        }
        let locked = self
            .query(include_str!("sql/shards_locked.sql"), &[])
            .await
            .map_err(db);
        let locked = match locked {
            // Who may not sweep cannot try.
            Err(error) if error.kind() == Kind::Permission => return Ok(Vec::new()),
            locked => locked?,
        };
        let join = |text: fn(&Locker) -> &str, with: &str| -> String {
            lockers.iter().map(text).collect::<Vec<_>>().join(with)
        };
        let who = join(|l| &l.who, ", or ");
        let advice = join(|l| &l.advice, ", or ");
        let findings = locked.iter().map(|row| {
            let (feed, shard): (String, i16) = (row.get(0), row.get(1));
            Finding::new(
                Severity::Problem,
                format!("feed {feed}"),
                format!("shard {shard} is locked, so its changes get no numbers; the lock is held by {who}"),
                format!("end that transaction, or if it was forgotten: {advice}"),
            )
        });
        Ok(findings.collect())
    }

    async fn lockers(&self) -> Result<Vec<Locker>> {
        let rows = self
            .query(include_str!("sql/shard_lockers.sql"), &[])
            .await
            .map_err(db)?;
        Ok(rows
            .iter()
            .map(|row| Locker {
                transaction: row.get(0),
                who: row.get(1),
                advice: row.get(2),
            })
            .collect())
    }
}
