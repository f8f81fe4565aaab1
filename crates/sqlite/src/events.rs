//! Delivering events: taking, keeping and finishing them.
//!
//! An event is held by a lease: an owner, a generation that grows with every change of hands, and
//! an end, which is kept in `due_at`. So an event whose holder died is simply due again, and there
//! is one place to look for everything that is to be done.
//!
//! Differs: nothing is skipped, because one transaction writes at a time. Whether there is anything
//! to take is looked up without the write lock.

use std::collections::HashSet;
use std::time::Duration;

use async_trait::async_trait;
use changefeed_core::{
    Attempt, CleanUp, Cleaned, Event, EventBits, EventClaim, EventFilter, EventId, EventStatus,
    EventStore, EventTrigger, Finished, LeasedEvent, LoggedAttempt, LoggedEvent, Operation,
    Outcome, Redelivery, Result, TableName, TriggerId, TriggerName, TriggerState, Uuid, Verdict,
    Wanted, crash_point, cut_off_by,
};
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::Explain;
use crate::event_pace::{collapse, keep_pace};
use crate::leases::note_time;
use crate::{SqliteStore, event_log, event_pace, value};

/// How many due events of an ordered trigger are looked at for those that are the first of their
/// key, before keys are looked at one by one.
pub(crate) const DUE_LOOKED_AT: i64 = 1000;

/// How much one claim brings at most, in bytes.
const BYTES_AT_ONCE: usize = 16 * 1024 * 1024;

/// How many keys of an ordered trigger are looked at in one call. The next call goes on from there.
const KEYS_LOOKED_AT: usize = 2000;

#[async_trait]
impl EventStore for SqliteStore {
    async fn claim_events(
        &self,
        wanted: &[Wanted],
        owner: &str,
        lease: Duration,
    ) -> Result<Vec<LeasedEvent>> {
        let wanted = wanted.to_vec();
        let store = self.clone();
        let asked = wanted.clone();
        let something = self
            .reading(move |tx| {
                if session_left_open(tx)? {
                    return Ok(true);
                }
                for wanted in &asked {
                    let one = Wanted {
                        limit: 1,
                        ..*wanted
                    };
                    if wanted.limit > 0 && !store.candidates(tx, &one, Walk::Look)?.is_empty() {
                        return Ok(true);
                    }
                }
                Ok(false)
            })
            .await?;
        if !something {
            return Ok(Vec::new());
        }
        let (store, owner) = (self.clone(), owner.to_owned());
        let claimed = self
            .writing(move |tx| {
                close_session(tx)?;
                note_time(tx)?;
                let mut claimed = Vec::new();
                for wanted in &wanted {
                    if wanted.debounced {
                        collapse(tx, wanted.trigger)?;
                    }
                    let found = store.candidates(tx, wanted, Walk::GoOn)?;
                    let before = claimed.len();
                    claim(tx, wanted.trigger, &found, &owner, lease, &mut claimed)?;
                    if wanted.paced {
                        keep_pace(tx, wanted.trigger, claimed.len() - before)?;
                    }
                }
                crash_point("claim.before_commit");
                Ok(claimed)
            })
            .await?;
        crash_point("claim.after_commit");
        Ok(claimed)
    }

    async fn held_events(&self, owner: &str, _within: Duration) -> Result<Vec<EventClaim>> {
        // Differs: what is leased has an index of its own, so that nothing has to bound the look.
        let owner = owner.to_owned();
        self.reading(move |tx| {
            let mut held = tx
                .prepare_cached(
                    "select change_id, generation \
                     from changefeed_event indexed by changefeed_event_leased \
                     where lease_owner = ?1",
                )
                .explained()?;
            let claims = held
                .query_map([&owner], |row| {
                    Ok(EventClaim {
                        change_id: row.get(0)?,
                        generation: row.get(1)?,
                    })
                })
                .explained()?;
            claims
                .collect::<rusqlite::Result<Vec<EventClaim>>>()
                .explained()
        })
        .await
    }

    async fn renew_events(&self, held: &[EventClaim], lease: Duration) -> Result<Vec<EventClaim>> {
        if held.is_empty() {
            return Ok(Vec::new());
        }
        let held = held.to_vec();
        self.writing(move |tx| {
            note_time(tx)?;
            let mut renew = tx
                .prepare_cached(
                    "update changefeed_event set due_at = \
                     cast((julianday('now') - 2440587.5) * 86400000.0 as integer) + ?3 \
                     where change_id = ?1 and generation = ?2 and lease_owner is not null",
                )
                .explained()?;
            let mut kept = Vec::with_capacity(held.len());
            for claim in held {
                let renewed = renew
                    .execute(params![claim.change_id, claim.generation, millis(lease)])
                    .explained()?;
                if renewed > 0 {
                    kept.push(claim);
                }
            }
            Ok(kept)
        })
        .await
    }

    async fn finish_events(&self, finished: &[Finished]) -> Result<Vec<EventClaim>> {
        if finished.is_empty() {
            return Ok(Vec::new());
        }
        let finished = finished.to_vec();
        self.writing(move |tx| {
            note_time(tx)?;
            let mut late = Vec::new();
            for finished in &finished {
                if !finish(tx, finished)? {
                    late.push(finished.claim);
                }
            }
            crash_point("finish.before_commit");
            Ok(late)
        })
        .await
    }

    async fn release_events(&self, held: &[EventClaim]) -> Result<()> {
        if held.is_empty() {
            return Ok(());
        }
        let held = held.to_vec();
        self.writing(move |tx| {
            note_time(tx)?;
            // Nothing was sent, so no attempt is counted.
            let mut release = tx
                .prepare_cached(
                    "update changefeed_event set lease_owner = null, tries = tries - 1, due_at = \
                     cast((julianday('now') - 2440587.5) * 86400000.0 as integer) \
                     where change_id = ?1 and generation = ?2 and lease_owner is not null",
                )
                .explained()?;
            for claim in held {
                release
                    .execute(params![claim.change_id, claim.generation])
                    .explained()?;
            }
            Ok(())
        })
        .await
    }

    async fn events(&self, filter: &EventFilter, limit: usize) -> Result<Vec<LoggedEvent>> {
        let filter = filter.clone();
        self.reading(move |tx| event_log::list(tx, &filter, limit))
            .await
    }

    async fn event(&self, id: EventId) -> Result<Option<(LoggedEvent, Vec<LoggedAttempt>)>> {
        self.reading(move |tx| event_log::show(tx, id)).await
    }

    async fn redeliver(&self, which: &Redelivery, key: Uuid) -> Result<u64> {
        let count = match which {
            Redelivery::Event(id) => {
                let id = *id;
                self.writing(move |tx| event_log::redeliver_one(tx, id, key))
                    .await?;
                1
            }
            // In batches, so that writers need not wait for a long one; each goes on behind the one
            // before, or what fails again quickly would never come to an end.
            Redelivery::Matching(filter) => loop {
                let filter = filter.clone();
                let done = self
                    .writing(move |tx| event_log::redeliver_batch(tx, &filter, key))
                    .await?;
                if let Some(count) = done {
                    break count;
                }
            },
        };
        self.announce();
        Ok(count)
    }

    async fn clean_up_events(
        &self,
        trigger: Option<&EventTrigger>,
        what: CleanUp,
        batch: usize,
    ) -> Result<Cleaned> {
        let trigger = trigger.map(|trigger| trigger.id);
        self.writing(move |tx| event_log::clean_up(tx, trigger, what, batch))
            .await
    }

    async fn clean_up_attempts(
        &self,
        trigger: Option<&EventTrigger>,
        after: Duration,
        batch: usize,
    ) -> Result<Cleaned> {
        let trigger = trigger.map(|trigger| trigger.id);
        self.writing(move |tx| event_log::clean_up_attempts(tx, trigger, after, batch))
            .await
    }

    async fn trigger_states(&self) -> Result<Vec<TriggerState>> {
        self.reading(|tx| event_log::states(tx)).await
    }
}

/// A time span in the database's milliseconds.
pub(crate) fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis())
        .unwrap_or(i64::MAX / 4)
        .min(i64::MAX / 4)
}

/// A session that is committed was left open: nobody is within that transaction any more.
fn session_left_open(tx: &Connection) -> Result<bool> {
    tx.prepare_cached("select exists (select 1 from changefeed_session_open)")
        .and_then(|mut s| s.query_row([], |row| row.get(0)))
        .explained()
}

fn close_session(tx: &Connection) -> Result<()> {
    if session_left_open(tx)? {
        tx.execute("delete from changefeed_session_open", [])
            .explained()?;
        tracing::warn!(
            "a transaction committed without `delete from changefeed_session`, so its events are \
             without its session variables"
        );
    }
    Ok(())
}

/// An event that may be taken.
struct Candidate {
    change_id: i64,
    tries: u32,
    /// Who had it before and never finished.
    lost_by: Option<String>,
}

/// Whether a look at the keys of an ordered trigger moves on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Walk {
    Look,
    GoOn,
}

impl SqliteStore {
    /// The events of a trigger that may be taken now.
    fn candidates(&self, tx: &Connection, wanted: &Wanted, walk: Walk) -> Result<Vec<Candidate>> {
        let Some(limit) = room(tx, wanted)? else {
            return Ok(Vec::new());
        };
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Candidate {
                change_id: row.get(0)?,
                tries: row.get(1)?,
                lost_by: row.get(2)?,
            })
        };
        if !wanted.ordered {
            return tx
                .prepare_cached(include_str!("sql/event_due.sql"))
                .and_then(|mut s| {
                    s.query_map(params![wanted.trigger.0, limit], read)?
                        .collect()
                })
                .explained();
        }
        let mut found: Vec<Candidate> = tx
            .prepare_cached(include_str!("sql/event_due_heads.sql"))
            .and_then(|mut s| {
                s.query_map(
                    params![wanted.trigger.0, limit, DUE_LOOKED_AT.max(limit)],
                    read,
                )?
                .collect()
            })
            .explained()?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        if found.len() < limit && has_more_due(tx, wanted.trigger)? {
            self.walk_keys(tx, wanted.trigger, limit, &mut found, walk)?;
        }
        Ok(found)
    }

    /// Looks at one key after the other, from where the last call stopped: a key with a hundred
    /// thousand events is one step, and so is one whose first event waits for its next attempt.
    fn walk_keys(
        &self,
        tx: &Connection,
        trigger: TriggerId,
        limit: usize,
        found: &mut Vec<Candidate>,
        walk: Walk,
    ) -> Result<()> {
        let mut taken: HashSet<i64> = found.iter().map(|c| c.change_id).collect();
        let mut seen = HashSet::new();
        let mut at = self.walked(trigger);
        let mut next = tx
            .prepare_cached(include_str!("sql/event_next_head.sql"))
            .explained()?;
        for _ in 0..KEYS_LOOKED_AT {
            if found.len() >= limit {
                break;
            }
            let head = next
                .query_row(params![trigger.0, at], |row| {
                    let candidate = Candidate {
                        change_id: row.get(0)?,
                        tries: row.get(1)?,
                        lost_by: row.get(2)?,
                    };
                    Ok((candidate, row.get::<_, bool>(3)?))
                })
                .optional()
                .explained()?;
            match head {
                // Behind the last key; begin again at the first.
                None if at.is_some() => at = None,
                None => break,
                Some((candidate, due)) => {
                    if !seen.insert(candidate.change_id) {
                        break;
                    }
                    at = Some(candidate.change_id);
                    if due && taken.insert(candidate.change_id) {
                        found.push(candidate);
                    }
                }
            }
        }
        if walk == Walk::GoOn {
            self.set_walked(trigger, at);
        }
        Ok(())
    }
}

/// How many events may be taken, if any.
fn room(tx: &Connection, wanted: &Wanted) -> Result<Option<i64>> {
    let deliverable: bool = tx
        .prepare_cached(
            "select exists (select 1 from changefeed_event_trigger where trigger_id = ?1 \
             and paused_because is null and dropped_at is null)",
        )
        .and_then(|mut s| s.query_row([wanted.trigger.0], |row| row.get(0)))
        .explained()?;
    let mut limit = i64::from(wanted.limit);
    if let Some(overall) = wanted.overall.filter(|_| deliverable) {
        let leased: i64 = tx
            .prepare_cached(include_str!("sql/event_leased.sql"))
            .and_then(|mut s| s.query_row(params![wanted.trigger.0, overall], |row| row.get(0)))
            .explained()?;
        limit = limit.min(i64::from(overall) - leased);
    }
    if wanted.paced {
        limit = limit.min(event_pace::kept(tx, wanted.trigger)?);
    }
    Ok((deliverable && limit > 0).then_some(limit))
}

/// Whether a trigger has more due events than were looked at.
fn has_more_due(tx: &Connection, trigger: TriggerId) -> Result<bool> {
    tx.prepare_cached(
        "select exists (select 1 from changefeed_event indexed by changefeed_event_due \
         where trigger_id = ?1 and due_at is not null \
         and due_at <= cast((julianday('now') - 2440587.5) * 86400000.0 as integer) \
         order by due_at, change_id limit 1 offset ?2)",
    )
    .and_then(|mut s| s.query_row(params![trigger.0, DUE_LOOKED_AT], |row| row.get(0)))
    .explained()
}

/// Takes events, and writes down the attempts of those who had them before.
fn claim(
    tx: &Connection,
    trigger: TriggerId,
    found: &[Candidate],
    owner: &str,
    lease: Duration,
    claimed: &mut Vec<LeasedEvent>,
) -> Result<()> {
    if found.is_empty() {
        return Ok(());
    }
    let (name, table): (TriggerName, String) = event_log::trigger_names(tx, trigger)?;
    let mut take = tx
        .prepare_cached(include_str!("sql/event_claim.sql"))
        .explained()?;
    let mut bytes = 0;
    for candidate in found {
        // Large rows are taken a few at a time: they are all in memory at once.
        if bytes > BYTES_AT_ONCE {
            break;
        }
        if let Some(lost_by) = &candidate.lost_by {
            record_cut_off(tx, candidate.change_id, candidate.tries, lost_by)?;
        }
        let mut rows = take
            .query(params![candidate.change_id, owner, millis(lease)])
            .explained()?;
        let Some(row) = rows.next().explained()? else {
            continue;
        };
        let op: String = row.get("op").explained()?;
        let (old, new) = (value::raw(row, "old")?, value::raw(row, "new")?);
        bytes += [&old, &new]
            .into_iter()
            .flatten()
            .map(|r| r.get().len())
            .sum::<usize>();
        claimed.push(LeasedEvent {
            trigger,
            event: Event {
                id: EventId::new(
                    candidate.change_id,
                    EventBits::new(row.get("bits").explained()?),
                ),
                change_id: candidate.change_id,
                trigger: name.clone(),
                // What is delivered names the schema, as on the other databases.
                table: TableName::qualified("main", table.as_str()),
                op: Operation::from_letter(&op)?,
                old,
                new,
                session_variables: value::raw(row, "session_variables")?,
                trace_context: value::raw(row, "trace_context")?,
                created_at: row.get("created_at").explained()?,
            },
            generation: row.get("generation").explained()?,
            attempt: row.get("tries").explained()?,
            cut_off: row.get("cut_off").explained()?,
        });
    }
    Ok(())
}

/// Writes down an attempt whose sender never came back.
pub(crate) fn record_cut_off(
    tx: &Connection,
    change_id: i64,
    number: u32,
    lost_by: &str,
) -> Result<()> {
    let attempt = Attempt {
        number,
        outcome: Outcome::Unknown,
        status: None,
        request: None,
        response: None,
        error: Some(cut_off_by(lost_by)),
        duration_ms: 0,
    };
    record(tx, change_id, None, &attempt, false)
}

fn record(
    tx: &Connection,
    change_id: i64,
    generation: Option<i64>,
    attempt: &Attempt,
    late: bool,
) -> Result<()> {
    tx.prepare_cached(include_str!("sql/event_attempt.sql"))
        .and_then(|mut s| {
            s.execute(params![
                change_id,
                attempt.number,
                attempt.outcome.as_str(),
                attempt.status,
                attempt.request.as_deref().map(|json| json.get()),
                attempt.response.as_deref().map(|json| json.get()),
                attempt.error,
                attempt.duration_ms,
                late,
                generation
            ])
        })
        .explained()?;
    Ok(())
}

/// Writes down an attempt and what follows. Whether it still counted.
fn finish(tx: &Connection, finished: &Finished) -> Result<bool> {
    let (state, after) = match finished.verdict {
        Verdict::Delivered => (EventStatus::Delivered, None),
        Verdict::Retry { after } => (EventStatus::Pending, Some(millis(after))),
        Verdict::GiveUp => (EventStatus::DeadLetter, None),
        Verdict::Pause => (EventStatus::Pending, Some(0)),
    };
    let unknown = finished.attempt.outcome == Outcome::Unknown;
    let claim = finished.claim;
    let decided = tx
        .prepare_cached(include_str!("sql/event_finish.sql"))
        .and_then(|mut s| {
            s.execute(params![
                claim.change_id,
                claim.generation,
                state.letter().to_string(),
                after,
                unknown
            ])
        })
        .explained()?
        > 0;
    record(
        tx,
        claim.change_id,
        Some(claim.generation),
        &finished.attempt,
        !decided,
    )?;
    if decided && finished.verdict == Verdict::Pause {
        tx.execute(
            "update changefeed_event_trigger \
             set paused_because = coalesce(paused_because, 'the webhook answered 410 Gone') \
             where trigger_id = (select trigger_id from changefeed_event where change_id = ?1)",
            [claim.change_id],
        )
        .explained()?;
    }
    Ok(decided)
}
