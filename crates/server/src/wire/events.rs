//! Events and attempts.

use changefeed::{Event, EventFilter, EventStatus, LoggedAttempt, LoggedEvent};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use crate::problem::{Answer, Problem};

/// A page of events.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventList {
    /// Newest first.
    pub(crate) events: Vec<EventOut>,
    /// What to ask with for the next page; none when there is none.
    pub(crate) before: Option<String>,
}

/// An event of the log.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventOut {
    #[schema(format = Uuid)]
    id: String,
    /// Its place in the order of all changes of the database.
    change_id: String,
    trigger: String,
    table: String,
    /// `INSERT`, `UPDATE`, `DELETE` or `MANUAL`.
    op: String,
    /// The row before.
    #[schema(value_type = serde_json::Value)]
    old: Option<Box<RawValue>>,
    /// The row after.
    #[schema(value_type = serde_json::Value)]
    new: Option<Box<RawValue>>,
    /// What the writer said about itself.
    #[schema(value_type = serde_json::Value)]
    session_variables: Option<Box<RawValue>>,
    /// The trace that the change belongs to.
    #[schema(value_type = serde_json::Value)]
    trace_context: Option<Box<RawValue>>,
    created_at: String,
    status: StatusText,
    /// Attempts so far.
    tries: u32,
    /// Who delivers it at this moment.
    locked_by: Option<String>,
    /// When it is due again.
    next_retry_at: Option<String>,
}

/// What became of an event.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StatusText {
    Pending,
    Delivered,
    Error,
    Archived,
}

impl From<EventStatus> for StatusText {
    fn from(status: EventStatus) -> Self {
        match status {
            EventStatus::Pending => StatusText::Pending,
            EventStatus::Delivered => StatusText::Delivered,
            EventStatus::Error => StatusText::Error,
            EventStatus::Archived => StatusText::Archived,
        }
    }
}

impl From<StatusText> for EventStatus {
    fn from(status: StatusText) -> Self {
        match status {
            StatusText::Pending => EventStatus::Pending,
            StatusText::Delivered => EventStatus::Delivered,
            StatusText::Error => EventStatus::Error,
            StatusText::Archived => EventStatus::Archived,
        }
    }
}

impl From<LoggedEvent> for EventOut {
    fn from(logged: LoggedEvent) -> Self {
        let Event {
            id,
            change_id,
            trigger,
            table,
            op,
            old,
            new,
            session_variables,
            trace_context,
            created_at,
        } = logged.event;
        EventOut {
            id: id.to_string(),
            change_id: change_id.to_string(),
            trigger: trigger.to_string(),
            table: table.to_string(),
            op: op.as_str().to_owned(),
            old,
            new,
            session_variables,
            trace_context,
            created_at,
            status: logged.status.into(),
            tries: logged.tries,
            locked_by: logged.locked_by,
            next_retry_at: logged.next_retry_at,
        }
    }
}

/// An event with every attempt.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventDetail {
    #[serde(flatten)]
    pub(crate) event: EventOut,
    /// Oldest first.
    pub(crate) attempts: Vec<AttemptOut>,
}

/// One attempt to deliver an event.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AttemptOut {
    /// The how manieth of this event, from 1. A redelivery begins again.
    number: u32,
    /// `success`, `failure`, or `unknown` if it was cut off.
    outcome: String,
    /// The status that was answered.
    status: Option<u16>,
    /// What was sent, without secrets.
    #[schema(value_type = serde_json::Value)]
    request: Option<Box<RawValue>>,
    /// What came back, cut at a limit.
    #[schema(value_type = serde_json::Value)]
    response: Option<Box<RawValue>>,
    /// What went wrong, in one sentence.
    error: Option<String>,
    duration_ms: i64,
    /// Whether its sender had lost the event by the time it was over.
    late: bool,
    created_at: String,
}

impl From<LoggedAttempt> for AttemptOut {
    fn from(logged: LoggedAttempt) -> Self {
        let attempt = logged.attempt;
        AttemptOut {
            number: attempt.number,
            outcome: attempt.outcome.as_str().to_owned(),
            status: attempt.status,
            request: attempt.request,
            response: attempt.response,
            error: attempt.error,
            duration_ms: attempt.duration_ms,
            late: logged.late,
            created_at: logged.created_at,
        }
    }
}

/// Which events to show.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsQuery {
    /// Of this trigger.
    #[param(pattern = "^[A-Za-z][A-Za-z0-9_-]*$", max_length = 100)]
    pub(crate) trigger: Option<String>,
    /// In this state.
    #[param(inline)]
    pub(crate) status: Option<StatusText>,
    /// Captured at or after this time.
    #[param(format = DateTime)]
    pub(crate) since: Option<String>,
    /// Captured before this time.
    #[param(format = DateTime)]
    pub(crate) until: Option<String>,
    /// Whose newest attempt was answered with this status.
    #[param(minimum = 0, maximum = 65535)]
    pub(crate) http_status: Option<u16>,
    /// Whose newest attempt failed with an error that contains this text.
    pub(crate) error: Option<String>,
    /// Older than this change.
    #[param(pattern = "^[0-9]{1,18}$")]
    pub(crate) before: Option<String>,
    /// How many at most; 100 unless given.
    #[param(minimum = 1, maximum = 1000)]
    pub(crate) limit: Option<usize>,
}

/// Which events to deliver again; at least one must be given.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(min_properties = 1)]
pub(crate) struct RedeliverIn {
    #[serde(default)]
    #[schema(pattern = "^[A-Za-z][A-Za-z0-9_-]*$", max_length = 100)]
    pub(crate) trigger: Option<String>,
    #[serde(default)]
    pub(crate) status: Option<StatusText>,
    #[serde(default)]
    #[schema(format = DateTime)]
    pub(crate) since: Option<String>,
    #[serde(default)]
    #[schema(format = DateTime)]
    pub(crate) until: Option<String>,
    #[serde(default)]
    #[schema(minimum = 0, maximum = 65535)]
    pub(crate) http_status: Option<u16>,
    #[serde(default)]
    pub(crate) error: Option<String>,
}

fn time(text: Option<String>) -> Answer<Option<std::time::SystemTime>> {
    text.map(|text| {
        humantime::parse_rfc3339_weak(&text).map_err(|_| {
            Problem::invalid(format!("'{text}' is not a time"))
                .advise("write it in UTC, like 2026-01-31T12:00:00Z")
        })
    })
    .transpose()
}

impl EventsQuery {
    pub(crate) fn filter(self) -> Answer<EventFilter> {
        Ok(EventFilter {
            trigger: self.trigger.map(|t| t.parse()).transpose()?,
            status: self.status.map(EventStatus::from),
            since: time(self.since)?,
            until: time(self.until)?,
            http_status: self.http_status,
            error: self.error,
            before: self
                .before
                .map(|text| {
                    text.parse()
                        .map_err(|_| Problem::invalid(format!("'{text}' is not a change_id")))
                })
                .transpose()?,
        })
    }
}

impl RedeliverIn {
    pub(crate) fn filter(self) -> Answer<EventFilter> {
        let filter = EventFilter {
            trigger: self.trigger.map(|t| t.parse()).transpose()?,
            status: self.status.map(EventStatus::from),
            since: time(self.since)?,
            until: time(self.until)?,
            http_status: self.http_status,
            error: self.error,
            before: None,
        };
        let everything = filter.trigger.is_none()
            && filter.status.is_none()
            && filter.since.is_none()
            && filter.until.is_none()
            && filter.http_status.is_none()
            && filter.error.is_none();
        if everything {
            return Err(Problem::invalid("this would deliver every event again")
                .advise("say which: trigger, status, since, until, http_status or error"));
        }
        Ok(filter)
    }
}

/// How many events.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventsOut {
    pub(crate) events: u64,
}

/// What to remove.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CleanUpIn {
    /// Events that are older than this.
    #[schema(maximum = 3_155_760_000_000_u64)]
    pub(crate) older_than_ms: u64,
    /// Only those of this trigger.
    #[serde(default)]
    #[schema(pattern = "^[A-Za-z][A-Za-z0-9_-]*$", max_length = 100)]
    pub(crate) trigger: Option<String>,
    /// Also those that were given up.
    #[serde(default)]
    pub(crate) dead_letters: bool,
    /// Events in this step.
    #[serde(default = "thousand")]
    #[schema(minimum = 1, maximum = 10000)]
    pub(crate) batch: usize,
}

fn thousand() -> usize {
    1000
}

/// What was removed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CleanedOut {
    pub(crate) events: u64,
    pub(crate) attempts: u64,
    /// Whether there may be more.
    pub(crate) more: bool,
}
