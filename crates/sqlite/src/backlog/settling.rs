//! What becomes of a batch: who holds it, for how much longer, and what follows from its outcome.

use std::time::{Duration, Instant};

use changefeed_core::{Batch, BatchOutcome, Result, Settled, WatchSettings};
use rusqlite::params;

use super::{Backlog, held, millis};
use crate::error::Explain;

impl Backlog<'_> {
    /// The batches of an owner, without their rows.
    pub(crate) fn held_by(&self, owner: &str) -> Result<Vec<Batch>> {
        let sql = self.sql(include_str!("../sql/watch_held.sql"), &[]);
        let asked = Instant::now();
        let mut statement = self.tx.prepare_cached(&sql?).map_err(|e| self.missing(e))?;
        let batches = statement
            .query_map([owner], |row| {
                let versions = (row.get(1)?, row.get(2)?);
                Ok(Batch::leased(row.get(0)?, versions, row.get(3)?, asked))
            })
            .explained()?;
        batches
            .collect::<rusqlite::Result<Vec<Batch>>>()
            .explained()
    }

    pub(crate) fn renew(&self, batch: &Batch, lease: Duration) -> Result<u64> {
        self.update(
            &format!(
                "_changefeed_lease_expiration_time = {}",
                self.now.saturating_add(millis(lease))
            ),
            &held(batch.generation, batch.versions),
        )
    }

    pub(crate) fn settle(
        &self,
        batch: &Batch,
        outcome: &BatchOutcome,
        settings: &WatchSettings,
    ) -> Result<Settled> {
        let part = batch.meant("q._changefeed_change_version", |list| {
            format!("in ({list})")
        });
        let held = held(batch.generation, batch.versions) + &part;
        let unleased = include_str!("../sql/watch_unleased.sql").trim_end();
        match outcome {
            BatchOutcome::Done => {
                let delete = format!(
                    "delete from {} as q where {held} and q._changefeed_newer_operation is null",
                    self.leases
                );
                let done = self
                    .tx
                    .prepare(&delete)
                    .and_then(|mut s| s.execute([]))
                    .map_err(|e| self.missing(e))?;
                // A newer change came while these were in process: they are handed over again.
                let version = self.next_version(1)?;
                let again = self.update(
                    &format!(
                        "_changefeed_change_version = {version}, \
                         _changefeed_operation = q._changefeed_newer_operation, \
                         _changefeed_newer_operation = null, \
                         _changefeed_columns = q._changefeed_newer_columns, \
                         _changefeed_newer_columns = null, \
                         _changefeed_before = q._changefeed_newer_before, \
                         _changefeed_newer_before = null, _changefeed_attempt_count = 0, \
                         _changefeed_last_error = null, {unleased}"
                    ),
                    &held,
                )?;
                Ok(Settled {
                    rows: done as u64 + again,
                    parked: 0,
                })
            }
            BatchOutcome::Failed { error } => {
                let last = format!(
                    "{held} and q._changefeed_attempt_count >= {}",
                    settings.attempts
                );
                let parked = self.give_up(&last, Some(error))?;
                let wait = millis(settings.wait_after(batch.attempt));
                let sql = format!(
                    "update {} as q set _changefeed_last_error = ?1, _changefeed_retry_time = ?2 \
                     where {held}",
                    self.leases
                );
                let waiting = self
                    .tx
                    .prepare(&sql)
                    .and_then(|mut s| s.execute(params![error, self.now.saturating_add(wait)]))
                    .explained()?;
                Ok(Settled {
                    rows: parked + waiting as u64,
                    parked,
                })
            }
            BatchOutcome::Released => Ok(Settled {
                rows: self.give_back(&held)?,
                parked: 0,
            }),
        }
    }
}
