//! `listen`, `trigger sample` and `apply --export`, as they are typed.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use changefeed_testkit::backend::{Backend, on_every_backend};
use changefeed_testkit::events::log;
use changefeed_testkit::process::{Running, terminate};
use changefeed_testkit::receiver::{Receiver, Reply};
use changefeed_testkit::{patience, run};
use serde_json::Value;

use crate::apply::Stage;
use crate::watches::{changefeed, json_lines, out};

struct Listening {
    process: Running,
    said: BufReader<std::process::ChildStdout>,
}

impl Listening {
    /// Starts, and waits until it listens.
    async fn start(backend: &dyn Backend, args: &[&str]) -> Listening {
        let url = backend.url();
        let mut all = vec!["listen", "orders", "--json"];
        all.extend(args);
        let mut command = changefeed(&url, &all);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Running::start(&mut command);
        let said = BufReader::new(process.child().stdout.take().unwrap());
        let errors = process.child().stderr.take().unwrap();
        let mut line = String::new();
        BufReader::new(errors).read_line(&mut line).unwrap();
        assert!(line.contains("listening to"), "{line}");
        Listening { process, said }
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line}: {e}"))
    }

    fn stop(mut self) {
        terminate(self.process.pid());
        let status = self.process.wait(Duration::from_secs(20) * patience());
        assert!(status.success(), "{status}");
    }
}

async fn nothing_is_left(backend: &dyn Backend) {
    let store = backend.store().await;
    assert_eq!(store.triggers().await.unwrap(), []);
    assert_eq!(log(&*store).await.len(), 0);
}

#[test]
fn a_listener_shows_changes_and_leaves_nothing_behind() {
    run(async {
        on_every_backend(async |backend| {
            backend.installed().await;
            let app = backend.session().await;
            app.run("create table orders (id integer primary key, v integer)")
                .await;
            let mut all = Listening::start(&*backend, &[]).await;
            let mut large =
                Listening::start(&*backend, &["--on", "update", "--when", "new.v > 5"]).await;
            app.run("insert into orders values (1, 1)").await;
            app.run("update orders set v = 2").await;
            app.run("update orders set v = 9").await;
            app.run("delete from orders").await;
            let told: Vec<String> = (0..4)
                .map(|_| {
                    let event = all.next();
                    format!(
                        "{} {} {}",
                        event["op"], event["old"]["v"], event["new"]["v"]
                    )
                })
                .collect();
            let expected = [
                "\"INSERT\" null 1",
                "\"UPDATE\" 1 2",
                "\"UPDATE\" 2 9",
                "\"DELETE\" 9 null",
            ];
            assert_eq!(told, expected);
            assert_eq!(large.next()["new"]["v"], 9);
            all.stop();
            large.stop();
            nothing_is_left(&*backend).await;
        })
        .await;
    });
}

#[test]
fn what_a_killed_listener_has_left_is_removed() {
    run(async {
        on_every_backend(async |backend| {
            backend.installed().await;
            let app = backend.session().await;
            app.run("create table orders (id integer primary key, v integer)")
                .await;
            let mut killed = Listening::start(&*backend, &[]).await;
            killed.process.kill();
            app.run("insert into orders values (1, 1)").await;
            let store = backend.store().await;
            assert_eq!(store.triggers().await.unwrap().len(), 1);
            // Nobody takes it for dead before its lease has run out.
            let (_, said, _) = out(&backend.url(), &["doctor"]);
            assert!(!said.contains("removed what"), "{said}");
            let running = Listening::start(&*backend, &[]).await;
            assert_eq!(store.triggers().await.unwrap().len(), 2);
            running.stop();
            let began = std::time::Instant::now();
            loop {
                let (_, said, _) = out(&backend.url(), &["doctor"]);
                if said.contains("removed what 1 listener had left") {
                    break;
                }
                assert!(began.elapsed() < Duration::from_secs(60) * patience());
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            nothing_is_left(&*backend).await;
        })
        .await;
    });
}

#[test]
fn a_listener_forwards_and_a_sample_is_sent() {
    run(async {
        on_every_backend(async |backend| {
            backend.installed().await;
            let app = backend.session().await;
            app.run("create table orders (id integer primary key, v integer)")
                .await;
            let receiver = Receiver::start().await.unwrap();
            receiver.next([Reply::Answer {
                status: 503,
                headers: Vec::new(),
                body: Default::default(),
            }]);
            let to = receiver.url("/hooks/{{ new.id }}");
            let mut forward = Listening::start(&*backend, &["--forward", &to]).await;
            app.run("insert into orders values (1, 1)").await;
            app.run("insert into orders values (2, 1)").await;
            assert_eq!(forward.next()["forwarded"]["status"], 503);
            assert_eq!(forward.next()["forwarded"]["status"], 200);
            forward.stop();
            nothing_is_left(&*backend).await;
            let paths: Vec<String> = receiver.requests().iter().map(|r| r.path.clone()).collect();
            assert_eq!(paths, ["/hooks/1", "/hooks/2"]);

            let url = backend.url();
            let body = r#"{"text": "order {{ new.id }} by {{ op }}"}"#;
            let create = [
                "trigger",
                "create",
                "t",
                "--table",
                "orders",
                "--webhook",
                &to,
            ];
            let (code, _, errors) = out(&url, &[&create[..], &["--body", body]].concat());
            assert_eq!(code, 0, "{errors}");
            let sample = ["trigger", "sample", "t", "--payload", "{\"id\": 7}"];
            let shown = json_lines(&url, &sample).remove(0);
            assert_eq!(shown["body"]["text"], "order 7 by INSERT");
            assert!(shown["url"].as_str().unwrap().ends_with("/hooks/7"));
            assert_eq!(receiver.requests().len(), 2, "it is only shown");
            let (code, said, errors) = out(&url, &[&sample[..], &["--send"]].concat());
            assert_eq!(code, 0, "{said}{errors}");
            assert_eq!(receiver.requests()[2].path, "/hooks/7");
            assert_eq!(log(&*backend.store().await).await.len(), 0);
            let bad = ["--body", "{{ newer.id }}", "--replace"];
            let (code, _, errors) = out(&url, &[&create[..], &bad[..]].concat());
            assert_eq!(code, 2, "{errors}");
            assert!(errors.contains("there is no value 'newer'"), "{errors}");
        })
        .await;
    });
}

#[test]
fn what_is_exported_needs_nothing_to_be_done() {
    run(async {
        on_every_backend(async |backend: Arc<dyn Backend>| {
            let stage = Stage::new(backend).await;
            stage.write(
                r#"
[feeds.orders]
from = "orders"
shard_by = "customer_id"
shards = 2

[triggers.paid]
table = "orders"
update = ["status"]
manual = true
webhook = "http://localhost:9/{{ new.id }}"
header = { X-Team = "{{ op }}" }
body = '{"id": {{ new.id }}}'
rate = "30/m"
debounce = "1s 500ms"
clean_up_logs_after = "1h"
paused = true

[watches.mail]
table = "orders"
exec = "true"
lease = "20s"
"#,
            );
            stage.out("apply --yes");
            let exported = stage.run("apply --export");
            assert_eq!(exported.code, 0, "{}", exported.errors);
            stage.write(&exported.out);
            let said = stage.run("apply --check");
            assert_eq!(said.code, 0, "{}\n{}", exported.out, said.out);
            for key in [
                "rate = \"30/m\"",
                "debounce = \"1s 500ms\"",
                "[watches.mail]",
            ] {
                assert!(exported.out.contains(key), "{}", exported.out);
            }
        })
        .await;
    });
}
