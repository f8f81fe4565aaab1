//! A database session that is frozen while everything else goes on.

use std::sync::Arc;

use changefeed_testkit::backend::{Backend, PostgresBackend};
use changefeed_testkit::{eventually, run};
use rustix::process::{Pid, Signal, kill_process};

use crate::attacks::watches::takes;
use crate::http::serving::{Serving, orders};

/// Processes that are stopped until this is dropped.
struct Frozen(Vec<Pid>);

impl Frozen {
    fn stop(pids: &str) -> Frozen {
        let pids = pids.split(' ').map(|pid| pid.parse().unwrap());
        let pids: Vec<Pid> = pids.map(|pid| Pid::from_raw(pid).unwrap()).collect();
        for pid in &pids {
            kill_process(*pid, Signal::STOP).unwrap();
        }
        Frozen(pids)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for pid in &self.0 {
            let _ = kill_process(*pid, Signal::CONT);
        }
    }
}

/// Every server process of the instance that sweeps is stopped. They acknowledge whatever they are sent, so nothing but
/// limits of ours ends the wait: another instance takes over, and the first one says that it is not ready.
#[test]
fn an_instance_whose_sessions_are_frozen_is_told_and_replaced() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let url = orders(&backend).await;
        let app = backend.session().await;
        let first = Serving::start(&format!("{url}?application_name=first"), &[]);
        eventually("it sweeps", || async {
            let leases = "select count(*) from changefeed.lease where name = 'sweep/0'";
            (app.number(leases).await == 1).then_some(())
        })
        .await;
        let second = Serving::start(&url, &[]);
        let frozen = Frozen::stop(
            &app.value(
                "select string_agg(pid::text, ' ') from pg_stat_activity where application_name = 'first'",
            )
            .await,
        );
        app.run("insert into orders values (1, 1, 'a')").await;
        eventually("somebody else gives numbers", || async {
            let numbered = "select count(*) from changefeed.numbered";
            (app.number(numbered).await == 1).then_some(())
        })
        .await;
        eventually("it is told", || async {
            (first.get("/readyz").await.status == 503).then_some(())
        })
        .await;
        let ready = second.get("/readyz").await;
        assert_eq!(ready.status, 200, "{}", ready.body);
        drop(frozen);
        eventually("it goes on", || async {
            (first.get("/readyz").await.status == 200).then_some(())
        })
        .await;
    });
}

/// Whoever takes the lock of a watched table, which anybody can, stops its workers, wherever they run. That is told, and
/// is no reason to send readers elsewhere.
#[test]
fn a_watch_that_is_held_up_is_told_and_leaves_the_instance_ready() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let url = orders(&backend).await;
        let store = backend.store().await;
        let mut spec = changefeed_testkit::watching::spec("held", "orders");
        spec.definition = Some(changefeed::WatchDefinition::new(changefeed::Sink::webhook(
            "http://127.0.0.1:9/nothing",
        )));
        let watch = store.open_watch(&spec).await.unwrap();
        let serving = Serving::start(&url, &[]);
        eventually("the watch is at work", || async {
            (takes(&serving).await > 0).then_some(())
        })
        .await;
        let other = backend.session().await;
        other
            .run(&format!(
                "select pg_advisory_lock(hashtextextended('changefeed/watch/{}', 0))",
                watch.table_id
            ))
            .await;
        let app = backend.session().await;
        app.run("insert into orders values (1, 1, 'a')").await;
        eventually("it is told", || async {
            let ready = serving.get("/readyz").await.json(200);
            let degraded = ready["degraded"].as_array().unwrap();
            let told = degraded.iter().any(|d| {
                let said = d.as_str().unwrap();
                said.starts_with("take held: has failed for") && said.contains("somebody keeps")
            });
            told.then_some(())
        })
        .await;
    });
}
