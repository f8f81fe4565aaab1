//! An event trigger as it is written in the database, in `changefeed.toml` and over HTTP.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Capture, CleanUp, Delivery, FeedBinding, Format, OrderBy, Rate, TriggerDefinition, TriggerName,
    Updates,
};
use crate::definition::sink::SinkText;
use crate::definition::text::{self, Choice, Object};
use crate::{Error, FeedName, Growth, Result, Retry, TableName};

/// Its keys, but for those of its sink.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TriggerText {
    /// Its name.
    #[cfg_attr(feature = "openapi", schema(value_type = String, pattern = "^[A-Za-z][A-Za-z0-9_-]*$", max_length = 100))]
    name: TriggerName,
    /// The table whose changes become events.
    table: TableName,
    /// Inserted rows. Without a choice of `insert`, `update`, `delete` and `manual` it is the first three.
    #[serde(default)]
    insert: bool,
    /// Updated rows; a list of columns: only updates that change one of them.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Choice<Vec<String>>))]
    update: Choice<Vec<String>>,
    /// Deleted rows.
    #[serde(default)]
    delete: bool,
    /// Whether events can be sent by hand.
    #[serde(default)]
    manual: bool,
    /// Changes that replication applies make no events (SQL Server).
    #[serde(default)]
    not_for_replication: bool,
    /// The columns that an event carries; all of them unless given.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 1000))]
    payload: Option<Vec<String>>,
    /// A condition over `old` and `new`.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    when: Option<String>,
    /// Deliver events of one key one after the other: `true` for the primary key, or a column.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Choice<String>))]
    in_order: Choice<String>,
    /// A feed that every event also enters.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, pattern = "^[a-zA-Z0-9_-]+$", max_length = 100))]
    feed: Option<FeedName>,
    /// The column that decides the shard of that feed.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    shard_by: Option<String>,
    /// How requests are written.
    #[serde(default)]
    format: Format,
    /// Attempts after a first one that failed.
    #[serde(default = "default_retries")]
    #[cfg_attr(feature = "openapi", schema(maximum = 10000))]
    retries: u32,
    /// The wait before the next attempt, like `"10s"`.
    #[serde(default = "default_interval", with = "text::span")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    interval: Duration,
    /// How long an attempt may take.
    #[serde(default = "default_timeout", with = "text::span")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    timeout: Duration,
    /// Double the wait after every attempt up to this.
    #[serde(default, with = "text::optional_span")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    backoff: Option<Duration>,
    /// HTTP statuses after which no further attempt is made.
    #[serde(default)]
    final_status: Vec<u16>,
    /// The longest wait that a receiver may ask for.
    #[serde(default = "default_max_retry_after", with = "text::span")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    max_retry_after: Duration,
    /// Concurrent requests of one instance.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 4_294_967_295_u64))]
    concurrency: Option<u32>,
    /// Concurrent requests of all instances together.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 4_294_967_295_u64))]
    concurrency_overall: Option<u32>,
    /// Requests of all instances together in a time: `"100/s"`, `"30/m"`, `"500/h"`.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, pattern = "^[0-9]+/(s|m|h|d)$"))]
    rate: Option<Rate>,
    /// How long an event waits before its first attempt, like `"5s"`.
    #[serde(default, with = "text::optional_span")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    delay: Option<Duration>,
    /// For so long after an event, those of its key are collected, and the last one is delivered for all.
    #[serde(default, with = "text::optional_span")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    debounce: Option<Duration>,
    /// Remove the attempts of finished events after this time, and keep the events.
    #[serde(default, with = "text::optional_span")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    clean_up_logs_after: Option<Duration>,
    /// Remove delivered events after this time.
    #[serde(default, with = "text::optional_span")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    clean_up_after: Option<Duration>,
    /// Remove dead letters too.
    #[serde(default)]
    clean_up_dead_letters: bool,
}

fn default_retries() -> u32 {
    Retry::default().num_retries
}

fn default_interval() -> Duration {
    Retry::default().interval
}

fn default_timeout() -> Duration {
    Retry::default().timeout
}

fn default_max_retry_after() -> Duration {
    Retry::default().max_retry_after
}

impl From<TriggerDefinition> for Object {
    fn from(definition: TriggerDefinition) -> Self {
        let (capture, delivery) = (definition.capture, definition.delivery);
        let (feed, shard_by) = match capture.feed {
            Some(binding) => (Some(binding.feed), binding.shard_by),
            None => (None, None),
        };
        let text = TriggerText {
            name: definition.name,
            table: definition.table,
            insert: capture.insert,
            update: match capture.update {
                Updates::Ignored => Choice::Whether(false),
                Updates::Any => Choice::Whether(true),
                Updates::Of(columns) => Choice::Which(columns),
            },
            delete: capture.delete,
            manual: capture.manual,
            not_for_replication: capture.not_for_replication,
            payload: capture.payload,
            when: capture.condition,
            in_order: match capture.order_by {
                None => Choice::Whether(false),
                Some(OrderBy::Key) => Choice::Whether(true),
                Some(OrderBy::Column(column)) => Choice::Which(column),
            },
            feed,
            shard_by,
            format: delivery.format,
            retries: delivery.retry.num_retries,
            interval: delivery.retry.interval,
            timeout: delivery.retry.timeout,
            backoff: match delivery.retry.growth {
                Growth::Fixed => None,
                Growth::Exponential { cap } => Some(cap),
            },
            final_status: delivery.retry.final_statuses,
            max_retry_after: delivery.retry.max_retry_after,
            concurrency: delivery.concurrency,
            concurrency_overall: delivery.concurrency_overall,
            rate: delivery.rate,
            delay: delivery.delay,
            debounce: delivery.debounce,
            clean_up_logs_after: delivery.clean_up_logs_after,
            clean_up_after: delivery.clean_up.map(|c| c.after),
            clean_up_dead_letters: delivery.clean_up.is_some_and(|c| c.dead_letters),
        };
        text::write(text, SinkText::from(delivery.sink))
    }
}

impl TryFrom<Object> for TriggerDefinition {
    type Error = Error;

    fn try_from(object: Object) -> Result<Self> {
        let (text, sink): (TriggerText, SinkText) =
            text::read(object, &SinkText::KEYS).map_err(|e| Error::invalid(e.to_string()))?;
        if text.feed.is_none() && text.shard_by.is_some() {
            return Err(Error::invalid("'shard_by' needs a feed").advise("add 'feed'"));
        }
        if text.clean_up_dead_letters && text.clean_up_after.is_none() {
            return Err(Error::invalid(
                "'clean_up_dead_letters' needs 'clean_up_after'",
            ));
        }
        let nothing = Choice::Whether(false);
        let everything = !(text.insert || text.delete || text.manual) && text.update == nothing;
        let shard_by = text.shard_by;
        Ok(TriggerDefinition {
            name: text.name,
            table: text.table,
            capture: Capture {
                insert: text.insert || everything,
                update: match text.update {
                    Choice::Which(columns) => Updates::Of(columns),
                    Choice::Whether(true) => Updates::Any,
                    Choice::Whether(false) if everything => Updates::Any,
                    Choice::Whether(false) => Updates::Ignored,
                },
                delete: text.delete || everything,
                payload: text.payload,
                condition: text.when,
                order_by: match text.in_order {
                    // What is collected by key needs a key.
                    Choice::Whether(false) if text.debounce.is_some() => Some(OrderBy::Key),
                    Choice::Whether(false) => None,
                    Choice::Whether(true) => Some(OrderBy::Key),
                    Choice::Which(column) => Some(OrderBy::Column(column)),
                },
                feed: text.feed.map(|feed| FeedBinding { feed, shard_by }),
                manual: text.manual,
                not_for_replication: text.not_for_replication,
            },
            delivery: Delivery {
                sink: sink.try_into()?,
                format: text.format,
                retry: Retry {
                    num_retries: text.retries,
                    interval: text.interval,
                    timeout: text.timeout,
                    growth: match text.backoff {
                        Some(cap) => Growth::Exponential { cap },
                        None => Growth::Fixed,
                    },
                    final_statuses: text.final_status,
                    max_retry_after: text.max_retry_after,
                },
                concurrency: text.concurrency,
                concurrency_overall: text.concurrency_overall,
                rate: text.rate,
                delay: text.delay,
                debounce: text.debounce,
                clean_up_logs_after: text.clean_up_logs_after,
                clean_up: text.clean_up_after.map(|after| CleanUp {
                    after,
                    dead_letters: text.clean_up_dead_letters,
                }),
            },
        })
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for TriggerDefinition {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        text::merged_schema::<TriggerText, SinkText>()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for TriggerDefinition {
    fn schemas(schemas: &mut text::Schemas) {
        TriggerText::schemas(schemas);
        SinkText::schemas(schemas);
    }
}
