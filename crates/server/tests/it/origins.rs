//! Pages of other origins.

use axum::Router;
use changefeed_server::Options;
use serde_json::json;

use crate::stage::{Shop, get, request};

const APP: &str = "https://app.example";

/// A page that somebody has open must not be able to change anything: `*` is for reading, and a named
/// origin needs a token.
#[tokio::test]
async fn pages_of_other_origins_write_only_if_they_are_named_and_have_a_token() {
    let shop = Shop::new().await;
    let named = |o: &mut Options| o.cors_origins = vec!["*".into(), APP.into()];
    let drop_feed = || request("DELETE", "/api/feeds/orders");
    let methods = |server: &Router, origin: &str| {
        let preflight = request("OPTIONS", "/api/feeds/orders")
            .header("origin", origin)
            .header("access-control-request-method", "DELETE")
            .header("access-control-request-headers", "authorization");
        let server = server.clone();
        async move {
            let answer = preflight.send(&server).await;
            let allowed = answer.header("access-control-allow-origin");
            let methods = answer.header("access-control-allow-methods");
            allowed
                .zip(methods)
                .map(|(o, m)| (o.to_owned(), m.to_owned()))
        }
    };
    let said = |origin: &str, methods: &str| Some((origin.to_owned(), methods.to_owned()));

    // Without tokens nobody from elsewhere writes, named or not.
    let server = shop.serve(named).await;
    for origin in [
        "https://evil.example",
        "null",
        "*",
        "",
        APP,
        "https://app.example.evil",
    ] {
        let answer = drop_feed().header("origin", origin).send(&server).await;
        answer.problem(403);
        let garbage = drop_feed()
            .header("origin", origin)
            .token("cft_aaaaaaaaaaaa_00")
            .send(&server)
            .await;
        assert!(
            [401, 403].contains(&garbage.status),
            "{origin}: {}",
            garbage.body
        );
    }
    let two = drop_feed()
        .header("origin", APP)
        .header("origin", "https://evil.example");
    two.send(&server).await.problem(403);
    assert_eq!(
        methods(&server, "https://evil.example").await,
        said("*", "GET, HEAD")
    );
    assert_eq!(methods(&server, APP).await, said(APP, "GET, HEAD"));
    let read = get("/api/feeds").header("origin", "https://evil.example");
    let read = read.send(&server).await;
    assert_eq!(
        (read.status, read.header("access-control-allow-origin")),
        (200, Some("*"))
    );

    let token = shop.token("administer").await;
    let server = shop.serve(named).await;
    assert_eq!(
        methods(&server, "https://evil.example").await,
        said("*", "GET, HEAD")
    );
    assert_eq!(
        methods(&server, APP).await,
        said(APP, "GET, HEAD, POST, PUT, PATCH, DELETE")
    );
    let evil = drop_feed()
        .header("origin", "https://evil.example")
        .token(&token);
    evil.send(&server).await.problem(403);
    drop_feed()
        .header("origin", APP)
        .send(&server)
        .await
        .problem(403);
    let wrong = drop_feed()
        .header("origin", APP)
        .token("cft_aaaaaaaaaaaa_00");
    wrong.send(&server).await.problem(401);
    let allowed = drop_feed()
        .header("origin", APP)
        .token(&token)
        .send(&server)
        .await;
    assert_eq!(
        (
            allowed.status,
            allowed.header("access-control-allow-origin")
        ),
        (204, Some(APP))
    );

    // Nobody is granted anything unless somebody says so.
    let server = shop.serve(|_| ()).await;
    assert_eq!(methods(&server, APP).await, None);
    let foreign = request("POST", "/api/feeds").json(json!({"name": "x"}));
    let foreign = foreign.header("origin", APP).token(&token);
    foreign.send(&server).await.problem(403);
}
