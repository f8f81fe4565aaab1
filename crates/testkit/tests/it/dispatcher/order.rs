//! Events of one key, one after the other, end to end.

use std::collections::HashMap;
use std::sync::Arc;

use changefeed_core::{EventStatus, OrderBy};
use changefeed_receiver::{Reply, Request};
use changefeed_testkit::backend::Backend;

use crate::dispatcher::stage::{Stage, body, retry};

/// The key and the change of a request.
fn key_and_total(request: &Request) -> (String, u64) {
    let row = &body(request)["event"]["data"]["new"];
    (
        row["customer"].as_str().unwrap().to_owned(),
        row["total"].as_u64().unwrap(),
    )
}

/// Three dispatchers, a receiver that refuses every third first attempt: what arrives of a key is
/// in the order of its changes, and a later one is not even sent before.
pub(crate) async fn events_of_one_key_arrive_in_order_whatever_fails(backend: Arc<dyn Backend>) {
    const KEYS: usize = 7;
    const EACH: usize = 20;
    let stage = Stage::new(backend, |d| {
        d.capture.order_by = Some(OrderBy::Column("customer".into()));
        d.delivery.retry.num_retries = 3;
    })
    .await;
    stage.receiver.rule(|request| {
        let (_, total) = key_and_total(request);
        let fails = total % 3 == 0 && retry(request) == 0 || total % 7 == 0 && retry(request) < 2;
        fails.then_some(match total % 2 {
            0 => Reply::Status(500),
            _ => Reply::DropAfterReading,
        })
    });
    let mut workers = Vec::new();
    for _ in 0..3 {
        workers.push(stage.dispatch(|_| {}).await);
    }
    for n in 0..KEYS {
        stage
            .session
            .run(&format!("insert into orders values ({n}, 'key {n}', 0)"))
            .await;
    }
    for change in 1..EACH {
        stage
            .session
            .run(&format!("update orders set total = {change}"))
            .await;
    }
    stage.is_settled().await;
    for worker in workers {
        worker.stop().await;
    }
    assert_eq!(stage.account().await.delivered, KEYS * EACH);
    let mut requests = stage.receiver.requests();
    requests.sort_by_key(|r| r.arrived);
    let mut sent: HashMap<String, Vec<u64>> = HashMap::new();
    let mut accepted: HashMap<String, Vec<u64>> = HashMap::new();
    for request in &requests {
        let (key, total) = key_and_total(request);
        sent.entry(key.clone()).or_default().push(total);
        if request.reply == Reply::Accept {
            accepted.entry(key).or_default().push(total);
        }
    }
    for (key, order) in sent {
        assert!(order.is_sorted(), "{key}: {order:?}");
        assert_eq!(accepted[&key], (0..EACH as u64).collect::<Vec<_>>());
    }
}

/// The others are delivered while it waits, and it goes on when its event was given up.
pub(crate) async fn one_key_that_fails_holds_up_no_other(backend: Arc<dyn Backend>) {
    let stage = Stage::new(backend, |d| {
        d.capture.order_by = Some(OrderBy::Column("customer".into()));
        d.delivery.retry.num_retries = 1;
        d.delivery.retry.timeout = std::time::Duration::from_secs(60);
    })
    .await;
    stage.receiver.rule(|request| {
        let (key, total) = key_and_total(request);
        (key == "c1" && total == 1).then_some(Reply::Hang)
    });
    stage.insert(0, 25).await;
    let work = stage.dispatch(|_| {}).await;
    stage
        .receiver
        .wait_until(|requests, seen| seen.hanging == 1 && requests.len() == 21)
        .await
        .unwrap();
    let pending = stage.in_state(EventStatus::Pending).await;
    assert!(pending.len() >= 5, "the key waits behind its first event");
    stage
        .receiver
        .rule(|request| (key_and_total(request) == ("c1".into(), 6)).then_some(Reply::Status(500)));
    stage.receiver.release();
    stage.is_settled().await;
    work.stop().await;
    let account = stage.account().await;
    assert_eq!((account.delivered, account.dead), (24, 1));
    let c1: Vec<u64> = stage
        .receiver
        .requests()
        .iter()
        .map(key_and_total)
        .filter(|(key, _)| key == "c1")
        .map(|(_, total)| total)
        .collect();
    assert_eq!(c1, [1, 6, 6, 11, 16, 21]);
}
