//! URL, headers and body are made for each event from templates.

use changefeed_core::{Format, LeasedEvent, Outcome, Setting};
use changefeed_engine::sinks::webhook::Target;
use changefeed_receiver::Receiver;

use crate::webhook::support::*;

const BODY: &str = r#"{"text": "{{ op }} of {{ new.id }}: {{ new.note }}", "price": {{ new.price }},
                      "try": {{ attempt }}, "table": {{ table.name }}, "all": {{ new }}}"#;

async fn send(
    receiver: &Receiver,
    url: &str,
    body: Option<&str>,
    event: &LeasedEvent,
) -> changefeed_engine::sinks::Sent {
    let mut delivery = in_format(&receiver.url(url), Format::Hasura);
    let webhook = delivery.sink.as_webhook_mut().unwrap();
    webhook.headers = vec![
        header("X-Order", Setting::Value("order {{ new.id }}".into())),
        header("X-Api-Key", Setting::Value("{{ op }}-hidden".into())),
        header("X-Plain", Setting::Value("{ plain }".into())),
    ];
    webhook.body = body.map(str::to_owned);
    client().send(&prepare(&delivery), event).await
}

#[tokio::test]
async fn a_request_is_filled_in() {
    let receiver = Receiver::start().await.unwrap();
    let url = "/orders/{{ new.id }}?note={{ old.note }}{{ new.note }}&token={{ op }}";
    let sent = send(&receiver, url, Some(BODY), &event()).await;
    assert_eq!(sent.attempt.outcome, Outcome::Success, "{sent:?}");
    let request = receiver.requests().remove(0);
    assert_eq!(
        request.path,
        "/orders/9223372036854775807?note=%C3%A4%00%22&token=UPDATE"
    );
    assert_eq!(request.header("x-order"), Some("order 9223372036854775807"));
    assert_eq!(request.header("x-plain"), Some("{ plain }"));
    let body = std::str::from_utf8(&request.body).unwrap();
    let begins = r#"{"text": "UPDATE of 9223372036854775807: ä\u0000\"", "price": 12345678901234567890.12345678901234567890,"#;
    assert!(body.starts_with(begins), "{body}");
    assert!(body.contains(r#""try": 2, "table": "Order items", "all": {"id""#));
    assert!(body.ends_with(&format!("{NEW}}}")), "{body}");
    // The log has the request as it was, without what is secret.
    let logged = value(&sent.attempt.request);
    assert!(logged["url"].as_str().unwrap().ends_with("&token=***"));
    assert_eq!(logged["headers"]["x-api-key"], "***");
    assert_eq!(logged["body"]["try"], 2);
}

#[tokio::test]
async fn what_cannot_be_filled_in_is_an_attempt_that_failed() {
    let receiver = Receiver::start().await.unwrap();
    for (url, body, sentence) in [
        ("/{{ new.nothing }}", None, "a value is missing"),
        ("/", Some("{{ new.note }} oops"), "makes no JSON"),
        (
            "/",
            Some("{\"a\": {{ old.gone.b.c }}}"),
            "a value is missing",
        ),
    ] {
        let sent = send(&receiver, url, body, &event()).await;
        assert_eq!(sent.attempt.outcome, Outcome::Failure);
        let error = sent.attempt.error.unwrap();
        assert!(error.contains(sentence), "{error}");
    }
    assert!(receiver.requests().is_empty());
}

#[test]
fn no_template_chooses_the_server() {
    let judged = |url: &str| {
        let delivery = delivery(url);
        let valid = delivery.sink.validate(&changefeed_core::EVENT_VALUES);
        valid.and_then(|()| Target::check("trigger 'orders'", &delivery.sink))
    };
    for url in [
        "http://{{ new.host }}/",
        "http://example.com{{ new.host }}/",
        "http://example.com:{{ new.port }}/",
        "http://me:pw@example.com/{{ new.id }}",
        "{{ new.url }}",
        "http://example.com/{{ newer.id }}",
        "http://example.com/{{ new.id }",
        "http://exa mple.com/{{ new.id }}",
    ] {
        assert!(judged(url).is_err(), "{url}");
    }
    judged("http://example.com/{{ new.id }}?x={% if old %}1{% endif %}").unwrap();
    judged("http://example.com?x={{ new.id }}").unwrap();
}
