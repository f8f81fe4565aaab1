//! Clocks that step back and forward. What every store does about it is in the conformance suite; here
//! it is a server's clock that is really set.

use std::sync::Arc;
use std::time::Duration;

use changefeed_core::SweepGroup;
use changefeed_engine::{CancellationToken, Sweeper};
use changefeed_testkit::backend::{Backend, PostgresBackend, eventually_true, ids};
use changefeed_testkit::events::{captured_orders, claim};
use changefeed_testkit::postgres::Cluster;
use changefeed_testkit::{eventually, run};

const HOUR: i64 = 3600;

async fn on(cluster: &Cluster) -> Arc<dyn Backend> {
    Arc::new(PostgresBackend::on(&cluster.url()).await)
}

/// A dead sweeper kept its lease for 59 minutes.
#[test]
fn a_standby_takes_over_when_the_clock_is_set_back_by_an_hour() {
    run(async {
        let cluster = Cluster::start_with_clock();
        let backend = on(&cluster).await;
        let (store, feed) = backend.feed(37, 1).await;
        let dead = backend.store().await;
        let ttl = Duration::from_secs(1);
        dead.lease("sweep/0", "dead", ttl).await.unwrap().unwrap();
        cluster.set_clock(-HOUR);
        let session = backend.session().await;
        session.run(&backend.words().publish(37, 0, 1)).await;
        let left = "select (extract(epoch from expires_at - clock_timestamp()))::bigint \
                    from changefeed.lease where name = 'sweep/0'";
        assert!(session.number(left).await > HOUR - 60, "the clock is set");
        let stop = CancellationToken::new();
        let sweeper = Sweeper::new(store.clone(), SweepGroup(0), "living");
        let sweeping = tokio::spawn(sweeper.run(|_| {}, stop.clone()));
        eventually_true("the standby sweeps", async || {
            ids(&*store, &feed, 0).await == [1]
        })
        .await;
        // It goes on when the clock is set again, in either direction.
        for (id, seconds) in [(2, 0), (3, -HOUR), (4, HOUR)] {
            cluster.set_clock(seconds);
            session.run(&backend.words().publish(37, 0, id)).await;
            eventually_true("it still sweeps", async || {
                ids(&*store, &feed, 0).await.len() == usize::try_from(id).unwrap()
            })
            .await;
        }
        stop.cancel();
        sweeping.await.unwrap().unwrap();
    });
}

/// The same for sweepers by SQL.
#[test]
fn a_sweep_loop_takes_over_when_the_clock_was_set_back() {
    run(async {
        let cluster = Cluster::start_with_clock();
        let backend = on(&cluster).await;
        let (store, feed) = backend.feed(37, 1).await;
        store
            .lease("sweep/0", "dead", Duration::from_secs(1))
            .await
            .unwrap()
            .unwrap();
        cluster.set_clock(-HOUR);
        let session = backend.session().await;
        session.run(&backend.words().publish(37, 0, 1)).await;
        session
            .run("call changefeed.sweep_loop(0, 60000, 0, 20)")
            .await;
        assert_eq!(ids(&*store, &feed, 0).await, [1]);
    });
}

/// An event that a dead instance held, and one that was to be tried again.
#[test]
fn held_events_do_not_wait_for_the_clock_to_come_back() {
    run(async {
        let cluster = Cluster::start_with_clock();
        let backend = on(&cluster).await;
        let columns = "id integer primary key, customer text, total integer";
        let (store, session, trigger) = captured_orders(&*backend, columns).await;
        assert_eq!(store.keep_time().await.unwrap(), None);
        session.run("insert into orders values (1, 'a', 1)").await;
        let lease = Duration::from_millis(500);
        assert_eq!(claim(&*store, &trigger, 1, "dead", lease).await.len(), 1);
        cluster.set_clock(-HOUR);
        assert!(claim(&*store, &trigger, 1, "b", lease).await.is_empty());
        let step = store.keep_time().await.unwrap().unwrap();
        assert!(step.as_secs().abs_diff(3600) < 60, "{step:?}");
        eventually("the event is free", || async {
            let found = claim(&*store, &trigger, 1, "b", lease).await;
            (!found.is_empty()).then_some(())
        })
        .await;
    });
}

/// A step forward that was taken back between two looks left what was captured or held in between
/// for as long as the step was.
#[test]
fn a_step_forward_that_is_taken_back_unseen_leaves_nothing_behind() {
    run(async {
        let cluster = Cluster::start_with_clock();
        let backend = on(&cluster).await;
        let columns = "id integer primary key, customer text, total integer";
        let (store, session, trigger) = captured_orders(&*backend, columns).await;
        let lease = Duration::from_millis(500);
        let next = async || {
            eventually("an event", || async {
                let found = claim(&*store, &trigger, 1, "b", lease).await;
                (!found.is_empty()).then_some(())
            })
            .await;
        };
        assert_eq!(store.keep_time().await.unwrap(), None);
        // Nobody delivered while it was forward.
        cluster.set_clock(HOUR);
        session.run("insert into orders values (1, 'a', 1)").await;
        cluster.set_clock(0);
        assert!(claim(&*store, &trigger, 1, "b", lease).await.is_empty());
        session
            .run("update changefeed.clock set latest = latest - interval '11 seconds'")
            .await;
        assert_eq!(store.keep_time().await.unwrap(), None);
        next().await;
        // Somebody took it then, and died.
        cluster.set_clock(HOUR);
        assert_eq!(claim(&*store, &trigger, 1, "dead", lease).await.len(), 1);
        cluster.set_clock(0);
        assert!(claim(&*store, &trigger, 1, "b", lease).await.is_empty());
        let step = store.keep_time().await.unwrap().unwrap();
        assert!(step.as_secs().abs_diff(3600) < 60, "{step:?}");
        next().await;
    });
}
