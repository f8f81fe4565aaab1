//! Looking into the event log, delivering again, and cleaning up.

use std::time::SystemTime;

use std::time::Duration;

use changefeed_core::{
    Attempt, CleanUp, Cleaned, Event, EventBits, EventFilter, EventId, EventStatus, EventTrigger,
    LoggedAttempt, LoggedEvent, Operation, Outcome, Page, Result, TableName, TriggerState, Uuid,
    fill, session_json, trace_json, words,
};
use serde_json::value::RawValue;
use tiberius::Row;

use crate::connection::Connection;
use crate::events::Span;
use crate::quote;
use crate::row::{Cells, only};
use crate::session::Session;

/// Events that one statement makes pending again.
const REDELIVER_BATCH: usize = 1000;

impl Session {
    pub(crate) async fn events(
        &mut self,
        filter: &EventFilter,
        limit: usize,
    ) -> Result<Vec<LoggedEvent>> {
        let limit = Page::check_limit(limit)?;
        let connection = &mut *self.connection;
        require_trigger(connection, filter).await?;
        let sql = listing(filter, limit);
        let rows = connection.query(&sql?, &[]).await?;
        rows.iter().map(logged).collect()
    }

    pub(crate) async fn event(
        &mut self,
        id: EventId,
    ) -> Result<Option<(LoggedEvent, Vec<LoggedAttempt>)>> {
        let connection = &mut *self.connection;
        let Some((change_id, _)) = id.parts() else {
            return Ok(None);
        };
        let sql = fill(
            include_str!("sql/event_log.sql"),
            &[("top", ""), ("past", ""), ("matching", "e.change_id = @P1")],
        )?;
        let events = connection.query(&sql, &[&change_id]).await?;
        let Some(event) = events.first() else {
            return Ok(None);
        };
        let attempts = connection
            .query(include_str!("sql/event_attempts.sql"), &[&change_id])
            .await?;
        let event = logged(event)?;
        let attempts = attempts.iter().map(attempt).collect::<Result<_>>()?;
        Ok((event.event.id == id).then_some((event, attempts)))
    }

    pub(crate) async fn redeliver_one(&mut self, id: EventId, key: Uuid) -> Result<u64> {
        let unknown = || words::no_event(id);
        let connection = &mut *self.connection;
        let (change_id, bits) = id.parts().ok_or_else(unknown)?;
        let rows = connection
            .query(
                include_str!("sql/event_redeliver_one.sql"),
                &[&change_id, &bits.stored(), &key.to_string()],
            )
            .await?;
        let row = rows.first().ok_or_else(unknown)?;
        if row.says(1)? {
            return Err(words::event_without_trigger(id));
        }
        if !row.says(0)? {
            return Err(words::event_in_flight(id));
        }
        Ok(1)
    }

    pub(crate) async fn redeliver_matching(
        &mut self,
        filter: &EventFilter,
        key: Uuid,
    ) -> Result<u64> {
        require_trigger(&mut self.connection, filter).await?;
        // From the newest to the oldest, once: what fails again at once is not taken up again. How far
        // that is, is kept with the key.
        let (sql, key) = (redelivering(filter)?, key.to_string());
        loop {
            let rows = self.patiently(&sql, &[&key]).await?;
            let reached = only(&rows)?;
            if reached.take::<i64>(0)? == 0 {
                return reached.count::<i64, _>(1);
            }
        }
    }

    pub(crate) async fn clean_up_events(
        &mut self,
        trigger: Option<&EventTrigger>,
        what: CleanUp,
        batch: usize,
    ) -> Result<Cleaned> {
        let limit = i32::try_from(batch).unwrap_or(i32::MAX);
        let age = Span::of(what.after);
        // No trigger has a negative number.
        let trigger = trigger.map_or(-1, |t| t.id.0);
        let rows = self
            .patiently(
                include_str!("sql/event_clean_up.sql"),
                &[
                    &trigger,
                    &age.seconds,
                    &age.milliseconds,
                    &limit,
                    &i32::from(what.dead_letters),
                ],
            )
            .await?;
        let row = only(&rows)?;
        Ok(Cleaned {
            events: row.count::<i64, _>(0)?,
            attempts: row.count::<i64, _>(1)?,
            more: row.take::<i64>(2)? >= i64::from(limit),
        })
    }

    pub(crate) async fn clean_up_attempts(
        &mut self,
        trigger: Option<&EventTrigger>,
        after: Duration,
        batch: usize,
    ) -> Result<Cleaned> {
        let limit = i32::try_from(batch).unwrap_or(i32::MAX);
        let age = Span::of(after);
        // No trigger has a negative number.
        let trigger = trigger.map_or(-1, |t| t.id.0);
        let rows = self
            .patiently(
                include_str!("sql/event_clean_up_attempts.sql"),
                &[&trigger, &age.seconds, &age.milliseconds, &limit],
            )
            .await?;
        let row = only(&rows)?;
        Ok(Cleaned {
            events: 0,
            attempts: row.count::<i64, _>(0)?,
            more: row.take::<i64>(0)? >= i64::from(limit),
        })
    }

    pub(crate) async fn trigger_states(&mut self) -> Result<Vec<TriggerState>> {
        let connection = &mut *self.connection;
        let rows = connection
            .query(include_str!("sql/trigger_states.sql"), &[])
            .await?;
        rows.iter()
            .map(|row| {
                Ok(TriggerState {
                    name: row.take::<&str>(0)?.parse()?,
                    pending: row.take(1)?,
                    in_flight: row.take(2)?,
                    dead_letters: row.take(3)?,
                    overdue_ms: row.maybe(4)?,
                })
            })
            .collect()
    }
}

/// The newest events that a filter finds.
pub(crate) fn listing(filter: &EventFilter, limit: usize) -> Result<String> {
    fill(
        include_str!("sql/event_log.sql"),
        &[
            ("top", &format!("top ({limit})")),
            // What somebody has locked is not waited for: it may be a long transaction.
            ("past", "with (readcommittedlock, readpast)"),
            ("matching", &conditions(filter)),
        ],
    )
}

/// Makes a batch of events pending again.
pub(crate) fn redelivering(filter: &EventFilter) -> Result<String> {
    fill(
        include_str!("sql/event_redeliver.sql"),
        &[
            ("batch", &REDELIVER_BATCH.to_string()),
            ("matching", &conditions(filter)),
        ],
    )
}

/// A trigger that never was is a mistake, not an empty list; one that was dropped still has events.
async fn require_trigger(connection: &mut Connection, filter: &EventFilter) -> Result<()> {
    let Some(name) = &filter.trigger else {
        return Ok(());
    };
    let known = connection
        .query(
            "select top (1) trigger_id from changefeed.event_trigger where name = @P1",
            &[&name.as_str()],
        )
        .await?;
    match known.is_empty() {
        false => Ok(()),
        true => Err(words::no_trigger(name)),
    }
}

/// A filter as SQL.
fn conditions(filter: &EventFilter) -> String {
    let mut all = vec!["1 = 1".to_owned()];
    if let Some(trigger) = &filter.trigger {
        all.push(format!("t.name = {}", quote::literal(trigger.as_str())));
    }
    if let Some(status) = filter.status {
        // Spelt out, so that the index over dead letters can be used.
        all.push(format!("e.state = '{}'", status.letter()));
    }
    if let Some(since) = filter.since {
        all.push(format!("e.created_at >= {}", moment(since)));
    }
    if let Some(until) = filter.until {
        all.push(format!("e.created_at < {}", moment(until)));
    }
    if let Some(before) = filter.before {
        all.push(format!("e.change_id < {before}"));
    }
    let newest = |test: String| {
        format!(
            "exists (select 1 from (select top (1) a.status, a.error \
             from changefeed.event_attempt a where a.change_id = e.change_id and a.late = 0 \
             order by a.generation desc) a where {test})"
        )
    };
    if let Some(status) = filter.http_status {
        all.push(newest(format!("a.status = {status}")));
    }
    if let Some(error) = &filter.error {
        all.push(newest(format!(
            "charindex(lower({}), lower(a.error)) > 0",
            quote::literal(error)
        )));
    }
    all.join(" and ")
}

/// A moment as SQL, within what the server's times hold. Built from parts, because it adds in 32
/// bits.
fn moment(time: SystemTime) -> String {
    const FIRST_DAY: i64 = -719_000;
    const LAST_DAY: i64 = 2_930_000;
    let micros = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_micros()).unwrap_or(i64::MAX),
    };
    let day = 86_400_000_000;
    let (days, rest) = (micros.div_euclid(day), micros.rem_euclid(day));
    format!(
        "dateadd(microsecond, {}, dateadd(second, {}, dateadd(day, {}, \
         convert(datetime2(6), '19700101', 112))))",
        rest % 1_000_000,
        rest / 1_000_000,
        days.clamp(FIRST_DAY, LAST_DAY)
    )
}

/// The part of a row that is the event.
pub(crate) fn captured(row: &Row) -> Result<Event> {
    let change_id: i64 = row.take("change_id")?;
    let json = |column: &str| -> Result<Option<Box<RawValue>>> {
        let text = row.maybe::<&str>(column)?;
        text.map(|text| {
            RawValue::from_string(text.to_owned())
                .map_err(|e| words::row_not_json(change_id).caused_by(e))
        })
        .transpose()
    };
    let setting = |column: &str| row.maybe::<&str>(column);
    Ok(Event {
        id: EventId::new(change_id, EventBits::new(row.take("bits")?)),
        change_id,
        op: Operation::from_letter(row.take::<&str>("op")?)?,
        old: json("old")?,
        new: json("new")?,
        session_variables: setting("session_variables")?.and_then(session_json),
        trace_context: setting("trace_context")?.and_then(trace_json),
        created_at: row.text("created_at")?,
        trigger: row.take::<&str>("name")?.parse()?,
        table: TableName::qualified(
            row.take::<&str>("schema_name")?,
            row.take::<&str>("table_name")?,
        ),
    })
}

fn logged(row: &Row) -> Result<LoggedEvent> {
    Ok(LoggedEvent {
        event: captured(row)?,
        status: EventStatus::from_letter(row.take::<&str>("state")?)?,
        tries: row.count::<i32, _>("tries")?,
        locked_by: row.maybe_text("locked_by")?,
        next_retry_at: row.maybe_text("due_at")?,
        last_status: http_status(row.maybe("last_status")?),
        last_error: row.maybe_text("last_error")?,
        superseded_by: row.maybe("superseded_by")?,
    })
}

fn http_status(stored: Option<i16>) -> Option<u16> {
    stored.and_then(|status| u16::try_from(status).ok())
}

fn attempt(row: &Row) -> Result<LoggedAttempt> {
    let json = |column: &str| {
        let text = row.maybe_text(column)?;
        Ok(text.and_then(|text| RawValue::from_string(text).ok()))
    };
    Ok(LoggedAttempt {
        attempt: Attempt {
            number: row.count::<i32, _>("attempt")?,
            outcome: Outcome::from_word(row.take::<&str>("outcome")?),
            status: http_status(row.maybe("status")?),
            request: json("request")?,
            response: json("response")?,
            error: row.maybe_text("error")?,
            duration_ms: row.take("duration_ms")?,
        },
        late: row.says("late")?,
        created_at: row.text("created_at")?,
    })
}
