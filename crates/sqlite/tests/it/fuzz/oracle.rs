//! What the table says, against what was captured.

use std::collections::BTreeMap;

use changefeed_core::{ShardValue, shard_of};
use changefeed_sqlite::rusqlite::Connection;
use serde_json::Value;

use super::chance::Schema;

pub(crate) struct Oracle<'a> {
    pub(crate) app: &'a Connection,
    pub(crate) schema: &'a Schema,
    pub(crate) feed: i16,
    pub(crate) shards: i16,
    pub(crate) log: String,
}

/// The database after a statement.
pub(crate) struct Look {
    /// The rows by their keys.
    table: BTreeMap<String, Value>,
    /// How many changes each shard had, and how many keys were noted.
    changes: i64,
    noted: i64,
}

impl Oracle<'_> {
    pub(crate) fn look(&self) -> Look {
        let object: Vec<String> = self
            .schema
            .columns
            .iter()
            .map(|column| format!("'{column}', {column}"))
            .collect();
        let sql = format!("select json_object({}) from t", object.join(", "));
        let rows = self.texts(&sql);
        let one = |sql: &str| self.app.query_row(sql, [], |row| row.get(0)).unwrap();
        Look {
            table: rows
                .iter()
                .map(|row| {
                    let row: Value = serde_json::from_str(row).unwrap();
                    (self.key(&row), row)
                })
                .collect(),
            changes: one("select coalesce(max(change_id), 0) from changefeed_numbered"),
            noted: one(&format!("select coalesce(max(seq), 0) from {}", self.log)),
        }
    }

    pub(crate) fn check(&self, before: &Look, after: &Look, undone: bool) -> Result<(), String> {
        self.replayed(after)?;
        if undone {
            return Ok(());
        }
        self.published(before, after)?;
        self.noted(before, after)
    }

    fn texts(&self, sql: &str) -> Vec<String> {
        let mut statement = self.app.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get(0)).unwrap();
        rows.map(Result::unwrap).collect()
    }

    fn key(&self, row: &Value) -> String {
        let key: Vec<&Value> = self.schema.key.iter().map(|c| &row[*c]).collect();
        let key = serde_json::to_string(&key).unwrap();
        if self.schema.nocase {
            key.to_lowercase()
        } else {
            key
        }
    }

    /// The events in their order are the history of the table.
    fn replayed(&self, after: &Look) -> Result<(), String> {
        let mut model: BTreeMap<String, Value> = BTreeMap::new();
        let events = self.texts(
            "select json_array(op, json(old), json(new)) from changefeed_event order by change_id",
        );
        for event in &events {
            let parsed: Value = serde_json::from_str(event).unwrap();
            let (op, old, new) = (&parsed[0], &parsed[1], &parsed[2]);
            if !old.is_null() {
                let was = model.remove(&self.key(old));
                if was.as_ref() != Some(old) {
                    return Err(format!("{op} {event}, but the row was {was:?}"));
                }
            }
            if !new.is_null() {
                let was = model.insert(self.key(new), new.clone());
                if was.is_some() {
                    return Err(format!("{op} {event}, but there was {was:?}"));
                }
            }
        }
        if model == after.table {
            return Ok(());
        }
        Err(format!(
            "the events say {model:?}, the table {:?}; they are\n{}",
            after.table,
            events.join("\n")
        ))
    }

    fn shard(&self, row: &Value) -> i16 {
        if self.shards == 1 {
            return 0;
        }
        match &row["a"] {
            Value::Null => 0,
            Value::Number(n) => shard_of(ShardValue::Integer(n.as_i64().unwrap()), self.shards),
            other => shard_of(ShardValue::Text(other.as_str().unwrap()), self.shards),
        }
    }

    /// Every row that came, went or changed has a change at both of its places.
    fn published(&self, before: &Look, after: &Look) -> Result<(), String> {
        let keys: Vec<String> = (1..=self.schema.key.len())
            .map(|n| format!("key{n}"))
            .collect();
        let places = self.texts(&format!(
            "select shard || ' ' || json_array({}) from changefeed_numbered \
             where feed_id = {} and change_id > {}",
            keys.join(", "),
            self.feed,
            before.changes
        ));
        let found = |row: &Value| {
            let place = format!("{} {}", self.shard(row), self.key(row));
            places.iter().any(|p| match self.schema.nocase {
                true => p.to_lowercase() == place,
                false => *p == place,
            })
        };
        for (key, row) in &before.table {
            let now = after.table.get(key);
            if now != Some(row) && !found(row) {
                return Err(format!(
                    "{row} became {now:?}, but its place has only {places:?}"
                ));
            }
        }
        for (key, row) in &after.table {
            if before.table.get(key) != Some(row) && !found(row) {
                return Err(format!("{row} is new, but its place has only {places:?}"));
            }
        }
        Ok(())
    }

    /// The noted keys say what was and what is.
    fn noted(&self, before: &Look, after: &Look) -> Result<(), String> {
        let keys: Vec<String> = (1..=self.schema.key.len())
            .map(|n| format!("key{n}"))
            .collect();
        let log = self.texts(&format!(
            "select json_array(op, json_array({})) from {} where seq > {} order by seq",
            keys.join(", "),
            self.log,
            before.noted
        ));
        let mut net: BTreeMap<String, (i64, i64)> = BTreeMap::new();
        for line in &log {
            let line: Value = serde_json::from_str(line).unwrap();
            let op = line[0].as_i64().unwrap();
            let key = serde_json::to_string(&line[1]).unwrap();
            let key = if self.schema.nocase {
                key.to_lowercase()
            } else {
                key
            };
            net.entry(key).or_insert((op, op)).1 = op;
        }
        for key in before.table.keys().chain(after.table.keys()) {
            if before.table.get(key) != after.table.get(key) && !net.contains_key(key) {
                return Err(format!("{key} changed, but only {log:?} was noted"));
            }
        }
        for (key, (first, last)) in &net {
            let (was, is) = (
                before.table.contains_key(key),
                after.table.contains_key(key),
            );
            if was == (*first == 0) || is == (*last == 2) {
                return Err(format!(
                    "{key} was {was} and is {is}, but noted were {log:?}"
                ));
            }
        }
        Ok(())
    }
}
