//! Event triggers: which changes of a table become events, and what happens to them.

mod form;
mod rate;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::sink::Sink;
use super::template::EVENT_VALUES;
use super::text::Object;
use crate::{Error, FeedName, Result, Retry, TableName};
pub use rate::Rate;

/// An event trigger's name: a letter, then letters, digits, `_` and `-`.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TriggerName(String);

impl TriggerName {
    /// The longest allowed name.
    pub const MAX: usize = 100;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TriggerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TriggerName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let fine = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let begins = text.starts_with(|c: char| c.is_ascii_alphabetic());
        if !begins || text.len() > Self::MAX || !text.chars().all(fine) {
            return Err(Error::invalid(format!(
                "'{text}' is not a trigger name: it begins with a letter, goes on with letters, \
                 digits, '_' and '-', and has at most {} characters",
                Self::MAX
            )));
        }
        Ok(TriggerName(text.to_owned()))
    }
}

impl TryFrom<String> for TriggerName {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<TriggerName> for String {
    fn from(name: TriggerName) -> Self {
        name.0
    }
}

/// The number that a database gave to an event trigger; never used again for another one.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct TriggerId(pub i32);

/// An event trigger as the database knows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EventTrigger {
    /// Its number.
    pub id: TriggerId,
    /// What a person wrote.
    #[serde(flatten)]
    pub definition: TriggerDefinition,
    /// Why it delivers nothing at present; events are captured all the same.
    pub paused: Option<String>,
}

/// An event trigger as a person defines it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Object", into = "Object")]
pub struct TriggerDefinition {
    /// Its name.
    pub name: TriggerName,
    /// The table whose changes become events.
    pub table: TableName,
    /// Which changes, and what of them.
    pub capture: Capture,
    /// Where the events go.
    pub delivery: Delivery,
}

/// Which changes of a table become events, and what of them is kept.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Capture {
    /// Inserted rows.
    pub insert: bool,
    /// Updated rows.
    pub update: Updates,
    /// Deleted rows.
    pub delete: bool,
    /// The columns that an event carries; all of them unless given.
    pub payload: Option<Vec<String>>,
    /// A SQL condition over `old` and `new`; a change for which it is not true makes no event.
    pub condition: Option<String>,
    /// Events of one key are delivered one after the other.
    pub order_by: Option<OrderBy>,
    /// The feed that every event also enters.
    pub feed: Option<FeedBinding>,
    /// Whether a person may send an event by hand.
    pub manual: bool,
    /// Changes that replication applies make no events. SQL Server alone has the choice.
    pub not_for_replication: bool,
}

impl Capture {
    /// Every insert, update and delete, with all columns.
    pub fn everything() -> Self {
        Capture {
            insert: true,
            update: Updates::Any,
            delete: true,
            ..Capture::default()
        }
    }
}

/// Which updates become events.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Updates {
    /// None.
    #[default]
    Ignored,
    /// Those that change anything.
    Any,
    /// Those that change one of these columns.
    Of(Vec<String>),
}

impl Updates {
    /// The columns that are listened to, if they were named.
    pub fn columns(&self) -> Option<&[String]> {
        match self {
            Updates::Of(columns) => Some(columns),
            Updates::Ignored | Updates::Any => None,
        }
    }
}

/// What decides which events are delivered one after the other.
#[derive(Debug, Clone, PartialEq)]
pub enum OrderBy {
    /// The table's primary key.
    Key,
    /// The value of a column.
    Column(String),
}

/// The feed that an event trigger also writes to.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedBinding {
    /// The feed.
    pub feed: FeedName,
    /// The column that decides the shard; without one everything goes to shard 0.
    pub shard_by: Option<String>,
}

/// How a request is written.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// The body that Hasura's event triggers send.
    #[default]
    Hasura,
    /// CloudEvents 1.0, everything in the body.
    Cloudevents,
    /// CloudEvents 1.0, attributes in headers.
    CloudeventsBinary,
}

/// Where events go, and how hard we try.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Delivery {
    /// Where they go.
    pub sink: Sink,
    /// How a request is written.
    pub format: Format,
    /// When to try again, and when to stop.
    pub retry: Retry,
    /// How many requests at the same time from one instance; 100 unless given.
    pub concurrency: Option<u32>,
    /// How many requests at the same time from all instances together.
    pub concurrency_overall: Option<u32>,
    /// How many requests all instances together make in a time.
    pub rate: Option<Rate>,
    /// How long an event waits before its first attempt.
    pub delay: Option<Duration>,
    /// For so long after an event, the events of its key are collected, and the last of them is delivered for all.
    pub debounce: Option<Duration>,
    /// When old events are removed; never unless given.
    pub clean_up: Option<CleanUp>,
    /// When attempts of finished events are removed, which stay themselves; never unless given.
    pub clean_up_logs_after: Option<Duration>,
}

/// Which events are removed by themselves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CleanUp {
    /// Delivered events that are older than this.
    pub after: Duration,
    /// Also dead letters.
    pub dead_letters: bool,
}

/// The number of columns that a definition may name in one place.
const MAX_COLUMNS: usize = 1000;

impl TriggerDefinition {
    /// Checks what can be checked without a database.
    pub fn validate(&self) -> Result<()> {
        let capture = &self.capture;
        if !capture.insert
            && capture.update == Updates::Ignored
            && !capture.delete
            && !capture.manual
        {
            return Err(
                Error::invalid(format!("trigger '{}' would never fire", self.name))
                    .advise("choose from insert, update, delete and manual invocation"),
            );
        }
        not_empty("listened columns", capture.update.columns())?;
        not_empty("payload columns", capture.payload.as_deref())?;
        if let Some(condition) = &capture.condition
            && condition.trim().is_empty()
        {
            return Err(Error::invalid("the condition is empty"));
        }
        if self.delivery.debounce.is_some() && capture.order_by.is_none() {
            return Err(Error::invalid("debouncing needs the key of an event")
                .advise("set in_order: to the primary key, or to a column"));
        }
        self.delivery.validate()
    }
}

fn not_empty(what: &str, columns: Option<&[String]>) -> Result<()> {
    match columns {
        Some([]) => Err(Error::invalid(format!("the list of {what} is empty"))
            .advise("name at least one column, or leave the list out for all of them")),
        Some(columns) if columns.len() > MAX_COLUMNS => {
            Err(Error::invalid(format!("there are too many {what}")))
        }
        _ => Ok(()),
    }
}

impl Delivery {
    /// The default number of concurrent requests of one instance.
    pub const CONCURRENCY: u32 = 100;
    /// The longest that an event can wait before its first attempt.
    const LONGEST_WAIT: Duration = Duration::from_secs(365 * 86_400);

    /// How long an event waits before its first attempt, in milliseconds.
    pub fn wait_ms(&self) -> i64 {
        let wait = self.delay.or(self.debounce).unwrap_or_default();
        i64::try_from(wait.as_millis()).unwrap_or(i64::MAX)
    }

    fn validate(&self) -> Result<()> {
        if !self.sink.takes_events() {
            return Err(
                Error::invalid(format!("events cannot be given to '{}'", self.sink))
                    .advise("use a webhook, or a watch, whose batches can"),
            );
        }
        self.sink.validate(&EVENT_VALUES)?;
        if self.format == Format::Cloudevents
            && self.sink.as_webhook().is_some_and(|w| w.body.is_some())
        {
            return Err(Error::invalid(
                "format 'cloudevents' has a body of its own, and cannot have a template",
            )
            .advise("use format 'cloudevents-binary' or 'hasura' with a template"));
        }
        for (what, limit) in [
            ("an instance", self.concurrency),
            ("all instances together", self.concurrency_overall),
        ] {
            if limit == Some(0) {
                return Err(Error::invalid(format!(
                    "{what} would make 0 requests at the same time"
                ))
                .advise("to stop the deliveries use `changefeed trigger pause`"));
            }
        }
        for (what, wait) in [("delay", self.delay), ("debounce", self.debounce)] {
            if wait.is_some_and(|w| w < Duration::from_millis(1) || w > Self::LONGEST_WAIT) {
                return Err(Error::invalid(format!(
                    "'{what}' must be from 1ms to {}",
                    super::format_span(Self::LONGEST_WAIT)
                )));
            }
        }
        if self.delay.is_some() && self.debounce.is_some() {
            return Err(Error::invalid(
                "'delay' and 'debounce' exclude each other: a debounced event is delayed already",
            ));
        }
        self.retry.validate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Header, Setting, Webhook};

    fn definition() -> TriggerDefinition {
        TriggerDefinition {
            name: "orders".parse().unwrap(),
            table: TableName::unqualified("orders"),
            capture: Capture {
                insert: true,
                ..Capture::default()
            },
            delivery: Delivery {
                sink: Sink::webhook("http://localhost:9/"),
                ..Delivery::default()
            },
        }
    }

    fn webhook(definition: &mut TriggerDefinition) -> &mut Webhook {
        definition.delivery.sink.as_webhook_mut().unwrap()
    }

    #[test]
    fn names_follow_the_pattern_of_the_seed() {
        for good in ["a", "Orders-2_x", &"x".repeat(100)] {
            assert!(good.parse::<TriggerName>().is_ok(), "{good}");
        }
        for bad in ["", "1a", "_a", "-a", "a b", "a.b", "é", &"x".repeat(101)] {
            assert!(bad.parse::<TriggerName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_definition_survives_being_stored() {
        let mut full = definition();
        full.capture.update = Updates::Of(vec!["a".into()]);
        full.capture.order_by = Some(OrderBy::Column("b".into()));
        full.delivery.clean_up = Some(CleanUp {
            after: Duration::from_secs(3600),
            dead_letters: false,
        });
        full.delivery.format = Format::CloudeventsBinary;
        full.delivery.rate = Some("30/m".parse().unwrap());
        full.delivery.debounce = Some(Duration::from_millis(1500));
        full.delivery.clean_up_logs_after = Some(Duration::from_secs(86_400));
        full.delivery.sink.as_webhook_mut().unwrap().body = Some("{{ new }}".into());
        let text = serde_json::to_string(&full).unwrap();
        assert_eq!(
            serde_json::from_str::<TriggerDefinition>(&text).unwrap(),
            full
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_a_sentence() {
        type Spoil = fn(&mut TriggerDefinition);
        let spoils: [(Spoil, &str); 8] = [
            (|d| d.capture.insert = false, "would never fire"),
            (
                |d| d.capture.update = Updates::Of(vec![]),
                "listened columns is empty",
            ),
            (
                |d| d.capture.payload = Some(vec![]),
                "payload columns is empty",
            ),
            (|d| d.capture.condition = Some(" ".into()), "condition"),
            (
                |d| d.delivery.sink = Sink::webhook("ftp://x"),
                "not a webhook",
            ),
            (
                |d| d.delivery.concurrency = Some(0),
                "0 requests at the same time",
            ),
            (
                |d| {
                    let secrets = ["A", "B", "C"].map(str::to_owned);
                    webhook(d).secrets_from_env = secrets.into();
                },
                "at most two secrets",
            ),
            (
                |d| {
                    webhook(d).headers = vec![Header {
                        name: "Webhook-Id".into(),
                        value: Setting::Value("x".into()),
                    }];
                },
                "set by changefeed itself",
            ),
        ];
        assert!(definition().validate().is_ok());
        for (spoil, sentence) in spoils {
            let mut spoilt = definition();
            spoil(&mut spoilt);
            let error = spoilt.validate().unwrap_err();
            assert!(error.message().contains(sentence), "{error}");
        }
    }
}
