//! What is sent, byte for byte.

use changefeed_core::{Format, LeasedEvent, Operation, Setting, TableName};
use changefeed_engine::sinks::webhook::Post;
use changefeed_receiver::{Receiver, Request};

use crate::webhook::support::*;

async fn sent(format: Format, event: &LeasedEvent) -> Request {
    let receiver = Receiver::start().await.unwrap();
    let target = prepare(&in_format(&receiver.url("/"), format));
    client().send(&target, event).await;
    receiver.requests().remove(0)
}

fn text(request: &Request) -> &str {
    std::str::from_utf8(&request.body).unwrap()
}

#[tokio::test]
async fn the_body_is_exactly_the_one_of_hasura() {
    let request = sent(Format::Hasura, &event()).await;
    assert_eq!(request.header("content-type"), Some("application/json"));
    let expected = [
        r#"{"id":"0038d7ea-4c68-8000-8123-456789abcdef","#,
        r#""created_at":"2026-03-01T12:00:00.123456+00:00","#,
        r#""trigger":{"name":"orders"},"table":{"schema":"sales","name":"Order items"},"#,
        r#""event":{"op":"UPDATE","data":{"old":"#,
        OLD,
        r#","new":"#,
        NEW,
        r#"},"session_variables":{"x-user": "7"},"trace_context":{"traceparent":""#,
        TRACE,
        r#"","tracestate":"a=1"}},"delivery_info":{"current_retry":1,"max_retries":3}}"#,
    ];
    assert_eq!(text(&request), expected.concat());
}

#[tokio::test]
async fn what_is_not_there_is_null() {
    let mut leased = event();
    leased.attempt = 1;
    leased.event.op = Operation::Delete;
    leased.event.table = TableName::unqualified("orders");
    leased.event.new = None;
    leased.event.session_variables = None;
    leased.event.trace_context = None;
    leased.event.old = Some(raw("{}"));
    let request = sent(Format::Hasura, &leased).await;
    assert!(text(&request).contains(
        r#""table":{"schema":null,"name":"orders"},"event":{"op":"DELETE","data":{"old":{},"new":null},"session_variables":null,"trace_context":null},"delivery_info":{"current_retry":0,"max_retries":3}}"#
    ), "{}", text(&request));
    assert_eq!(request.header("traceparent"), None);
    leased.event.op = Operation::Manual;
    leased.event.old = None;
    leased.event.new = Some(raw("[1]"));
    let request = sent(Format::Hasura, &leased).await;
    assert!(text(&request).contains(r#""op":"MANUAL","data":{"old":null,"new":[1]}"#));
    leased.event.trace_context = Some(raw(r#""00-not-a-trace""#));
    let request = sent(Format::Hasura, &leased).await;
    assert_eq!(request.header("traceparent"), None);
    assert!(text(&request).contains(r#""trace_context":"00-not-a-trace""#));
}

fn data() -> String {
    [
        r#"{"op":"UPDATE","old":"#,
        OLD,
        r#","new":"#,
        NEW,
        r#","session_variables":{"x-user": "7"},"trigger":{"name":"orders"},"#,
        r#""table":{"schema":"sales","name":"Order items"}}"#,
    ]
    .concat()
}

#[tokio::test]
async fn structured_cloudevents_have_everything_in_the_body() {
    let request = sent(Format::Cloudevents, &event()).await;
    let expected = [
        r#"{"specversion":"1.0","id":"0038d7ea-4c68-8000-8123-456789abcdef","#,
        r#""source":"/changefeed/sales/Order%20items","type":"changefeed.row.updated","#,
        r#""subject":"orders","time":"2026-03-01T12:00:00.123456+00:00","#,
        r#""datacontenttype":"application/json","sequence":"0001000000000000000","#,
        r#""traceparent":""#,
        TRACE,
        r#"","tracestate":"a=1","data":"#,
        &data(),
        "}",
    ];
    assert_eq!(text(&request), expected.concat());
    let kind = request.header("content-type");
    assert_eq!(kind, Some("application/cloudevents+json"));
}

#[tokio::test]
async fn binary_cloudevents_have_their_attributes_in_headers() {
    let request = sent(Format::CloudeventsBinary, &event()).await;
    assert_eq!(text(&request), data());
    for (name, value) in [
        ("content-type", "application/json"),
        ("ce-specversion", "1.0"),
        ("ce-id", "0038d7ea-4c68-8000-8123-456789abcdef"),
        ("ce-source", "/changefeed/sales/Order%2520items"),
        ("ce-type", "changefeed.row.updated"),
        ("ce-subject", "orders"),
        ("ce-time", "2026-03-01T12:00:00.123456+00:00"),
        ("ce-sequence", "0001000000000000000"),
        ("ce-traceparent", TRACE),
        ("ce-tracestate", "a=1"),
        ("traceparent", TRACE),
    ] {
        assert_eq!(request.header(name), Some(value), "{name}");
    }
    assert_eq!(request.header("ce-datacontenttype"), None);
}

#[tokio::test]
async fn a_retry_of_a_cloudevent_is_the_same_event() {
    let first = sent(Format::Cloudevents, &event()).await;
    let mut again = event();
    again.attempt += 1;
    let second = sent(Format::Cloudevents, &again).await;
    assert_eq!(first.body, second.body);
}

#[tokio::test]
async fn configured_headers_are_sent() {
    let receiver = Receiver::start().await.unwrap();
    let mut delivery = delivery(&receiver.url("/"));
    delivery.sink.as_webhook_mut().unwrap().headers = vec![
        header("X-Tenant", Setting::Value("ä b ".into())),
        header("User-Agent", Setting::Value("mine".into())),
        header("traceparent", Setting::Value("overridden".into())),
    ];
    client().send(&prepare(&delivery), &event()).await;
    let request = &receiver.requests()[0];
    assert_eq!(request.header("x-tenant"), Some("ä b"));
    assert_eq!(request.header("user-agent"), Some("mine"));
    assert_eq!(request.header("traceparent"), Some(TRACE));
}

#[tokio::test]
async fn anything_can_be_posted() {
    let receiver = Receiver::start().await.unwrap();
    let mut post = Post::json("batch-7", raw(r#"[ {"n": 1e400} ]"#));
    post.attempt = 4;
    post.headers.insert("x-batch", "7".parse().unwrap());
    let sent = client().post(&target(&receiver.url("/w")), post).await;
    assert_eq!((sent.attempt.number, sent.attempt.status), (4, Some(200)));
    let request = &receiver.requests()[0];
    assert_eq!(text(request), r#"[ {"n": 1e400} ]"#);
    assert_eq!(request.header("x-batch"), Some("7"));
}
