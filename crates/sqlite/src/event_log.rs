//! The event log: listing, showing, delivering again, cleaning up.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use changefeed_core::{
    Attempt, CleanUp, Cleaned, Error, Event, EventBits, EventFilter, EventId, EventStatus,
    LoggedAttempt, LoggedEvent, Operation, Outcome, Result, TableName, TriggerId, TriggerName,
    TriggerState, Uuid, crash_point, words,
};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

use crate::backlog::NOW;
use crate::error::Explain;
use crate::events::{millis, record_cut_off};
use crate::leases::note_time;
use crate::value;

/// How many events one transaction has delivered again.
const REDELIVER_BATCH: usize = 5000;

const FINISHED: [EventStatus; 4] = [
    EventStatus::Delivered,
    EventStatus::DeadLetter,
    EventStatus::Archived,
    EventStatus::Collapsed,
];

/// The name of a trigger and of its table.
pub(crate) fn trigger_names(tx: &Connection, id: TriggerId) -> Result<(TriggerName, String)> {
    let (name, table): (String, String) = tx
        .prepare_cached(
            "select name, table_name from changefeed_event_trigger where trigger_id = ?1",
        )
        .and_then(|mut s| s.query_row([id.0], |row| Ok((row.get(0)?, row.get(1)?))))
        .explained()?;
    Ok((name.parse()?, table))
}

/// Events of the log, newest first.
pub(crate) fn list(
    tx: &Connection,
    filter: &EventFilter,
    limit: usize,
) -> Result<Vec<LoggedEvent>> {
    let statuses = filter.status.map_or_else(
        || [EventStatus::Pending].into_iter().chain(FINISHED).collect(),
        |status| vec![status],
    );
    let found = matching(tx, filter, &statuses, limit)?;
    let mut statement = one(tx)?;
    let mut events = Vec::with_capacity(found.len());
    for change_id in found {
        let mut rows = statement.query([change_id]).explained()?;
        if let Some(row) = rows.next().explained()? {
            events.push(logged(row)?);
        }
    }
    Ok(events)
}

/// An event with its attempts.
pub(crate) fn show(
    tx: &Connection,
    id: EventId,
) -> Result<Option<(LoggedEvent, Vec<LoggedAttempt>)>> {
    let Some((change_id, _)) = id.parts() else {
        return Ok(None);
    };
    let mut statement = one(tx)?;
    let mut rows = statement.query([change_id]).explained()?;
    let Some(row) = rows.next().explained()? else {
        return Ok(None);
    };
    let event = logged(row)?;
    if event.event.id != id {
        return Ok(None);
    }
    let mut statement = tx
        .prepare_cached(include_str!("sql/event_attempts.sql"))
        .explained()?;
    let mut rows = statement.query([change_id]).explained()?;
    let mut attempts = Vec::new();
    while let Some(row) = rows.next().explained()? {
        attempts.push(LoggedAttempt {
            attempt: Attempt {
                number: row.get("number").explained()?,
                outcome: Outcome::from_word(&row.get::<_, String>("outcome").explained()?),
                status: row.get("status").explained()?,
                request: value::raw(row, "request")?,
                response: value::raw(row, "response")?,
                error: row.get("error").explained()?,
                duration_ms: row.get("duration_ms").explained()?,
            },
            late: row.get("late").explained()?,
            created_at: row.get("created_at").explained()?,
        });
    }
    Ok(Some((event, attempts)))
}

fn one(tx: &Connection) -> Result<rusqlite::CachedStatement<'_>> {
    tx.prepare_cached(concat!(
        "select ",
        include_str!("sql/event_columns.sql"),
        " where e.change_id = ?1"
    ))
    .explained()
}

fn logged(row: &Row<'_>) -> Result<LoggedEvent> {
    let change_id: i64 = row.get("change_id").explained()?;
    let trigger: String = row.get("name").explained()?;
    let table: String = row.get("table_name").explained()?;
    let op: String = row.get("op").explained()?;
    let state: String = row.get("state").explained()?;
    Ok(LoggedEvent {
        event: Event {
            id: EventId::new(change_id, EventBits::new(row.get("bits").explained()?)),
            change_id,
            trigger: trigger.parse()?,
            table: TableName::unqualified(table),
            op: Operation::from_letter(&op)?,
            old: value::raw(row, "old")?,
            new: value::raw(row, "new")?,
            session_variables: value::raw(row, "session_variables")?,
            trace_context: value::raw(row, "trace_context")?,
            created_at: row.get("created_at").explained()?,
        },
        status: EventStatus::from_letter(&state)?,
        tries: row.get("tries").explained()?,
        locked_by: row.get("locked_by").explained()?,
        next_retry_at: row.get("due_at").explained()?,
        last_status: row.get("last_status").explained()?,
        last_error: row.get("last_error").explained()?,
        superseded_by: row.get("superseded_by").explained()?,
    })
}

/// The change ids of events that a filter names, newest first. The filter's own status does not
/// count here, but the statuses given.
fn matching(
    tx: &Connection,
    filter: &EventFilter,
    statuses: &[EventStatus],
    limit: usize,
) -> Result<Vec<i64>> {
    let count = i64::try_from(limit).unwrap_or(i64::MAX);
    let (conditions, values) = conditions(filter);
    let everything = filter.trigger.is_none() && statuses.len() > FINISHED.len();
    if everything {
        // The log itself is in this order.
        let sql = format!(
            "select e.change_id from changefeed_event e where 1 {conditions} \
             order by e.change_id desc limit {count}"
        );
        return change_ids(tx, &sql, &values);
    }
    // Otherwise each trigger and status is a range of an index.
    let mut found = Vec::new();
    for id in trigger_ids(tx, filter.trigger.as_ref())? {
        for status in statuses {
            let range = match status {
                EventStatus::Pending => {
                    "changefeed_event e indexed by changefeed_event_due where e.due_at is not null"
                        .to_owned()
                }
                done => format!(
                    "changefeed_event e indexed by changefeed_event_done \
                     where e.due_at is null and e.state = '{}'",
                    done.letter()
                ),
            };
            let sql = format!(
                "select e.change_id from {range} and e.trigger_id = {id} {conditions} \
                 order by e.change_id desc limit {count}"
            );
            found.extend(change_ids(tx, &sql, &values)?);
        }
    }
    found.sort_unstable_by(|a, b| b.cmp(a));
    found.truncate(limit);
    Ok(found)
}

fn change_ids(tx: &Connection, sql: &str, values: &[Value]) -> Result<Vec<i64>> {
    tx.prepare_cached(sql)
        .and_then(|mut s| {
            s.query_map(params_from_iter(values), |row| row.get(0))?
                .collect()
        })
        .explained()
}

/// The triggers of a name, dropped ones of that name included; without a name, all there ever were.
fn trigger_ids(tx: &Connection, name: Option<&TriggerName>) -> Result<Vec<i32>> {
    let ids: Vec<i32> = tx
        .prepare_cached(
            "select trigger_id from changefeed_event_trigger where ?1 is null or name = ?1 \
             order by trigger_id",
        )
        .and_then(|mut s| {
            s.query_map([name.map(TriggerName::as_str)], |row| row.get(0))?
                .collect()
        })
        .explained()?;
    match name {
        Some(name) if ids.is_empty() => Err(words::no_trigger(name)),
        _ => Ok(ids),
    }
}

/// What a filter says of an event by itself.
fn conditions(filter: &EventFilter) -> (String, Vec<Value>) {
    let mut sql = String::new();
    let mut values = Vec::new();
    let mut add = |condition: &str, value: Value| {
        values.push(value);
        let place = format!("?{}", values.len());
        sql.push_str(" and ");
        sql.push_str(&condition.replace('?', &place));
    };
    if let Some(before) = filter.before {
        add("e.change_id < ?", Value::Integer(before));
    }
    if let Some(since) = filter.since {
        add("e.created_at >= ?", Value::Integer(milliseconds(since)));
    }
    if let Some(until) = filter.until {
        add("e.created_at < ?", Value::Integer(milliseconds(until)));
    }
    const NEWEST: &str = "(select a.{} from changefeed_event_attempt a \
         where a.change_id = e.change_id order by a.attempt_id desc limit 1)";
    if let Some(status) = filter.http_status {
        let newest = NEWEST.replace("{}", "status");
        add(&format!("{newest} = ?"), Value::Integer(status.into()));
    }
    if let Some(error) = &filter.error {
        let newest = NEWEST.replace("{}", "error");
        add(
            &format!("instr(lower({newest}), ?) > 0"),
            Value::Text(error.to_ascii_lowercase()),
        );
    }
    (sql, values)
}

/// A time as the log keeps it, rounded up, so that what was captured at it is not before it.
fn milliseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

/// Has one event delivered again.
pub(crate) fn redeliver_one(tx: &Connection, id: EventId, key: Uuid) -> Result<()> {
    let unknown = || words::no_event(id);
    let (change_id, bits) = id.parts().ok_or_else(unknown)?;
    if request(tx, key)?.is_some() {
        return Ok(());
    }
    let (lease_owner, held, tries, dropped): (Option<String>, Option<bool>, u32, bool) = tx
        .query_row(
            "select e.lease_owner, \
             e.due_at > cast((julianday('now') - 2440587.5) * 86400000.0 as integer), \
             e.tries, t.dropped_at is not null \
             from changefeed_event e join changefeed_event_trigger t on t.trigger_id = e.trigger_id \
             where e.change_id = ?1 and e.bits & 1152921504606846975 = ?2",
            [change_id, bits.stored()],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
        )
        .optional()
        .explained()?
        .ok_or_else(unknown)?;
    if dropped {
        return Err(words::event_without_trigger(id));
    }
    if let Some(owner) = lease_owner {
        if held == Some(true) {
            return Err(words::event_in_flight(id));
        }
        record_cut_off(tx, change_id, tries, &owner)?;
    }
    note_time(tx)?;
    // Unless it waits for its first attempt already.
    tx.execute(
        concat!(
            include_str!("sql/event_again.sql"),
            " and not (state = 'p' and tries = 0 and lease_owner is null \
              and due_at <= cast((julianday('now') - 2440587.5) * 86400000.0 as integer))"
        ),
        [change_id],
    )
    .explained()?;
    note_request(tx, key, change_id, bits.stored())
}

/// What was noted with the key of a request: an event and its bits; of a redelivery of many how far it
/// has come, 0 at the end, and how many it were.
pub(crate) fn request(tx: &Connection, key: Uuid) -> Result<Option<(i64, i64)>> {
    tx.prepare_cached("select change_id, bits from changefeed_event_request where key = ?1")
        .and_then(|mut s| {
            s.query_row([key.to_string()], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()
        })
        .explained()
}

/// Notes it, and forgets those of more than a day ago.
pub(crate) fn note_request(tx: &Connection, key: Uuid, change_id: i64, bits: i64) -> Result<()> {
    tx.execute(
        &format!("delete from changefeed_event_request where created_at < {NOW} - 86400000"),
        [],
    )
    .explained()?;
    tx.execute(
        &format!(
            "insert into changefeed_event_request (key, change_id, bits, created_at) \
             values (?1, ?2, ?3, {NOW}) \
             on conflict (key) do update set change_id = excluded.change_id, bits = excluded.bits"
        ),
        params![key.to_string(), change_id, bits],
    )
    .explained()?;
    Ok(())
}

/// Has the next of the events of a filter delivered again, behind those of the last batch with the same
/// key. Returns how many it were in all when that was the end.
pub(crate) fn redeliver_batch(
    tx: &Connection,
    filter: &EventFilter,
    key: Uuid,
) -> Result<Option<u64>> {
    let (reached, before) = request(tx, key)?.unwrap_or((i64::MAX, 0));
    let told = u64::try_from(before).unwrap_or(0);
    if reached == 0 {
        return Ok(Some(told));
    }
    let filter = EventFilter {
        before: Some(filter.before.unwrap_or(i64::MAX).min(reached)),
        ..filter.clone()
    };
    let (count, last) = redeliver_next(tx, &filter)?;
    let all = told + count;
    let stored = i64::try_from(all).unwrap_or(i64::MAX);
    note_request(tx, key, last.unwrap_or(0), stored)?;
    Ok(last.is_none().then_some(all))
}

/// Has the next of the events of a filter delivered again. Returns how many, and behind which one
/// to go on.
fn redeliver_next(tx: &Connection, filter: &EventFilter) -> Result<(u64, Option<i64>)> {
    let statuses = match filter.status {
        None => FINISHED.to_vec(),
        // They are waiting for an attempt anyway.
        Some(EventStatus::Pending) => return Ok((0, None)),
        Some(status) => vec![status],
    };
    note_time(tx)?;
    let found = matching(tx, filter, &statuses, REDELIVER_BATCH)?;
    let mut count = 0;
    let mut again = tx
        .prepare_cached(concat!(
            include_str!("sql/event_again.sql"),
            " and trigger_id in (select trigger_id from changefeed_event_trigger \
                                  where dropped_at is null)"
        ))
        .explained()?;
    for change_id in &found {
        count += u64::try_from(again.execute([change_id]).explained()?).unwrap_or(0);
    }
    let last = (found.len() == REDELIVER_BATCH)
        .then(|| found.last().copied())
        .flatten();
    Ok((count, last))
}

/// Removes old events with their attempts.
pub(crate) fn clean_up(
    tx: &Connection,
    trigger: Option<TriggerId>,
    what: CleanUp,
    batch: usize,
) -> Result<Cleaned> {
    if batch == 0 {
        return Err(Error::invalid("a clean-up batch needs at least one event"));
    }
    let now: i64 = tx
        .query_row(
            "select cast((julianday('now') - 2440587.5) * 86400000.0 as integer)",
            [],
            |row| row.get(0),
        )
        .explained()?;
    let oldest_kept = now.saturating_sub(millis(what.after));
    let end = first_since(tx, oldest_kept)?;
    let held = held_back(tx)?;
    let ids = match trigger {
        Some(id) => vec![id.0],
        None => trigger_ids(tx, None)?,
    };
    let mut cleaned = Cleaned::default();
    let mut left = batch;
    for id in ids {
        for status in FINISHED {
            if left == 0 || status == EventStatus::DeadLetter && !what.dead_letters {
                continue;
            }
            let sql = format!(
                "select e.change_id from changefeed_event e indexed by changefeed_event_done \
                 where e.due_at is null and e.trigger_id = {id} and e.state = '{}' \
                 and e.change_id < ?1 and e.created_at <= ?2 {held} \
                 order by e.change_id limit {left}",
                status.letter()
            );
            let found: Vec<i64> = tx
                .prepare_cached(&sql)
                .and_then(|mut s| {
                    s.query_map(params![end, oldest_kept], |row| row.get(0))?
                        .collect()
                })
                .explained()?;
            left -= found.len().min(left);
            remove(tx, &found, &mut cleaned)?;
        }
    }
    cleaned.more = left == 0;
    crash_point("cleanup.before_commit");
    Ok(cleaned)
}

/// Removes old attempts of finished events; those of dead letters say what went wrong, and stay.
pub(crate) fn clean_up_attempts(
    tx: &Connection,
    trigger: Option<TriggerId>,
    after: Duration,
    batch: usize,
) -> Result<Cleaned> {
    let limit = i64::try_from(batch).unwrap_or(i64::MAX);
    let attempts = tx
        .execute(
            include_str!("sql/event_clean_up_attempts.sql"),
            params![trigger.map(|id| id.0), millis(after), limit],
        )
        .explained()?;
    crash_point("cleanup.before_commit");
    Ok(Cleaned {
        events: 0,
        attempts: u64::try_from(attempts).unwrap_or(0),
        more: attempts >= batch,
    })
}

fn remove(tx: &Connection, found: &[i64], cleaned: &mut Cleaned) -> Result<()> {
    let count = |n: usize| u64::try_from(n).unwrap_or(0);
    let mut attempts = tx
        .prepare_cached("delete from changefeed_event_attempt where change_id = ?1")
        .explained()?;
    let mut events = tx
        .prepare_cached("delete from changefeed_event where change_id = ?1")
        .explained()?;
    for change_id in found {
        cleaned.attempts += count(attempts.execute([change_id]).explained()?);
        cleaned.events += count(events.execute([change_id]).explained()?);
    }
    Ok(())
}

/// The first event that was captured after a time, found by halving: there is no index over times,
/// which the writers would have to pay for. Times grow with change ids, but for a clock that was
/// put back; so this only bounds how far to look, and each event's own time is looked at, too.
fn first_since(tx: &Connection, time: i64) -> Result<i64> {
    let ends: (Option<i64>, Option<i64>) = tx
        .query_row(
            "select (select min(change_id) from changefeed_event), \
                    (select max(change_id) from changefeed_event)",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .explained()?;
    let (Some(mut low), Some(mut high)) = ends else {
        return Ok(0);
    };
    high += 1;
    let mut probe = tx
        .prepare_cached(
            "select change_id, created_at from changefeed_event where change_id >= ?1 \
             order by change_id limit 1",
        )
        .explained()?;
    while low < high {
        let middle = low + (high - low) / 2;
        let found: Option<(i64, i64)> = probe
            .query_row([middle], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()
            .explained()?;
        match found {
            Some((change_id, created_at)) if created_at <= time => low = change_id + 1,
            _ => high = middle,
        }
    }
    Ok(high)
}

/// A condition that keeps what a consumer of a feed has not read.
fn held_back(tx: &Connection) -> Result<String> {
    let mut statement = tx
        .prepare_cached(include_str!("sql/event_floors.sql"))
        .explained()?;
    let floors: Vec<(i16, i16, Option<i64>)> = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .and_then(Iterator::collect)
        .explained()?;
    Ok(floors
        .into_iter()
        .filter_map(|(feed, shard, floor)| {
            floor.map(|floor| {
                format!(
                    " and not (e.feed_id is {feed} and e.shard is {shard} \
                     and e.change_id >= {floor})"
                )
            })
        })
        .collect())
}

/// How the events of each trigger stand.
pub(crate) fn states(tx: &Connection) -> Result<Vec<TriggerState>> {
    let mut statement = tx
        .prepare_cached(include_str!("sql/event_states.sql"))
        .explained()?;
    let mut rows = statement.query([]).explained()?;
    let mut states = Vec::new();
    while let Some(row) = rows.next().explained()? {
        states.push(TriggerState {
            name: row.get::<_, String>(0).explained()?.parse()?,
            pending: row.get(1).explained()?,
            in_flight: row.get(2).explained()?,
            dead_letters: row.get(3).explained()?,
            overdue_ms: row.get(4).explained()?,
        });
    }
    Ok(states)
}
