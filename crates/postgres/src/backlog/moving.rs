//! Moving committed changes from where the trigger notes them to the backlogs of all functions.

use changefeed_core::Result;
use tokio_postgres::GenericClient;

use super::message::{Answer, unexpected};
use super::{Backlog, Seen};
use crate::error::db;
use crate::template::fill;
use crate::tracking::{Tracked, join, leases_name};

/// Changes that are moved at a time where nobody waits; fewer than a draw of versions is good for.
const ALL: usize = 1_000_000;

/// Changes that are moved at a time: many enough to be cheap, few enough not to keep others from
/// the table's lock for long.
pub(super) const CHUNK: usize = 10_000;

impl Backlog {
    /// Moves all changes, within a transaction that holds the table's lock.
    pub(crate) async fn move_all(&self, client: &impl GenericClient) -> Result<()> {
        let sql = self.move_sql("true", ALL);
        loop {
            let row = client.query_one(&sql, &[]).await.map_err(db)?;
            if usize::try_from(row.get::<_, i64>(1)).is_ok_and(|moved| moved < ALL) {
                return Ok(());
            }
        }
    }

    /// Moves up to so many changes.
    pub(super) fn move_sql(&self, range: &str, chunk: usize) -> String {
        let tracked = &self.tracked;
        fill(
            include_str!("../sql/watch_move.sql"),
            &[
                ("log", &tracked.log()),
                (
                    "log_keys",
                    &join(&tracked.key, ", ", |n, c| {
                        format!(
                            "case when l.raw is null then l.{} else (l.raw->>{})::{} end as k{n}",
                            c.sql(),
                            n - 1,
                            c.type_sql
                        )
                    }),
                ),
                ("k", &join(&tracked.key, ", ", |n, _| format!("s.k{n}"))),
                (
                    "k_not_null",
                    &join(&tracked.key, " and ", |n, _| format!("s.k{n} is not null")),
                ),
                ("table_id", &tracked.table_id.to_string()),
                ("generation", &self.generation.to_string()),
                ("range", range),
                ("chunk", &chunk.to_string()),
                ("functions", &self.functions),
            ],
        )
    }

    pub(super) fn range(seen: &Seen) -> String {
        let Some(snapshot) = &seen.snapshot else {
            // A thorough look: also at what was written under another server's transaction ids.
            return match &seen.resume {
                Some((xid, version)) => format!("(l.xid, l.version) > ('{xid}'::xid8, {version})"),
                None => "true".to_owned(),
            };
        };
        match &seen.resume {
            Some((xid, version)) => format!(
                "(l.xid, l.version) > ('{xid}'::xid8, {version}) \
                 and l.xid < pg_snapshot_xmax(pg_current_snapshot())"
            ),
            // Transactions that were at work then and are not any more, and all later ones.
            None => format!(
                "(l.xid >= pg_snapshot_xmax('{snapshot}'::pg_snapshot) \
                  and l.xid < pg_snapshot_xmax(pg_current_snapshot()) \
                  or l.xid = any(array(select x from pg_snapshot_xip('{snapshot}'::pg_snapshot) x \
                       where pg_visible_in_snapshot(x, pg_current_snapshot()))))"
            ),
        }
    }

    /// Remembers how far the changes were moved; returns whether there are more.
    pub(super) fn note_moved(&self, moved: &Answer, seen: &Seen) -> Result<bool> {
        let snapshot = moved.text(0).ok_or_else(unexpected)?.to_owned();
        let count = moved.number(1).ok_or_else(unexpected)?;
        let last = moved
            .text(2)
            .and_then(|text| text.split_once(','))
            .map(|(xid, version)| (xid.to_owned(), version.to_owned()));
        let full = usize::try_from(count).is_ok_and(|count| count >= CHUNK);
        let stale = moved.number(3) != Some(self.generation);
        self.learn(|known| {
            known.stale |= stale;
            if stale {
                // Nothing was moved.
            } else if full {
                known.resume = last;
            } else if seen.resume.is_some() {
                // Something may have come up to where we resumed: once more from the beginning.
                known.resume = None;
            } else {
                known.snapshot = Some(snapshot);
            }
        });
        Ok(full || stale || seen.resume.is_some())
    }
}

/// What moves changes to each function's backlog.
pub(super) fn functions_sql(tracked: &Tracked, functions: &[String]) -> String {
    let mut sql = String::new();
    for (n, function_id) in functions.iter().enumerate() {
        sql.push_str(&fill(
            include_str!("../sql/watch_move_function.sql"),
            &[
                ("n", &n.to_string()),
                ("leases", &leases_name(function_id, tracked.table_id)),
                (
                    "same_key",
                    &join(&tracked.key, " and ", |k, c| {
                        format!("q.{} = n.k{k}", c.sql())
                    }),
                ),
                ("keys", &tracked.keys("")),
                ("n_k", &join(&tracked.key, ", ", |k, _| format!("n.k{k}"))),
            ],
        ));
    }
    sql
}
