//! Secrets that must survive a round trip without being shown.

use std::sync::Arc;

use changefeed_testkit::backend::{Backend, SqliteBackend};
use changefeed_testkit::receiver::Receiver;
use changefeed_testkit::{eventually, run};
use serde_json::{Value, json};

use crate::http::client::{get, request};
use crate::http::serving::shop;

/// A definition that was read, changed elsewhere and written back.
#[test]
fn a_trigger_that_is_read_and_written_back_keeps_its_secrets() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(SqliteBackend::fresh().await);
        let (_, serving) = shop(&backend, &[]).await;
        let receiver = Receiver::start().await.unwrap();
        let hook = format!("http://user:pw@{}/hook?token=t1&page=2", receiver.address());
        let definition = json!({
            "name": "t", "table": "orders", "manual": true, "webhook": hook,
            "header": {"authorization": "Bearer s3cret", "x-team": "shop"},
        });
        let put = |body: &Value| request("PUT", "/api/triggers/t").json(body.clone());
        assert_eq!(put(&definition).send(serving.at).await.status, 200);
        let shown = || async {
            let mut shown = get("/api/triggers/t").send(serving.at).await.json(200);
            for known in ["id", "paused", "state"] {
                shown.as_object_mut().unwrap().remove(known);
            }
            shown
        };
        let mut read = shown().await;
        assert_eq!(read["header"]["authorization"], "***");
        assert!(!read.to_string().contains("s3cret"), "{read}");
        read["retries"] = json!(7);
        let written = put(&read).send(serving.at).await.json(200);
        assert_eq!(
            (&written["retries"], &written["header"]["authorization"]),
            (&json!(7), &json!("***"))
        );

        let invoke = request("POST", "/api/triggers/t/invoke").json(json!({"payload": {}}));
        assert_eq!(invoke.send(serving.at).await.status, 201);
        let sent = eventually("it is delivered", || async {
            receiver.requests().into_iter().next()
        })
        .await;
        assert_eq!(sent.header("authorization"), Some("Bearer s3cret"));
        let log = get("/api/events").send(serving.at).await.body;
        assert!(!log.contains("s3cret"), "{log}");

        // Nobody gets a secret sent elsewhere by writing its placeholder.
        let same = format!("http://user:pw@{}/other", receiver.address());
        for (field, value, status, says) in [
            (
                "webhook",
                json!("http://127.0.0.1:9/hook"),
                400,
                "the webhook is another one",
            ),
            (
                "webhook",
                json!(hook.replace("user:pw", "***").replace("t1", "new")),
                400,
                "another one",
            ),
            ("header", json!({"x-api-key": "***"}), 400, "none is stored"),
            ("webhook", json!(same), 200, ""),
        ] {
            let mut changed = shown().await;
            changed[field] = value;
            let answer = put(&changed).send(serving.at).await;
            assert_eq!(answer.status, status, "{}", answer.body);
            assert!(answer.body.contains(says), "{}", answer.body);
        }
        let mut fresh = definition.clone();
        fresh["name"] = json!("u");
        fresh["header"]["authorization"] = json!("***");
        let post = request("POST", "/api/triggers").json(fresh.clone());
        post.send(serving.at).await.problem(400);
        let put = request("PUT", "/api/triggers/u").json(fresh);
        put.send(serving.at).await.problem(400);
        let watch = json!({"name": "w", "table": "orders", "webhook": "http://***@127.0.0.1:9/"});
        let post = request("POST", "/api/watches").json(watch);
        post.send(serving.at).await.problem(400);
    });
}
