//! What keeps changes from being numbered or processed and events from being delivered: what somebody keeps locked.

use std::time::Duration;

use changefeed_core::{Finding, Kind, Result, Severity};

use crate::error::db;
use crate::row::Cells;
use crate::session::Session;

/// Longer than a sweep or a claim keeps a lock.
const PATIENCE: Duration = Duration::from_millis(1500);

/// A transaction that may have locked a row.
struct Locker {
    transaction: String,
    who: String,
    advice: String,
}

impl Session {
    pub(crate) async fn lock_findings(&self) -> Result<Vec<Finding>> {
        let shards = include_str!("sql/shards_locked.sql");
        let mut findings = self.look_at("shard_definition", shards).await?;
        let triggers = include_str!("sql/triggers_locked.sql");
        findings.extend(self.look_at("event_trigger", triggers).await?);
        let watches = include_str!("sql/watches_locked.sql");
        findings.extend(self.look_at("watched_table", watches).await?);
        Ok(findings)
    }

    /// The rows of a table that somebody keeps locked. The statement finds those that are locked right now.
    async fn look_at(&self, table: &str, locked: &str) -> Result<Vec<Finding>> {
        let before = self.lockers(table).await?;
        if before.is_empty() {
            return Ok(Vec::new());
        }
        tokio::time::sleep(PATIENCE).await;
        let mut lockers = self.lockers(table).await?;
        lockers.retain(|l| before.iter().any(|b| b.transaction == l.transaction));
        if lockers.is_empty() {
            return Ok(Vec::new());
        }
        let locked = match self.query(locked, &[]).await.map_err(db) {
            // Who may not sweep or deliver cannot try.
            Err(error) if error.kind() == Kind::Permission => return Ok(Vec::new()),
            locked => locked?,
        };
        let join = |text: fn(&Locker) -> &str, with: &str| -> String {
            lockers.iter().map(text).collect::<Vec<_>>().join(with)
        };
        let who = join(|l| &l.who, ", or ");
        let advice = join(|l| &l.advice, ", or ");
        let findings = locked.iter().map(|row| {
            let (subject, what): (String, String) = (row.take(0)?, row.take(1)?);
            Ok(Finding::new(
                Severity::Problem,
                subject,
                format!("{what}; the lock is held by {who}"),
                format!("end that transaction, or if it was forgotten: {advice}"),
            ))
        });
        findings.collect()
    }

    async fn lockers(&self, table: &str) -> Result<Vec<Locker>> {
        let rows = self
            .query(include_str!("sql/lockers.sql"), &[&table])
            .await
            .map_err(db)?;
        rows.iter()
            .map(|row| {
                Ok(Locker {
                    transaction: row.take(0)?,
                    who: row.take(1)?,
                    advice: row.take(2)?,
                })
            })
            .collect()
    }
}
