//! What is refused, with which status, and by which sentence.

use crate::stage::{CHANGES, Shop, get, request};

#[tokio::test]
async fn bad_input_gets_one_sentence_and_the_right_status() {
    let server = Shop::new().await.serve(|_| ()).await;
    for (path, status, sentence) in [
        ("/api/feeds/nope", 404, "there is no feed 'nope'"),
        (
            "/api/feeds/orders/shards/9/changes",
            404,
            "feed 'orders' has no shard 9",
        ),
        (
            "/api/feeds/orders/shards/x/changes",
            400,
            "'x' is not a shard",
        ),
        (
            &format!("{CHANGES}?after=later"),
            400,
            "'later' is not a cursor",
        ),
        (&format!("{CHANGES}?after=-1"), 400, "'-1' is not a cursor"),
        (
            &format!("{CHANGES}?after=9999999999999999"),
            409,
            "ahead of feed 'orders'",
        ),
        (
            &format!("{CHANGES}?limit=0"),
            400,
            "a page of 0 changes is not possible",
        ),
        (&format!("{CHANGES}?limit=10001"), 400, "ask for 1 to 10000"),
        (&format!("{CHANGES}?limit=-1"), 400, "limit"),
        (
            &format!("{CHANGES}?wait=60001"),
            400,
            "a wait of 60001 ms is not possible",
        ),
        (&format!("{CHANGES}?afer=1"), 400, "unknown field `afer`"),
        (&format!("{CHANGES}?after=%00"), 400, "U+0000"),
        ("/api/feeds/%ff", 400, "UTF-8"),
        ("/api/nothing", 404, "there is nothing at this path"),
        ("/api/events/xyz", 404, "there is no event 'xyz'"),
        ("/api/events?limit=5000", 400, "a page of 5000 events"),
        (
            "/api/events?since=yesterday",
            400,
            "'yesterday' is not a time",
        ),
        ("/api/watches/nope", 404, "there is no watch 'nope'"),
        ("/api/triggers/nope", 404, "there is no trigger 'nope'"),
    ] {
        let detail = get(path).send(&server).await.problem(status);
        assert!(detail.contains(sentence), "{path}: {detail}");
    }
    let wrong = request("PATCH", "/api/feeds").send(&server).await;
    wrong.problem(405);
    assert!(wrong.header("allow").is_some_and(|a| a.contains("POST")));
    let post = |body: &str| {
        request("POST", "/api/feeds")
            .header("content-type", "application/json")
            .text(body)
    };
    for (body, sentence) in [
        ("{", "the body is not as expected"),
        (" [\"x\"]", "the body is not a JSON object"),
        ("{\"name\": \"a b\"}", "'a b' is not a feed name"),
        ("{\"name\": \"x\", \"shrads\": 2}", "unknown field `shrads`"),
        ("{\"name\": \"x\", \"shards\": 0}", "at least one shard"),
        ("{\"name\": \"x\", \"comment\": \"\\u0000\"}", "U+0000"),
    ] {
        let detail = post(body).send(&server).await.problem(400);
        assert!(detail.contains(sentence), "{body}: {detail}");
    }
    let missing = post("{\"name\":\"x\",\"source\":{\"kind\":\"captured\",\"table\":\"gone\"}}");
    missing.send(&server).await.problem(404);
    let taken = post("{\"name\":\"orders\"}").send(&server).await;
    taken.problem(409);
    let form = request("POST", "/api/feeds")
        .text("name=x")
        .send(&server)
        .await;
    form.problem(415);
}
