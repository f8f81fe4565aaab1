//! What the command line can do, over HTTP.

use std::sync::Arc;

use changefeed_testkit::backend::Backend;
use changefeed_testkit::eventually;
use changefeed_testkit::receiver::{Receiver, Reply};
use serde_json::{Value, json};

use crate::http::client::{get, request};
use crate::http::serving::{Serving, shop};

async fn post(serving: &Serving, path: &str, body: Value, status: u16) -> Value {
    let answer = request("POST", path).json(body).send(serving.at).await;
    assert_eq!(answer.status, status, "{path}: {}", answer.body);
    serde_json::from_str(&answer.body).unwrap_or(Value::Null)
}

async fn delete(serving: &Serving, path: &str) {
    let answer = request("DELETE", path).send(serving.at).await;
    assert_eq!(answer.status, 204, "{path}: {}", answer.body);
}

pub(crate) async fn the_life_of_a_feed(backend: Arc<dyn Backend>) {
    let (_, serving) = shop(&backend, &[]).await;
    let app = backend.session().await;
    app.run("create table item (id bigint primary key, name text)")
        .await;
    app.run("insert into item values (1, 'old')").await;
    let new = json!({
        "name": "items", "id": 9, "comment": "all of them",
        "source": {"kind": "captured", "table": "item"}
    });
    let made = post(&serving, "/api/feeds", new.clone(), 201).await;
    assert_eq!(
        (&made["id"], &made["source"]["kind"]),
        (&json!(9), &json!("captured"))
    );
    post(&serving, "/api/feeds", new, 409).await;
    let all = serving.get("/api/feeds").await.json(200);
    let names: Vec<&Value> = all["feeds"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| &f["name"])
        .collect();
    assert_eq!(names, ["orders", "items"]);

    loop {
        let step = post(
            &serving,
            "/api/feeds/items/backfill",
            json!({"batch": 10}),
            200,
        )
        .await;
        if step["finished"] == true {
            assert_eq!(step["done"], 1);
            break;
        }
    }
    app.run("insert into item values (2, 'new')").await;
    let path = "/api/feeds/items/shards/0/changes?wait=20000&limit=10&after=2000000000000000";
    let next = serving.get(path).await.json(200)["next"]
        .as_str()
        .unwrap()
        .to_owned();

    let place = "/api/feeds/items/consumers/mail/shards/0";
    let put = |cursor: &str| request("PUT", place).json(json!({ "cursor": cursor }));
    assert_eq!(put(&next).send(serving.at).await.status, 204);
    put("9999999999999999").send(serving.at).await.problem(409);
    // Repeated because its answer was lost: it is stored already. Late: nothing is moved back.
    assert_eq!(put(&next).send(serving.at).await.status, 204);
    let first = "2000000000000000";
    let late = put(first).send(serving.at).await;
    assert_eq!(late.json(409)["kind"], "moved");
    for (body, status) in [
        (json!({"cursor": first, "from": first}), 409),
        (json!({"cursor": first, "from": next, "seek": true}), 400),
        (json!({"cursor": first, "from": next}), 204),
        (json!({"cursor": next, "seek": true}), 204),
    ] {
        let answer = request("PUT", place)
            .json(body.clone())
            .send(serving.at)
            .await;
        assert_eq!(answer.status, status, "{body}");
    }
    let consumers = serving.get("/api/consumers").await.json(200);
    assert_eq!(consumers["consumers"][0]["cursor"], next.as_str());
    assert_eq!(consumers["consumers"][0]["lag_changes"], 0);
    let detail = serving.get("/api/feeds/items").await.json(200);
    assert_eq!(detail["shards"][0]["last"], next.as_str());
    assert_eq!(detail["consumers"][0]["name"], "mail");
    let trimmed = post(
        &serving,
        "/api/feeds/items/trim",
        json!({"older_than_ms": 3_600_000}),
        200,
    )
    .await;
    assert_eq!(trimmed["removed"], 0);
    delete(&serving, "/api/feeds/items/consumers/mail").await;
    request("DELETE", "/api/feeds/items/consumers/mail")
        .send(serving.at)
        .await
        .problem(404);
    delete(&serving, "/api/feeds/items").await;
    serving.get("/api/feeds/items").await.problem(404);
}

pub(crate) async fn the_life_of_an_event_trigger(backend: Arc<dyn Backend>) {
    let (_, serving) = shop(&backend, &[]).await;
    let app = backend.session().await;
    let receiver = Receiver::start().await.unwrap();
    receiver.otherwise(Reply::Status(500));
    let hook = receiver.url("/hook");
    let address = hook.replace("http://", "http://user:hush@") + "?key=hush";
    let definition = json!({
        "name": "paid", "table": "orders", "insert": true, "manual": true, "webhook": address,
        "header": {"authorization": "hush", "x-team": "shop"},
        "retries": 5
    });
    let made = post(&serving, "/api/triggers", definition.clone(), 201).await;
    let shown = serving.get("/api/triggers/paid").await;
    for text in [
        made.to_string(),
        shown.body,
        serving.get("/api/triggers").await.body,
    ] {
        assert!(!text.contains("hush"), "{text}");
        assert!(text.contains("shop"), "{text}");
    }
    post(&serving, "/api/triggers", definition.clone(), 409).await;
    app.run("insert into orders values (1, 1, 'x')").await;
    let dead = "/api/events?trigger=paid&status=dead_letter";
    let events = eventually("it is a dead letter", || async {
        let events = serving.get(dead).await.json(200);
        (!events["events"].as_array().unwrap().is_empty()).then_some(events)
    })
    .await;
    let event = &events["events"][0];
    assert_eq!(
        (&event["op"], &event["new"]["id"]),
        (&json!("INSERT"), &json!(1))
    );
    let path = format!("/api/events/{}", event["id"].as_str().unwrap());
    let answer = serving.get(&path).await;
    assert!(!answer.body.contains("hush"), "{}", answer.body);
    let detail = answer.json(200);
    assert_eq!(detail["attempts"][0]["status"], 500);
    assert!(detail["attempts"][0]["request"].is_object());

    receiver.otherwise(Reply::Status(200));
    let again = post(&serving, &format!("{path}/redeliver"), json!({}), 200).await;
    assert_eq!(again["events"], 1);
    eventually("it arrives", || async {
        let event = serving.get(&path).await.json(200);
        (event["status"] == "delivered").then_some(())
    })
    .await;
    post(&serving, "/api/events/redeliver", json!({}), 400).await;
    let many = json!({"trigger": "paid", "status": "delivered"});
    assert_eq!(
        post(&serving, "/api/events/redeliver", many.clone(), 200).await["events"],
        1
    );
    // With a key it is one redelivery, however often it is asked for.
    eventually("it arrives again", || async {
        let event = serving.get(&path).await.json(200);
        (event["status"] == "delivered").then_some(())
    })
    .await;
    let attempts = async || {
        let event = serving.get(&path).await.json(200);
        event["attempts"].as_array().unwrap().len()
    };
    let before = attempts().await;
    let keyed = |key: &str| {
        request("POST", format!("{path}/redeliver"))
            .header("idempotency-key", key)
            .json(json!({}))
    };
    for key in ["0e5d2f0a-2f7c-4f31-9c31-4b5d6e7f8091"; 3] {
        let told = keyed(key).send(serving.at).await.json(200);
        assert_eq!(told["events"], 1);
        eventually("it arrived once more", || async {
            let event = serving.get(&path).await.json(200);
            (event["status"] == "delivered").then_some(())
        })
        .await;
    }
    assert_eq!(attempts().await, before + 1);
    keyed("again").send(serving.at).await.problem(400);

    let invoke = json!({"payload": {"n": 9_007_199_254_740_993_i64}});
    let event = post(&serving, "/api/triggers/paid/invoke", invoke, 201).await;
    let path = format!("/api/events/{}", event["event_id"].as_str().unwrap());
    let manual = serving.get(&path).await;
    assert!(manual.body.contains("9007199254740993"), "{}", manual.body);
    // A request that is repeated with its key is the same event.
    let keyed = |key: &str| {
        request("POST", "/api/triggers/paid/invoke")
            .header("idempotency-key", key)
            .json(json!({"payload": {"n": 1}}))
    };
    let mut told = Vec::new();
    for key in ["6f1c9cf4-7a53-4f0c-8f6e-1d2a3b4c5d6e"; 2] {
        told.push(keyed(key).send(serving.at).await.json(201)["event_id"].clone());
    }
    assert_eq!(told[0], told[1]);
    assert_ne!(told[0], event["event_id"]);
    keyed("again").send(serving.at).await.problem(400);
    post(
        &serving,
        "/api/triggers/paid/pause",
        json!({"reason": "for a test"}),
        204,
    )
    .await;
    assert_eq!(
        serving.get("/api/triggers/paid").await.json(200)["paused"],
        "for a test"
    );
    post(&serving, "/api/triggers/paid/resume", json!({}), 204).await;
    let step = post(&serving, "/api/triggers/paid/backfill", json!({}), 200).await;
    assert!(step["total"].is_number());

    let mut changed = definition;
    changed["retries"] = json!(7);
    let put = request("PUT", "/api/triggers/paid")
        .json(changed)
        .send(serving.at)
        .await;
    assert_eq!(put.json(200)["retries"], 7);
    let clean = json!({"older_than_ms": 0, "dead_letters": true});
    post(&serving, "/api/events/clean-up", clean, 200).await;
    delete(&serving, "/api/triggers/paid").await;
    serving.get("/api/triggers/paid").await.problem(404);
    let bad = json!({"name": "x", "table": "orders", "webhook": "ftp://x"});
    post(&serving, "/api/triggers", bad, 400).await;
    let unclear = json!({"name": "x", "table": "orders"});
    post(&serving, "/api/triggers", unclear, 400).await;
}

pub(crate) async fn the_life_of_a_watch(backend: Arc<dyn Backend>) {
    let (_, serving) = shop(&backend, &[]).await;
    let app = backend.session().await;
    let receiver = Receiver::start().await.unwrap();
    receiver.otherwise(Reply::Status(500));
    let new = json!({
        "name": "mail", "table": "orders", "webhook": receiver.url("/w"), "attempts": 1,
        "retry_interval": "50ms", "timeout": "5s", "header": {"x-team": "shop"}
    });
    let made = post(&serving, "/api/watches", new.clone(), 201).await;
    assert_eq!(
        (&made["name"], &made["timeout"], &made["header"]["x-team"]),
        (&json!("mail"), &json!("5s"), &json!("shop"))
    );
    post(&serving, "/api/watches", new, 409).await;
    let exec = json!({"name": "sh", "table": "orders", "exec": "true"});
    post(&serving, "/api/watches", exec, 400).await;
    app.run("insert into orders values (1, 1, 'x')").await;
    let parked = eventually("it is a dead letter", || async {
        let watch = serving.get("/api/watches/mail").await.json(200);
        (watch["parked"] == 1).then_some(watch)
    })
    .await;
    assert_eq!(parked["parked_changes"][0]["key"]["id"], 1);
    receiver.otherwise(Reply::Status(200));
    let retried = post(&serving, "/api/watches/mail/retry", json!({}), 200).await;
    assert_eq!(retried["retried"], 1);
    eventually("it arrives", || async {
        let watch = serving.get("/api/watches/mail").await.json(200);
        (watch["unprocessed"] == 0 && watch["parked"] == 0).then_some(())
    })
    .await;
    post(
        &serving,
        "/api/watches/mail/reset",
        json!({"from": "now"}),
        204,
    )
    .await;
    let all = serving.get("/api/watches").await.json(200);
    assert_eq!(all["watches"].as_array().unwrap().len(), 1);
    delete(&serving, "/api/watches/mail").await;
    serving.get("/api/watches/mail").await.problem(404);
}

pub(crate) async fn what_it_shows_of_the_whole(backend: Arc<dyn Backend>) {
    let (_, serving) = shop(&backend, &[]).await;
    let app = backend.session().await;
    app.run("insert into orders values (1, 1, 'x')").await;
    let status = eventually("a second sample", || async {
        let status = serving.get("/api/status").await.json(200);
        let rated = status["feeds"][0]["rate"].is_number();
        (rated && status["instances"].as_array().unwrap().len() == 1).then_some(status)
    })
    .await;
    assert_eq!(status["feeds"][0]["name"], "orders");
    assert_eq!(status["feeds"][0]["shards"].as_array().unwrap().len(), 2);
    assert_eq!(status["database"]["reachable"], true);
    assert_eq!(status["instances"][0]["name"], status["instance"]);
    let series = serving.get("/api/series?kind=feed_rate").await.json(200);
    assert_eq!(series["series"][0]["name"], "orders");
    assert_eq!(series["step_ms"], 5000);
    let instances = serving.get("/api/instances").await.json(200);
    assert_eq!(instances["instances"][0]["address"], serving.at.to_string());
    for path in ["/api/incidents", "/api/findings", "/api/session"] {
        serving.get(path).await.json(200);
    }
    let api = get("/api/openapi.json").send(serving.at).await.json(200);
    assert!(api["openapi"].as_str().unwrap().starts_with("3."));
    assert!(api["paths"]["/api/feeds/{feed}/shards/{shard}/changes"]["get"].is_object());
}
