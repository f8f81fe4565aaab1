//! For whoever operates it.

use std::collections::BTreeSet;
use std::sync::Arc;

use changefeed_testkit::backend::Backend;
use changefeed_testkit::eventually;

use crate::serving::{Serving, changefeed, orders, out, shop};

pub(crate) async fn it_is_ready_when_everything_is(backend: Arc<dyn Backend>) {
    let (url, serving) = shop(&backend, &[]).await;
    assert_eq!(serving.get("/healthz").await.status, 200);
    let ready = serving.get("/readyz").await.json(200);
    assert_eq!(ready["ready"], true);
    let checks: Vec<&str> = ready["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["check"].as_str().unwrap())
        .collect();
    assert_eq!(checks, ["database", "schema", "deliver", "sweep", "watch"]);
    // Two cannot listen at the same place.
    let listen = serving.at.to_string();
    let second = changefeed(&url, &["serve", "--listen", &listen])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(
        !second.status.success() && said.contains("another program listens"),
        "{said}"
    );
    // Whoever takes our tables away is told what is missing, and the process lives.
    out(&url, &["uninstall", "--yes"]);
    let not_ready = eventually("it is not ready", || async {
        let answer = serving.get("/readyz").await;
        (answer.status == 503).then_some(answer.body)
    })
    .await;
    assert!(
        not_ready.contains("changefeed is not installed"),
        "{not_ready}"
    );
}

/// Every name in the documentation is there, and every name that is there is documented.
pub(crate) async fn metrics_have_the_documented_names(backend: Arc<dyn Backend>) {
    let url = orders(&backend).await;
    out(
        &url,
        &[
            "consumer",
            "set",
            "c",
            "--feed",
            "orders",
            "--cursor",
            "2000000000000000",
        ],
    );
    let trigger = "trigger create t --table orders --webhook http://127.0.0.1:9/ --retries 0";
    out(&url, &trigger.split(' ').collect::<Vec<_>>());
    let watch = "watch create w --table orders --webhook http://127.0.0.1:9/ --attempts 1";
    out(&url, &watch.split(' ').collect::<Vec<_>>());
    let serving = Serving::start(&url, &[]);
    let app = backend.session().await;
    app.run("insert into orders values (1, 1, 'x')").await;
    let docs = include_str!("../../../../docs/metrics.md");
    let documented: BTreeSet<&str> = docs
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split(['`', '{']).next())
        .collect();
    // What only some databases, or only rare events, have.
    let sometimes = [
        "changefeed_sweep_leader",
        "changefeed_lease_held",
        "changefeed_ulid_incidents",
        "changefeed_store_errors_total",
    ];
    let missing = eventually("all metrics are there", || async {
        let text = serving.get("/metrics").await.body;
        assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1);
        let there: BTreeSet<&str> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split(['{', ' ']).next())
            .map(|name| {
                let histogram = ["_bucket", "_sum", "_count"];
                histogram
                    .iter()
                    .find_map(|end| name.strip_suffix(end))
                    .filter(|base| documented.contains(base))
                    .unwrap_or(name)
            })
            .collect();
        let unknown: Vec<_> = there.difference(&documented).collect();
        assert!(unknown.is_empty(), "not documented: {unknown:?}");
        let missing: Vec<_> = documented
            .difference(&there)
            .filter(|name| !sometimes.contains(name))
            .collect();
        missing.is_empty().then_some(())
    });
    missing.await;
}

pub(crate) async fn roles_can_be_split_over_instances(backend: Arc<dyn Backend>) {
    let url = orders(&backend).await;
    let http = Serving::start(&url, &["--only", "http"]);
    let ready = http.get("/readyz").await.json(200);
    assert_eq!(ready["checks"].as_array().unwrap().len(), 2);
    let other = Serving::start(&url, &["--only", "http,sweep,deliver"]);
    let app = backend.session().await;
    app.run("insert into orders values (1, 1, 'x')").await;
    // Numbered by one, read from the other.
    let path = "/api/feeds/orders/shards/1/changes?wait=20000";
    let page = http.get(path).await.json(200);
    assert_eq!(page["changes"][0]["row"]["id"], 1);
    eventually("both see each other", || async {
        let seen = http.get("/api/instances").await.json(200);
        (seen["instances"].as_array().unwrap().len() == 2).then_some(())
    })
    .await;
    drop(other);
    let wrong = changefeed(&url, &["serve", "--only", "sleep"])
        .output()
        .unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}
