//! Pages and long polls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed_testkit::backend::Backend;
use tokio::task::JoinSet;

use crate::http::client::get;
use crate::http::serving::{shop, waits};

pub(crate) const CHANGES: &str = "/api/feeds/orders/shards/1/changes";

pub(crate) async fn pages_follow_each_other_and_rows_are_as_the_database_wrote_them(
    backend: Arc<dyn Backend>,
) {
    let (_, serving) = shop(&backend, &[]).await;
    let app = backend.session().await;
    for id in 1..=5 {
        // More than a float can hold, and a text that is easily misread.
        let sql = format!(
            "insert into orders values (90071992547409{id:02}, 1, 'a\"b\\c {{\"x\": 1}} é')"
        );
        app.run(&sql).await;
    }
    let page = get(format!("{CHANGES}?limit=2&wait=20000"))
        .send(serving.at)
        .await;
    assert!(page.body.contains("9007199254740901"), "{}", page.body);
    let (mut after, mut ids) = ("first".to_owned(), Vec::new());
    while ids.len() < 5 {
        let path = format!("{CHANGES}?after={after}&limit=2&wait=20000");
        let page = serving.get(&path).await.json(200);
        assert_eq!(page["feed"], "orders");
        for change in page["changes"].as_array().unwrap() {
            assert_eq!(change["row"]["note"], "a\"b\\c {\"x\": 1} é");
            assert!(change["change_id"].is_string());
            ids.push(change["row"]["id"].as_i64().unwrap());
        }
        after = page["next"].as_str().unwrap().to_owned();
        // The same page again begins with the same changes.
        let again = serving.get(&path).await.json(200);
        assert_eq!(again["changes"][0], page["changes"][0]);
    }
    assert_eq!(ids, [1, 2, 3, 4, 5].map(|n| 9_007_199_254_740_900 + n));
    let end = serving
        .get(format!("{CHANGES}?after={after}"))
        .await
        .json(200);
    assert_eq!(end["next"], after.as_str());
    let empty = serving
        .get("/api/feeds/orders/shards/0/changes")
        .await
        .json(200);
    assert_eq!(empty["next"], "first");

    let lines = get(CHANGES)
        .header("accept", "application/x-ndjson")
        .send(serving.at)
        .await;
    assert_eq!(lines.header("content-type"), Some("application/x-ndjson"));
    assert_eq!(lines.body.lines().count(), 6);
    let life = lines.header("changefeed-incarnation").unwrap();
    assert_eq!(
        lines.body.lines().last(),
        Some(&*format!(
            "{{\"next\":\"{after}\",\"more\":false,\"incarnation\":\"{life}\"}}"
        ))
    );
}

pub(crate) async fn a_long_poll_is_answered_as_soon_as_there_is_something(
    backend: Arc<dyn Backend>,
) {
    let (_, serving) = shop(&backend, &[]).await;
    let at = serving.at;
    let waiting = tokio::spawn(async move {
        get(format!("{CHANGES}?after=last&wait=30000"))
            .send(at)
            .await
    });
    waits(&serving, 1).await;
    let app = backend.session().await;
    let began = Instant::now();
    app.run("insert into orders values (1, 1, 'x')").await;
    let page = waiting.await.unwrap().json(200);
    assert_eq!(page["changes"][0]["row"]["id"], 1);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(5), "it took {took:?}");
}

pub(crate) async fn a_wait_for_nothing_ends_with_an_empty_page(backend: Arc<dyn Backend>) {
    let (_, serving) = shop(&backend, &[]).await;
    let began = Instant::now();
    let page = serving.get(format!("{CHANGES}?wait=300")).await.json(200);
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert_eq!(page["changes"].as_array().unwrap().len(), 0);
}

/// One change answers all of them, and the database has no more connections than before.
pub(crate) async fn a_thousand_clients_who_wait_share_what_they_wait_for(
    backend: Arc<dyn Backend>,
) {
    const CLIENTS: usize = 400;
    let (_, serving) = shop(&backend, &[]).await;
    let mut waiting = JoinSet::new();
    for n in 0..CLIENTS {
        let at = serving.at;
        waiting.spawn(async move {
            if n % 2 == 0 {
                let poll = get(format!("{CHANGES}?after=last&wait=60000"));
                return poll.send(at).await.json(200)["changes"][0]["row"]["id"].clone();
            }
            let stream = get(CHANGES).header("accept", "text/event-stream");
            let event = stream.open(at).await.event().await.unwrap();
            let data: serde_json::Value = serde_json::from_str(&event.data.unwrap()).unwrap();
            data["row"]["id"].clone()
        });
    }
    waits(&serving, CLIENTS).await;
    let app = backend.session().await;
    let reads = |metrics: &str| -> u64 {
        let line = "changefeed_store_seconds_count{operation=\"read\"} ";
        let count = metrics.lines().find_map(|l| l.strip_prefix(line));
        count.unwrap().parse().unwrap()
    };
    let before = reads(&serving.get("/metrics").await.body);
    app.run("insert into orders values (42, 1, 'x')").await;
    while let Some(id) = waiting.join_next().await {
        assert_eq!(id.unwrap(), 42);
    }
    let metrics = serving.get("/metrics").await.body;
    let queries = reads(&metrics) - before;
    assert!(
        queries < CLIENTS as u64 / 4,
        "{queries} queries for {CLIENTS} clients"
    );
    let open = metrics
        .lines()
        .find_map(|l| l.strip_prefix("changefeed_connections{state=\"open\"} "))
        .unwrap();
    assert!(open.parse::<f64>().unwrap() <= 10.0, "{open} connections");
}
