//! Event triggers.

use std::time::Duration;

use changefeed::{
    Capture, Changefeed, CleanUp, Delivery, EventTrigger, FeedBinding, Format, Growth, Header,
    OrderBy, Result, Retry, Setting, TriggerDefinition, TriggerName, TriggerState, Updates,
    without_secrets,
};
use serde::{Deserialize, Serialize};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::ms;
use crate::problem::{Answer, Problem};

/// All event triggers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TriggerList {
    pub(crate) triggers: Vec<TriggerOut>,
}

/// An event trigger, without its secrets.
#[derive(Debug, Serialize)]
pub(crate) struct TriggerOut {
    #[serde(flatten)]
    known: Known,
    #[serde(flatten)]
    definition: TriggerText,
}

/// What only the database knows of a trigger.
#[derive(Debug, Serialize, ToSchema)]
struct Known {
    id: i32,
    /// Why it delivers nothing at present.
    paused: Option<String>,
    /// How its events stand.
    state: Option<TriggerStateOut>,
}

/// Written by hand: what a person may send has no other fields than these, so it cannot be a part of
/// what we answer with.
impl PartialSchema for TriggerOut {
    fn schema() -> RefOr<Schema> {
        let mut schema = TriggerText::schema();
        if let (RefOr::T(Schema::Object(all)), RefOr::T(Schema::Object(known))) =
            (&mut schema, Known::schema())
        {
            all.additional_properties = None;
            all.description = Some("An event trigger, without its secrets.".to_owned());
            all.properties.extend(known.properties);
            all.required.extend(known.required);
        }
        schema
    }
}

impl ToSchema for TriggerOut {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        TriggerText::schemas(schemas);
        Known::schemas(schemas);
    }
}

/// How the events of a trigger stand.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct TriggerStateOut {
    /// Events that wait or are being delivered. Counting stops at 100,000.
    pub(crate) pending: i64,
    /// Those that somebody delivers at this moment.
    pub(crate) in_flight: i64,
    /// Dead letters. Counting stops at 100,000.
    pub(crate) dead: i64,
    /// How long the one that has waited longest is overdue.
    pub(crate) overdue_ms: Option<i64>,
}

impl From<&TriggerState> for TriggerStateOut {
    fn from(state: &TriggerState) -> Self {
        TriggerStateOut {
            pending: state.pending,
            in_flight: state.in_flight,
            dead: state.dead,
            overdue_ms: state.overdue_ms,
        }
    }
}

/// An event trigger as a person defines it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TriggerText {
    #[schema(pattern = "^[A-Za-z][A-Za-z0-9_-]*$", max_length = 100)]
    pub(crate) name: String,
    /// The table whose changes become events, as in SQL.
    #[schema(min_length = 1)]
    pub(crate) table: String,
    /// Inserted rows.
    #[serde(default)]
    pub(crate) insert: bool,
    /// Updated rows.
    #[serde(default)]
    pub(crate) update: bool,
    /// Only updates that change one of these columns.
    #[serde(default)]
    #[schema(min_items = 1, max_items = 1000)]
    pub(crate) update_columns: Option<Vec<String>>,
    /// Deleted rows.
    #[serde(default)]
    pub(crate) delete: bool,
    /// Whether a person may send an event by hand.
    #[serde(default)]
    pub(crate) manual: bool,
    /// Changes that replication applies make no events (SQL Server).
    #[serde(default)]
    pub(crate) not_for_replication: bool,
    /// The columns that an event carries; all of them unless given.
    #[serde(default)]
    #[schema(min_items = 1, max_items = 1000)]
    pub(crate) payload: Option<Vec<String>>,
    /// A condition over `old` and `new`, in our own small language: columns and values, compared.
    #[serde(default)]
    #[schema(min_length = 1)]
    pub(crate) when: Option<String>,
    /// Deliver events of one key one after the other.
    #[serde(default)]
    pub(crate) in_order: bool,
    /// The column that decides which; the primary key unless given.
    #[serde(default)]
    #[schema(min_length = 1)]
    pub(crate) order_column: Option<String>,
    /// A feed that every event also enters.
    #[serde(default)]
    #[schema(pattern = "^[a-zA-Z0-9_-]+$", max_length = 100)]
    pub(crate) feed: Option<String>,
    /// The column that decides the shard of that feed.
    #[serde(default)]
    #[schema(min_length = 1)]
    pub(crate) shard_by: Option<String>,
    /// Where the events go.
    #[serde(default)]
    #[schema(
        pattern = "^https?://[A-Za-z0-9.-]+(:[0-9]{1,4})?(/[!-~]*)?$",
        max_length = 2000
    )]
    pub(crate) webhook: Option<String>,
    /// The environment variable that holds the address, where the events are delivered; one that is
    /// allowed there.
    #[serde(default)]
    #[schema(pattern = "^[A-Za-z_][A-Za-z0-9_]*$")]
    pub(crate) webhook_env: Option<String>,
    /// No webhook: a program that uses the library handles the events.
    #[serde(default)]
    pub(crate) in_process: bool,
    /// Headers of every request.
    #[serde(default)]
    pub(crate) headers: Vec<HeaderText>,
    /// Environment variables with the secrets that sign requests; two while they are exchanged.
    #[serde(default)]
    #[schema(max_items = 2)]
    pub(crate) secrets_env: Vec<String>,
    #[serde(default)]
    pub(crate) format: FormatText,
    /// How many more attempts after a first one that failed.
    #[serde(default)]
    #[schema(maximum = 10000)]
    pub(crate) retries: u32,
    /// The wait before the next attempt.
    #[serde(default = "ten_seconds")]
    #[schema(maximum = 86_400_000)]
    pub(crate) interval_ms: u64,
    /// How long an attempt may take.
    #[serde(default = "minute")]
    #[schema(minimum = 1, maximum = 3_600_000)]
    pub(crate) timeout_ms: u64,
    /// Double the wait after every attempt up to this.
    #[serde(default)]
    #[schema(maximum = 86_400_000)]
    pub(crate) backoff_cap_ms: Option<u64>,
    /// Statuses after which there is no other attempt.
    #[serde(default)]
    #[schema(value_type = Vec<HttpStatus>)]
    pub(crate) final_statuses: Vec<u16>,
    /// The longest wait that a receiver may ask for.
    #[serde(default = "hour")]
    #[schema(maximum = 86_400_000)]
    pub(crate) max_retry_after_ms: u64,
    /// Requests at the same time from one instance.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 4_294_967_295_u64)]
    pub(crate) concurrency: Option<u32>,
    /// Requests at the same time from all instances together.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 4_294_967_295_u64)]
    pub(crate) concurrency_overall: Option<u32>,
    /// Remove delivered events after this time.
    #[serde(default)]
    #[schema(maximum = 3_155_760_000_000_u64)]
    pub(crate) clean_up_after_ms: Option<u64>,
    /// Remove also those that were given up.
    #[serde(default)]
    pub(crate) clean_up_dead_letters: bool,
}

fn ten_seconds() -> u64 {
    10_000
}

fn minute() -> u64 {
    60_000
}

fn hour() -> u64 {
    3_600_000
}

/// A header of every request: its value, or the environment variable that holds it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HeaderText {
    #[schema(min_length = 1)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) value: Option<String>,
    #[serde(default)]
    pub(crate) value_env: Option<String>,
}

/// A status of HTTP.
#[derive(ToSchema)]
#[schema(minimum = 0, maximum = 65535)]
#[allow(dead_code, reason = "only its description is used")]
pub(crate) struct HttpStatus(u16);

/// How requests are written.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FormatText {
    #[default]
    Hasura,
    Cloudevents,
    CloudeventsBinary,
}

impl From<Format> for FormatText {
    fn from(format: Format) -> Self {
        match format {
            Format::Hasura => FormatText::Hasura,
            Format::Cloudevents => FormatText::Cloudevents,
            Format::CloudeventsBinary => FormatText::CloudeventsBinary,
        }
    }
}

impl From<FormatText> for Format {
    fn from(format: FormatText) -> Self {
        match format {
            FormatText::Hasura => Format::Hasura,
            FormatText::Cloudevents => Format::Cloudevents,
            FormatText::CloudeventsBinary => Format::CloudeventsBinary,
        }
    }
}

fn given(setting: &Setting) -> (Option<String>, Option<String>) {
    match setting {
        Setting::Value(value) => (Some(value.clone()), None),
        Setting::FromEnv(variable) => (None, Some(variable.clone())),
    }
}

impl TriggerOut {
    pub(crate) fn new(trigger: &EventTrigger, states: &[TriggerState]) -> Self {
        let name = &trigger.definition.name;
        TriggerOut {
            known: Known {
                id: trigger.id.0,
                paused: trigger.paused.clone(),
                state: states
                    .iter()
                    .find(|s| s.trigger == *name)
                    .map(TriggerStateOut::from),
            },
            definition: TriggerText::shown(&trigger.definition),
        }
    }
}

impl TriggerText {
    /// A definition as people may see it.
    fn shown(definition: &TriggerDefinition) -> Self {
        let capture = &definition.capture;
        let delivery = without_secrets(&definition.delivery);
        let retry = &delivery.retry;
        let (webhook, webhook_env) = delivery.webhook.as_ref().map(given).unwrap_or_default();
        TriggerText {
            name: definition.name.to_string(),
            table: definition.table.to_string(),
            insert: capture.insert,
            update: capture.update != Updates::Ignored,
            update_columns: capture.update.columns().map(<[String]>::to_vec),
            delete: capture.delete,
            manual: capture.manual,
            not_for_replication: capture.not_for_replication,
            payload: capture.payload.clone(),
            when: capture.condition.clone(),
            in_order: capture.order_by.is_some(),
            order_column: match &capture.order_by {
                Some(OrderBy::Column(column)) => Some(column.clone()),
                _ => None,
            },
            feed: capture.feed.as_ref().map(|f| f.feed.to_string()),
            shard_by: capture.feed.as_ref().and_then(|f| f.shard_by.clone()),
            in_process: webhook.is_none() && webhook_env.is_none(),
            webhook,
            webhook_env,
            headers: delivery
                .headers
                .iter()
                .map(|header| {
                    let (value, value_env) = given(&header.value);
                    HeaderText {
                        name: header.name.clone(),
                        value,
                        value_env,
                    }
                })
                .collect(),
            secrets_env: delivery.secrets_from_env.clone(),
            format: delivery.format.into(),
            retries: retry.num_retries,
            interval_ms: ms(retry.interval),
            timeout_ms: ms(retry.timeout),
            backoff_cap_ms: match retry.growth {
                Growth::Fixed => None,
                Growth::Exponential { cap } => Some(ms(cap)),
            },
            final_statuses: retry.final_statuses.clone(),
            max_retry_after_ms: ms(retry.max_retry_after),
            concurrency: delivery.concurrency,
            concurrency_overall: delivery.concurrency_overall,
            clean_up_after_ms: delivery.clean_up.map(|c| ms(c.after)),
            clean_up_dead_letters: delivery.clean_up.is_some_and(|c| c.dead_letters),
        }
    }

    /// The definition that was meant.
    pub(crate) fn definition(self, db: &Changefeed) -> Answer<TriggerDefinition> {
        let name: TriggerName = self.name.parse()?;
        let column = |text: &String| db.column(text);
        let columns = |texts: Option<Vec<String>>| -> Result<Option<Vec<String>>> {
            texts
                .map(|all| all.iter().map(column).collect())
                .transpose()
        };
        let everything = !(self.insert
            || self.update
            || self.delete
            || self.manual
            || self.update_columns.is_some());
        let update = match columns(self.update_columns)? {
            Some(columns) => Updates::Of(columns),
            None if self.update || everything => Updates::Any,
            None => Updates::Ignored,
        };
        let order_by = match (
            self.order_column.as_ref().map(column).transpose()?,
            self.in_order,
        ) {
            (Some(column), _) => Some(OrderBy::Column(column)),
            (None, true) => Some(OrderBy::Key),
            (None, false) => None,
        };
        let shard_by = self.shard_by.as_ref().map(column).transpose()?;
        let feed = match (self.feed, shard_by) {
            (Some(feed), shard_by) => Some(FeedBinding {
                feed: feed.parse()?,
                shard_by,
            }),
            (None, Some(_)) => {
                return Err(Problem::invalid("'shard_by' needs a feed").advise("add 'feed'"));
            }
            (None, None) => None,
        };
        let webhook = match (self.webhook, self.webhook_env, self.in_process) {
            (Some(url), None, false) => Some(Setting::Value(url)),
            (None, Some(variable), false) => Some(Setting::FromEnv(variable)),
            (None, None, true) => None,
            _ => {
                return Err(Problem::invalid(format!(
                    "it is not clear where the events of trigger '{name}' go"
                ))
                .advise("give one of 'webhook', 'webhook_env' and '\"in_process\": true'"));
            }
        };
        let mut headers = Vec::new();
        for header in self.headers {
            let value = match (header.value, header.value_env) {
                (Some(value), None) => Setting::Value(value),
                (None, Some(variable)) => Setting::FromEnv(variable),
                _ => {
                    return Err(Problem::invalid(format!(
                        "header '{}' needs one of 'value' and 'value_env'",
                        header.name
                    )));
                }
            };
            headers.push(Header {
                name: header.name,
                value,
            });
        }
        if self.clean_up_dead_letters && self.clean_up_after_ms.is_none() {
            return Err(Problem::invalid(
                "'clean_up_dead_letters' needs 'clean_up_after_ms'",
            ));
        }
        Ok(TriggerDefinition {
            name,
            table: db.table(&self.table)?,
            capture: Capture {
                insert: self.insert || everything,
                update,
                delete: self.delete || everything,
                payload: columns(self.payload)?,
                condition: self.when,
                order_by,
                feed,
                manual: self.manual,
                not_for_replication: self.not_for_replication,
            },
            delivery: Delivery {
                webhook,
                headers,
                secrets_from_env: self.secrets_env,
                granted_env: Vec::new(),
                format: self.format.into(),
                retry: Retry {
                    num_retries: self.retries,
                    interval: Duration::from_millis(self.interval_ms),
                    timeout: Duration::from_millis(self.timeout_ms),
                    growth: match self.backoff_cap_ms {
                        Some(cap) => Growth::Exponential {
                            cap: Duration::from_millis(cap),
                        },
                        None => Growth::Fixed,
                    },
                    final_statuses: self.final_statuses,
                    max_retry_after: Duration::from_millis(self.max_retry_after_ms),
                },
                concurrency: self.concurrency,
                concurrency_overall: self.concurrency_overall,
                clean_up: self.clean_up_after_ms.map(|after| CleanUp {
                    after: Duration::from_millis(after),
                    dead_letters: self.clean_up_dead_letters,
                }),
            },
        })
    }
}

/// Why a trigger is paused.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PauseIn {
    /// For whoever finds it paused.
    #[serde(default = "by_hand")]
    #[schema(min_length = 1, max_length = 1000)]
    pub(crate) reason: String,
}

fn by_hand() -> String {
    "by hand".to_owned()
}

/// An event by hand.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InvokeIn {
    /// What the event carries as `new`.
    #[serde(default = "empty")]
    #[schema(value_type = Object)]
    pub(crate) payload: Box<serde_json::value::RawValue>,
}

fn empty() -> Box<serde_json::value::RawValue> {
    serde_json::value::RawValue::from_string("{}".to_owned()).unwrap_or_default()
}

/// The event that was made.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InvokedOut {
    #[schema(format = Uuid)]
    pub(crate) event_id: String,
}
