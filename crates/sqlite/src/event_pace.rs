//! The pace of requests over all instances, and events that are collected by key.
//!
//! Both are rows of the database that are changed in the transaction that takes events: an instance that stops holds
//! no more of a pace than it has taken.

use changefeed_core::{Result, TriggerId};
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::Explain;
use crate::events::DUE_LOOKED_AT;

/// How many requests a trigger may make at this moment.
pub(crate) fn kept(tx: &Connection, trigger: TriggerId) -> Result<i64> {
    let kept = tx
        .prepare_cached(
            "select min(burst, max(0, (cast((julianday('now') - 2440587.5) * 86400000.0 as integer) \
             * 1000 - paced_at) / pace_us)) \
             from changefeed_event_trigger where trigger_id = ?1 and pace_us is not null",
        )
        .and_then(|mut s| s.query_row([trigger.0], |row| row.get(0)).optional())
        .explained()?;
    Ok(kept.unwrap_or(i64::MAX))
}

/// Moves the pace of a trigger on by what was taken.
pub(crate) fn keep_pace(tx: &Connection, trigger: TriggerId, taken: usize) -> Result<()> {
    let taken = i64::try_from(taken).unwrap_or(i64::MAX);
    tx.prepare_cached(
        "update changefeed_event_trigger \
         set paced_at = max(paced_at, cast((julianday('now') - 2440587.5) * 86400000.0 as integer) * 1000 \
                            - burst * pace_us) + ?2 * pace_us \
         where trigger_id = ?1 and pace_us is not null",
    )
    .and_then(|mut s| s.execute(params![trigger.0, taken]))
    .explained()?;
    Ok(())
}

/// Marks the events that a later one of their key is delivered for, which is due now.
pub(crate) fn collapse(tx: &Connection, trigger: TriggerId) -> Result<()> {
    let keys: Vec<(String, i64)> = tx
        .prepare_cached(include_str!("sql/event_collapse.sql"))
        .and_then(|mut s| {
            s.query_map(params![trigger.0, DUE_LOOKED_AT], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?
            .collect()
        })
        .explained()?;
    for (key, last) in keys {
        tx.prepare_cached(
            "update changefeed_event set state = 'c', due_at = null, superseded_by = ?3 \
             where trigger_id = ?1 and order_key = ?2 and state = 'p' and generation = 0 \
               and op <> 'M' and change_id < ?3",
        )
        .and_then(|mut s| s.execute(params![trigger.0, key, last]))
        .explained()?;
        tx.prepare_cached(
            "update changefeed_event set due_at = \
             cast((julianday('now') - 2440587.5) * 86400000.0 as integer) where change_id = ?1",
        )
        .and_then(|mut s| s.execute([last]))
        .explained()?;
    }
    Ok(())
}
