//! What is pushed where.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::broker::Container;
use super::sink::{Header, Secrets, Setting, Sink};
use super::text::{self, Object};
use crate::{After, ConsumerName, Error, Feed, FeedName, Result, Source};

/// A subscription: the changes of a feed are pushed to a sink, shard by shard, in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Object", into = "Object")]
pub struct SubscriptionDefinition {
    /// Its name, and that of the consumer that keeps its position.
    pub name: ConsumerName,
    /// The feed.
    pub feed: FeedName,
    /// Where the changes go.
    pub sink: Sink,
    /// What a message looks like.
    pub format: SubscriptionFormat,
    /// A template for the subject, topic or routing key, in sinks that have one.
    pub subject: Option<String>,
    /// A template for the key of a message; the key of the row unless given.
    pub key: Option<String>,
    /// Which rows the sink gets: a [condition](crate::Condition) over the columns of one.
    pub when: Option<String>,
    /// Which columns of the rows the sink gets; all unless given.
    pub columns: Option<Vec<String>>,
    /// The most messages of a batch.
    pub batch: usize,
    /// How long changes are collected for a batch; not at all by default.
    pub every: Duration,
    /// Where it begins.
    pub from: After,
    /// What happens to a message that the sink will never take.
    pub on_refusal: OnRefusal,
    /// How many changes a paused or stopped subscription may be behind before it gives up its position, so that
    /// retention goes on; without a limit, retention waits.
    pub max_backlog: Option<u64>,
    /// How long a sink may take for a batch.
    pub timeout: Duration,
}

/// What a message looks like.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SubscriptionFormat {
    /// What a page of the feed has.
    #[default]
    Json,
    /// A CloudEvent in one JSON object.
    Cloudevents,
    /// A CloudEvent whose attributes are headers; the body is what a page has.
    CloudeventsBinary,
    /// The envelope of Debezium: before, after, op, source, ts_ms.
    Debezium,
}

impl SubscriptionFormat {
    /// All formats.
    pub const ALL: [SubscriptionFormat; 4] = [
        SubscriptionFormat::Json,
        SubscriptionFormat::Cloudevents,
        SubscriptionFormat::CloudeventsBinary,
        SubscriptionFormat::Debezium,
    ];

    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            SubscriptionFormat::Json => "json",
            SubscriptionFormat::Cloudevents => "cloudevents",
            SubscriptionFormat::CloudeventsBinary => "cloudevents-binary",
            SubscriptionFormat::Debezium => "debezium",
        }
    }
}

impl fmt::Display for SubscriptionFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SubscriptionFormat {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|f| f.as_str() == text);
        found.ok_or_else(|| {
            Error::invalid(format!("'{text}' is not a format"))
                .advise("use json, cloudevents, cloudevents-binary or debezium")
        })
    }
}

/// What happens to a message that the sink will never take.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum OnRefusal {
    /// The shard stops, and says so.
    #[default]
    Stop,
    /// The change is noted as parked, and the shard goes on.
    Park,
    /// The message goes to another sink, at least once, and the shard goes on.
    DeadLetter(Sink),
}

impl fmt::Display for OnRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OnRefusal::Stop => f.write_str("stop"),
            OnRefusal::Park => f.write_str("park"),
            OnRefusal::DeadLetter(sink) => f.write_str(&sink.address()),
        }
    }
}

impl FromStr for OnRefusal {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "stop" => Ok(OnRefusal::Stop),
            "park" => Ok(OnRefusal::Park),
            url => Ok(OnRefusal::DeadLetter(url.parse()?)),
        }
    }
}

impl SubscriptionDefinition {
    /// The default of `batch`.
    pub const BATCH: usize = 1000;
    /// The default of `timeout`.
    pub const TIMEOUT: Duration = Duration::from_secs(30);
    /// What templates may name.
    pub const BLANKS: [&'static str; 6] = ["feed", "shard", "op", "key", "table", "subscription"];

    /// A subscription with every default.
    pub fn new(name: ConsumerName, feed: FeedName, sink: Sink) -> Self {
        SubscriptionDefinition {
            name,
            feed,
            sink,
            format: SubscriptionFormat::Json,
            subject: None,
            key: None,
            when: None,
            columns: None,
            batch: Self::BATCH,
            every: Duration::ZERO,
            from: After::First,
            on_refusal: OnRefusal::Stop,
            max_backlog: None,
            timeout: Self::TIMEOUT,
        }
    }

    /// Checks what can be checked without a database.
    pub fn validate(&self) -> Result<()> {
        self.sink.validate_for_pushing()?;
        if let OnRefusal::DeadLetter(sink) = &self.on_refusal {
            sink.validate_for_pushing()?;
        }
        for sink in self.sinks() {
            if sink.container()? == Some(Container::Parquet)
                && self.format != SubscriptionFormat::Json
            {
                return Err(
                    Error::invalid("Parquet has columns for the json format only")
                        .advise("leave --format out, or write ndjson"),
                );
            }
        }
        for template in self.subject.iter().chain(&self.key) {
            check_template(template)?;
        }
        if let Some(when) = &self.when {
            // Names are folded where the database is known; that changes nothing about what is possible.
            crate::Condition::parse_row(when, crate::Fold::Keep)?;
        }
        if self.columns.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::invalid("a list of columns names one at least"));
        }
        if !(1..=crate::MAX_PAGE).contains(&self.batch) {
            return Err(Error::invalid(format!(
                "a batch has 1 to {} messages",
                crate::MAX_PAGE
            )));
        }
        if self.every > Duration::from_secs(3600) {
            return Err(Error::invalid("'every' is at most an hour"));
        }
        if self.timeout.is_zero() || self.timeout > Duration::from_secs(3600) {
            return Err(Error::invalid(
                "the timeout of a subscription is more than 0 and at most an hour",
            ));
        }
        Ok(())
    }

    /// Checks that its feed can be pushed like this.
    pub fn check_feed(&self, feed: &Feed) -> Result<()> {
        let images = match &feed.source {
            Some(Source::Events) => true,
            Some(source) => source.keeps_images(),
            None => false,
        };
        if self.format == SubscriptionFormat::Debezium && !images {
            return Err(Error::invalid(format!(
                "the debezium format needs the row before and after each change, and feed '{}' does not keep them",
                feed.name
            ))
            .advise("create the feed with --images, or use another format"));
        }
        if (self.when.is_some() || self.columns.is_some()) && !images {
            return Err(Error::invalid(format!(
                "a subscription that leaves out rows or columns needs the row before and after each change, and feed \
                 '{}' does not keep them",
                feed.name
            ))
            .advise("create the feed with --images, or with --when and --columns of its own"));
        }
        for sink in self.sinks() {
            if let Sink::File(path) = sink
                && feed.shards.len() > 1
                && !path.contains("{shard}")
            {
                return Err(Error::invalid(format!(
                    "feed '{}' has {} shards, and each needs a file of its own",
                    feed.name,
                    feed.shards.len()
                ))
                .advise("write {shard} in the path: file:/var/lib/orders-{shard}.ndjson"));
            }
        }
        Ok(())
    }

    /// Its sink, and where refused messages go.
    pub fn sinks(&self) -> impl Iterator<Item = &Sink> {
        let dead = match &self.on_refusal {
            OnRefusal::DeadLetter(sink) => Some(sink),
            OnRefusal::Stop | OnRefusal::Park => None,
        };
        std::iter::once(&self.sink).chain(dead)
    }

    /// Whether it acts on the machine of the instance.
    pub fn is_local(&self) -> bool {
        self.sinks().any(Sink::is_local)
    }

    /// Whether messages go to a broker that those of the other definition do not go to. An address of a broker is not
    /// guarded like that of a webhook, so it is not defined over HTTP.
    pub fn names_other_broker(&self, before: Option<&Self>) -> bool {
        let broker = |sink: &&Sink| matches!(sink, Sink::Broker(..));
        let known = |sink: &Sink| before.is_some_and(|b| b.sinks().any(|s| s == sink));
        self.sinks().filter(broker).any(|sink| !known(sink))
    }
}

/// Refuses a blank that nothing fills.
fn check_template(template: &str) -> Result<()> {
    let values = SubscriptionDefinition::BLANKS.map(|blank| (blank, "x"));
    let filled = crate::fill(template, &values).map_err(|_| {
        Error::invalid(format!(
            "the template '{template}' has a blank that nothing fills"
        ))
        .advise(format!(
            "use {{{}}}",
            SubscriptionDefinition::BLANKS.join("}, {")
        ))
    })?;
    if filled.is_empty() || filled.chars().any(|c| c.is_control()) {
        return Err(Error::invalid(
            "a template is not empty and has no control characters",
        ));
    }
    Ok(())
}

/// Its keys, as people write them.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SubscriptionText {
    #[cfg_attr(
        feature = "openapi",
        schema(pattern = "^[a-zA-Z0-9_-]+$", min_length = 1, max_length = 100)
    )]
    name: String,
    #[cfg_attr(
        feature = "openapi",
        schema(pattern = "^[a-zA-Z0-9_-]+$", min_length = 1, max_length = 100)
    )]
    feed: String,
    /// The sink: `nats://…`, `redis://…`, `amqp://…`, `s3://…`, `https://…`; not over HTTP: `file:PATH`, `dir:PATH`, `stdout:`, `exec:COMMAND`.
    to: String,
    /// Headers of every request to a webhook: texts, or `{"env": "NAME"}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, super::sink::SettingText>))]
    header: BTreeMap<String, Setting>,
    /// The secret that signs requests to a webhook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<Secrets>,
    /// Kept in the database only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(ignore))]
    granted_env: Vec<String>,
    #[serde(default)]
    format: SubscriptionFormat,
    /// A template with `{feed}`, `{shard}`, `{op}`, `{key}`, `{table}` and `{subscription}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    /// A template for the key of a message; the key of the row unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Only rows for which this is true; the feed must keep images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    when: Option<String>,
    /// Only these columns of the rows; the feed must keep images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    columns: Option<Vec<String>>,
    #[serde(default = "batch")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 10000))]
    batch: usize,
    /// How long changes are collected for a batch, like `"1s"`.
    #[serde(default, with = "text::span")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, default = "0s"))]
    every: Duration,
    /// `beginning`, `now`, a cursor, or a time.
    #[serde(default = "beginning")]
    from: String,
    /// `stop`, `park`, or the sink that refused messages go to.
    #[serde(default = "stop")]
    on_refusal: String,
    /// How many changes it may be behind while it is paused or stopped before retention goes on without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_backlog: Option<u64>,
    /// How long the sink may take for a batch.
    #[serde(default = "timeout", with = "text::span")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, default = "30s"))]
    timeout: Duration,
}

fn batch() -> usize {
    SubscriptionDefinition::BATCH
}

fn timeout() -> Duration {
    SubscriptionDefinition::TIMEOUT
}

fn beginning() -> String {
    "beginning".to_owned()
}

fn stop() -> String {
    "stop".to_owned()
}

/// The words for the ends of a feed that people use for subscriptions.
pub fn subscription_start(text: &str) -> Result<After> {
    match text {
        "beginning" => Ok(After::First),
        "now" => Ok(After::Last),
        other => other.parse(),
    }
}

impl From<SubscriptionDefinition> for Object {
    fn from(definition: SubscriptionDefinition) -> Self {
        let to = definition.sink.address();
        let (header, secret, granted_env) = match definition.sink {
            Sink::Webhook(webhook) => super::sink::webhook_text(webhook),
            _ => Default::default(),
        };
        let text = SubscriptionText {
            name: definition.name.as_str().to_owned(),
            feed: definition.feed.as_str().to_owned(),
            to,
            header,
            secret,
            granted_env,
            format: definition.format,
            subject: definition.subject,
            key: definition.key,
            when: definition.when,
            columns: definition.columns,
            batch: definition.batch,
            every: definition.every,
            from: match definition.from {
                After::First => beginning(),
                After::Last => "now".to_owned(),
                other => other.to_string(),
            },
            on_refusal: definition.on_refusal.to_string(),
            max_backlog: definition.max_backlog,
            timeout: definition.timeout,
        };
        text::write(text, Object::new())
    }
}

impl TryFrom<Object> for SubscriptionDefinition {
    type Error = Error;

    fn try_from(object: Object) -> Result<Self> {
        let text: SubscriptionText =
            serde_json::from_value(object.into()).map_err(|e| Error::invalid(e.to_string()))?;
        let mut sink: Sink = text.to.parse()?;
        match sink.as_webhook_mut() {
            Some(webhook) => {
                webhook.headers = text
                    .header
                    .into_iter()
                    .map(|(name, value)| Header { name, value })
                    .collect();
                webhook.secrets_from_env = text.secret.map(Secrets::names).unwrap_or_default();
                webhook.granted_env = text.granted_env;
            }
            None if !text.header.is_empty() || text.secret.is_some() => {
                return Err(Error::invalid("headers and secrets need a webhook"));
            }
            None => {}
        }
        let definition = SubscriptionDefinition {
            name: text.name.parse()?,
            feed: text.feed.parse()?,
            sink,
            format: text.format,
            subject: text.subject,
            key: text.key,
            when: text.when,
            columns: text.columns,
            batch: text.batch,
            every: text.every,
            from: subscription_start(&text.from)?,
            on_refusal: text.on_refusal.parse()?,
            max_backlog: text.max_backlog,
            timeout: text.timeout,
        };
        definition.validate()?;
        Ok(definition)
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for SubscriptionDefinition {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        text::optional(SubscriptionText::schema())
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for SubscriptionDefinition {
    fn schemas(schemas: &mut text::Schemas) {
        SubscriptionText::schemas(schemas);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Broker;

    fn read(text: &str) -> std::result::Result<SubscriptionDefinition, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn a_definition_survives_being_stored() {
        let text = r#"{"name": "n", "feed": "f", "to": "https://example.org/x?a=1",
            "header": {"authorization": {"env": "AUTH"}}, "secret": {"env": "SECRET"},
            "format": "debezium", "subject": "shop.{op}", "key": "{key}", "when": "a > 1", "columns": ["a", "b"], "batch": 7, "every": "2s",
            "from": "now", "on_refusal": "file:/tmp/refused", "max_backlog": 10, "timeout": "5s"}"#;
        let full = read(text).unwrap();
        let stored = serde_json::to_string(&full).unwrap();
        assert_eq!(read(&stored).unwrap(), full, "{stored}");
        let plain = read(r#"{"name": "n", "feed": "f", "to": "stdout:"}"#).unwrap();
        assert_eq!(plain.batch, 1000);
        assert_eq!(plain.from, After::First);
        let stored = serde_json::to_string(&plain).unwrap();
        assert_eq!(read(&stored).unwrap(), plain, "{stored}");
    }

    #[test]
    fn sinks_are_known_by_their_addresses() {
        let broker = |broker, url: &str| Sink::Broker(broker, url.to_owned());
        for (address, sink) in [
            ("stdout:", Sink::Stdout),
            ("file:/a/{shard}", Sink::File("/a/{shard}".to_owned())),
            ("exec:cat >> x", Sink::Exec("cat >> x".to_owned())),
            (
                "dir:/a?as=ndjson.gz",
                Sink::Directory("/a?as=ndjson.gz".to_owned()),
            ),
            ("nats://h:4222/a", broker(Broker::Nats, "nats://h:4222/a")),
            ("nats+tls://h/a", broker(Broker::Nats, "nats+tls://h/a")),
            ("rediss://h/0", broker(Broker::Redis, "rediss://h/0")),
            ("s3://b/p", broker(Broker::S3, "s3://b/p")),
        ] {
            assert_eq!(address.parse::<Sink>().unwrap(), sink);
            assert_eq!(sink.address(), address);
        }
        assert_eq!(
            "file:///a/b".parse::<Sink>().unwrap().address(),
            "file:/a/b"
        );
        assert!("kafka://h".parse::<Sink>().is_err());
        for secret in ["nats://me:hush@h:4222/a", "s3://AKID:hush@b/p?region=x"] {
            let secret: Sink = secret.parse().unwrap();
            assert!(!secret.to_string().contains("hush"), "{secret}");
        }
    }

    #[test]
    fn containers_are_part_of_the_address() {
        let held = |text: &str, container| {
            let sink: Sink = text.parse().unwrap();
            sink.holding(container).map(|sink| sink.address())
        };
        let parquet = Container::Parquet;
        assert_eq!(held("dir:/a", parquet).unwrap(), "dir:/a?as=parquet");
        assert_eq!(
            held("s3://b/p?as=ndjson&region=x", parquet).unwrap(),
            "s3://b/p?region=x&as=parquet"
        );
        assert!(held("nats://h/a", parquet).is_err());
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (bad, sentence) in [
            (
                r#"{"name": "n", "feed": "f", "to": "dir:/a?as=csv"}"#,
                "objects cannot be written as 'csv'",
            ),
            (
                r#"{"name": "n", "feed": "f", "to": "dir:/a?at=x"}"#,
                "unknown option 'at=x'",
            ),
            (
                r#"{"name": "n", "feed": "f", "to": "s3://AKID:hu/sh@b/p"}"#,
                "'@' in its path",
            ),
            (
                r#"{"name": "n", "feed": "f", "to": "dir:/a?as=parquet", "format": "debezium"}"#,
                "Parquet has columns for the json format only",
            ),
            (
                r#"{"name": "n", "feed": "f", "to": "x"}"#,
                "'x' is not a sink",
            ),
            (
                r#"{"name": "n", "feed": "f", "to": "stdout:", "subject": "a.{what}"}"#,
                "has a blank that nothing fills",
            ),
            (
                r#"{"name": "n", "feed": "f", "to": "stdout:", "when": "f(a)"}"#,
                "the condition",
            ),
            (
                r#"{"name": "n", "feed": "f", "to": "stdout:", "columns": []}"#,
                "names one at least",
            ),
            (
                r#"{"name": "n", "feed": "f", "to": "stdout:", "batch": 0}"#,
                "a batch has 1 to",
            ),
            (
                r#"{"name": "n", "feed": "f", "to": "stdout:", "bach": 1}"#,
                "unknown field `bach`",
            ),
            (
                r#"{"name": "n", "feed": "f", "to": "stdout:", "secret": {"env": "A"}}"#,
                "need a webhook",
            ),
        ] {
            let error = read(bad).unwrap_err().to_string();
            assert!(error.contains(sentence), "{bad}: {error}");
        }
    }
}
