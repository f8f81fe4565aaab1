//! Watches that cost more than they should.

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed::{Sink, WatchDefinition};
use changefeed_testkit::backend::Backend;
use changefeed_testkit::eventually;
use changefeed_testkit::watching::spec;

use crate::http::serving::{Serving, orders};

/// Watches that have nothing to do.
const WATCHES: usize = 20;

/// How often this instance has asked for a batch.
pub(crate) async fn takes(serving: &Serving) -> usize {
    let metrics = serving.get("/metrics").await.body;
    let line = "changefeed_store_seconds_count{operation=\"take\"} ";
    (metrics.lines())
        .find_map(|metric| metric.strip_prefix(line))
        .map_or(0, |count| count.parse().unwrap())
}

/// Nine idle watches cost 15 % of a core, because each of them asked for itself, 20 times a second. Now one look
/// serves all of them. Where that is not to be had in time, on a machine that is busy, each asks four times a second.
pub(crate) async fn idle_watches_do_not_ask(backend: Arc<dyn Backend>) {
    let url = orders(&backend).await;
    let store = backend.store().await;
    for number in 0..WATCHES {
        let mut spec = spec(&format!("w{number}"), "orders");
        let nowhere = Sink::webhook("http://127.0.0.1:9/nothing");
        spec.definition = Some(WatchDefinition::new(nowhere));
        store.open_watch(&spec).await.unwrap();
    }
    let serving = Serving::start(&url, &[]);
    eventually("every watch has asked", || async {
        (takes(&serving).await >= WATCHES).then_some(())
    })
    .await;
    // At first each of them is woken by what the others do when they begin.
    eventually("they are silent", || async {
        let (before, began) = (takes(&serving).await, Instant::now());
        tokio::time::sleep(Duration::from_secs(1)).await;
        let asked = takes(&serving).await - before;
        let most = WATCHES as f64 * 5.0 * began.elapsed().as_secs_f64();
        (asked as f64 <= most).then_some(())
    })
    .await;
}
