//! What we send, judged by the reference libraries of another ecosystem.

use std::process::Stdio;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use changefeed_core::{Format, Operation, TableName};
use changefeed_engine::sinks::webhook::{Target, Variables};
use changefeed_receiver::{Receiver, Request};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::webhook::support::*;

const SECRETS: [&str; 2] = [
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4v",
];

/// A row that a Python float can hold, too: the SDK reads numbers as such.
const ROW: &str = r#"{"id": 9007199254740993, "price": 12345678901234567890.123456789, "note": "ä€\"%", "gone": null}"#;

fn captured(
    format: &str,
    request: &Request,
    secrets: &[&str],
    attributes: Value,
    data: &str,
) -> String {
    let headers: serde_json::Map<_, _> = request
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
        .collect();
    json!({
        "format": format,
        "headers": headers,
        "body": STANDARD.encode(&request.body),
        "secrets": secrets,
        "attributes": attributes,
        "data": STANDARD.encode(data),
    })
    .to_string()
}

async fn send(format: Format, secrets: &[&str]) -> Request {
    let receiver = Receiver::start().await.unwrap();
    let mut delivery = in_format(&receiver.url("/"), format);
    let names = (0..secrets.len()).map(|n| format!("SECRET_{n}"));
    delivery.sink.as_webhook_mut().unwrap().secrets_from_env = names.collect();
    let secrets: Vec<String> = secrets.iter().map(|s| (*s).to_owned()).collect();
    let lookup = Variables::new(move |name| {
        let nth: usize = name.strip_prefix("SECRET_")?.parse().ok()?;
        secrets.get(nth).cloned()
    });
    let target = Target::prepare(&"orders".parse().unwrap(), &granted(&delivery), &lookup);
    let target = target.unwrap();
    let mut event = event();
    event.event.op = Operation::Insert;
    event.event.old = None;
    event.event.new = Some(raw(ROW));
    event.event.table = TableName::qualified("sales", "Bücher & \"%\"");
    client().send(&target, &event).await;
    receiver.requests().remove(0)
}

#[tokio::test]
async fn the_libraries_of_python_accept_what_we_send() {
    let python = std::env::var_os("CHANGEFEED_TEST_PYTHON").unwrap_or_else(|| {
        panic!(
            "CHANGEFEED_TEST_PYTHON must name a Python with crates/testkit/python/requirements.txt \
             installed; ./test sets it"
        )
    });
    let data = format!(
        r#"{{"op":"INSERT","old":null,"new":{ROW},"session_variables":{{"x-user":"7"}},"trigger":{{"name":"orders"}},"table":{{"schema":"sales","name":"Bücher & \"%\""}}}}"#
    );
    let attributes = json!({
        "specversion": "1.0",
        "id": "0038d7ea-4c68-8000-8123-456789abcdef",
        "source": "/changefeed/sales/B%C3%BCcher%20%26%20%22%25%22",
        "type": "changefeed.row.inserted",
        "subject": "orders",
        "time": "2026-03-01T12:00:00.123456+00:00",
        "datacontenttype": "application/json",
        "sequence": "0001000000000000000",
        "traceparent": TRACE,
        "tracestate": "a=1",
    });
    let mut lines = Vec::new();
    for secrets in [&SECRETS[..0], &SECRETS[..1], &SECRETS[..]] {
        let hasura = send(Format::Hasura, secrets).await;
        let body = String::from_utf8(hasura.body.to_vec()).unwrap();
        assert!(body.contains(ROW));
        lines.push(captured("hasura", &hasura, secrets, json!({}), &body));
        for (format, name) in [
            (Format::Cloudevents, "cloudevents"),
            (Format::CloudeventsBinary, "cloudevents-binary"),
        ] {
            let request = send(format, secrets).await;
            lines.push(captured(name, &request, secrets, attributes.clone(), &data));
        }
    }
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../testkit/python/verify_webhook.py"
    );
    let mut judge = Command::new(python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stdin = judge.stdin.take().unwrap();
    stdin.write_all(lines.join("\n").as_bytes()).await.unwrap();
    drop(stdin);
    let output = judge.wait_with_output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    assert_eq!(said.matches("accepted").count(), lines.len(), "{said}");
}
