//! An instance that stops in the middle of an answer holds nothing that others need.

use std::sync::Mutex;
use std::time::Duration;

use changefeed_core::EventStore;
use changefeed_postgres::PostgresStore;
use changefeed_testkit::events::{claim, everything, wanted};
use changefeed_testkit::postgres::Relay;
use changefeed_testkit::{eventually, run};

use crate::events::scene::Scene;

const LARGE_ROWS: i64 = 40;

/// Promise 9: the answer to a claim fits into the buffers of a connection, so the claim is committed
/// although nobody reads it. Rows of 300 kB would not fit.
#[test]
fn promise_9_a_reader_that_stops_keeps_no_trigger_from_others() {
    run(async {
        let scene = Scene::new("create table orders (id int primary key, v text)").await;
        let trigger = scene.trigger().await;
        scene
            .session
            .run("create table others (id int primary key)")
            .await;
        let other = scene
            .store
            .create_trigger(&everything("other", "others"), false)
            .await
            .unwrap();
        let relay = Relay::to(scene.database.url()).await;
        let far = PostgresStore::connect(&relay.url).await.unwrap();
        let both = [wanted(&trigger, 100), wanted(&other, 100)];
        let lease = Duration::from_secs(1);
        // Its connection is there, and its statement known to the server.
        assert!(
            far.claim_events(&both, "far", lease)
                .await
                .unwrap()
                .is_empty()
        );
        scene
            .session
            .run(&format!(
                "insert into orders select g, repeat(md5(g::text), 9600) \
                 from generate_series(1, {LARGE_ROWS}) g; insert into others values (1)"
            ))
            .await;
        relay.choke();
        let stuck = tokio::spawn(async move { far.claim_events(&both, "far", lease).await });
        eventually("the far instance has taken them", async || {
            let held = "select count(*) from changefeed.event where locked_by = 'far'";
            (scene.session.value(held).await == (LARGE_ROWS + 1).to_string()).then_some(())
        })
        .await;
        // Something new is delivered at once, and the rest when the lease is over.
        scene.session.run("insert into others values (2)").await;
        let fresh = claim(&*scene.store, &other, 1, "near", lease * 600).await;
        assert_eq!((fresh.len(), fresh[0].attempt), (1, 1));
        let freed = Mutex::new(Vec::new());
        eventually("the rest is free again", async || {
            let more = claim(&*scene.store, &trigger, 100, "near", lease * 600).await;
            let mut freed = freed.lock().unwrap();
            freed.extend(more);
            (i64::try_from(freed.len()).unwrap() == LARGE_ROWS).then_some(())
        })
        .await;
        let freed = freed.into_inner().unwrap();
        assert!(freed.iter().all(|e| (e.attempt, e.cut_off) == (2, 1)));
        stuck.abort();
    });
}
