//! Who may what.

use changefeed_core::AccessStore;
use serde_json::json;

use crate::stage::{AT, CHANGES, Request, Shop, get, request};

/// The smallest right that each of these needs, and the status it has with it.
fn questions() -> Vec<(&'static str, Request, u16)> {
    let empty = |method: &str, path: &str| request(method, path).json(json!({}));
    vec![
        ("read:orders", get(CHANGES), 200),
        ("read:orders", get("/api/feeds/orders"), 200),
        ("read:orders", get("/feeds/orders"), 200),
        ("read", get("/api/status"), 200),
        ("read", get("/api/series"), 200),
        ("read", get("/api/consumers"), 200),
        ("read", get("/api/triggers"), 200),
        ("read", get("/api/events"), 200),
        ("read", get("/api/watches"), 200),
        ("read", get("/api/subscriptions"), 200),
        ("read", get("/api/subscriptions/nope"), 404),
        ("read", get("/api/instances"), 200),
        ("read", get("/api/incidents"), 200),
        ("read", get("/api/findings"), 200),
        ("read", get("/metrics"), 200),
        ("operate", empty("POST", "/api/triggers/nope/pause"), 404),
        ("operate", empty("POST", "/api/triggers/nope/resume"), 404),
        ("operate", empty("POST", "/api/triggers/nope/invoke"), 404),
        ("operate", empty("POST", "/api/triggers/nope/backfill"), 404),
        ("operate", empty("POST", "/api/events/nope/redeliver"), 404),
        ("operate", empty("POST", "/api/events/redeliver"), 400),
        ("operate", empty("POST", "/api/events/clean-up"), 400),
        ("operate", empty("POST", "/api/watches/nope/retry"), 404),
        (
            "operate",
            empty("POST", "/api/subscriptions/nope/pause"),
            404,
        ),
        (
            "operate",
            empty("POST", "/api/subscriptions/nope/resume"),
            404,
        ),
        (
            "operate",
            empty("POST", "/api/subscriptions/nope/seek"),
            400,
        ),
        (
            "operate",
            empty("POST", "/api/subscriptions/nope/reset"),
            404,
        ),
        ("operate", empty("POST", "/api/feeds/nope/backfill"), 404),
        (
            "administer",
            request("POST", "/api/feeds/nope/reshard").json(json!({"shards": 2})),
            404,
        ),
        ("operate", empty("POST", "/api/feeds/nope/trim"), 400),
        (
            "operate",
            empty("PUT", "/api/feeds/orders/consumers/c/shards/0"),
            400,
        ),
        (
            "operate",
            request("DELETE", "/api/feeds/orders/consumers/c"),
            404,
        ),
        ("administer", empty("POST", "/api/feeds"), 400),
        ("administer", empty("PATCH", "/api/feeds/nope"), 404),
        ("administer", request("DELETE", "/api/feeds/nope"), 404),
        ("administer", empty("POST", "/api/triggers"), 400),
        ("administer", empty("PUT", "/api/triggers/nope"), 400),
        ("administer", request("DELETE", "/api/triggers/nope"), 404),
        ("administer", empty("POST", "/api/watches"), 400),
        ("administer", empty("PUT", "/api/watches/nope"), 400),
        ("administer", request("DELETE", "/api/watches/nope"), 404),
        ("administer", empty("POST", "/api/watches/nope/reset"), 404),
        ("administer", empty("PUT", "/api/subscriptions/nope"), 400),
        (
            "administer",
            request("DELETE", "/api/subscriptions/nope"),
            404,
        ),
        ("administer", get("/api/tokens"), 200),
        ("administer", empty("POST", "/api/tokens"), 400),
        (
            "administer",
            request("DELETE", "/api/tokens/aaaaaaaaaaaa"),
            404,
        ),
    ]
}

#[tokio::test]
async fn every_scope_may_what_it_says_and_nothing_else() {
    let shop = Shop::new().await;
    let scopes = ["read:orders", "read", "operate", "administer"];
    let mut tokens = Vec::new();
    for scope in scopes {
        tokens.push(shop.token(scope).await);
    }
    let other = shop.token("read:other").await;
    let server = shop.serve(|_| ()).await;
    for (needed, question, status) in questions() {
        let level = scopes.iter().position(|s| *s == needed).unwrap();
        question.send(&server).await.problem(401);
        let wrong = question.clone().token("cft_aaaaaaaaaaaa_00");
        wrong.send(&server).await.problem(401);
        for (have, token) in tokens.iter().enumerate() {
            let answer = question.clone().token(token).send(&server).await;
            let expected = if have >= level { status } else { 403 };
            assert_eq!(
                answer.status, expected,
                "{needed} with {}: {answer:?}",
                scopes[have]
            );
        }
        let answer = question.clone().token(&other).send(&server).await;
        assert_eq!(answer.status, 403, "{needed} with another feed: {answer:?}");
    }
    // Whoever may read one feed sees that one only.
    let list = |token: &str| get("/api/feeds").token(token);
    let seen = list(&tokens[0]).send(&server).await.json(200);
    assert_eq!(seen["feeds"].as_array().unwrap().len(), 1);
    let seen = list(&other).send(&server).await.json(200);
    assert_eq!(seen["feeds"].as_array().unwrap().len(), 0);
    // The health of a process is no secret.
    assert_eq!(get("/healthz").send(&server).await.status, 200);
    assert_eq!(get("/readyz").send(&server).await.status, 200);
    assert_eq!(get("/").send(&server).await.status, 200);
    // A secret is shown once, and kept nowhere.
    let made = request("POST", "/api/tokens")
        .json(json!({"name": "new", "scopes": ["read:orders", "operate"]}))
        .token(&tokens[3])
        .send(&server)
        .await
        .json(201);
    let secret = made["token"].as_str().unwrap().rsplit('_').next().unwrap();
    let listed = get("/api/tokens").token(&tokens[3]).send(&server).await;
    assert!(!listed.body.contains(secret) && listed.body.contains("\"new\""));
    let kept = shop.store.tokens().await.unwrap();
    assert!(!format!("{kept:?}").contains(secret));
    let may = get("/api/session").token(made["token"].as_str().unwrap());
    let may = may.send(&server).await.json(200);
    assert_eq!(may["scopes"], json!(["read:orders", "operate"]));
}

/// Whatever a page calls itself, and whatever name it was pointed at.
#[tokio::test]
async fn without_tokens_only_this_machine_is_answered() {
    let shop = Shop::new().await;
    let server = shop
        .serve(|o| o.allow_hosts = vec!["feeds.local".into()])
        .await;
    for host in [
        "evil.example",
        "evil.example:8787",
        "192.168.7.7",
        "localhost.evil.example",
    ] {
        let answer = get("/api/feeds").header("host", host).send(&server).await;
        assert!(
            answer.problem(403).contains("does not answer to the name"),
            "{host}"
        );
    }
    for host in [
        "localhost".to_owned(),
        "localhost:8787".to_owned(),
        "feeds.local".to_owned(),
    ] {
        let answer = get("/api/feeds").header("host", host).send(&server).await;
        assert_eq!(answer.status, 200);
    }
    // A page of another site may not write, whatever it calls itself.
    let write = || request("POST", "/api/feeds").json(json!({"name": "x"}));
    for (name, value) in [
        ("origin", "http://evil.example"),
        ("origin", "null"),
        ("origin", "http://localhost:1"),
        ("sec-fetch-site", "cross-site"),
    ] {
        write().header(name, value).send(&server).await.problem(403);
    }
    let ours = write().header("origin", format!("http://{AT}"));
    assert_eq!(ours.send(&server).await.status, 201);
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(
            get("/api/feeds").send(&server).await.header(name),
            Some(value)
        );
    }
    let foreign = get("/api/feeds").header("origin", "http://app.example");
    let answer = foreign.send(&server).await;
    assert_eq!(answer.header("access-control-allow-origin"), None);

    let server = shop
        .serve(|o| o.cors_origins = vec!["http://app.example".into()])
        .await;
    let answer = foreign.send(&server).await;
    let allowed = answer.header("access-control-allow-origin");
    assert_eq!(allowed, Some("http://app.example"));
    let written = write().header("origin", "http://app.example");
    let refused = written.send(&server).await.problem(403);
    assert!(refused.contains("only with a token"), "{refused}");
}
