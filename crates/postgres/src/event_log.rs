//! Looking into the event log, delivering again, and cleaning up.

use std::time::Duration;

use changefeed_core::{
    Attempt, CleanUp, Cleaned, Event, EventBits, EventFilter, EventId, EventStatus, EventTrigger,
    LoggedAttempt, LoggedEvent, Operation, Outcome, Page, Result, TableName, TriggerState, Uuid,
    fill, session_json, trace_json, words,
};
use serde_json::value::RawValue;
use tokio_postgres::GenericClient;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::encoding::Lossy;
use crate::error::db;
use crate::row::Cells;
use crate::session::Session;

/// Events that one statement makes pending again.
const REDELIVER_BATCH: i64 = 1000;

impl Session {
    pub(crate) async fn events(
        &self,
        filter: &EventFilter,
        limit: usize,
    ) -> Result<Vec<LoggedEvent>> {
        let limit = i64::try_from(Page::check_limit(limit)?).unwrap_or(i64::MAX);
        let client = &**self;
        require_trigger(&**client, filter).await?;
        let mut matching = Matching::new(filter);
        let sql = format!(
            "{} where {} order by e.change_id desc limit {}",
            include_str!("sql/event_log.sql"),
            matching.conditions(),
            matching.bind(limit),
        );
        let rows = client
            .query(&sql, &matching.parameters())
            .await
            .map_err(db)?;
        rows.iter().map(logged).collect()
    }

    pub(crate) async fn event(
        &self,
        id: EventId,
    ) -> Result<Option<(LoggedEvent, Vec<LoggedAttempt>)>> {
        let Some((change_id, _)) = id.parts() else {
            return Ok(None);
        };
        let client = &**self;
        let sql = format!(
            "{} where e.change_id = $1",
            include_str!("sql/event_log.sql")
        );
        let parameters: [&(dyn ToSql + Sync); 1] = [&change_id];
        let (event, attempts) = tokio::try_join!(
            client.query_opt(&sql, &parameters),
            client.query(include_str!("sql/event_attempts.sql"), &parameters),
        )
        .map_err(db)?;
        let Some(event) = event else {
            return Ok(None);
        };
        let attempts: Result<Vec<LoggedAttempt>> = attempts.iter().map(attempt).collect();
        let event = logged(&event)?;
        Ok((event.event.id == id).then_some((event, attempts?)))
    }

    pub(crate) async fn redeliver_one(&self, id: EventId, key: Uuid) -> Result<u64> {
        let unknown = || words::no_event(id);
        let (change_id, bits) = id.parts().ok_or_else(unknown)?;
        let client = &**self;
        let row = client
            .query_opt(
                include_str!("sql/event_redeliver_one.sql"),
                &[&change_id, &bits.stored(), &key],
            )
            .await
            .map_err(db)?
            .ok_or_else(unknown)?;
        let (done, dropped): (bool, bool) = (row.take(0)?, row.take(1)?);
        if dropped {
            return Err(words::event_without_trigger(id));
        }
        if !done {
            return Err(words::event_in_flight(id));
        }
        Ok(1)
    }

    pub(crate) async fn redeliver_matching(&self, filter: &EventFilter, key: Uuid) -> Result<u64> {
        let client = &**self;
        require_trigger(&**client, filter).await?;
        // From the newest to the oldest, once: what fails again at once is not taken up again. How far
        // that is, is kept with the key.
        let first = filter.before.unwrap_or(i64::MAX);
        let sql = include_str!("sql/event_redeliver_begin.sql");
        client.execute(sql, &[&key, &first]).await.map_err(db)?;
        loop {
            let known =
                "select r.change_id, r.bits from changefeed.event_request r where r.key = $1";
            let row = client.query_one(known, &[&key]).await.map_err(db)?;
            let reached: i64 = row.take(0)?;
            if reached == 0 {
                return row.count::<i64, _>(1);
            }
            let filter = EventFilter {
                before: Some(reached),
                ..filter.clone()
            };
            let mut matching = Matching::new(&filter);
            let conditions = matching.conditions();
            let limit = matching.bind(REDELIVER_BATCH);
            let (key, reached) = (matching.bind(key), matching.bind(reached));
            let places = [
                ("matching", conditions.as_str()),
                ("limit", &limit),
                ("key", &key),
                ("reached", &reached),
            ];
            let sql = fill(include_str!("sql/event_redeliver.sql"), &places)?;
            client
                .execute(&sql, &matching.parameters())
                .await
                .map_err(db)?;
        }
    }

    pub(crate) async fn clean_up_events(
        &self,
        trigger: Option<&EventTrigger>,
        what: CleanUp,
        batch: usize,
    ) -> Result<Cleaned> {
        let client = &**self;
        let limit = i64::try_from(batch).unwrap_or(i64::MAX);
        let seconds = what.after.as_secs_f64().min(1e11);
        let row = client
            .query_one(
                include_str!("sql/event_clean_up.sql"),
                &[
                    &trigger.map(|t| t.id.0),
                    &seconds,
                    &limit,
                    &what.dead_letters,
                ],
            )
            .await
            .map_err(db)?;
        let events: i64 = row.take(0)?;
        Ok(Cleaned {
            events: row.count::<i64, _>(0)?,
            attempts: row.count::<i64, _>(1)?,
            more: events >= limit,
        })
    }

    pub(crate) async fn clean_up_attempts(
        &self,
        trigger: Option<&EventTrigger>,
        after: Duration,
        batch: usize,
    ) -> Result<Cleaned> {
        let client = &**self;
        let limit = i64::try_from(batch).unwrap_or(i64::MAX);
        let row = client
            .query_one(
                include_str!("sql/event_clean_up_attempts.sql"),
                &[
                    &trigger.map(|t| t.id.0),
                    &after.as_secs_f64().min(1e11),
                    &limit,
                ],
            )
            .await
            .map_err(db)?;
        let attempts: i64 = row.take(0)?;
        Ok(Cleaned {
            events: 0,
            attempts: row.count::<i64, _>(0)?,
            more: attempts >= limit,
        })
    }

    pub(crate) async fn trigger_states(&self) -> Result<Vec<TriggerState>> {
        let client = &**self;
        let rows = client
            .query(include_str!("sql/trigger_states.sql"), &[])
            .await
            .map_err(db)?;
        rows.iter()
            .map(|row| {
                Ok(TriggerState {
                    name: row.take::<&str>(0)?.parse()?,
                    pending: row.take(1)?,
                    in_flight: row.take(2)?,
                    dead_letters: row.take(3)?,
                    overdue_ms: row.take(4)?,
                })
            })
            .collect()
    }
}

/// A trigger that never was is a mistake, not an empty list; one that was dropped still has events.
async fn require_trigger(client: &impl GenericClient, filter: &EventFilter) -> Result<()> {
    let Some(name) = &filter.trigger else {
        return Ok(());
    };
    let known = client
        .query_opt(
            "select from changefeed.event_trigger where name = $1 limit 1",
            &[&name.as_str()],
        )
        .await
        .map_err(db)?;
    match known {
        Some(_) => Ok(()),
        None => Err(words::no_trigger(name)),
    }
}

/// A filter as SQL, with its parameters.
struct Matching<'a> {
    filter: &'a EventFilter,
    values: Vec<Box<dyn ToSql + Sync + Send + 'a>>,
}

impl<'a> Matching<'a> {
    fn new(filter: &'a EventFilter) -> Self {
        Matching {
            filter,
            values: Vec::new(),
        }
    }

    fn bind(&mut self, value: impl ToSql + Sync + Send + 'a) -> String {
        self.values.push(Box::new(value));
        format!("${}", self.values.len())
    }

    fn conditions(&mut self) -> String {
        let filter = self.filter;
        let mut all = vec!["true".to_owned()];
        if let Some(trigger) = &filter.trigger {
            let place = self.bind(trigger.as_str());
            all.push(format!("t.name = {place}"));
        }
        if let Some(status) = filter.status {
            // Spelt out, so that the index over dead letters can be used.
            all.push(format!("e.state = '{}'", status.letter()));
        }
        if let Some(since) = filter.since {
            let place = self.bind(since);
            all.push(format!("e.created_at >= {place}"));
        }
        if let Some(until) = filter.until {
            let place = self.bind(until);
            all.push(format!("e.created_at < {place}"));
        }
        if let Some(before) = filter.before {
            let place = self.bind(before);
            all.push(format!("e.change_id < {place}"));
        }
        let newest = |test: String| {
            format!(
                "exists (select from (select a.status, a.error from changefeed.event_attempt a \
                 where a.change_id = e.change_id and not a.late order by a.generation desc limit 1) a \
                 where {test})"
            )
        };
        if let Some(status) = filter.http_status {
            let place = self.bind(i16::try_from(status).unwrap_or(i16::MAX));
            all.push(newest(format!("a.status = {place}")));
        }
        if let Some(error) = &filter.error {
            let place = self.bind(error.as_str());
            all.push(newest(format!(
                "strpos(lower(a.error), lower({place})) > 0"
            )));
        }
        all.join(" and ")
    }

    fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.values
            .iter()
            .map(|v| -> &(dyn ToSql + Sync) { v.as_ref() })
            .collect()
    }
}

/// The part of a row that is the event, from a place on.
pub(crate) fn captured(row: &Row) -> Result<Event> {
    let change_id = row.take("change_id")?;
    let json = |column: &str| -> Result<Option<Box<RawValue>>> {
        row.take::<Option<Lossy>>(column)?
            .map(|Lossy(text)| {
                RawValue::from_string(text).map_err(|e| words::row_not_json(change_id).caused_by(e))
            })
            .transpose()
    };
    let setting = |column: &str| row.take::<Option<Lossy>>(column);
    Ok(Event {
        id: EventId::new(change_id, EventBits::new(row.take("bits")?)),
        change_id,
        op: Operation::from_letter(row.take("op")?)?,
        old: json("old")?,
        new: json("new")?,
        session_variables: setting("session_variables")?
            .and_then(|Lossy(text)| session_json(&text)),
        trace_context: setting("trace_context")?.and_then(|Lossy(text)| trace_json(&text)),
        created_at: row.take("created_at")?,
        trigger: row.take::<&str>("name")?.parse()?,
        table: TableName::qualified(
            row.take::<String>("schema_name")?,
            row.take::<String>("table_name")?,
        ),
    })
}

fn logged(row: &Row) -> Result<LoggedEvent> {
    Ok(LoggedEvent {
        event: captured(row)?,
        status: EventStatus::from_letter(row.take("state")?)?,
        tries: row.count::<i32, _>("tries")?,
        locked_by: row.take("locked_by")?,
        next_retry_at: row.take("due_at")?,
        last_status: http_status(row.take("last_status")?),
        last_error: row.take("last_error")?,
        superseded_by: row.take("superseded_by")?,
    })
}

fn http_status(stored: Option<i16>) -> Option<u16> {
    stored.and_then(|status| u16::try_from(status).ok())
}

fn attempt(row: &Row) -> Result<LoggedAttempt> {
    let json = |column: &str| {
        let text: Option<Lossy> = row.take(column)?;
        Ok(text.and_then(|Lossy(text)| RawValue::from_string(text).ok()))
    };
    Ok(LoggedAttempt {
        attempt: Attempt {
            number: row.count::<i32, _>("attempt")?,
            outcome: Outcome::from_word(row.take("outcome")?),
            status: http_status(row.take("status")?),
            request: json("request")?,
            response: json("response")?,
            error: row.take("error")?,
            duration_ms: row.take("duration_ms")?,
        },
        late: row.take("late")?,
        created_at: row.take("created_at")?,
    })
}

/// A count of ours as the server's integer.
pub(crate) fn number(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
