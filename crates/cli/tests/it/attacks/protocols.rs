//! Clients of the open feed protocols at the edges of what they may ask.

use std::collections::BTreeMap;
use std::sync::Arc;

use changefeed_testkit::backend::{Backend, PostgresBackend, SqliteBackend};
use changefeed_testkit::{eventually, run};
use serde_json::json;

use crate::http::client::{get, request};
use crate::http::serving::{Serving, orders, out, shop};

async fn sqlite() -> Arc<dyn Backend> {
    Arc::new(SqliteBackend::fresh().await)
}

/// A client of FeedAPI reads 409 as "the partitions have changed": it asks for them, and comes back with
/// the same cursor, for ever.
#[test]
fn a_cursor_that_is_ahead_does_not_send_clients_to_discovery_for_ever() {
    run(async {
        let backend = sqlite().await;
        let (_, serving) = shop(&backend, &[]).await;
        let found = serving.get("/feeds/orders").await.json(200);
        let token = found["token"].as_str().unwrap();
        let ahead = "2000000000999999";
        for path in [
            format!("/feeds/orders/events?token={token}&partition=0&cursor={ahead}"),
            format!("/feeds/orders/events?token={token}&partition=0&cursor={ahead}&wait=1000"),
            format!("/feeds/orders?n=2&cursor0={ahead}"),
        ] {
            let answer = serving.get(&path).await;
            assert_eq!(answer.status, 400, "{path}: {}", answer.body);
            assert!(!answer.body.is_empty());
        }
        let other = serving
            .get(format!(
                "/feeds/orders/events?token=x&partition=0&cursor={ahead}"
            ))
            .await;
        assert_eq!(other.status, 409, "that one has to discover again");
    });
}

#[test]
fn a_client_of_version_1_that_waits_for_many_partitions_takes_one_seat() {
    run(async {
        let backend = sqlite().await;
        backend.installed().await;
        let url = backend.url();
        out(&url, &["feed", "create", "wide", "--shards", "8"]);
        let serving = Serving::start(&url, &["--max-waiting", "2"]);
        let cursors: String = (0..8).map(|n| format!("&cursor{n}=_last")).collect();
        let path = format!("/feeds/wide?n=8{cursors}&wait=2000");
        let (first, second, ()) = tokio::join!(serving.get(&path), serving.get(&path), async {
            eventually("both wait", || async {
                let metrics = serving.get("/metrics").await.body;
                metrics
                    .contains("changefeed_http_waiting 2.0")
                    .then_some(())
            })
            .await;
        });
        assert_eq!((first.status, second.status), (200, 200), "{}", first.body);
    });
}

/// Nested brackets of this depth and nothing else.
fn nested(depth: usize) -> String {
    "[".repeat(depth) + &"]".repeat(depth)
}

#[test]
fn json_that_is_nested_without_end_is_refused_wherever_it_comes_in() {
    run(async {
        for backend in [
            sqlite().await,
            Arc::new(PostgresBackend::fresh().await) as Arc<dyn Backend>,
        ] {
            let url = orders(&backend).await;
            let trigger = "trigger create t --table orders --manual --webhook http://127.0.0.1:9/";
            out(&url, &trigger.split(' ').collect::<Vec<_>>());
            let serving = Serving::start(&url, &["--only", "http"]);
            for depth in [101, 1000, 20_000, 200_000] {
                let deep = nested(depth);
                for (method, path, body) in [
                    (
                        "POST",
                        "/api/triggers/t/invoke",
                        format!("{{\"payload\":{{\"a\":{deep}}}}}"),
                    ),
                    (
                        "POST",
                        "/api/triggers/t/invoke",
                        format!("{{\"payload\":{deep}}}"),
                    ),
                    ("POST", "/api/feeds", format!("{{\"name\":{deep}}}")),
                    ("PUT", "/api/triggers/t", deep.clone()),
                    ("POST", "/api/tokens", "[".repeat(depth)),
                    (
                        "POST",
                        "/api/watches",
                        format!("{{\"x\":{}", "{\"a\":".repeat(depth)),
                    ),
                ] {
                    let question = request(method, path)
                        .header("content-type", "application/json")
                        .text(body);
                    question.send(serving.at).await.problem(400);
                }
            }
            let deepest = json!({"payload": {"a": serde_json::from_str::<serde_json::Value>(&nested(90)).unwrap()}});
            let made = request("POST", "/api/triggers/t/invoke").json(deepest);
            assert_eq!(made.send(serving.at).await.status, 201);
            assert_eq!(serving.get("/api/events").await.status, 200);
        }
    });
}

/// A row may hold what no request may send.
#[test]
fn rows_with_deeply_nested_json_are_read_like_any_other() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        backend.installed().await;
        let app = backend.session().await;
        app.run("create table deep (id bigint primary key, doc json)")
            .await;
        let url = backend.url();
        out(&url, &["feed", "create", "deep", "--from", "deep"]);
        let trigger = "trigger create d --table deep --webhook http://127.0.0.1:9/ --retries 0";
        out(&url, &trigger.split(' ').collect::<Vec<_>>());
        let serving = Serving::start(&url, &["--only", "http,sweep"]);
        let doc = nested(2000);
        app.run(&format!("insert into deep values (1, '{doc}'), (2, '1')"))
            .await;
        let changes = "/api/feeds/deep/shards/0/changes";
        let page = eventually("both are there", || async {
            let page = serving.get(format!("{changes}?wait=1000")).await;
            assert_eq!(page.status, 200, "{}", page.body);
            page.body.contains("\"id\":2").then_some(page.body)
        })
        .await;
        assert!(page.contains(&doc));
        let lines = get(changes).header("accept", "application/x-ndjson");
        assert!(lines.send(serving.at).await.body.contains(&doc));
        let events = serving.get("/api/events").await;
        assert_eq!(events.status, 200, "{}", events.body);
        assert!(events.body.contains(&doc));
        let v1 = serving.get("/feeds/deep?n=1&cursor0=_first").await;
        assert!(v1.body.contains(&doc));
    });
}

/// What `promtool check metrics` looks at.
#[test]
fn metrics_keep_the_rules_of_prometheus_in_both_forms() {
    run(async {
        let backend = sqlite().await;
        let url = orders(&backend).await;
        let trigger = "trigger create t --table orders --webhook http://127.0.0.1:9/";
        out(&url, &trigger.split(' ').collect::<Vec<_>>());
        let serving = Serving::start(&url, &[]);
        let text = eventually("there was a sample", || async {
            let answer = serving.get("/metrics").await;
            let kind = answer.header("content-type").unwrap().to_owned();
            assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
            answer
                .body
                .contains("changefeed_trigger_paused")
                .then_some(answer.body)
        })
        .await;
        judge(&text);
        for (accept, kind) in [
            ("text/plain", "text/plain; version=0.0.4; charset=utf-8"),
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4",
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
            ),
        ] {
            let answer = get("/metrics")
                .header("accept", accept)
                .send(serving.at)
                .await;
            assert_eq!(answer.header("content-type"), Some(kind));
            assert_eq!(
                answer.body.ends_with("# EOF\n"),
                kind.contains("openmetrics")
            );
        }
    });
}

fn judge(text: &str) {
    let (mut helps, mut kinds) = (BTreeMap::new(), BTreeMap::new());
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(name), Some(help)) => {
                assert!(
                    !help.is_empty() && helps.insert(name, help).is_none(),
                    "{name}"
                );
            }
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert!(kinds.insert(name, kind).is_none(), "{name}");
            }
            _ if line.starts_with('#') => panic!("{line}"),
            _ => {
                let name = line.split(['{', ' ']).next().unwrap();
                let base = ["_bucket", "_sum", "_count"]
                    .iter()
                    .filter_map(|end| name.strip_suffix(end))
                    .find(|base| kinds.get(base) == Some(&"histogram"));
                let base = base.unwrap_or(name);
                assert!(
                    helps.contains_key(base) && kinds.contains_key(base),
                    "{line}"
                );
                let value = line.rsplit_once(' ').unwrap().1;
                assert!(value.parse::<f64>().is_ok(), "{line}");
            }
        }
    }
    assert!(kinds.len() > 15);
    for (name, kind) in kinds {
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
        assert!(
            name.chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'),
            "{name}"
        );
        for reserved in ["_count", "_sum", "_bucket"] {
            assert!(!name.ends_with(reserved), "{name}");
        }
        // Base units, written out, and no type in a name.
        for part in name.split('_') {
            let bad = [
                "ms",
                "s",
                "us",
                "ns",
                "sec",
                "milliseconds",
                "minutes",
                "hours",
                "days",
                "kb",
                "mb",
                "b",
                "kilobytes",
                "percent",
                "counter",
                "gauge",
                "histogram",
                "summary",
            ];
            assert!(!bad.contains(&part), "{name}");
        }
    }
}
