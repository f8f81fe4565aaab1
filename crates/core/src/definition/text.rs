//! How parts of definitions are written.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// A definition as an object: what everything is read from and written to.
pub(super) type Object = Map<String, Value>;

/// Reads a definition and the sink that is written among its keys. Each refuses keys that it does not
/// know, and serde can do that only for an object of its own.
pub(super) fn read<T: DeserializeOwned, S: DeserializeOwned>(
    mut object: Object,
    sink: &[&str],
) -> Result<(T, S), serde_json::Error> {
    let mut apart = Object::new();
    for key in sink {
        if let Some(value) = object.remove(*key) {
            apart.insert((*key).to_owned(), value);
        }
    }
    let sink = serde_json::from_value(Value::Object(apart))?;
    Ok((serde_json::from_value(Value::Object(object))?, sink))
}

/// Writes both into one object.
pub(super) fn write(definition: impl Serialize, sink: impl Serialize) -> Object {
    let object = |value: serde_json::Result<Value>| match value {
        Ok(Value::Object(object)) => object,
        _ => Object::new(),
    };
    let mut all = object(serde_json::to_value(definition));
    all.extend(object(serde_json::to_value(sink)));
    all
}

/// The schema of an object that has the keys of both.
#[cfg(feature = "openapi")]
pub(crate) fn merged_schema<A: utoipa::PartialSchema, B: utoipa::PartialSchema>()
-> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
    use utoipa::openapi::{RefOr, Schema};
    let mut schema = A::schema();
    if let (RefOr::T(Schema::Object(all)), RefOr::T(Schema::Object(more))) =
        (&mut schema, B::schema())
    {
        all.properties.extend(more.properties);
        all.required.extend(more.required);
    }
    schema
}

/// The same as part of an answer: with keys that may be absent, and with more keys.
#[cfg(feature = "openapi")]
pub(crate) fn optional(
    mut schema: utoipa::openapi::RefOr<utoipa::openapi::Schema>,
) -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
    use utoipa::openapi::{RefOr, Schema};
    if let RefOr::T(Schema::Object(object)) = &mut schema {
        object.required.clear();
        object.additional_properties = None;
    }
    schema
}

/// The same without other keys.
#[cfg(feature = "openapi")]
pub(super) fn closed(
    mut schema: utoipa::openapi::RefOr<utoipa::openapi::Schema>,
) -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
    use utoipa::openapi::schema::AdditionalProperties;
    use utoipa::openapi::{RefOr, Schema};
    if let RefOr::T(Schema::Object(object)) = &mut schema {
        object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
    }
    schema
}

#[cfg(feature = "openapi")]
pub(crate) type Schemas = Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::Schema>)>;

/// A duration with its unit: `10s`, `1h 30m`. Whole days stay days: a month has no length.
pub fn format_span(span: Duration) -> String {
    const DAY: u64 = 24 * 60 * 60;
    match span.as_secs() {
        seconds if seconds > DAY && seconds.is_multiple_of(DAY) && span.subsec_nanos() == 0 => {
            format!("{}days", seconds / DAY)
        }
        _ => humantime::format_duration(span).to_string(),
    }
}

/// Reads a duration, the same way on the command line, in files and over HTTP: a number with its unit, or a number of
/// seconds.
pub fn parse_span(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!(
            "'{text}' is not a duration: use a number with a unit, like 500ms, 2s or 7d; a number alone is seconds"
        )
    };
    match text.trim().parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|_| wrong()),
        Err(_) => humantime::parse_duration(text).map_err(|_| wrong()),
    }
}

/// A duration as a text: see [`format_span`].
pub(super) mod span {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        span: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_span(*span))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_span(&text).map_err(serde::de::Error::custom)
    }
}

/// The same where there may be none.
pub(super) mod optional_span {
    use super::*;

    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    struct Span(#[serde(with = "super::span")] Duration);

    pub(crate) fn serialize<S: Serializer>(
        span: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        span.map(Span).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Span>::deserialize(deserializer)?.map(|span| span.0))
    }
}

/// Whether, or which: `true`, `false`, or something that says more.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Choice<T> {
    Whether(bool),
    Which(T),
}

impl<T> Default for Choice<T> {
    fn default() -> Self {
        Choice::Whether(false)
    }
}
