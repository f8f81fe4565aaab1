//! Many rows at once, and many at work at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use changefeed_core::{
    CleanUp, EventFilter, EventStatus, LeasedEvent, OrderBy, Redelivery, Verdict,
};
use changefeed_testkit::backend::eventually_true;
use changefeed_testkit::events::{LEASE, claim, everything, finished, key};
use changefeed_testkit::run;

use crate::events::scene::Scene;

/// Inserted, updated and deleted in one statement each: one event per row, with its own rows.
#[test]
fn a_hundred_thousand_rows_in_one_statement() {
    run(async {
        let scene = Scene::new("create table orders (id int primary key, v text)").await;
        scene.trigger().await;
        for sql in [
            "insert into orders select n, 'row ' || n from generate_series(1, 100000) n",
            "update orders set v = v || '!', id = 100001 - id",
            "delete from orders",
        ] {
            // Every key changes places with another one.
            let deferred = "alter table orders drop constraint orders_pkey, \
                            add primary key (id) deferrable initially deferred";
            if sql.starts_with("update") {
                scene.session.run(deferred).await;
            }
            scene.session.run(sql).await;
        }
        let rows = scene
            .session
            .query(
                "select op, count(*), count(distinct change_id), \
                        count(distinct coalesce(new ->> 'id', old ->> 'id')), \
                        bool_and(case op \
                          when 'INSERT' then old is null and new ->> 'v' = 'row ' || (new ->> 'id') \
                          when 'UPDATE' then new ->> 'v' = (old ->> 'v') || '!' \
                            and (old ->> 'id')::int + (new ->> 'id')::int = 100001 \
                          else new is null and old ->> 'v' = 'row ' || 100001 - (old ->> 'id')::int || '!' end) \
                 from changefeed.event_log group by op order by min(change_id)",
            )
            .await
            .unwrap();
        let all: Vec<Vec<&str>> = rows
            .iter()
            .map(|row| row.iter().map(|c| c.as_deref().unwrap()).collect())
            .collect();
        let n = "100000";
        assert_eq!(
            all,
            [
                vec!["INSERT", n, n, n, "t"],
                vec!["UPDATE", n, n, n, "t"],
                vec!["DELETE", n, n, n, "t"],
            ]
        );
    });
}

fn shuffled(events: &[LeasedEvent]) -> Vec<LeasedEvent> {
    let mut events = events.to_vec();
    fastrand::shuffle(&mut events);
    events
}

/// Nobody waits for anybody in a circle: not writers, claimers, finishers and renewers, nor those
/// who redeliver, clean up, and make triggers.
#[test]
fn no_deadlocks_between_all_who_work_on_the_log() {
    run(async {
        let scene = Scene::new("create table orders (id int primary key, v text)").await;
        let plain = scene.trigger().await;
        let ordered = scene
            .trigger_with(|d| {
                d.name = "ordered".parse().unwrap();
                d.capture.order_by = Some(OrderBy::Key);
                d.delivery.concurrency_overall = Some(200);
            })
            .await;
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        for writer in 0..2 {
            let (session, stop) = (scene.another_session().await, stop.clone());
            tasks.push(tokio::spawn(async move {
                let mut n = writer;
                while !stop.load(Ordering::SeqCst) {
                    session
                        .run(&format!(
                            "insert into orders select {n} * 100 + x, 'a' \
                             from generate_series(1, 50) x on conflict do nothing; \
                             update orders set v = v || 'b' where id between {n} * 100 and {n} * 100 + 10"
                        ))
                        .await;
                    n += 2;
                }
            }));
        }
        for worker in 0..3 {
            let (store, stop) = (scene.store.clone(), stop.clone());
            let triggers = [plain.clone(), ordered.clone()];
            tasks.push(tokio::spawn(async move {
                let owner = format!("worker-{worker}");
                while !stop.load(Ordering::SeqCst) {
                    let mut held = Vec::new();
                    for trigger in &triggers {
                        held.extend(claim(&*store, trigger, 60, &owner, LEASE).await);
                    }
                    let claims: Vec<_> = shuffled(&held).iter().map(LeasedEvent::claim).collect();
                    let verdicts = [
                        Verdict::Delivered,
                        Verdict::GiveUp,
                        Verdict::Retry {
                            after: Duration::ZERO,
                        },
                    ];
                    let outcomes: Vec<_> = shuffled(&held)
                        .iter()
                        .map(|e| finished(e, verdicts[fastrand::usize(..3)]))
                        .collect();
                    // An instance renews and writes at the same time.
                    let (renewed, late) = tokio::join!(
                        store.renew_events(&claims, LEASE),
                        store.finish_events(&outcomes)
                    );
                    renewed.unwrap();
                    assert!(late.unwrap().is_empty());
                }
            }));
        }
        for work in ["redeliver", "clean", "define"] {
            let (store, stop) = (scene.store.clone(), stop.clone());
            tasks.push(tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    match work {
                        "redeliver" => {
                            let dead = EventFilter {
                                status: Some(EventStatus::DeadLetter),
                                ..EventFilter::default()
                            };
                            store
                                .redeliver(&Redelivery::Matching(dead), key())
                                .await
                                .unwrap();
                        }
                        "clean" => {
                            let now = CleanUp {
                                after: Duration::ZERO,
                                dead_letters: false,
                            };
                            store.clean_up_events(None, now, 50).await.unwrap();
                        }
                        _ => {
                            let made = store
                                .create_trigger(&everything("brief", "orders"), true)
                                .await
                                .unwrap();
                            store.drop_trigger(&made).await.unwrap();
                            store.refresh_triggers().await.unwrap();
                        }
                    }
                    tokio::time::sleep(Duration::from_millis(30)).await;
                }
            }));
        }
        let began = std::time::Instant::now();
        eventually_true("they have worked for a while", async || {
            began.elapsed() > Duration::from_secs(6)
        })
        .await;
        stop.store(true, Ordering::SeqCst);
        for task in tasks {
            task.await.unwrap();
        }
        // The server's statistics come a moment late.
        scene.session.run("select pg_stat_force_next_flush()").await;
        let deadlocks = scene
            .session
            .number("select deadlocks from pg_stat_database where datname = current_database()")
            .await;
        assert_eq!(deadlocks, 0);
    });
}
