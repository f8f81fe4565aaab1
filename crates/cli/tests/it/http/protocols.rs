//! The open feed protocols, and their client from another ecosystem.

use std::sync::Arc;

use changefeed_testkit::backend::Backend;
use serde_json::Value;

use crate::http::judges::python;
use crate::http::serving::{Serving, shop};

fn lines(body: &str) -> Vec<Value> {
    body.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

async fn filled(backend: &Arc<dyn Backend>, count: i64) -> Serving {
    let (_, serving) = shop(backend, &[]).await;
    let app = backend.session().await;
    for id in 1..=count {
        let customer = id % 2;
        app.run(&format!(
            "insert into orders values ({id}, {customer}, 'x')"
        ))
        .await;
    }
    // Until both shards have all of theirs.
    for shard in [0, 1] {
        let path = format!("/api/feeds/orders/shards/{shard}/changes?limit=10000&wait=100");
        changefeed_testkit::eventually("all have their numbers", || async {
            let page = serving.get(&path).await.json(200);
            let read = page["changes"].as_array().unwrap().len();
            (read as i64 >= count / 2).then_some(())
        })
        .await;
    }
    serving
}

pub(crate) async fn both_versions_are_spoken_at_one_address(backend: Arc<dyn Backend>) {
    let serving = filled(&backend, 6).await;
    let v1 = serving
        .get("/feeds/orders?n=2&cursor0=_first&cursor1=_last&pagesizehint=100")
        .await;
    assert_eq!(
        (v1.status, v1.header("content-type")),
        (200, Some("application/x-ndjson"))
    );
    let all = lines(&v1.body);
    assert_eq!(all.len(), 5, "{}", v1.body);
    assert!(
        all[..3]
            .iter()
            .all(|l| l["partition"] == 0 && l["data"]["row"]["customer"] == 0)
    );
    assert!(all[3]["cursor"].is_string() && all[4]["partition"] == 1);

    let found = serving.get("/feeds/orders").await.json(200);
    let token = found["token"].as_str().unwrap();
    assert_eq!(found["exactlyOnce"], true);
    assert_eq!(found["partitions"][1]["id"], "1");
    assert_eq!(found["partitions"][1]["closed"], false);
    let (mut cursor, mut ids) = ("_first".to_owned(), Vec::new());
    loop {
        let path = format!(
            "/feeds/orders/events?token={token}&partition=1&cursor={cursor}&pagesizehint=2"
        );
        let page = lines(&serving.get(path).await.body);
        let events = page.iter().filter_map(|l| l["data"]["row"]["id"].as_i64());
        let before = ids.len();
        ids.extend(events);
        cursor = page.last().unwrap()["cursor"].as_str().unwrap().to_owned();
        if ids.len() == before {
            break;
        }
    }
    assert_eq!(ids, [1, 3, 5]);
    // Long polling, as the drafts have it.
    let path = format!("/feeds/orders/events?token={token}&partition=1&cursor={cursor}&wait=20000");
    let (page, ()) = tokio::join!(serving.get(path), async {
        crate::http::serving::waits(&serving, 1).await;
        let app = backend.session().await;
        app.run("insert into orders values (7, 1, 'x')").await;
    });
    assert_eq!(lines(&page.body)[0]["data"]["row"]["id"], 7);
}

pub(crate) async fn wrong_handshakes_are_answered_as_their_clients_expect(
    backend: Arc<dyn Backend>,
) {
    let (_, serving) = shop(&backend, &[]).await;
    let token = serving.get("/feeds/orders").await.json(200)["token"]
        .as_str()
        .unwrap()
        .to_owned();
    let events = format!("/feeds/orders/events?token={token}");
    for (path, status, text) in [
        (
            "/feeds/orders?cursor0=_first",
            400,
            "handshake error: partition count missing",
        ),
        (
            "/feeds/orders?n=3&cursor0=_first",
            400,
            "handshake error: partition count mismatch",
        ),
        ("/feeds/orders?n=2", 400, "cursors are missing"),
        (
            "/feeds/orders?n=2&cursor2=_first",
            400,
            "partition doesn't exist",
        ),
        (
            "/feeds/orders?n=two&cursor0=_first",
            400,
            "'two' is not a number",
        ),
        (
            "/feeds/orders?n=2&cursor0=later",
            400,
            "'later' is not a cursor",
        ),
        (
            "/feeds/nope?n=2&cursor0=_first",
            404,
            "there is no feed 'nope'",
        ),
        (
            "/feeds/orders/events?token=old&partition=0&cursor=_first",
            409,
            "token",
        ),
        (
            &format!("{events}&partition=7&cursor=_first"),
            400,
            "partition doesn't exist",
        ),
        (&format!("{events}&partition=0"), 400, "cursor"),
        (
            &format!("{events}&partition=0&cursor=_first&pagesizehint=x"),
            400,
            "pagesizehint",
        ),
        (
            &format!("{events}&partition=0&cursor=_first&event-types=a&skip-event-types=b"),
            400,
            "exclude",
        ),
    ] {
        let answer = serving.get(path).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        assert!(answer.body.contains(text), "{path}: {}", answer.body);
        assert_eq!(
            answer.header("content-type"),
            Some("text/plain; charset=utf-8")
        );
    }
    let empty = serving
        .get(format!("{events}&partition=0&cursor=_first"))
        .await;
    assert_eq!(
        lines(&empty.body),
        [serde_json::json!({"cursor": "_first"})]
    );
}

/// `zeroeventhub` from PyPI pages through both partitions until there is no more.
pub(crate) async fn the_client_from_pypi_reads_everything_in_order(backend: Arc<dyn Backend>) {
    let serving = filled(&backend, 50).await;
    let output = python("read_zeroeventhub.py")
        .arg(format!("http://{}/feeds/orders", serving.at))
        .output()
        .await
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let read: Value = serde_json::from_slice(&output.stdout).unwrap();
    for partition in [0, 1] {
        let expected: Vec<i64> = (1..=50).filter(|id| id % 2 == partition).collect();
        let ids: Vec<i64> = read[partition.to_string()]
            .as_array()
            .unwrap()
            .iter()
            .map(|id| id.as_i64().unwrap())
            .collect();
        assert_eq!(ids, expected, "partition {partition}");
    }
}
