//! Definitions in the words of the file, for plans.

use changefeed::{
    Capture, Delivery, Feed, NewFeed, OnRefusal, Retention, Sink, Source, SubscriptionDefinition,
    TableName, TriggerDefinition, Updates, WatchDefinition, WatchFrom, WatchSpec, format_span,
    without_secrets,
};
use serde::Serialize;
use toml::Value;

use crate::config::EXAMPLE;

/// The keys that a definition has, but for those with their defaults, in the order of the reference.
pub(super) type Keys = Vec<(String, Value)>;

/// What is different about a key.
#[derive(Debug, Serialize)]
pub(super) struct Difference {
    pub(super) key: String,
    pub(super) from: Option<Value>,
    pub(super) to: Option<Value>,
}

/// What is different between two definitions.
pub(super) fn differences(from: &Keys, to: &Keys) -> Vec<Difference> {
    let value = |keys: &Keys, key: &str| {
        let found = keys.iter().find(|(k, _)| *k == key);
        found.map(|(_, value)| value.clone())
    };
    let mut keys: Vec<&String> = to.iter().map(|(key, _)| key).collect();
    keys.extend(from.iter().map(|(key, _)| key).filter(|key| {
        let new = |(k, _): &(String, Value)| k == *key;
        !to.iter().any(new)
    }));
    keys.into_iter()
        .filter_map(|key| {
            let (from, to) = (value(from, key), value(to, key));
            let key = key.clone();
            (from != to).then_some(Difference { key, from, to })
        })
        .collect()
}

/// Writes keys down.
#[derive(Default)]
struct Writer(Keys);

impl Writer {
    fn value(&mut self, key: &'static str, value: impl Into<Value>) {
        self.0.push((key.to_owned(), value.into()));
    }

    fn some(&mut self, key: &'static str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.value(key, value);
        }
    }

    fn other<T: PartialEq + Into<Value>>(&mut self, key: &'static str, value: T, default: T) {
        if value != default {
            self.value(key, value);
        }
    }
}

/// A feed that is to be created. Its id is one of its keys if it was given.
pub(super) fn new_feed(new: &NewFeed) -> Keys {
    let mut writer = Writer::default();
    writer.some("id", new.id.map(|id| i64::from(id.0)));
    writer.other("shards", i64::from(new.shards), 1);
    source(&mut writer, new.source.as_ref());
    retention(&mut writer, new.retention.as_ref());
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
    let shards = i64::try_from(feed.open_shards().count()).unwrap_or(i64::MAX);
    writer.other("shards", shards, 1);
    // A feed that event triggers write to is defined without a source.
    let its = feed.source.as_ref().filter(|s| **s != Source::Events);
    source(&mut writer, its);
    retention(&mut writer, feed.retention.as_ref());
    let differs = feed
        .open_shards()
        .find(|s| s.sweep_group != wanted.sweep_group);
    let group = differs.map_or(wanted.sweep_group, |s| s.sweep_group);
    writer.other("sweep_group", i64::from(group.0), 0);
    // What a feed began with is not known any more.
    writer.other("start", wanted.start, changefeed::DEFAULT_START);
    writer.some("comment", feed.comment.as_deref());
    writer.0
}

fn retention(writer: &mut Writer, retention: Option<&Retention>) {
    let text = format_span;
    writer.some("trim_after", retention.map(|r| text(r.trim_after)));
    let unread = retention.and_then(|r| r.trim_unread_after);
    writer.some("trim_unread_after", unread.map(text));
}

fn source(writer: &mut Writer, source: Option<&Source>) {
    match source {
        Some(Source::Captured {
            table,
            shard_by,
            images,
            when,
            columns,
        }) => {
            writer.value("from", table.to_string());
            writer.some("shard_by", shard_by.as_deref());
            writer.other("images", *images, false);
            writer.some("when", when.as_deref());
            writer.some("columns", columns.clone());
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

/// An event trigger, without its secrets.
pub(super) fn trigger(definition: &TriggerDefinition) -> Keys {
    let mut shown = definition.clone();
    shown.delivery.sink = without_secrets(&shown.delivery.sink);
    let plain = TriggerDefinition {
        name: shown.name.clone(),
        table: shown.table.clone(),
        capture: Capture::default(),
        delivery: Delivery::default(),
    };
    let capture = &shown.capture;
    let everything = capture.insert && capture.update == Updates::Any && capture.delete;
    let mut keys = object(&shown);
    if everything && !capture.manual {
        for key in ["insert", "update", "delete"] {
            keys.remove(key);
        }
    }
    written(keys, &object(&plain), &shown.table)
}

/// A watch and its table, without its secrets. One that a program of its own runs has only a table.
pub(super) fn watch(table: &TableName, definition: Option<&WatchDefinition>) -> Keys {
    let Some(definition) = definition else {
        return written(Object::new(), &Object::new(), table);
    };
    let mut shown = definition.clone();
    shown.sink = without_secrets(&shown.sink);
    let mut keys = object(&shown);
    if shown.settings.renewal == shown.settings.lease / 4 {
        keys.remove("renewal");
    }
    let plain = WatchDefinition::new(Sink::InProcess);
    written(keys, &object(&plain), table)
}

/// A watch that is to be created: where it begins matters only now.
pub(super) fn new_watch(new: &WatchSpec, mut keys: Keys) -> Keys {
    if new.from == WatchFrom::Beginning {
        keys.push(("from".to_owned(), "beginning".into()));
    }
    keys
}

/// A subscription, without its secrets. Where it begins matters only when it is created.
pub(super) fn subscription(definition: &SubscriptionDefinition, new: bool) -> Keys {
    let mut shown = definition.clone();
    shown.sink = without_secrets(&shown.sink).without_password();
    if let OnRefusal::DeadLetter(sink) = &mut shown.on_refusal {
        *sink = sink.without_password();
    }
    let plain = SubscriptionDefinition::new(shown.name.clone(), shown.feed.clone(), Sink::Stdout);
    let (mut keys, mut plain) = (object(&shown), object(&plain));
    if !new {
        keys.remove("from");
    }
    for key in ["feed", "to"] {
        plain.remove(key);
    }
    // Variables that may be named are no key of the file.
    keys.remove("granted_env");
    let reference = EXAMPLE.find("\n#[subscriptions.").unwrap_or(0);
    ordered(keys, &plain, &EXAMPLE[reference..])
}

type Object = serde_json::Map<String, serde_json::Value>;

/// A definition in its one form.
fn object(definition: &impl Serialize) -> Object {
    match serde_json::to_value(definition) {
        Ok(serde_json::Value::Object(object)) => object,
        _ => Object::new(),
    }
}

/// The keys that do not have their defaults, in the order of the reference.
fn written(keys: Object, plain: &Object, table: &TableName) -> Keys {
    // Triggers and watches come last there, and share the keys of a sink; those of feeds mean something else.
    let reference = EXAMPLE
        .find("\n#[triggers.")
        .map_or(EXAMPLE, |at| &EXAMPLE[at..]);
    let mut all = ordered(keys, plain, reference);
    all.insert(0, ("table".to_owned(), Value::String(table.to_string())));
    all
}

fn ordered(keys: Object, plain: &Object, reference: &str) -> Keys {
    let mut all: Keys = keys
        .into_iter()
        .filter(|(key, value)| {
            // Where it goes has no default, and a name is none of its keys.
            let always = key == "in_process";
            !matches!(key.as_str(), "name" | "table") && (always || plain.get(key) != Some(value))
        })
        .filter_map(|(key, value)| Some((key, Value::try_from(value).ok()?)))
        .collect();
    all.sort_by_key(|(key, _)| reference.find(&format!("\n#{key} =")));
    all
}
