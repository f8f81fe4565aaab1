//! A feed that goes on in other shards.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::stage::{Shop, get, request};

#[tokio::test]
async fn readers_are_told_that_a_shard_is_closed() {
    let shop = Shop::new().await;
    let server = shop.serve(|_| ()).await;
    let app = shop.store.connection().unwrap();
    app.execute_batch("insert into orders values (1, 1, 'a')")
        .unwrap();
    let reshard = |shards: Value| {
        request("POST", "/api/feeds/orders/reshard").json(json!({ "shards": shards }))
    };
    for wrong in [json!(0), json!(-1), json!(40_000), json!("2")] {
        let refused = reshard(wrong.clone()).send(&server).await;
        assert_eq!(refused.json(400)["kind"], "invalid", "{wrong}");
    }
    let token = get("/feeds/orders").send(&server).await.json(200)["token"].clone();
    let feed = reshard(json!(4)).send(&server).await.json(200);
    let open = feed["shards"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|s| s["closed"] == false);
    assert_eq!(open.count(), 4);
    app.execute_batch("update orders set note = 'b'").unwrap();

    // It waits for nothing that cannot come.
    let began = Instant::now();
    for shard in [0, 1] {
        let path = format!("/api/feeds/orders/shards/{shard}/changes?after=last&wait=60000");
        let page = get(&path).send(&server).await.json(200);
        assert_eq!(
            (&page["closed"], &page["changes"]),
            (&json!(true), &json!([]))
        );
    }
    let both = "/feeds/orders?n=6&cursor0=_last&cursor1=_last&wait=60000";
    assert_eq!(get(both).send(&server).await.body.lines().count(), 2);
    assert!(began.elapsed() < Duration::from_secs(30));
    let page = get("/api/feeds/orders/shards/3/changes")
        .send(&server)
        .await
        .json(200);
    assert_eq!(
        (&page["closed"], page["changes"].as_array().unwrap().len()),
        (&Value::Null, 1)
    );

    let found = get("/feeds/orders").send(&server).await.json(200);
    let one = |id: &str, closed: bool| json!({"id": id, "closed": closed});
    let after =
        |id: &str, parent: &str| json!({"id": id, "closed": false, "startsAfterPartition": parent});
    let expected = json!([
        one("0", true),
        one("1", true),
        after("2", "0"),
        after("3", "1"),
        after("4", "0"),
        after("5", "1")
    ]);
    assert_eq!(found["partitions"], expected);
    assert_ne!(found["token"], token);
    let stale = format!(
        "/feeds/orders/events?token={}&partition=0&cursor=_first",
        token.as_str().unwrap()
    );
    assert_eq!(get(&stale).send(&server).await.status, 409);

    let stream =
        get("/api/feeds/orders/shards/1/changes?after=first").header("accept", "text/event-stream");
    let events = stream.send(&server).await.body;
    assert!(events.contains("\"op\":\"insert\""), "{events}");
    assert!(events.ends_with("event: closed\ndata: {}\n\n"), "{events}");
}
