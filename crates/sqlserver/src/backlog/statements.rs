//! What is sent to the server about a backlog.

use std::time::Duration;

use changefeed_core::{Batch, BatchOutcome, ParkedRows, Result, Take, WatchSettings, fill};

use super::{Backlog, lock};
use crate::events::Span;
use crate::quote;
use crate::tracking::{Way, function_sql, tracked_in};

const UNLEASED: &str = "_changefeed_lease_owner = null, _changefeed_lease_generation = null, \
     _changefeed_lease_expiration_time = null, _changefeed_retry_time = null";

/// The rows of a batch that are still its own. Which batch is said by parameters, so that the server
/// reads each statement once and not for every batch.
pub(super) const HELD: &str = "_changefeed_attempt_count > 0 and _changefeed_parked_time is null \
     and _changefeed_change_version between @P1 and @P2 and _changefeed_lease_generation = @P3";

impl Backlog {
    /// The statement that locks the table's backlogs until the transaction ends.
    pub(super) fn lock_sql(&self) -> String {
        lock(self.tracked.id())
    }

    pub(super) fn draw_sql(&self) -> Result<String> {
        fill(
            include_str!("../sql/watch_draw.sql"),
            &[("table_id", &self.table_id())],
        )
    }

    /// Whether there are changes to be moved, as a condition.
    fn changes_sql(&self) -> String {
        match self.tracked.way {
            Way::Trigger => format!(
                "exists (select 1 from changefeed.{} l with (readcommittedlock, readpast))",
                self.tracked.log()
            ),
            Way::Native => format!(
                "exists (select 1 from changefeed.watched_table t with (readuncommitted) \
                 where t.table_id = {} \
                 and t.tracked_version <> isnull(change_tracking_current_version(), -1))",
                self.table_id()
            ),
        }
    }

    /// One line of a look for many.
    pub(crate) fn look_all_sql(&self, number: usize) -> Result<String> {
        fill(
            include_str!("../sql/watch_look_all.sql"),
            &[
                ("number", &number.to_string()),
                ("changes", &self.changes_sql()),
                ("leases", &self.leases),
            ],
        )
    }

    pub(crate) fn look_sql(&self, owner: &str) -> Result<String> {
        fill(
            include_str!("../sql/watch_look.sql"),
            &[
                ("changes", &self.changes_sql()),
                ("leases", &self.leases),
                ("owner", &quote::literal(owner)),
            ],
        )
    }

    pub(crate) fn take_sql(&self, take: &Take<'_>) -> Result<String> {
        fill(
            include_str!("../sql/watch_take.sql"),
            &[
                ("move", &self.move_sql()?),
                ("lease", &self.lease_sql(take)?),
                ("function_id", &function_sql(&self.function_id)),
            ],
        )
    }

    /// The update that makes due rows ours, of those that were tried before (`>`) or not (`=`).
    pub(super) fn claim_sql(&self, take: &Take<'_>, tried: &str) -> Result<String> {
        let lease = Span::of(take.settings.lease);
        let claim = fill(
            include_str!("../sql/watch_claim.sql"),
            &[
                ("leases", &self.leases),
                ("owner", &quote::literal(take.owner)),
                ("tried", tried),
                ("milliseconds", &lease.milliseconds.to_string()),
                ("seconds", &lease.seconds.to_string()),
            ],
        )?;
        Ok(claim.trim_end().to_owned())
    }

    pub(super) fn lease_sql(&self, take: &Take<'_>) -> Result<String> {
        fill(
            include_str!("../sql/watch_lease.sql"),
            &[
                ("lock", &self.lock_sql()),
                ("table_id", &self.table_id()),
                ("leases", &self.leases),
                ("attempts", &take.settings.attempts.to_string()),
                ("draw", &self.draw_sql()?),
                ("newer_becomes_current", newer()),
                ("unleased", UNLEASED),
                ("batch", &take.settings.batch.to_string()),
                ("owner", &quote::literal(take.owner)),
                ("groups", &groups(take.settings)),
                ("claim_new", &self.claim_sql(take, "=")?),
                ("claim_tried", &self.claim_sql(take, ">")?),
            ],
        )
    }

    pub(crate) fn held_sql(&self, owner: &str) -> Result<String> {
        fill(
            include_str!("../sql/watch_held.sql"),
            &[("leases", &self.leases), ("owner", &quote::literal(owner))],
        )
    }

    pub(crate) fn renew_sql(&self, lease: Duration) -> String {
        let lease = Span::of(lease);
        format!(
            "declare @rows bigint; exec changefeed.note_time; begin transaction; {} update changefeed.{} \
             set _changefeed_lease_expiration_time = \
               dateadd(millisecond, {}, dateadd(second, {}, sysutcdatetime())) where {}; \
             set @rows = @@rowcount; commit transaction; select @rows",
            self.lock_sql(),
            self.leases,
            lease.milliseconds,
            lease.seconds,
            HELD
        )
    }

    pub(crate) fn settle_sql(
        &self,
        batch: &Batch,
        outcome: &BatchOutcome,
        settings: &WatchSettings,
    ) -> Result<String> {
        let part = batch.meant("_changefeed_change_version", |list| {
            format!("in (select convert(bigint, p.value) from openjson(N'[{list}]') p)")
        });
        let held = HELD.to_owned() + &part;
        let common = [
            ("leases", self.leases.as_str()),
            ("held", held.as_str()),
            ("unleased", UNLEASED),
        ];
        let settle = match outcome {
            BatchOutcome::Done => fill(include_str!("../sql/watch_done.sql"), &common)?,
            BatchOutcome::Released => fill(include_str!("../sql/watch_released.sql"), &common)?,
            BatchOutcome::Failed { error } => {
                let wait = Span::of(settings.wait_after(batch.attempt));
                let more = [
                    ("error", quote::literal(&printable(error))),
                    ("attempts", settings.attempts.to_string()),
                    ("seconds", wait.seconds.to_string()),
                    ("milliseconds", wait.milliseconds.to_string()),
                ];
                let mut all = common.to_vec();
                all.push(("newer_becomes_current", newer()));
                all.extend(more.iter().map(|(k, v)| (*k, v.as_str())));
                fill(include_str!("../sql/watch_failed.sql"), &all)?
            }
        };
        fill(
            include_str!("../sql/watch_settle.sql"),
            &[
                ("lock", &self.lock_sql()),
                ("leases", &self.leases),
                ("held", &held),
                ("draw", &self.draw_sql()?),
                ("settle", &settle),
            ],
        )
    }

    pub(crate) fn retry_sql(&self, which: ParkedRows) -> Result<String> {
        let only = which.version().map_or("null".to_owned(), |v| v.to_string());
        fill(
            include_str!("../sql/watch_retry.sql"),
            &[
                ("only", &only),
                ("lock", &self.lock_sql()),
                ("leases", &self.leases),
                ("draw", &self.draw_sql()?),
            ],
        )
    }

    pub(crate) fn upkeep_sql(&self) -> Result<String> {
        fill(
            include_str!("../sql/watch_upkeep.sql"),
            &[
                ("leases", &self.leases),
                ("table_id", &self.table_id()),
                ("function_id", &function_sql(&self.function_id)),
            ],
        )
    }

    pub(crate) fn still_tracked_sql(&self) -> Result<String> {
        fill(
            include_str!("../sql/watch_still_tracked.sql"),
            &[
                ("table_id", &self.table_id()),
                ("tracked_in", &tracked_in(self.tracked.id())),
            ],
        )
    }

    pub(crate) fn signature_sql(&self) -> Result<String> {
        fill(
            include_str!("../sql/watch_signature.sql"),
            &[
                ("name", &quote::literal(&self.tracked.table.sql)),
                ("table_id", &self.table_id()),
            ],
        )
    }
}

fn newer() -> &'static str {
    include_str!("../sql/watch_newer.sql").trim_end()
}

/// How many rows are tried together after `@tried` attempts. Where the number stays the same for some
/// attempts, they are told together.
fn groups(settings: &WatchSettings) -> String {
    let mut cases: Vec<(u32, usize)> = Vec::new();
    for attempt in 1..=settings.attempts {
        let group = settings.group(attempt);
        match cases.last_mut() {
            Some((last, known)) if *known == group => *last = attempt,
            _ => cases.push((attempt, group)),
        }
    }
    let cases: Vec<String> = cases
        .iter()
        .map(|(last, group)| format!("when @tried < {last} then {group}"))
        .collect();
    cases.join(" ")
}

/// Without characters that Babelfish has no place for in a text.
fn printable(text: &str) -> String {
    text.replace(
        |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t'),
        "?",
    )
}
