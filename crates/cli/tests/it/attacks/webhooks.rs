//! Receivers that close connections at the worst moment.

use std::sync::Arc;

use changefeed_testkit::backend::Backend;
use changefeed_testkit::eventually;
use changefeed_testkit::receiver::{Receiver, Reply};

use crate::http::client::get;
use crate::http::serving::{Serving, orders, out};

/// Events and rows to be delivered.
const ROWS: usize = 30;

/// With no retry to spare, an event or a batch is lost to the receiver only if it has refused it.
pub(crate) async fn a_receiver_that_drops_used_connections_makes_no_dead_letters(
    backend: Arc<dyn Backend>,
) {
    let url = orders(&backend).await;
    let receiver = Receiver::start().await.unwrap();
    receiver.rule(|request| (request.nth > 1).then_some(Reply::DropAfterReading));
    let (event, batch) = (receiver.url("/event"), receiver.url("/batch"));
    let create =
        format!("trigger create t --table orders --insert --concurrency 2 --webhook {event}");
    out(&url, &create.split(' ').collect::<Vec<_>>());
    let create = format!("watch create w --table orders --batch 1 --attempts 1 --webhook {batch}");
    out(&url, &create.split(' ').collect::<Vec<_>>());
    let serving = Serving::start(&url, &[]);
    let app = backend.session().await;
    for id in 1..=ROWS {
        let sql = format!("insert into orders values ({id}, 1, 'x')");
        app.run(&sql).await;
    }
    let list = |status: &str| {
        let path = format!("/api/events?trigger=t&limit=100&status={status}");
        let at = serving.at;
        async move {
            let events = get(path).send(at).await.json(200);
            events["events"].as_array().unwrap().len()
        }
    };
    eventually("every event is over", || async {
        (list("pending").await == 0).then_some(())
    })
    .await;
    assert_eq!(
        (list("delivered").await, list("dead_letter").await),
        (ROWS, 0)
    );
    let watch = eventually("every row is over", || async {
        let watch = get("/api/watches/w").send(serving.at).await.json(200);
        (watch["unprocessed"] == 0).then_some(watch)
    })
    .await;
    assert_eq!(watch["parked"], 0, "{watch}");
    let dropped = |path: &str| {
        let requests = receiver.requests();
        let mut dropped = requests.iter().filter(|r| r.path == path && r.nth > 1);
        dropped.next().is_some()
    };
    assert!(dropped("/event") && dropped("/batch"), "nothing was tried");
}
