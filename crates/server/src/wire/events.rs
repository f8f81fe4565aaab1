//! Events and attempts.

use changefeed_core::{EventFilter, EventStatus, LoggedEvent};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::problem::{Answer, Problem};

/// A page of events.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventList {
    /// Newest first.
    pub(crate) events: Vec<LoggedEvent>,
    /// What to ask with for the next page; none when there is none.
    pub(crate) before: Option<String>,
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
    pub(crate) status: Option<EventStatus>,
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
    pub(crate) status: Option<EventStatus>,
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
            status: self.status,
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
            status: self.status,
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
    /// Also dead letters.
    #[serde(default)]
    pub(crate) dead_letters: bool,
    /// Only the attempts of finished events; the events stay.
    #[serde(default)]
    pub(crate) logs: bool,
    /// Events in this step.
    #[serde(default = "thousand")]
    #[schema(minimum = 1, maximum = 10000)]
    pub(crate) batch: usize,
}

fn thousand() -> usize {
    1000
}
