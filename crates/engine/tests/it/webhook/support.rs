//! Events, targets and clients for these tests.

use std::time::Duration;

use changefeed_core::{
    Delivery, Event, EventBits, EventId, Format, Header, LeasedEvent, Operation, Retry, Setting,
    Sink, TableName, TriggerId,
};
use changefeed_engine::sinks::webhook::{Reach, Target, Variables, WebhookClient, WebhookOptions};
use serde_json::value::RawValue;

/// Digits that neither a float nor a 64-bit integer could hold.
pub(crate) const NEW: &str = r#"{"id": 9223372036854775807, "price": 12345678901234567890.12345678901234567890, "note": "ä\u0000\"", "gone": null, "e": 1E400, "neg": -0.0}"#;
pub(crate) const OLD: &str =
    r#"{"id":9223372036854775807,"price":0.10,"note":"","gone":[1.0,2],"e":1,"neg":0}"#;
pub(crate) const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

pub(crate) fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

/// An update, in its second attempt.
pub(crate) fn event() -> LeasedEvent {
    let change_id = 1_000_000_000_000_000;
    LeasedEvent {
        trigger: TriggerId(7),
        event: Event {
            id: EventId::new(change_id, EventBits::new(0x0123_4567_89ab_cdef)),
            change_id,
            trigger: "orders".parse().unwrap(),
            table: TableName::qualified("sales", "Order items"),
            op: Operation::Update,
            old: Some(raw(OLD)),
            new: Some(raw(NEW)),
            session_variables: Some(raw(r#"{"x-user": "7"}"#)),
            trace_context: Some(raw(&format!(
                r#"{{"traceparent":"{TRACE}","tracestate":"a=1"}}"#
            ))),
            created_at: "2026-03-01T12:00:00.123456+00:00".to_owned(),
        },
        generation: 1,
        attempt: 2,
        cut_off: 0,
    }
}

pub(crate) fn delivery(url: &str) -> Delivery {
    Delivery {
        sink: Sink::webhook(url),
        retry: Retry {
            num_retries: 3,
            timeout: Duration::from_secs(20),
            ..Retry::default()
        },
        ..Delivery::default()
    }
}

/// The same, with the variables that it names granted.
pub(crate) fn granted(delivery: &Delivery) -> Delivery {
    Delivery {
        sink: delivery.sink.clone().granted(),
        ..delivery.clone()
    }
}

pub(crate) fn header(name: &str, value: Setting) -> Header {
    Header {
        name: name.to_owned(),
        value,
    }
}

pub(crate) fn in_format(url: &str, format: Format) -> Delivery {
    Delivery {
        format,
        ..delivery(url)
    }
}

pub(crate) fn prepare(delivery: &Delivery) -> Target {
    Target::prepare(
        &"orders".parse().unwrap(),
        delivery,
        &Variables::new(|_| None),
    )
    .unwrap()
}

pub(crate) fn target(url: &str) -> Target {
    prepare(&delivery(url))
}

/// A target that has only so much time.
pub(crate) fn impatient(url: &str, timeout: Duration) -> Target {
    let mut delivery = delivery(url);
    delivery.retry.timeout = timeout;
    prepare(&delivery)
}

pub(crate) fn client() -> WebhookClient {
    WebhookClient::new(WebhookOptions::default()).unwrap()
}

/// A client that calls public addresses only.
pub(crate) fn guarded() -> WebhookClient {
    WebhookClient::new(WebhookOptions {
        reach: Reach::Public,
        ..WebhookOptions::default()
    })
    .unwrap()
}

/// JSON of a log, for looking into it; the number that only we can hold is made smaller.
pub(crate) fn value(logged: &Option<Box<RawValue>>) -> serde_json::Value {
    let text = logged.as_ref().unwrap().get();
    serde_json::from_str(&text.replace("1E400", "1")).unwrap()
}
