//! Definitions in the words of the file, for plans.

use std::time::Duration;

use changefeed::{
    Feed, Growth, Header, NewFeed, OrderBy, Setting, Source, TriggerDefinition, Updates,
    WatchDefinition, WatchFrom, WatchSpec, without_secrets,
};
use serde::Serialize;
use toml::Value;

use super::wanted::delivery_to;

/// The keys that a definition has, but for those with their defaults, in the order of the reference.
pub(super) type Keys = Vec<(&'static str, Value)>;

/// What is different about a key.
#[derive(Debug, Serialize)]
pub(super) struct Difference {
    pub(super) key: &'static str,
    pub(super) from: Option<Value>,
    pub(super) to: Option<Value>,
}

/// What is different between two definitions.
pub(super) fn differences(from: &Keys, to: &Keys) -> Vec<Difference> {
    let value = |keys: &Keys, key: &str| {
        let found = keys.iter().find(|(k, _)| *k == key);
        found.map(|(_, value)| value.clone())
    };
    let mut keys: Vec<&'static str> = to.iter().map(|(key, _)| *key).collect();
    keys.extend(from.iter().map(|(key, _)| *key));
    let mut seen = Vec::new();
    keys.into_iter()
        .filter(|key| {
            let new = !seen.contains(key);
            seen.push(*key);
            new
        })
        .filter_map(|key| {
            let (from, to) = (value(from, key), value(to, key));
            (from != to).then_some(Difference { key, from, to })
        })
        .collect()
}

/// Writes keys down.
#[derive(Default)]
struct Writer(Keys);

impl Writer {
    fn value(&mut self, key: &'static str, value: impl Into<Value>) {
        self.0.push((key, value.into()));
    }

    fn some(&mut self, key: &'static str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.value(key, value);
        }
    }

    fn flag(&mut self, key: &'static str, set: bool) {
        if set {
            self.value(key, true);
        }
    }

    fn other<T: PartialEq + Into<Value>>(&mut self, key: &'static str, value: T, default: T) {
        if value != default {
            self.value(key, value);
        }
    }

    fn time(&mut self, key: &'static str, time: Duration, default: Duration) {
        if time != default {
            self.value(key, humantime::format_duration(time).to_string());
        }
    }
}

/// A feed that is to be created. Its id is one of its keys if it was given.
pub(super) fn new_feed(new: &NewFeed) -> Keys {
    let mut writer = Writer::default();
    writer.some("id", new.id.map(|id| i64::from(id.0)));
    writer.other("shards", i64::from(new.shards), 1);
    source(&mut writer, new.source.as_ref());
    writer.other("sweep_group", i64::from(new.sweep_group.0), 0);
    writer.other("start", new.start, changefeed::DEFAULT_START);
    writer.some("comment", new.comment.as_deref());
    writer.0
}

/// A feed that is there, as far as it can be compared with one that is wanted.
pub(super) fn feed(feed: &Feed, wanted: &NewFeed) -> Keys {
    let mut writer = Writer::default();
    if wanted.id.is_some() {
        writer.value("id", i64::from(feed.id.0));
    }
    let shards = i64::try_from(feed.shards.len()).unwrap_or(i64::MAX);
    writer.other("shards", shards, 1);
    // A feed that event triggers write to is defined without a source.
    let its = feed.source.as_ref().filter(|s| **s != Source::Events);
    source(&mut writer, its);
    let differs = feed
        .shards
        .iter()
        .find(|s| s.sweep_group != wanted.sweep_group);
    let group = differs.map_or(wanted.sweep_group, |s| s.sweep_group);
    writer.other("sweep_group", i64::from(group.0), 0);
    // What a feed began with is not known any more.
    writer.other("start", wanted.start, changefeed::DEFAULT_START);
    writer.some("comment", feed.comment.as_deref());
    writer.0
}

fn source(writer: &mut Writer, source: Option<&Source>) {
    match source {
        Some(Source::Captured { table, shard_by }) => {
            writer.value("from", table.to_string());
            writer.some("shard_by", shard_by.as_deref());
        }
        Some(Source::Joined {
            table,
            change_id_column,
            shard_by,
        }) => {
            writer.value("rows", table.to_string());
            writer.other("change_id_column", change_id_column.as_str(), "change_id");
            writer.some("shard_by", shard_by.as_deref());
        }
        Some(Source::Ulid {
            feed,
            table,
            shard_column,
            ulid_column,
        }) => {
            writer.value("ulid_feed", feed.to_string());
            writer.value("ulid_table", table.to_string());
            writer.value("shard_column", shard_column.as_str());
            writer.value("ulid_column", ulid_column.as_str());
        }
        Some(Source::Events) | None => {}
    }
}

/// An event trigger.
pub(super) fn trigger(definition: &TriggerDefinition) -> Keys {
    let (capture, delivery) = (&definition.capture, &definition.delivery);
    let mut writer = Writer::default();
    writer.value("table", definition.table.to_string());
    let everything = capture.insert && capture.update == Updates::Any && capture.delete;
    if !everything || capture.manual {
        writer.flag("insert", capture.insert);
        match &capture.update {
            Updates::Ignored => {}
            Updates::Any => writer.value("update", true),
            Updates::Of(columns) => writer.value("update", columns.clone()),
        }
        writer.flag("delete", capture.delete);
    }
    writer.flag("manual", capture.manual);
    writer.flag("not_for_replication", capture.not_for_replication);
    writer.some("payload", capture.payload.clone());
    writer.some("when", capture.condition.as_deref());
    match &delivery.webhook {
        Some(webhook) => writer.value("webhook", setting(webhook)),
        None => writer.value("in_process", true),
    }
    if !delivery.headers.is_empty() {
        let headers = delivery.headers.iter();
        let pair = |Header { name, value }: &Header| (name.clone(), setting(value));
        writer.value("header", Value::Table(headers.map(pair).collect()));
    }
    if !delivery.secrets_from_env.is_empty() {
        let variables = delivery.secrets_from_env.iter();
        let secrets: Vec<Value> = variables.map(|v| variable(v)).collect();
        writer.value("secret", secrets);
    }
    if delivery.format != changefeed::Format::default() {
        // As it is written where definitions are kept.
        let format = serde_json::to_value(delivery.format);
        writer.some("format", format.ok().as_ref().and_then(|f| f.as_str()));
    }
    let (retry, default) = (&delivery.retry, changefeed::Retry::default());
    writer.other("retries", i64::from(retry.num_retries), 0);
    writer.time("interval", retry.interval, default.interval);
    writer.time("timeout", retry.timeout, default.timeout);
    if let Growth::Exponential { cap } = retry.growth {
        writer.time("backoff", cap, Duration::MAX);
    }
    if !retry.final_statuses.is_empty() {
        let statuses: Vec<Value> = retry
            .final_statuses
            .iter()
            .map(|s| Value::Integer(i64::from(*s)))
            .collect();
        writer.value("final_status", statuses);
    }
    writer.time(
        "max_retry_after",
        retry.max_retry_after,
        default.max_retry_after,
    );
    writer.some("concurrency", delivery.concurrency.map(i64::from));
    let overall = delivery.concurrency_overall.map(i64::from);
    writer.some("concurrency_overall", overall);
    match &capture.order_by {
        None => {}
        Some(OrderBy::Key) => writer.value("in_order", true),
        Some(OrderBy::Column(column)) => writer.value("in_order", column.as_str()),
    }
    if let Some(binding) = &capture.feed {
        writer.value("feed", binding.feed.as_str());
        writer.some("shard_by", binding.shard_by.as_deref());
    }
    if let Some(clean_up) = &delivery.clean_up {
        writer.time("clean_up_after", clean_up.after, Duration::MAX);
        writer.flag("clean_up_dead_letters", clean_up.dead_letters);
    }
    writer.0
}

fn setting(setting: &Setting) -> Value {
    match setting {
        Setting::Value(text) => Value::String(text.clone()),
        Setting::FromEnv(name) => variable(name),
    }
}

fn variable(name: &str) -> Value {
    Value::Table(
        [("env".to_owned(), Value::String(name.to_owned()))]
            .into_iter()
            .collect(),
    )
}

/// A watch that is to be created: where it begins matters only now.
pub(super) fn new_watch(new: &WatchSpec, mut keys: Keys) -> Keys {
    if new.from == WatchFrom::Beginning {
        keys.push(("from", "beginning".into()));
    }
    keys
}

/// A watch and its table.
pub(super) fn watch(table: &str, definition: &WatchDefinition) -> Keys {
    let mut writer = Writer::default();
    writer.value("table", table);
    writer.some("exec", definition.exec.as_deref());
    let delivery = without_secrets(&delivery_to(definition.webhook.clone()));
    writer.some("webhook", delivery.webhook.as_ref().map(setting));
    writer.some("secret", definition.secret_env.as_deref().map(variable));
    let per_worker = definition.max_changes_per_worker.map(i64::from);
    writer.some("max_changes_per_worker", per_worker);
    writer.flag("with_version", definition.with_version);
    writer.flag("with_columns", definition.with_columns);
    let (settings, default) = (definition.settings(), changefeed::WatchSettings::default());
    let rows = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    writer.other("batch", rows(settings.batch), rows(default.batch));
    writer.time("interval", settings.interval, default.interval);
    writer.time("lease", settings.lease, default.lease);
    writer.time("renewal", settings.renewal, settings.lease / 4);
    writer.other(
        "attempts",
        i64::from(settings.attempts),
        i64::from(default.attempts),
    );
    writer.0
}
