//! For whoever operates it.

use std::collections::BTreeSet;
use std::sync::Arc;

use changefeed_testkit::backend::{Backend, PostgresBackend};
use changefeed_testkit::postgres::Cluster;
use changefeed_testkit::{eventually, run};

use crate::http::client::get;
use crate::http::serving::{Serving, changefeed, orders, out, shop};

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
    assert_eq!(
        checks,
        ["database", "schema", "deliver", "push", "sweep", "watch"]
    );
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
    for (name, to) in [
        ("here", "exec:cat > /dev/null"),
        ("nowhere", "http://127.0.0.1:9/"),
    ] {
        let create = [
            "subscription",
            "create",
            name,
            "--feed",
            "orders",
            "--to",
            to,
        ];
        out(&url, &create);
    }
    let serving = Serving::start(&url, &["--allow-exec"]);
    let app = backend.session().await;
    app.run("insert into orders values (1, 1, 'x')").await;
    let docs = include_str!("../../../../../docs/metrics.md");
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
        "changefeed_push_refusals_total",
        "changefeed_push_lost_messages_total",
    ];
    let missing = eventually("all metrics are there", || async {
        let accepted = get("/metrics").header("accept", "application/openmetrics-text");
        let text = accepted.send(serving.at).await.body;
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

/// The database is killed under a server with open streams: it says so, lives, and its streams go on
/// where they were.
#[test]
fn promise_11_a_database_that_crashes_is_told_of_and_streams_go_on() {
    run(async {
        let cluster = Cluster::start_new();
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::on(&cluster.url()).await);
        let (_, mut serving) = shop(&backend, &[]).await;
        let mut stream = get("/api/feeds/orders/shards/1/changes")
            .header("accept", "text/event-stream")
            .open(serving.at)
            .await;
        assert!(stream.block().await.unwrap().id.is_some());
        for id in 1..=3 {
            let sql = format!("insert into orders values ({id}, 1, 'x')");
            backend.session().await.run(&sql).await;
            let event = stream.event().await.unwrap();
            assert!(event.data.unwrap().contains(&format!("\"id\":{id}")));
            cluster.kill_server();
            eventually("it is not ready", || async {
                (serving.get("/readyz").await.status == 503).then_some(())
            })
            .await;
            let refused = serving.get("/api/consumers").await;
            refused.problem(503);
            assert!(refused.header("retry-after").is_some());
            // Who wants to know why nothing works is answered all the same.
            assert_eq!(serving.get("/metrics").await.status, 200);
            assert_eq!(serving.get("/api/status").await.status, 200);
            cluster.start();
            eventually("it is ready again", || async {
                (serving.get("/readyz").await.status == 200).then_some(())
            })
            .await;
        }
        assert!(serving.process.ended().is_none());
    });
}

/// Whether an instance says that it sweeps, and who holds the lease by the same answer.
async fn leadership(serving: &Serving) -> Option<(bool, Vec<String>)> {
    let metrics = serving.get("/metrics").await.body;
    let value = |line: &str| line.ends_with(" 1") || line.ends_with(" 1.0");
    let leads = metrics
        .lines()
        .find(|line| line.starts_with("changefeed_sweep_leader{"))?;
    let holders = metrics
        .lines()
        .filter(|line| line.starts_with("changefeed_lease_held{"))
        .filter(|line| line.contains("lease=\"sweep/0\"") && value(line))
        .map(|line| line.split("owner=\"").nth(1).unwrap())
        .map(|rest| rest.split('"').next().unwrap().to_owned());
    Some((value(leads), holders.collect()))
}

/// What an instance believed of itself, and what the database said, were two things.
#[test]
fn who_sweeps_is_said_by_the_lease_and_by_nothing_else() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let (url, first) = shop(&backend, &[]).await;
        let its_owner = eventually("the first leads", || async {
            match leadership(&first).await? {
                (true, holders) => Some(holders),
                (false, _) => None,
            }
        })
        .await;
        assert_eq!(its_owner.len(), 1);
        let second = Serving::start(&url, &[]);
        let agree = |(leads, holders): &(bool, Vec<String>)| {
            assert!(holders.len() <= 1, "{holders:?}");
            let another = holders.first().is_some_and(|h| *h != its_owner[0]);
            assert_eq!(*leads, another, "the second, of {holders:?}");
        };
        // It stands by until the first is silent for too long.
        eventually("the second knows who leads", || async {
            let seen = leadership(&second).await?;
            agree(&seen);
            (!seen.1.is_empty()).then_some(())
        })
        .await;
        first.process.freeze();
        eventually("the second leads", || async {
            let seen = leadership(&second).await?;
            agree(&seen);
            seen.0.then_some(())
        })
        .await;
        // One that wakes up may still show what it saw last, but not half of it.
        first.process.thaw();
        eventually("the first stands by", || async {
            let (leads, holders) = leadership(&first).await?;
            assert_eq!(leads, holders == its_owner, "the first, of {holders:?}");
            (!leads && !holders.is_empty()).then_some(())
        })
        .await;
    });
}
