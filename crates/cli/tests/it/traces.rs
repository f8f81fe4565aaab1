//! Deliveries in the trace of the writer, as a collector gets them.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use changefeed_receiver::{Receiver, Reply};
use changefeed_testkit::run;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const WRITER: &str = "00f067aa0ba902b7";

fn changefeed(path: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_changefeed"));
    command.env("CHANGEFEED_DB", format!("sqlite:{}", path.display()));
    command
}

/// The spans that a collector was sent, by the messages that OpenTelemetry publishes.
fn spans(collector: &Receiver) -> Vec<Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/python/read_spans.py");
    let python = std::env::var_os("CHANGEFEED_TEST_PYTHON").expect("./test names a Python");
    let mut reader = Command::new(python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut requests = reader.stdin.take().unwrap();
    for request in collector.requests() {
        assert_eq!(request.path, "/v1/traces");
        writeln!(requests, "{}", BASE64.encode(&request.body)).unwrap();
    }
    drop(requests);
    let output = reader.wait_with_output().unwrap();
    assert!(output.status.success());
    let mut spans: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    spans.sort_by_key(|span| span["began"].as_u64());
    spans
}

#[test]
fn an_attempt_belongs_to_the_trace_of_the_writer_and_the_receiver_to_the_attempt() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shop.db");
        let app = application(&path);
        assert!(changefeed(&path).arg("migrate").status().unwrap().success());
        let (webhook, collector) = (
            Receiver::start().await.unwrap(),
            Receiver::start().await.unwrap(),
        );
        webhook.next([Reply::Status(503)]);
        let trigger = "trigger create shipping --table orders --insert --retries 3 --interval 1s";
        let made = changefeed(&path)
            .args(trigger.split(' '))
            .args(["--webhook", &webhook.url("/hook")])
            .status()
            .unwrap();
        assert!(made.success());
        app(&format!(
            "begin immediate;
             insert into changefeed_session (session_variables, trace_context)
             values (null, '00-{TRACE}-{WRITER}-01');
             insert into orders values (1);
             delete from changefeed_session;
             commit;"
        ));

        let mut deliver = changefeed(&path)
            .arg("deliver")
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url(""))
            .spawn()
            .unwrap();
        let requests = webhook.wait_for(2).await.unwrap();
        kill_process(Pid::from_child(&deliver), Signal::TERM).unwrap();
        assert!(deliver.wait().unwrap().success());

        let spans = spans(&collector);
        assert_eq!(spans.len(), 2, "an attempt is a span: {spans:?}");
        for (number, (span, request)) in spans.iter().zip(&requests).enumerate() {
            assert_eq!(span["service"][0], "changefeed");
            assert_eq!(span["name"], "deliver shipping");
            assert_eq!(span["trace"], TRACE);
            assert_eq!(span["parent"], WRITER);
            assert_eq!(span["values"]["changefeed.attempt"], number + 1);
            let ours = span["span"].as_str().unwrap();
            assert_eq!(
                request.header("traceparent"),
                Some(format!("00-{TRACE}-{ours}-01").as_str())
            );
        }
        assert_eq!(spans[0]["status"], 2, "an error");
        assert_eq!(spans[0]["values"]["http.response.status_code"], 503);
        assert_eq!(spans[1]["status"], 0);
        assert_eq!(spans[1]["values"]["http.response.status_code"], 200);
    });
}

#[test]
fn without_a_collector_nothing_is_sent_and_with_a_deaf_one_the_work_is_done() {
    run(async {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shop.db");
        let app = application(&path);
        assert!(changefeed(&path).arg("migrate").status().unwrap().success());
        let webhook = Receiver::start().await.unwrap();
        let made = changefeed(&path)
            .args(["trigger", "create", "shipping", "--table", "orders"])
            .args(["--webhook", &webhook.url("/hook")])
            .status()
            .unwrap();
        assert!(made.success());
        for (id, endpoint) in [(1, ""), (2, "http://127.0.0.1:9"), (3, "no address at all")] {
            app(&format!("insert into orders values ({id})"));
            let deliver = changefeed(&path)
                .arg("deliver")
                .env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let requests = webhook.wait_for(id).await.unwrap();
            if endpoint.is_empty() {
                assert_eq!(requests[0].header("traceparent"), None);
            }
            kill_process(Pid::from_child(&deliver), Signal::TERM).unwrap();
            let ended = deliver.wait_with_output().unwrap();
            let log = String::from_utf8_lossy(&ended.stderr);
            assert!(ended.status.success(), "{endpoint}: {log}");
            let told = log.contains("traces") || log.contains("opentelemetry");
            assert_eq!(told, !endpoint.is_empty(), "{endpoint}: {log}");
        }
    });
}

/// An application with a table of orders.
fn application(path: &Path) -> impl Fn(&str) {
    let path = path.to_owned();
    let app = move |sql: &str| {
        let mut shell = Command::new("sqlite3")
            .args(["-bail", "-cmd", ".timeout 5000"])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        shell
            .stdin
            .take()
            .unwrap()
            .write_all(sql.as_bytes())
            .unwrap();
        assert!(shell.wait().unwrap().success(), "{sql}");
    };
    app("create table orders (id integer primary key);");
    app
}
