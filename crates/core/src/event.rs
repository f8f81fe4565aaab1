//! Events: what an event trigger has captured, and what became of it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{Error, Result, TableName, TriggerId, TriggerName, Uuid, Verdict};

/// What happened to a row.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// It was inserted.
    Insert,
    /// It was updated.
    Update,
    /// It was deleted.
    Delete,
    /// Nothing: a person sent the event by hand.
    Manual,
}

impl Operation {
    /// The word that events carry.
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Insert => "INSERT",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Manual => "MANUAL",
        }
    }

    /// The letter that the event log keeps.
    pub fn letter(self) -> char {
        match self {
            Operation::Insert => 'I',
            Operation::Update => 'U',
            Operation::Delete => 'D',
            Operation::Manual => 'M',
        }
    }

    /// Reads that letter.
    pub fn from_letter(letter: &str) -> Result<Self> {
        match letter {
            "I" => Ok(Operation::Insert),
            "U" => Ok(Operation::Update),
            "D" => Ok(Operation::Delete),
            "M" => Ok(Operation::Manual),
            other => Err(Error::new(
                crate::Kind::Database,
                format!("the event log holds an unknown operation '{other}'"),
            )),
        }
    }
}

/// An event's identity to the outside world: the same for every attempt, and never that of
/// another event of this or another database.
///
/// It is made of the event's `change_id` and of 60 random bits that are stored with it, in the form
/// of a version 8 UUID. So the log needs no index over random values, and ids sort in the order of
/// the changes. A database that was restored from a backup gives the same `change_id` again to another
/// event; the bits are others.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventId(pub Uuid);

/// The random bits of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventBits(u64);

impl EventBits {
    const BITS: u32 = 60;

    /// From what the database stores; only the lower 60 bits count.
    pub fn new(stored: i64) -> Self {
        EventBits(stored.cast_unsigned() & ((1 << Self::BITS) - 1))
    }

    /// The lower 60 bits of what the database stores.
    pub fn stored(self) -> i64 {
        self.0.cast_signed()
    }
}

impl EventId {
    /// The id of a change with these bits.
    pub fn new(change_id: i64, bits: EventBits) -> Self {
        let number = u128::from(change_id.cast_unsigned());
        let high = (number >> 12) << 16 | 0x8 << 12 | (number & 0xfff);
        let low = u128::from(0x8u8) << EventBits::BITS | u128::from(bits.0);
        EventId(Uuid::from_u128(high << 64 | low))
    }

    /// The change and the bits that it is made of, if it is an id of ours at all.
    pub fn parts(self) -> Option<(i64, EventBits)> {
        let all = self.0.as_u128();
        let high = all >> 64;
        let number = (high >> 16) << 12 | (high & 0xfff);
        let change_id = i64::try_from(number).ok()?;
        let low = u64::try_from(all & u128::from(u64::MAX)).ok()?;
        let bits = EventBits::new(low.cast_signed());
        (EventId::new(change_id, bits) == self).then_some((change_id, bits))
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for EventId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        text.parse().map(EventId).map_err(|_| {
            Error::invalid(format!("'{text}' is not an event id"))
                .advise("`changefeed event list` shows the ids")
        })
    }
}

/// A captured event.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct Event {
    /// Its identity.
    pub id: EventId,
    /// Its place in the order of all changes of the database.
    #[serde(serialize_with = "crate::position::serialize")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub change_id: i64,
    /// The trigger that captured it.
    pub trigger: TriggerName,
    /// The table that was changed.
    pub table: TableName,
    /// What happened.
    pub op: Operation,
    /// The row before; none for an insert.
    #[cfg_attr(feature = "openapi", schema(value_type = serde_json::Value))]
    pub old: Option<Box<RawValue>>,
    /// The row after; none for a delete.
    #[cfg_attr(feature = "openapi", schema(value_type = serde_json::Value))]
    pub new: Option<Box<RawValue>>,
    /// What the writer said about itself.
    #[cfg_attr(feature = "openapi", schema(value_type = serde_json::Value))]
    pub session_variables: Option<Box<RawValue>>,
    /// The trace that the change belongs to: an object with `traceparent`.
    #[cfg_attr(feature = "openapi", schema(value_type = serde_json::Value))]
    pub trace_context: Option<Box<RawValue>>,
    /// When it was captured, in RFC 3339.
    pub created_at: String,
}

/// What a writer said about itself, as JSON: as it is if it is JSON, and otherwise as a JSON
/// string, because a writer can set it to anything.
pub fn session_json(text: &str) -> Option<Box<RawValue>> {
    let text = text.trim();
    if text.is_empty() {
        return None;
    }
    RawValue::from_string(text.to_owned())
        .or_else(|_| serde_json::value::to_raw_value(text))
        .ok()
}

/// The trace that a writer named, as an object: it may have given that, or only a `traceparent`.
pub fn trace_json(text: &str) -> Option<Box<RawValue>> {
    let text = text.trim();
    if text.starts_with('{')
        && let Ok(object) = RawValue::from_string(text.to_owned())
    {
        return Some(object);
    }
    // Somebody may have quoted it.
    let bare = text.trim_matches('"');
    if bare.is_empty() {
        return None;
    }
    serde_json::value::to_raw_value(&BTreeMap::from([("traceparent", bare)])).ok()
}

/// What became of an event.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventStatus {
    /// It waits for its first or next attempt, or is being delivered. Set by capture, by
    /// a retry, and by a redelivery.
    Pending,
    /// It arrived. Set by delivery.
    Delivered,
    /// Its retries are used up; it is kept. Set by delivery.
    DeadLetter,
    /// Its trigger was dropped before it was delivered.
    Archived,
    /// A later event of its key was delivered for it: its trigger debounces.
    Collapsed,
}

impl EventStatus {
    /// The letter that the event log keeps.
    pub fn letter(self) -> char {
        match self {
            EventStatus::Pending => 'p',
            EventStatus::Delivered => 'd',
            EventStatus::DeadLetter => 'e',
            EventStatus::Archived => 'a',
            EventStatus::Collapsed => 'c',
        }
    }

    /// Reads that letter.
    pub fn from_letter(letter: &str) -> Result<Self> {
        match letter {
            "p" => Ok(EventStatus::Pending),
            "d" => Ok(EventStatus::Delivered),
            "e" => Ok(EventStatus::DeadLetter),
            "a" => Ok(EventStatus::Archived),
            "c" => Ok(EventStatus::Collapsed),
            other => Err(Error::new(
                crate::Kind::Database,
                format!("the event log holds an unknown state '{other}'"),
            )),
        }
    }
}

/// An event as the log shows it.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct LoggedEvent {
    /// The event.
    #[serde(flatten)]
    pub event: Event,
    /// What became of it.
    pub status: EventStatus,
    /// Attempts so far.
    pub tries: u32,
    /// Who delivers it at this moment.
    pub locked_by: Option<String>,
    /// When it is due again, in RFC 3339; none if it is not delivered again.
    pub next_retry_at: Option<String>,
    /// The HTTP status that answered the newest attempt.
    pub last_status: Option<u16>,
    /// Why the newest attempt failed.
    pub last_error: Option<String>,
    /// The change of the event that was delivered for it, if it was collapsed.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "optional_position"
    )]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub superseded_by: Option<i64>,
}

fn optional_position<S: serde::Serializer>(
    position: &Option<i64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    position.map(|p| p.to_string()).serialize(serializer)
}

/// How an attempt ended, as the log of attempts says it.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The receiver took the event.
    Success,
    /// It did not.
    Failure,
    /// The attempt was cut off: nobody knows whether the receiver took the event.
    Unknown,
}

impl Outcome {
    /// The word that the log keeps.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Success => "success",
            Outcome::Failure => "failure",
            Outcome::Unknown => "unknown",
        }
    }

    /// Reads that word.
    pub fn from_word(word: &str) -> Self {
        match word {
            "success" => Outcome::Success,
            "failure" => Outcome::Failure,
            _ => Outcome::Unknown,
        }
    }
}

/// One attempt to deliver an event: a row of `event_invocation_logs`.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct Attempt {
    /// Attempt number, starting at 1. A redelivery starts again.
    pub number: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// The status that was answered.
    pub status: Option<u16>,
    /// What was sent.
    #[cfg_attr(feature = "openapi", schema(value_type = serde_json::Value))]
    pub request: Option<Box<RawValue>>,
    /// What came back, cut at a limit.
    #[cfg_attr(feature = "openapi", schema(value_type = serde_json::Value))]
    pub response: Option<Box<RawValue>>,
    /// What went wrong, in one sentence.
    pub error: Option<String>,
    /// How long it took.
    pub duration_ms: i64,
}

/// The error in the log for an attempt that was cut off.
pub fn cut_off_by(instance: &str) -> String {
    format!("{instance} stopped before the outcome was known")
}

/// An attempt as the log shows it.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct LoggedAttempt {
    /// The attempt.
    #[serde(flatten)]
    pub attempt: Attempt,
    /// Whether the lease had been lost by the time the attempt ended, so that it decided nothing.
    pub late: bool,
    /// When it was written down, in RFC 3339.
    pub created_at: String,
}

/// What a dispatcher wants of one trigger.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wanted {
    /// The trigger.
    pub trigger: TriggerId,
    /// How many events at most.
    pub limit: u32,
    /// How many all instances together may hold.
    pub overall: Option<u32>,
    /// Whether events of one key come one after the other.
    pub ordered: bool,
    /// Whether the last event of a key is taken for all that wait.
    pub debounced: bool,
    /// Whether requests keep a pace: there may be more due than a claim brings.
    pub paced: bool,
}

/// An event that this instance holds for the time of its lease. The attempt is counted already:
/// an instance that dies now has made it.
#[derive(Debug, Clone)]
pub struct LeasedEvent {
    /// The trigger's number.
    pub trigger: TriggerId,
    /// The event.
    pub event: Event,
    /// What later writes must match.
    pub generation: i64,
    /// Attempt number, starting at 1.
    pub attempt: u32,
    /// How many of the earlier ones were cut off.
    pub cut_off: u32,
}

impl LeasedEvent {
    /// Earlier attempts that are known to have failed.
    pub fn failed_before(&self) -> u32 {
        self.attempt.saturating_sub(1).saturating_sub(self.cut_off)
    }

    /// What later writes must match.
    pub fn claim(&self) -> EventClaim {
        EventClaim {
            change_id: self.event.change_id,
            generation: self.generation,
        }
    }
}

/// An event that an instance holds, with the generation of its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventClaim {
    /// The event.
    pub change_id: i64,
    /// The generation of the lease.
    pub generation: i64,
}

/// An attempt that is over, and what follows from it.
#[derive(Debug, Clone)]
pub struct Finished {
    /// The event and the lease.
    pub claim: EventClaim,
    /// The attempt.
    pub attempt: Attempt,
    /// What follows.
    pub verdict: Verdict,
}

/// Which events of the log.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    /// Of this trigger.
    pub trigger: Option<TriggerName>,
    /// In this state.
    pub status: Option<EventStatus>,
    /// Captured at or after this time.
    pub since: Option<SystemTime>,
    /// Captured before this time.
    pub until: Option<SystemTime>,
    /// Whose newest attempt was answered with this status.
    pub http_status: Option<u16>,
    /// Whose newest attempt failed with an error that contains this text, whatever its case.
    pub error: Option<String>,
    /// Older than this change.
    pub before: Option<i64>,
}

/// Which events to deliver again.
#[derive(Debug, Clone)]
pub enum Redelivery {
    /// This one.
    Event(EventId),
    /// All of these that are not waiting for an attempt anyway.
    Matching(EventFilter),
}

/// The counts of a trigger's events.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct TriggerState {
    /// The trigger.
    pub name: TriggerName,
    /// Events that wait or are being delivered. Counting stops at 100,000.
    pub pending: i64,
    /// Those that are being delivered.
    pub in_flight: i64,
    /// Dead letters. Counting stops at 100,000.
    pub dead_letters: i64,
    /// How long the oldest due event is overdue, in milliseconds.
    pub overdue_ms: Option<i64>,
}

impl TriggerState {
    /// A trigger without events.
    pub fn new(name: TriggerName) -> Self {
        TriggerState {
            name,
            pending: 0,
            in_flight: 0,
            dead_letters: 0,
            overdue_ms: None,
        }
    }
}

/// What a clean-up removed.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Cleaned {
    /// Events.
    pub events: u64,
    /// Attempts.
    pub attempts: u64,
    /// Whether there may be more.
    pub more: bool,
}

impl Cleaned {
    /// Adds what another step has removed.
    pub fn add(&mut self, other: Cleaned) {
        self.events += other.events;
        self.attempts += other.attempts;
        self.more |= other.more;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_id_is_a_uuid_of_version_8() {
        let id = EventId::new(1_000_000_000_000_000, EventBits::new(0x0123_4567_89ab_cdef));
        assert_eq!(id.to_string(), "0038d7ea-4c68-8000-8123-456789abcdef");
        assert_eq!(id.0.get_version_num(), 8);
    }

    #[test]
    fn whatever_a_writer_has_set_becomes_json() {
        let text = |json: Option<Box<RawValue>>| json.map(|j| j.get().to_owned());
        assert_eq!(text(session_json(" ")), None);
        assert_eq!(
            text(session_json(" {\"x\": 1} ")).as_deref(),
            Some("{\"x\": 1}")
        );
        assert_eq!(text(session_json("{oops")).as_deref(), Some("\"{oops\""));
        assert_eq!(
            text(trace_json("00-a-b-01")).as_deref(),
            Some("{\"traceparent\":\"00-a-b-01\"}")
        );
        assert_eq!(
            text(trace_json("{\"traceparent\":\"x\"}")).as_deref(),
            Some("{\"traceparent\":\"x\"}")
        );
        assert_eq!(text(trace_json("")), None);
    }

    proptest! {
        #[test]
        fn ids_can_be_read_back_and_sort_like_changes(
            a in 0i64..(1 << 59), b in 0i64..(1 << 59), bits in any::<i64>(), other in any::<i64>()
        ) {
            let (bits, other) = (EventBits::new(bits), EventBits::new(other));
            prop_assert_eq!(EventId::new(a, bits).parts(), Some((a, bits)));
            prop_assert_eq!(EventBits::new(bits.stored()), bits);
            if a != b {
                prop_assert_eq!(EventId::new(a, bits) < EventId::new(b, other), a < b);
            }
            prop_assert_eq!(EventId::new(a, bits) == EventId::new(a, other), bits == other);
        }
    }
}
