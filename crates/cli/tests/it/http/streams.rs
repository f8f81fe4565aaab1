//! Server-sent events.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed_testkit::backend::Backend;
use changefeed_testkit::process::terminate;
use serde_json::Value;

use crate::http::client::{Event, Open, get, request};
use crate::http::reading::CHANGES;
use crate::http::serving::{Serving, orders, shop, waits};

async fn stream(serving: &Serving, path: &str, last: Option<&str>) -> Open {
    let mut request = get(path).header("accept", "text/event-stream");
    if let Some(id) = last {
        request = request.header("last-event-id", id);
    }
    let open = request.open(serving.at).await;
    assert_eq!(open.status, 200);
    open
}

fn row(event: &Event) -> i64 {
    let data: Value = serde_json::from_str(event.data.as_deref().unwrap()).unwrap();
    assert!(data["row"].is_object(), "{data}");
    data["row"]["id"].as_i64().unwrap()
}

pub(crate) async fn a_stream_resumes_where_its_last_event_was(backend: Arc<dyn Backend>) {
    let (_, serving) = shop(&backend, &[]).await;
    let app = backend.session().await;
    let mut first = stream(&serving, &format!("{CHANGES}?after=first"), None).await;
    for id in 1..=3 {
        app.run(&format!("insert into orders values ({id}, 1, 'x')"))
            .await;
    }
    let one = first.event().await.unwrap();
    assert_eq!(row(&one), 1);
    drop(first);
    let last = one.id.as_deref();
    // What comes with the address does not matter to one who resumes.
    let mut again = stream(&serving, &format!("{CHANGES}?after=first"), last).await;
    assert_eq!(row(&again.event().await.unwrap()), 2);
    assert_eq!(row(&again.event().await.unwrap()), 3);
    app.run("insert into orders values (4, 1, 'x')").await;
    assert_eq!(row(&again.event().await.unwrap()), 4);
    let expired = get(CHANGES)
        .header("accept", "text/event-stream")
        .header("last-event-id", "nonsense");
    expired.send(serving.at).await.problem(400);
}

pub(crate) async fn a_stream_tells_where_it_begins_before_anything_happens(
    backend: Arc<dyn Backend>,
) {
    let (_, serving) = shop(&backend, &["--keep-alive", "200ms"]).await;
    let app = backend.session().await;
    let mut open = stream(&serving, CHANGES, None).await;
    let begin = open.block().await.unwrap();
    assert!(begin.id.is_some() && begin.data.is_none());
    // A sign of life.
    assert_eq!(open.block().await.unwrap(), Event::default());
    drop(open);
    // While the client is away something happens; it has not got any event yet.
    app.run("insert into orders values (1, 1, 'x')").await;
    let mut again = stream(&serving, CHANGES, begin.id.as_deref()).await;
    assert_eq!(row(&again.event().await.unwrap()), 1);
}

pub(crate) async fn all_shards_come_in_one_stream_that_can_be_resumed(backend: Arc<dyn Backend>) {
    let (_, serving) = shop(&backend, &[]).await;
    let app = backend.session().await;
    let path = "/api/feeds/orders/changes";
    get(path).send(serving.at).await.problem(406);
    let mut open = stream(&serving, path, None).await;
    let mut last = open.block().await.unwrap().id;
    let (mut seen, mut id) = (BTreeSet::new(), 0);
    for round in 0..3 {
        for customer in [0, 1] {
            id += 1;
            app.run(&format!(
                "insert into orders values ({id}, {customer}, 'x')"
            ))
            .await;
        }
        for _ in 0..2 {
            let event = open.event().await.unwrap();
            let data: Value = serde_json::from_str(event.data.as_deref().unwrap()).unwrap();
            assert_eq!(data["shard"], data["row"]["customer"]);
            assert!(seen.insert(row(&event)), "twice");
            last = event.id;
        }
        if round == 1 {
            open = stream(&serving, path, last.as_deref()).await;
        }
    }
    assert_eq!(seen.len(), 6);
}

/// A reader who keeps the id of its last event gets every change once, in order, although the server
/// is killed again and again while somebody writes.
pub(crate) async fn promises_1_and_5_a_reader_goes_on_after_kill_minus_9_without_loss_or_repetition(
    backend: Arc<dyn Backend>,
) {
    const CHANGES_TO_SEE: i64 = 300;
    let url = orders(&backend).await;
    let app = backend.session().await;
    let writing = tokio::spawn(async move {
        for id in 1..=CHANGES_TO_SEE {
            app.run(&format!("insert into orders values ({id}, 1, 'x')"))
                .await;
        }
    });
    let (mut seen, mut last, mut lives) = (Vec::new(), Some("first".to_owned()), 0);
    while seen.len() < usize::try_from(CHANGES_TO_SEE).unwrap() {
        lives += 1;
        let mut serving = Serving::start(&url, &[]);
        let after = last.clone().unwrap();
        // The first one has no id yet; the others resume.
        let mut open = match after.as_str() {
            "first" => stream(&serving, &format!("{CHANGES}?after=first"), None).await,
            id => stream(&serving, CHANGES, Some(id)).await,
        };
        let until = seen.len() + 70;
        while seen.len() < until && seen.len() < usize::try_from(CHANGES_TO_SEE).unwrap() {
            let event = open.event().await.unwrap();
            seen.push(row(&event));
            last = event.id;
        }
        serving.process.kill();
    }
    writing.await.unwrap();
    assert!(lives >= 4);
    let expected: Vec<i64> = (1..=CHANGES_TO_SEE).collect();
    assert_eq!(seen, expected);
}

pub(crate) async fn a_feed_that_is_dropped_ends_its_streams_with_a_sentence(
    backend: Arc<dyn Backend>,
) {
    let (_, serving) = shop(&backend, &["--keep-alive", "300ms"]).await;
    let app = backend.session().await;
    let mut open = stream(&serving, CHANGES, None).await;
    app.run("insert into orders values (1, 1, 'x')").await;
    assert_eq!(row(&open.event().await.unwrap()), 1);
    let gone = request("DELETE", "/api/feeds/orders")
        .send(serving.at)
        .await;
    assert_eq!(gone.status, 204);
    get(CHANGES).send(serving.at).await.problem(404);
    let end = open.event().await.unwrap();
    assert_eq!(end.kind.as_deref(), Some("error"));
    // Whichever look comes first: for the feed, or for more of its shard.
    let said = end.data.unwrap();
    assert!(
        said.contains("there is no feed 'orders'") || said.contains("of feed 'orders' was dropped"),
        "{said}"
    );
    assert_eq!(open.block().await, None);
}

pub(crate) async fn told_to_stop_it_ends_streams_and_long_polls_at_once(backend: Arc<dyn Backend>) {
    let (_, mut serving) = shop(&backend, &[]).await;
    let mut streams = Vec::new();
    for _ in 0..20 {
        streams.push(stream(&serving, CHANGES, None).await);
    }
    let at = serving.at;
    let poll = tokio::spawn(async move {
        get(format!("{CHANGES}?after=last&wait=60000"))
            .send(at)
            .await
    });
    waits(&serving, 21).await;
    let began = Instant::now();
    terminate(serving.process.pid());
    for mut stream in streams {
        while stream.block().await.is_some() {}
    }
    let page = poll.await.unwrap().json(200);
    assert!(page["changes"].as_array().unwrap().is_empty());
    assert!(serving.process.wait(Duration::from_secs(20)).success());
    let took = began.elapsed();
    assert!(took < Duration::from_secs(10), "it took {took:?}");
}
