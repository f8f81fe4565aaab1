//! Readers on a hot standby, which can neither listen nor be told anything.

use std::sync::Arc;
use std::time::Instant;

use changefeed_testkit::backend::{Backend, PostgresBackend};
use changefeed_testkit::postgres::Cluster;
use changefeed_testkit::run;

use crate::http::serving::{Serving, shop};

/// A long poll there waited its full time, whatever arrived.
#[test]
fn a_long_poll_on_a_standby_ends_when_the_change_arrives_there() {
    run(async {
        let primary = Cluster::start_new();
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::on(&primary.url()).await);
        let (url, _sweeping) = shop(&backend, &[]).await;
        let standby = primary.start_standby();
        let reading = Serving::start(&standby.url_like(&url), &["--only", "http"]);
        let path = "/api/feeds/orders/shards/1/changes";
        // More than one, so that it has to go on looking.
        let mut after = "first".to_owned();
        for id in 1..=3 {
            let began = Instant::now();
            let path = format!("{path}?after={after}&wait=60000");
            let (page, ()) = tokio::join!(reading.get(path), async {
                crate::http::serving::waits(&reading, 1).await;
                let app = backend.session().await;
                app.run(&format!("insert into orders values ({id}, 1, 'x')"))
                    .await;
            });
            let page = page.json(200);
            assert_eq!(page["changes"][0]["row"]["id"], id);
            after = page["next"].as_str().unwrap().to_owned();
            // Half of the wait is far more than it takes anywhere.
            assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
        }
    });
}
