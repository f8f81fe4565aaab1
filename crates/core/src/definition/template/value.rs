//! The values of templates: JSON as the database wrote it, which can be looked into.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use serde_json::value::RawValue;

use crate::Result;

/// What one filter may make.
const LONGEST: usize = 1024 * 1024;
/// How deep a template can look into a value; what is deeper is one piece.
const DEEPEST: usize = 64;

/// The values that a template is given.
#[derive(Debug, Clone, Default)]
pub struct TemplateValues(BTreeMap<String, Value>);

impl TemplateValues {
    /// Adds a value.
    #[must_use]
    pub fn and(mut self, name: &str, json: Option<&RawValue>) -> Self {
        let value = json.map_or(Value::from(()), |json| read(json.get(), 0));
        self.0.insert(name.to_owned(), value);
        self
    }

    /// Adds the members of a JSON object.
    #[must_use]
    pub fn and_members(mut self, object: &RawValue) -> Self {
        let members: Result<BTreeMap<String, Box<RawValue>>, _> =
            serde_json::from_str(object.get());
        for (name, json) in members.into_iter().flatten() {
            self = self.and(&name, Some(&*json));
        }
        self
    }

    pub(super) fn with(&self, name: &str, value: Value) -> Value {
        let mut all = self.0.clone();
        all.insert(name.to_owned(), value);
        Value::from(all)
    }
}

/// JSON that a template can look into and that is written as it was.
#[derive(Debug)]
struct Json {
    text: Box<str>,
    inside: Inside,
}

#[derive(Debug)]
enum Inside {
    Members(Vec<(String, Value)>),
    Elements(Vec<Value>),
    /// A number with more digits than can be calculated with, or something that is very deep.
    Nothing,
}

fn read(text: &str, depth: usize) -> Value {
    let text = text.trim();
    let json = |inside| {
        Value::from_object(Json {
            text: text.into(),
            inside,
        })
    };
    match text.as_bytes().first() {
        Some(b'{' | b'[') if depth >= DEEPEST => json(Inside::Nothing),
        Some(b'{') => match members(text) {
            Ok(members) => json(Inside::Members(
                members
                    .into_iter()
                    .map(|(name, value)| (name, read(value.get(), depth + 1)))
                    .collect(),
            )),
            Err(_) => json(Inside::Nothing),
        },
        Some(b'[') => match serde_json::from_str::<Vec<&RawValue>>(text) {
            Ok(elements) => json(Inside::Elements(
                elements
                    .into_iter()
                    .map(|value| read(value.get(), depth + 1))
                    .collect(),
            )),
            Err(_) => json(Inside::Nothing),
        },
        Some(b'"') => {
            serde_json::from_str::<String>(text).map_or(json(Inside::Nothing), Value::from)
        }
        Some(b't') => Value::from(true),
        Some(b'f') => Value::from(false),
        Some(b'n') | None => Value::from(()),
        Some(_) => number(text).unwrap_or_else(|| json(Inside::Nothing)),
    }
}

/// The members of an object in their order.
fn members(text: &str) -> serde_json::Result<Vec<(String, &RawValue)>> {
    struct Members;
    impl<'de> serde::de::Visitor<'de> for Members {
        type Value = Vec<(String, &'de RawValue)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(
            self,
            mut map: A,
        ) -> Result<Self::Value, A::Error> {
            let mut all = Vec::new();
            while let Some(entry) = map.next_entry()? {
                all.push(entry);
            }
            Ok(all)
        }
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    serde::Deserializer::deserialize_map(&mut deserializer, Members)
}

/// A number that can be calculated with without losing a digit.
fn number(text: &str) -> Option<Value> {
    if let Ok(whole) = text.parse::<i64>() {
        return Some(Value::from(whole));
    }
    if let Ok(whole) = text.parse::<u64>() {
        return Some(Value::from(whole));
    }
    if text.contains(['e', 'E']) || !text.contains('.') {
        return None;
    }
    let float: f64 = text.parse().ok()?;
    let same = text.trim_end_matches('0').trim_end_matches('.');
    (float.to_string() == same).then(|| Value::from(float))
}

impl Object for Json {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        match self.inside {
            Inside::Members(_) => ObjectRepr::Map,
            Inside::Elements(_) => ObjectRepr::Seq,
            Inside::Nothing => ObjectRepr::Plain,
        }
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match &self.inside {
            Inside::Members(members) => {
                let key = key.as_str()?;
                let (_, value) = members.iter().rev().find(|(name, _)| name == key)?;
                Some(value.clone())
            }
            Inside::Elements(elements) => elements.get(key.as_usize()?).cloned(),
            Inside::Nothing => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        match &self.inside {
            Inside::Members(members) => Enumerator::Values(
                members
                    .iter()
                    .map(|(name, _)| Value::from(name.as_str()))
                    .collect(),
            ),
            Inside::Elements(elements) => Enumerator::Seq(elements.len()),
            Inside::Nothing => Enumerator::NonEnumerable,
        }
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A value as text: a string without its quotes, nothing for null.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::None => Ok(String::new()),
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        _ => json(value),
    }
}

/// A value as JSON.
pub(super) fn json(value: &Value) -> Result<String, Error> {
    let mut written = String::new();
    write_json(value, &mut written, 0)?;
    Ok(written)
}

fn write_json(value: &Value, to: &mut String, depth: usize) -> Result<(), Error> {
    if let Some(json) = value.downcast_object_ref::<Json>() {
        to.push_str(&json.text);
        return bounded(to);
    }
    let unfit = || Error::new(ErrorKind::InvalidOperation, "the value is not JSON");
    match value.kind() {
        ValueKind::None => to.push_str("null"),
        ValueKind::Bool | ValueKind::Number => to.push_str(&value.to_string()),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            to.push_str(&serde_json::Value::from(text).to_string());
        }
        ValueKind::Seq | ValueKind::Iterable if depth < DEEPEST => {
            to.push('[');
            for (nth, element) in value.try_iter()?.enumerate() {
                if nth > 0 {
                    to.push(',');
                }
                write_json(&element, to, depth + 1)?;
            }
            to.push(']');
        }
        ValueKind::Map if depth < DEEPEST => {
            to.push('{');
            for (nth, key) in value.try_iter()?.enumerate() {
                if nth > 0 {
                    to.push(',');
                }
                let name = key.as_str().ok_or_else(unfit)?;
                to.push_str(&serde_json::Value::from(name).to_string());
                to.push(':');
                write_json(&value.get_item(&key)?, to, depth + 1)?;
            }
            to.push('}');
        }
        _ => return Err(unfit()),
    }
    bounded(to)
}

fn bounded(text: &str) -> Result<(), Error> {
    match text.len() > LONGEST {
        true => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a value has more than {LONGEST} bytes"),
        )),
        false => Ok(()),
    }
}

/// `list | join(", ")`
pub(super) fn join(list: &Value, between: Option<&str>) -> Result<String, Error> {
    let mut joined = String::new();
    for (nth, element) in list.try_iter()?.enumerate() {
        if nth > 0 {
            joined.push_str(between.unwrap_or_default());
        }
        joined.push_str(&text(&element)?);
        bounded(&joined)?;
    }
    Ok(joined)
}

/// `text | truncate(100)`: the first characters.
pub(super) fn truncate(value: &Value, characters: usize) -> Result<String, Error> {
    Ok(text(value)?.chars().take(characters).collect())
}

/// `value | tojson`: JSON as a text, for a receiver that wants it within a string.
pub(super) fn to_json(value: &Value) -> Result<String, Error> {
    json(value)
}

/// `value | urlencode`
pub(super) fn url_encode(value: &Value) -> Result<String, Error> {
    let encoded = percent_encoded(&text(value)?);
    bounded(&encoded)?;
    Ok(encoded)
}

/// A text as a part of a path or a parameter: everything but letters, digits and `-._~` is encoded.
pub(super) fn percent_encoded(text: &str) -> String {
    use fmt::Write;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => {
                // Writing to a string does not fail.
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}
