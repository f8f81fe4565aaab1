//! What a change looks like as a message, and where the message says which change it is.

use std::fmt::Write;
use std::time::SystemTime;

use bytes::Bytes;
use changefeed_core::{
    Change, Content, Cursor, Feed, Op, Result, SubscriptionDefinition, SubscriptionFormat, fill,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::destination::{Lane, Message};

/// Makes messages of the changes of a feed.
#[derive(Debug, Clone)]
pub struct Dress {
    format: SubscriptionFormat,
    subject: Option<String>,
    key: Option<String>,
    schema: Option<String>,
    table: String,
}

impl Dress {
    /// For the messages of a subscription.
    pub fn new(definition: &SubscriptionDefinition, feed: &Feed) -> Self {
        let table = feed.source.as_ref().and_then(|source| source.table());
        Dress {
            format: definition.format,
            subject: definition.subject.clone(),
            key: definition.key.clone(),
            schema: table.and_then(|table| table.schema.clone()),
            table: table.map_or_else(|| feed.name.to_string(), |table| table.name.clone()),
        }
    }

    /// One message.
    pub fn message(&self, lane: &Lane, change: &Change) -> Result<Message> {
        let row_key = row_key(change);
        let key = match &self.key {
            Some(template) => self.filled(template, lane, change, &row_key)?,
            None if row_key.is_empty() => lane.shard.to_string(),
            None => row_key.clone(),
        };
        let subject = self.subject.as_deref();
        let subject = subject.map(|template| self.filled(template, lane, change, &row_key));
        let id = id(lane, change.cursor);
        let (headers, body) = match self.format {
            SubscriptionFormat::Json => (Vec::new(), json(lane, change)),
            SubscriptionFormat::Cloudevents => {
                let mut body = String::from("{");
                for (name, value) in attributes(lane, change, &id, &key) {
                    let _ = write!(body, "{}:{},", quoted(name), quoted(&value));
                }
                let data = json(lane, change);
                let _ = write!(
                    body,
                    "\"datacontenttype\":\"application/json\",\"data\":{data}}}"
                );
                (Vec::new(), body)
            }
            SubscriptionFormat::CloudeventsBinary => {
                let header = |(name, value)| (format!("ce-{name}"), value);
                let attributes = attributes(lane, change, &id, &key);
                (
                    attributes.into_iter().map(header).collect(),
                    json(lane, change),
                )
            }
            SubscriptionFormat::Debezium => (Vec::new(), self.debezium(lane, change)),
        };
        Ok(Message {
            cursor: change.cursor,
            id,
            key,
            subject: subject.transpose()?,
            headers,
            body: Bytes::from(body),
        })
    }

    fn filled(&self, template: &str, lane: &Lane, change: &Change, key: &str) -> Result<String> {
        fill(
            template,
            &[
                ("feed", lane.feed.as_str()),
                ("shard", &lane.shard.to_string()),
                ("op", change.op.map_or("change", Op::as_str)),
                ("key", key),
                ("table", &self.table),
                ("subscription", &lane.subscription),
            ],
        )
    }

    /// `ts_ms` is when the message was made. `source.ts_ms` is when the change was made, where the feed knows that:
    /// a ULID has its time; a number has none, and the key is then absent.
    fn debezium(&self, lane: &Lane, change: &Change) -> String {
        let (before, after) = match &change.content {
            Content::Images { old, new } => (old.as_deref(), new.as_deref()),
            other => (None, other.row()),
        };
        let op = match change.op {
            Some(Op::Insert) => "c",
            Some(Op::Delete) => "d",
            Some(Op::Backfill) => "r",
            Some(Op::Truncate) => "t",
            // Published by the application: the row is as it is now.
            Some(Op::Update) | None => "u",
            Some(_) => "m",
        };
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| since.as_millis());
        let mut body = String::from("{\"before\":");
        raw(&mut body, before);
        body.push_str(",\"after\":");
        raw(&mut body, after);
        let _ = write!(
            body,
            ",\"op\":\"{op}\",\"ts_ms\":{now},\"source\":{{\"version\":\"{}\",\"connector\":\"changefeed\",\
             \"name\":{},\"snapshot\":\"{}\",\"schema\":{},\"table\":{},\"feed\":{},\"shard\":{},\"epoch\":{},\
             \"cursor\":\"{}\"",
            env!("CARGO_PKG_VERSION"),
            quoted(&lane.subscription),
            change.op == Some(Op::Backfill),
            self.schema
                .as_deref()
                .map_or_else(|| "null".to_owned(), quoted),
            quoted(&self.table),
            quoted(lane.feed.as_str()),
            lane.shard,
            lane.epoch,
            change.cursor,
        );
        if let Cursor::Ulid(ulid) = change.cursor {
            let _ = write!(body, ",\"ts_ms\":{}", ulid.time());
        }
        if let Some(change_id) = change.change_id {
            let _ = write!(body, ",\"change_id\":\"{change_id}\"");
        }
        body.push_str("}}");
        body
    }
}

/// What receivers know a message by: the same for every attempt, another after a replay.
fn id(lane: &Lane, cursor: Cursor) -> String {
    let (subscription, shard, epoch) = (&lane.subscription, lane.shard, lane.epoch);
    format!("{subscription}/{shard}/{epoch}/{cursor}")
}

fn json(lane: &Lane, change: &Change) -> String {
    let (shard, epoch) = (lane.shard, lane.epoch);
    let mut text = format!("{{\"feed\":\"{}\",\"shard\":{shard},", lane.feed);
    if epoch > 0 {
        let _ = write!(text, "\"epoch\":{epoch},");
    }
    change.write_json(&mut text);
    text.push('}');
    text
}

fn attributes(lane: &Lane, change: &Change, id: &str, key: &str) -> Vec<(&'static str, String)> {
    let op = change.op.map_or("change", Op::as_str);
    let mut attributes = vec![
        ("specversion", "1.0".to_owned()),
        ("id", id.to_owned()),
        ("source", format!("/feeds/{}/{}", lane.feed, lane.shard)),
        ("type", format!("changefeed.{op}")),
        ("subject", key.to_owned()),
        ("partitionkey", key.to_owned()),
    ];
    if let Cursor::Ulid(ulid) = change.cursor {
        let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(ulid.time());
        let time = humantime::format_rfc3339_millis(time).to_string();
        attributes.push(("time", time));
    }
    attributes
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// JSON as it is, on one line.
fn raw(text: &mut String, json: Option<&RawValue>) {
    match json {
        None => text.push_str("null"),
        Some(json) => text.extend(json.get().chars().filter(|c| !matches!(c, '\n' | '\r'))),
    }
}

/// The key of the row: the value itself if it is one column.
fn row_key(change: &Change) -> String {
    let Some(key) = &change.key else {
        return String::new();
    };
    let columns: std::result::Result<serde_json::Map<String, serde_json::Value>, _> =
        serde_json::from_str(key.get());
    match columns {
        Ok(columns) if columns.len() == 1 => match columns.into_iter().next() {
            Some((_, serde_json::Value::String(text))) => text,
            Some((_, value)) => value.to_string(),
            None => String::new(),
        },
        _ => key.get().to_owned(),
    }
}

/// Which change a message is about, in whichever of our formats: its epoch and its cursor.
pub fn place_of(message: &[u8]) -> Option<(u32, Cursor)> {
    #[derive(Deserialize)]
    struct Place {
        id: Option<String>,
        #[serde(default)]
        epoch: u32,
        cursor: Option<String>,
        source: Option<serde_json::Value>,
    }
    let place: Place = serde_json::from_slice(message).ok()?;
    if let Some(cursor) = place.cursor {
        return Some((place.epoch, cursor.parse().ok()?));
    }
    if let Some(serde_json::Value::Object(source)) = &place.source {
        let cursor = source.get("cursor")?.as_str()?.parse().ok()?;
        let epoch = u32::try_from(source.get("epoch")?.as_u64()?).ok()?;
        return Some((epoch, cursor));
    }
    let id = place.id?;
    let mut parts = id.rsplit('/');
    let cursor = parts.next()?.parse().ok()?;
    Some((parts.next()?.parse().ok()?, cursor))
}

#[cfg(test)]
mod tests {
    use changefeed_core::{FeedId, FeedName, ShardId, Sink, raw_json};

    use super::*;

    fn feed() -> Feed {
        Feed {
            id: FeedId(1),
            name: "orders".parse().unwrap(),
            comment: None,
            shards: Vec::new(),
            source: None,
            retention: None,
        }
    }

    fn lane(epoch: u32) -> Lane {
        Lane {
            subscription: "out".to_owned(),
            feed: "orders".parse::<FeedName>().unwrap(),
            shard: ShardId(3),
            epoch,
        }
    }

    fn change() -> Change {
        let row = |text: &str| Some(raw_json(text.to_owned()).unwrap());
        Change {
            cursor: Cursor::Number(2_000_000_000_000_007),
            change_id: Some(9),
            op: Some(Op::Update),
            key: row("{\"id\":7}"),
            content: Content::Images {
                old: row("{\"id\":7,\n\"a\":1}"),
                new: row("{\"id\":7,\"a\":2}"),
            },
        }
    }

    fn message(format: SubscriptionFormat, epoch: u32) -> Message {
        let mut definition = SubscriptionDefinition::new(
            "out".parse().unwrap(),
            "orders".parse().unwrap(),
            Sink::Stdout,
        );
        definition.format = format;
        definition.subject = Some("shop.{feed}.{op}.{key}".to_owned());
        let dress = Dress::new(&definition, &feed());
        dress.message(&lane(epoch), &change()).unwrap()
    }

    #[test]
    fn every_format_tells_its_place_and_is_one_line_of_json() {
        for format in SubscriptionFormat::ALL {
            for epoch in [0, 2] {
                let message = message(format, epoch);
                assert_eq!(
                    place_of(&message.body),
                    Some((epoch, message.cursor)),
                    "{format}: {message:?}"
                );
                assert!(!message.body.contains(&b'\n'), "{format}");
                assert_eq!(message.id, format!("out/3/{epoch}/2000000000000007"));
                assert_eq!(message.key, "7");
                assert_eq!(message.subject.as_deref(), Some("shop.orders.update.7"));
            }
        }
    }

    #[test]
    fn the_envelope_of_debezium_has_both_rows() {
        let body: serde_json::Value =
            serde_json::from_slice(&message(SubscriptionFormat::Debezium, 0).body).unwrap();
        assert_eq!(body["before"]["a"], 1);
        assert_eq!(body["after"]["a"], 2);
        assert_eq!(body["op"], "u");
        assert!(body["ts_ms"].as_u64().unwrap() > 1_700_000_000_000);
        assert_eq!(body["source"]["table"], "orders");
    }

    #[test]
    fn the_attributes_of_a_cloud_event_are_there() {
        let whole: serde_json::Value =
            serde_json::from_slice(&message(SubscriptionFormat::Cloudevents, 0).body).unwrap();
        assert_eq!(whole["specversion"], "1.0");
        assert_eq!(whole["type"], "changefeed.update");
        assert_eq!(whole["data"]["key"]["id"], 7);
        let binary = message(SubscriptionFormat::CloudeventsBinary, 0);
        let id = binary.headers.iter().find(|(name, _)| name == "ce-id");
        assert_eq!(id.unwrap().1, binary.id);
    }
}
