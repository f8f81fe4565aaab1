//! Moving committed changes from where the trigger notes them to the backlogs of all functions.

use changefeed_core::{Result, words};
use tokio_postgres::GenericClient;

use super::message::Answer;
use super::{Backlog, Seen};
use crate::error::db;
use crate::quote;
use crate::row::Cells;
use crate::template::fill;
use crate::tracking::{Tracked, leases_name};
use crate::watch_key::join;

/// Changes that are moved at a time where nobody waits; fewer than a draw of versions is good for.
const ALL: usize = 1_000_000;

/// Changes that are moved at a time: many enough to be cheap, few enough not to keep others from
/// the table's lock for long.
pub(super) const CHUNK: usize = 10_000;

/// Whether keys that were noted as texts can be read. They can, unless the key has got another type
/// since; to make sure of each of them is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Texts {
    Trusted,
    Doubted,
}

/// Which changes to move, as conditions that an index serves.
pub(super) struct Range {
    /// Of transactions that began later than those we have seen.
    later: String,
    /// Of transactions that were at work when we last looked, and are not any more.
    finished: String,
}

impl Range {
    fn all() -> Range {
        Range {
            later: "true".to_owned(),
            finished: "false".to_owned(),
        }
    }
}

impl Backlog {
    /// Moves all changes, within a transaction that holds the table's lock.
    pub(crate) async fn move_all(&self, client: &impl GenericClient) -> Result<()> {
        let sql = self.move_sql(&Range::all(), ALL, Texts::Doubted)?;
        loop {
            let row = client.query_one(&sql, &[]).await.map_err(db)?;
            if usize::try_from(row.take::<i64>(1)?).is_ok_and(|moved| moved < ALL) {
                return Ok(());
            }
        }
    }

    /// The statement that moves up to `chunk` changes.
    pub(super) fn move_sql(&self, range: &Range, chunk: usize, texts: Texts) -> Result<String> {
        let tracked = &self.tracked;
        let log_keys = join(&tracked.key, ", ", |n, c| {
            let (text, type_sql) = (format!("l._changefeed_raw->>{}", n - 1), &c.type_sql);
            let readable = match texts {
                Texts::Trusted => "else".to_owned(),
                Texts::Doubted => {
                    format!("when changefeed.readable({text}, '{type_sql}'::regtype) then")
                }
            };
            format!(
                "case when l._changefeed_raw is null then l.{} {readable} ({text})::{type_sql} end \
                 as k{n}",
                c.sql()
            )
        });
        let (keys, not_null) = (
            join(&tracked.key, ", ", |n, _| format!("s.k{n}")),
            join(&tracked.key, " and ", |n, _| format!("s.k{n} is not null")),
        );
        let (table_id, generation) = (tracked.table_id.to_string(), self.generation.to_string());
        let (log, chunk) = (tracked.log(), chunk.to_string());
        let mut places = vec![
            ("log", log.as_str()),
            ("log_keys", &log_keys),
            ("k", &keys),
            ("k_not_null", &not_null),
            ("table_id", &table_id),
            ("generation", &generation),
            ("range", &range.later),
            ("finished", &range.finished),
            ("chunk", &chunk),
            ("functions", &self.functions),
        ];
        places.extend(tracked.columns.moved());
        places.extend(tracked.before.moved());
        fill(include_str!("../sql/watch_move.sql"), &places)
    }

    /// What may not have been moved yet.
    pub(super) fn range(seen: &Seen) -> Range {
        let bound = "l._changefeed_xid < pg_snapshot_xmax(pg_current_snapshot())";
        match (&seen.snapshot, &seen.resume) {
            // A thorough look: also at what was written under another server's transaction ids.
            (None, None) => Range::all(),
            (None, Some((xid, version))) => Range {
                later: format!(
                    "(l._changefeed_xid, l._changefeed_order) > ('{xid}'::xid8, {version})"
                ),
                finished: "false".to_owned(),
            },
            (Some(_), Some((xid, version))) => Range {
                later: format!(
                    "(l._changefeed_xid, l._changefeed_order) > ('{xid}'::xid8, {version}) and {bound}"
                ),
                finished: "false".to_owned(),
            },
            (Some(snapshot), None) => Range {
                later: format!(
                    "l._changefeed_xid >= pg_snapshot_xmax('{snapshot}'::pg_snapshot) and {bound}"
                ),
                finished: format!(
                    "l._changefeed_xid = any(array(select x from pg_snapshot_xip('{snapshot}'::pg_snapshot) x \
                     where pg_visible_in_snapshot(x, pg_current_snapshot())))"
                ),
            },
        }
    }

    /// Remembers how far the changes were moved; returns whether there are more.
    pub(super) fn note_moved(&self, moved: &Answer, seen: &Seen) -> Result<bool> {
        let snapshot = moved
            .text(0)
            .ok_or_else(words::server_unexpected)?
            .to_owned();
        let last = moved
            .text(2)
            .and_then(|text| text.split_once(','))
            .map(|(xid, version)| (xid.to_owned(), version.to_owned()));
        let full = is_full(moved);
        let stale = moved.number(3) != Some(self.generation);
        if let Some(keys) = moved.text(4) {
            tracing::error!(
                table = %self.tracked.table.name, keys,
                "changes were given up: their keys cannot be read as the type that the key has now"
            );
        }
        if moved.text(5) == Some("t") {
            tracing::warn!(
                table = %self.tracked.table.name,
                "the table was truncated, and its rows could not be read before, as the transaction was \
                 warned: no function is told that they are gone"
            );
        }
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

/// Whether there may be more than what was moved.
pub(super) fn is_full(moved: &Answer) -> bool {
    let count = moved.number(1).unwrap_or(0);
    usize::try_from(count).is_ok_and(|count| count >= CHUNK)
}

/// What moves changes to each function's backlog.
pub(super) fn functions_sql(tracked: &Tracked, functions: &[(String, String)]) -> Result<String> {
    let mut sql = String::new();
    for (n, (function_id, watch)) in functions.iter().enumerate() {
        let watch = quote::literal(watch);
        let (number, leases) = (n.to_string(), leases_name(function_id, tracked.table_id));
        let same_key = join(&tracked.key, " and ", |k, c| {
            format!("q.{} operator(pg_catalog.=) n.k{k}", c.sql())
        });
        let (keys, n_k) = (
            tracked.keys(""),
            join(&tracked.key, ", ", |k, _| format!("n.k{k}")),
        );
        let mut places = vec![
            ("n", number.as_str()),
            ("leases", &leases),
            ("watch", &watch),
            ("same_key", &same_key),
            ("keys", &keys),
            ("n_k", &n_k),
        ];
        places.extend(tracked.columns.folded());
        places.push(tracked.before.folded());
        sql.push_str(&fill(
            include_str!("../sql/watch_move_function.sql"),
            &places,
        )?);
    }
    Ok(sql)
}
