//! CloudEvents 1.0, with everything in the body (structured) or with the attributes in headers
//! (binary).
//!
//! | attribute | value |
//! |---|---|
//! | `id` | the event's id, the same for every attempt |
//! | `source` | `/changefeed/SCHEMA/TABLE`, or `/changefeed/TABLE` where tables have no schema |
//! | `type` | `changefeed.row.inserted`, `.updated`, `.deleted`; `changefeed.manual` |
//! | `subject` | the trigger's name |
//! | `time` | when the change was captured |
//! | `sequence` | the change's place in the order of all changes, as 19 digits that sort as text |
//! | `traceparent`, `tracestate` | the writer's trace, if it named a valid one |
//!
//! `data` is `{"op", "old", "new", "session_variables", "trigger": {"name"}, "table": {"schema",
//! "name"}}`. It does not say which attempt this is: by the standard, two events with the same
//! source and id are the same event. The envelope is written here because the SDK would read the
//! rows as numbers and lose digits.

use std::borrow::Cow;
use std::fmt::Write;

use changefeed_core::{Error, Event, EventId, Operation, Result, TableName};
use http::{HeaderName, HeaderValue};
use serde::Serialize;
use serde_json::value::RawValue;

use super::body::Table;
use super::to_raw;
use super::trace::Trace;

/// `Content-Type` of structured events.
pub(super) const STRUCTURED: HeaderValue = HeaderValue::from_static("application/cloudevents+json");

const JSON: &str = "application/json";

#[derive(Serialize)]
struct Envelope<'a> {
    specversion: &'static str,
    id: EventId,
    source: &'a str,
    r#type: &'static str,
    subject: &'a str,
    time: &'a str,
    datacontenttype: &'static str,
    sequence: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tracestate: Option<&'a str>,
    data: Data<'a>,
}

#[derive(Serialize)]
struct Data<'a> {
    op: Operation,
    old: Option<&'a RawValue>,
    new: Option<&'a RawValue>,
    session_variables: Option<&'a RawValue>,
    trigger: Trigger<'a>,
    table: Table<'a>,
}

#[derive(Serialize)]
struct Trigger<'a> {
    name: &'a str,
}

/// Writes an event with everything in its body.
pub(super) fn structured(event: &Event, trace: Option<&Trace>) -> Result<Box<RawValue>> {
    to_raw(&Envelope {
        specversion: "1.0",
        id: event.id,
        source: &source(&event.table),
        r#type: kind(event.op),
        subject: event.trigger.as_str(),
        time: &event.created_at,
        datacontenttype: JSON,
        sequence: &sequence(event),
        traceparent: trace.map(|t| t.traceparent.as_str()),
        tracestate: trace.and_then(|t| t.tracestate.as_deref()),
        data: data(event),
    })
}

/// The body and the headers of an event whose attributes are in headers.
pub(super) type Binary = (Box<RawValue>, Vec<(HeaderName, HeaderValue)>);

/// Writes an event with its attributes in headers.
pub(super) fn binary(event: &Event, trace: Option<&Trace>) -> Result<Binary> {
    let id = event.id.to_string();
    let mut headers = Vec::with_capacity(9);
    let mut add = |name: &'static str, value: &str| {
        let encoded = encode(value);
        let value = HeaderValue::from_str(&encoded)
            .map_err(|e| Error::invalid(format!("{name} cannot be a header")).caused_by(e))?;
        headers.push((HeaderName::from_static(name), value));
        Ok::<(), Error>(())
    };
    add("ce-specversion", "1.0")?;
    add("ce-id", &id)?;
    add("ce-source", &source(&event.table))?;
    add("ce-type", kind(event.op))?;
    add("ce-subject", event.trigger.as_str())?;
    add("ce-time", &event.created_at)?;
    add("ce-sequence", &sequence(event))?;
    if let Some(trace) = trace {
        add("ce-traceparent", &trace.traceparent)?;
        if let Some(state) = &trace.tracestate {
            add("ce-tracestate", state)?;
        }
    }
    Ok((to_raw(&data(event))?, headers))
}

fn data(event: &Event) -> Data<'_> {
    Data {
        op: event.op,
        old: event.old.as_deref(),
        new: event.new.as_deref(),
        session_variables: event.session_variables.as_deref(),
        trigger: Trigger {
            name: event.trigger.as_str(),
        },
        table: (&event.table).into(),
    }
}

fn kind(op: Operation) -> &'static str {
    match op {
        Operation::Insert => "changefeed.row.inserted",
        Operation::Update => "changefeed.row.updated",
        Operation::Delete => "changefeed.row.deleted",
        Operation::Manual => "changefeed.manual",
    }
}

fn sequence(event: &Event) -> String {
    format!("{:019}", event.change_id)
}

/// A relative reference; names may contain whatever a database allows, a URI may not.
fn source(table: &TableName) -> String {
    let mut source = String::from("/changefeed");
    for part in table.schema.iter().chain([&table.name]) {
        source.push('/');
        let unreserved = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
        percent(part, unreserved, &mut source);
    }
    source
}

/// How the HTTP binding writes an attribute's value: printable ASCII without `"` and `%`.
fn encode(value: &str) -> Cow<'_, str> {
    let plain = |b: u8| (0x21..=0x7e).contains(&b) && b != b'"' && b != b'%';
    if value.bytes().all(plain) {
        return Cow::Borrowed(value);
    }
    let mut encoded = String::with_capacity(value.len() * 2);
    percent(value, plain, &mut encoded);
    Cow::Owned(encoded)
}

fn percent(text: &str, plain: impl Fn(u8) -> bool, to: &mut String) {
    for byte in text.bytes() {
        if plain(byte) {
            to.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(to, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_uri_whatever_the_table_is_called() {
        assert_eq!(
            source(&TableName::qualified("sales", "Order items")),
            "/changefeed/sales/Order%20items"
        );
        assert_eq!(
            source(&TableName::unqualified("ä/b?")),
            "/changefeed/%C3%A4%2Fb%3F"
        );
    }

    #[test]
    fn attributes_in_headers_are_encoded_by_the_binding() {
        assert_eq!(encode("a-b.c"), "a-b.c");
        assert_eq!(encode("50% \"Euro\" €"), "50%25%20%22Euro%22%20%E2%82%AC");
        assert_eq!(encode("a%20b"), "a%2520b");
    }
}
