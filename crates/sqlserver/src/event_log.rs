//! Looking into the event log, delivering again, and cleaning up.

use std::time::SystemTime;

use changefeed_core::{
    Attempt, CleanUp, Cleaned, Error, Event, EventBits, EventFilter, EventId, EventStatus,
    EventTrigger, Kind, LoggedAttempt, LoggedEvent, Operation, Outcome, Page, Result, TableName,
    TriggerState, Uuid, fill, session_json, trace_json,
};
use serde_json::value::RawValue;
use tiberius::Row;

use crate::connection::Connection;
use crate::events::Span;
use crate::quote;
use crate::session::Session;

/// Events that one statement makes pending again.
const REDELIVER_BATCH: usize = 1000;

impl Session {
    pub(crate) async fn list_events(
        &mut self,
        filter: &EventFilter,
        limit: usize,
    ) -> Result<Vec<LoggedEvent>> {
        let limit = Page::check_limit(limit)?;
        let connection = &mut *self.connection;
        require_trigger(connection, filter).await?;
        let sql = listing(filter, limit);
        let rows = connection.query(&sql, &[]).await?;
        rows.iter().map(logged).collect()
    }

    pub(crate) async fn show_event(
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
        );
        let events = connection.query(&sql, &[&change_id]).await?;
        let Some(event) = events.first() else {
            return Ok(None);
        };
        let attempts = connection
            .query(include_str!("sql/event_attempts.sql"), &[&change_id])
            .await?;
        let event = logged(event)?;
        Ok((event.event.id == id).then(|| (event, attempts.iter().map(attempt).collect())))
    }

    pub(crate) async fn redeliver_one(&mut self, id: EventId, key: Uuid) -> Result<u64> {
        let unknown = || {
            Error::not_found(format!("there is no event {id}"))
                .advise("`changefeed event list` shows the events")
        };
        let connection = &mut *self.connection;
        let (change_id, bits) = id.parts().ok_or_else(unknown)?;
        let rows = connection
            .query(
                include_str!("sql/event_redeliver_one.sql"),
                &[&change_id, &bits.stored(), &key.to_string()],
            )
            .await?;
        let row = rows.first().ok_or_else(unknown)?;
        if row.get::<bool, _>(1) == Some(true) {
            return Err(
                Error::invalid(format!("the trigger of event {id} was dropped"))
                    .advise("create a trigger of the same table, and send the row by hand"),
            );
        }
        if row.get::<bool, _>(0) != Some(true) {
            return Err(Error::new(
                Kind::Busy,
                format!("event {id} is being delivered at this moment"),
            )
            .advise("try again when the attempt is over"));
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
        let (sql, key) = (redelivering(filter), key.to_string());
        loop {
            let rows = self.patiently(&sql, &[&key]).await?;
            let row = rows.first();
            let reached = row.and_then(|row| row.get::<i64, _>(0)).unwrap_or(0);
            if reached == 0 {
                let count = row.and_then(|row| row.get::<i64, _>(1)).unwrap_or(0);
                return Ok(u64::try_from(count).unwrap_or(0));
            }
        }
    }

    pub(crate) async fn clean_up_batch(
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
        let row = rows.first();
        let count = |at: usize| row.and_then(|row| row.get::<i64, _>(at)).unwrap_or(0);
        Ok(Cleaned {
            events: u64::try_from(count(0)).unwrap_or(0),
            attempts: u64::try_from(count(1)).unwrap_or(0),
            more: count(2) >= i64::from(limit),
        })
    }

    pub(crate) async fn states_of_triggers(&mut self) -> Result<Vec<TriggerState>> {
        let connection = &mut *self.connection;
        let rows = connection
            .query(include_str!("sql/trigger_states.sql"), &[])
            .await?;
        rows.iter()
            .map(|row| {
                let count = |at: usize| row.get::<i64, _>(at).unwrap_or(0);
                Ok(TriggerState {
                    name: text(row, 0).parse()?,
                    pending: count(1),
                    in_flight: count(2),
                    dead_letters: count(3),
                    overdue_ms: row.get(4),
                })
            })
            .collect()
    }
}

/// The newest events that a filter finds.
pub(crate) fn listing(filter: &EventFilter, limit: usize) -> String {
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
pub(crate) fn redelivering(filter: &EventFilter) -> String {
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
        true => Err(Error::not_found(format!("there is no trigger '{name}'"))
            .advise("`changefeed trigger list` shows the triggers")),
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

fn text(row: &Row, at: usize) -> &str {
    row.get::<&str, _>(at).unwrap_or_default()
}

/// The part of a row that is the event, from a place on.
pub(crate) fn captured(row: &Row, from: usize) -> Result<Event> {
    let change_id: i64 = row.get(0).unwrap_or_default();
    let json = |at: usize| -> Result<Option<Box<RawValue>>> {
        let text = row.get::<&str, _>(from + at);
        text.map(|text| {
            RawValue::from_string(text.to_owned()).map_err(|e| {
                Error::new(
                    Kind::Database,
                    format!("the row of change {change_id} is not JSON"),
                )
                .caused_by(e)
            })
        })
        .transpose()
    };
    let setting = |at: usize| row.get::<&str, _>(from + at);
    Ok(Event {
        id: EventId::new(
            change_id,
            EventBits::new(row.get(from + 9).unwrap_or_default()),
        ),
        change_id,
        op: Operation::from_letter(text(row, from))?,
        old: json(1)?,
        new: json(2)?,
        session_variables: setting(3).and_then(session_json),
        trace_context: setting(4).and_then(trace_json),
        created_at: text(row, from + 5).to_owned(),
        trigger: text(row, from + 6).parse()?,
        table: TableName::qualified(text(row, from + 7), text(row, from + 8)),
    })
}

fn logged(row: &Row) -> Result<LoggedEvent> {
    Ok(LoggedEvent {
        event: captured(row, 5)?,
        status: EventStatus::from_letter(text(row, 1))?,
        tries: u32::try_from(row.get::<i32, _>(2).unwrap_or(0)).unwrap_or(0),
        locked_by: row.get::<&str, _>(3).map(str::to_owned),
        next_retry_at: row.get::<&str, _>(4).map(str::to_owned),
    })
}

fn attempt(row: &Row) -> LoggedAttempt {
    let json = |at: usize| {
        let text = row.get::<&str, _>(at);
        text.and_then(|text| RawValue::from_string(text.to_owned()).ok())
    };
    LoggedAttempt {
        attempt: Attempt {
            number: u32::try_from(row.get::<i32, _>(0).unwrap_or(0)).unwrap_or(0),
            outcome: Outcome::from_word(text(row, 1)),
            status: row.get::<i16, _>(2).and_then(|s| u16::try_from(s).ok()),
            request: json(3),
            response: json(4),
            error: row.get::<&str, _>(5).map(str::to_owned),
            duration_ms: row.get(6).unwrap_or_default(),
        },
        late: row.get::<bool, _>(7) == Some(true),
        created_at: text(row, 8).to_owned(),
    }
}
