//! Feeds that would not fit into memory, and cursors behind what is left of them.

use std::sync::Arc;

use changefeed_testkit::backend::Backend;
use changefeed_testkit::eventually;
use serde_json::{Value, json};

use crate::http::client::{get, request};
use crate::http::serving::{Serving, out, shop};

/// Rows of each of the two shards, and how large each of them is.
const ROWS: usize = 96;
const BYTES: usize = 100_000;
/// What an answer may have: 8 MiB of rows, and what is around them.
const MOST: usize = 8 * 1024 * 1024 + 100_000;

/// A feed of two shards with as many large rows.
async fn large(backend: &Arc<dyn Backend>) -> Serving {
    let (_, serving) = shop(backend, &[]).await;
    let app = backend.session().await;
    let note = "x".repeat(BYTES);
    let mut rows = 6;
    for id in 1..=rows {
        let customer = id % 2;
        app.run(&format!(
            "insert into orders values ({id}, {customer}, '{note}')"
        ))
        .await;
    }
    while rows < 2 * ROWS {
        app.run(&format!(
            "insert into orders select id + {rows}, customer, note from orders"
        ))
        .await;
        rows *= 2;
    }
    eventually("all have numbers", || async {
        let feed = serving.get("/api/feeds/orders").await.json(200);
        let all = feed["shards"].as_array().unwrap();
        let last = |shard: &Value| shard["last"].as_str().unwrap().parse::<usize>().unwrap();
        let full = |shard| last(shard) >= 2_000_000_000_000_000 + ROWS;
        all.iter().all(full).then_some(())
    })
    .await;
    serving
}

fn lines(body: &str) -> impl Iterator<Item = Value> {
    body.lines().map(|line| serde_json::from_str(line).unwrap())
}

/// A page of 5,000 rows of 100 KB was an answer of 512 MB.
pub(crate) async fn a_feed_of_large_rows_is_read_in_pages_that_fit_into_memory(
    backend: Arc<dyn Backend>,
) {
    let serving = large(&backend).await;
    let mine: Vec<i64> = (0..ROWS as i64).map(|n| 2 * n + 1).collect();

    // Each page, and the next one without waiting.
    let (mut after, mut ids, mut pages) = ("first".to_owned(), Vec::new(), 0);
    loop {
        let path =
            format!("/api/feeds/orders/shards/1/changes?after={after}&limit=10000&wait=60000");
        let answer = serving.get(path).await;
        assert!(answer.body.len() < MOST, "{}", answer.body.len());
        let page = answer.json(200);
        let changes = page["changes"].as_array().unwrap();
        ids.extend(changes.iter().map(|c| c["row"]["id"].as_i64().unwrap()));
        after = page["next"].as_str().unwrap().to_owned();
        pages += 1;
        if page["more"] == false {
            break;
        }
    }
    ids.sort_unstable();
    assert_eq!(ids, mine);
    assert_eq!(pages, 2);

    // The protocols have no word for it: their clients go on until nothing comes.
    let discovered = serving.get("/feeds/orders").await.json(200);
    let token = discovered["token"].as_str().unwrap();
    let (mut cursor, mut ids) = ("_first".to_owned(), Vec::new());
    while ids.len() < ROWS {
        let path = format!(
            "/feeds/orders/events?token={token}&partition=1&cursor={cursor}&pagesizehint=10000&wait=60000"
        );
        let answer = serving.get(path).await;
        assert!(answer.body.len() < MOST, "{}", answer.body.len());
        for line in lines(&answer.body) {
            ids.extend(line["data"]["row"]["id"].as_i64());
            if let Some(next) = line["cursor"].as_str() {
                cursor = next.to_owned();
            }
        }
    }
    ids.sort_unstable();
    assert_eq!(ids, mine);

    // All partitions at once are one answer.
    let (mut cursors, mut ids) = (["_first".to_owned(), "_first".to_owned()], Vec::new());
    while ids.len() < 2 * ROWS {
        let path = format!(
            "/feeds/orders?n=2&cursor0={}&cursor1={}&pagesizehint=10000&wait=60000",
            cursors[0], cursors[1]
        );
        let answer = serving.get(path).await;
        assert!(answer.body.len() < MOST, "{}", answer.body.len());
        let before = ids.len();
        for line in lines(&answer.body) {
            let partition = usize::try_from(line["partition"].as_u64().unwrap()).unwrap();
            ids.extend(line["data"]["row"]["id"].as_i64());
            if let Some(next) = line["cursor"].as_str() {
                cursors[partition] = next.to_owned();
            }
        }
        assert!(ids.len() > before, "an answer without anything");
    }
    ids.sort_unstable();
    assert_eq!(ids, (1..=2 * ROWS as i64).collect::<Vec<_>>());

    // A stream goes on by itself.
    let mut stream = get("/api/feeds/orders/shards/1/changes?after=first")
        .header("accept", "text/event-stream")
        .open(serving.at)
        .await;
    for _ in 0..ROWS {
        assert!(stream.event().await.unwrap().data.unwrap().len() > BYTES);
    }
}

/// It would be told so by its next read, and hold back nothing until then.
pub(crate) async fn a_consumer_cannot_be_put_where_nothing_is_left(backend: Arc<dyn Backend>) {
    let (url, serving) = shop(&backend, &[]).await;
    let app = backend.session().await;
    for id in 1..=4 {
        app.run(&format!("insert into orders values ({id}, 1, 'x')"))
            .await;
    }
    let mut after = "first".to_owned();
    for _ in 0..4 {
        let path = format!("/api/feeds/orders/shards/1/changes?after={after}&limit=1&wait=20000");
        let page = serving.get(path).await.json(200);
        after = page["next"].as_str().unwrap().to_owned();
    }
    let place = "/api/feeds/orders/consumers/mail/shards/1";
    let put = async |cursor: &str| {
        let body = json!({"cursor": cursor, "seek": true});
        request("PUT", place).json(body).send(serving.at).await
    };
    assert_eq!(put(&after).await.status, 204);
    out(&url, &["feed", "trim", "orders", "--older-than", "0s"]);
    for behind in ["0", "2000000000000000", "2000000000000001"] {
        let refused = put(behind).await;
        assert_eq!(refused.json(410)["kind"], "cursor_expired", "{behind}");
    }
    let consumers = serving.get("/api/consumers").await.json(200);
    assert_eq!(consumers["consumers"][0]["cursor"], after.as_str());
}
