//! Definitions are applied while the application writes: it is never the one to give way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use changefeed_core::{
    Capture, DefinitionStore, Delivery, Error, Kind, Step, Store, SweepGroup, TableName,
    TriggerDefinition,
};
use changefeed_postgres::PostgresStore;
use changefeed_testkit::backend::{Backend, PostgresBackend, captured, eventually_true};
use changefeed_testkit::{run, watching};

async fn stage() -> (Arc<dyn Backend>, Arc<dyn Store>) {
    let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
    let store = backend.installed().await;
    backend
        .session()
        .await
        .run(
            "create table a (id serial primary key); create table b (id serial primary key); \
             create table p (id serial primary key) partition by range (id); \
             create table p1 partition of p for values from (0) to (1000000)",
        )
        .await;
    (backend, store)
}

fn table(name: &str) -> TableName {
    TableName::qualified("public", name)
}

fn trigger(name: &str, on: &str) -> TriggerDefinition {
    TriggerDefinition {
        name: name.parse().unwrap(),
        table: table(on),
        capture: Capture {
            insert: true,
            ..Capture::default()
        },
        delivery: Delivery::default(),
    }
}

/// Writes in an order that is not ours, until told to stop. Returns how often.
async fn write(backend: &dyn Backend, stop: &AtomicBool, statements: &[&str]) -> usize {
    let app = backend.session().await;
    let mut written = 0;
    while !stop.load(Ordering::Relaxed) {
        app.run("begin").await;
        for statement in statements {
            app.run(statement).await;
            // Long enough for others to come in between.
            app.run("select pg_sleep(0.1)").await;
        }
        app.run("commit").await;
        written += 1;
    }
    written
}

#[test]
fn writers_in_another_order_do_not_fail_and_apply_comes_to_an_end() {
    run(async {
        let (backend, store) = stage().await;
        let stop = AtomicBool::new(false);
        let applying = async {
            for round in 0..3 {
                let mut manual = trigger("ta", "a");
                manual.capture.manual = true;
                let mut watch = watching::spec("w", "b");
                watch.table = table("b");
                let feed = format!("f{round}");
                let steps = [
                    Step::CreateTrigger(trigger("ta", "a")),
                    Step::CreateTrigger(trigger("tp", "p")),
                    Step::CreateFeed(captured(&feed, table("b"), None, 1)),
                    Step::PutWatch(watch),
                ];
                store.apply(&steps).await.unwrap();
                store.apply(&[Step::ChangeTrigger(manual)]).await.unwrap();
                let mut drops: Vec<Step> = Vec::new();
                for trigger in store.triggers().await.unwrap() {
                    drops.push(Step::DropTrigger(trigger));
                }
                for feed in store.feeds().await.unwrap() {
                    drops.push(Step::DropFeed(feed));
                }
                for watch in store.watches().await.unwrap() {
                    drops.push(Step::DropWatch(watch));
                }
                assert_eq!(drops.len(), 4);
                store.apply(&drops).await.unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        };
        let orders = [
            [
                "insert into b default values",
                "insert into p1 default values",
                "insert into a default values",
            ],
            [
                "insert into b default values",
                "insert into p default values",
                "insert into a default values",
            ],
        ];
        let writing = async {
            tokio::join!(
                write(&*backend, &stop, &orders[0]),
                write(&*backend, &stop, &orders[1]),
            )
        };
        let ((), (first, second)) = tokio::join!(applying, writing);
        assert!(first > 0 && second > 0, "{first}, {second}");
    });
}

#[test]
fn two_in_opposite_orders_both_come_to_an_end() {
    run(async {
        let (backend, store) = stage().await;
        let other = backend.store().await;
        for round in 0..5 {
            let create =
                |name: &str, on| Step::CreateTrigger(trigger(&format!("{name}-{round}"), on));
            let there = [create("one", "a"), create("two", "b"), create("three", "p")];
            let back = [create("four", "p"), create("five", "b"), create("six", "a")];
            let (one, two) = tokio::join!(store.apply(&there), other.apply(&back));
            one.unwrap();
            two.unwrap();
        }
        assert_eq!(store.triggers().await.unwrap().len(), 30);
    });
}

/// Also when it is not the first table, and when it is one that is let go.
#[test]
fn a_table_that_is_written_to_for_too_long_is_named() {
    run(async {
        let (backend, store) = stage().await;
        store
            .apply(&[Step::CreateTrigger(trigger("dropped", "b"))])
            .await
            .unwrap();
        let dropped = store.triggers().await.unwrap().remove(0);
        let app = backend.session().await;
        app.run("begin; insert into b default values").await;
        let steps = [
            Step::CreateTrigger(trigger("ta", "a")),
            Step::DropTrigger(dropped),
        ];
        let error = store.apply(&steps).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Busy);
        assert_eq!(
            error.to_string(),
            "other sessions have been writing to public.b for too long"
        );
        assert!(error.advice().unwrap().starts_with("try again"), "{error}");
        app.run("insert into a default values; commit").await;
        assert_eq!(store.triggers().await.unwrap().len(), 1);
        store.apply(&steps).await.unwrap();
    });
}

/// Whoever waits for a writer keeps those who come later waiting, too, so it does not wait for ever.
#[test]
fn a_feed_is_made_and_dropped_without_waiting_for_long_transactions() {
    run(async {
        let (backend, store) = stage().await;
        let new = captured("b", table("b"), None, 1);
        let app = backend.session().await;
        let refused = |error: Error| {
            assert_eq!(error.kind(), Kind::Busy);
            let said = error.to_string();
            assert_eq!(
                said,
                "other sessions have been writing to public.b for too long"
            );
        };
        app.run("begin; insert into b default values").await;
        refused(store.create_feed(&new).await.unwrap_err());
        app.run("commit").await;
        let feed = store.create_feed(&new).await.unwrap();
        app.run("begin; insert into b default values").await;
        refused(store.drop_feed(&feed).await.unwrap_err());
        app.run("commit").await;
        store.drop_feed(&feed).await.unwrap();
    });
}

/// Whoever trims has the shard, and then wants changes; whoever drops must not have these before it.
#[test]
fn a_feed_that_is_being_trimmed_is_dropped_afterwards() {
    run(async {
        let (backend, store) = stage().await;
        let feed = captured("b", table("b"), None, 1);
        let feed = store.create_feed(&feed).await.unwrap();
        let trim = backend.session().await;
        trim.run("insert into b default values").await;
        store.sweep(SweepGroup(0)).await.unwrap();
        trim.run("begin; select from changefeed.shard_definition for no key update")
            .await;
        let dropping = async { store.drop_feed(&feed).await };
        let trimming = async {
            let look = backend.session().await;
            eventually_true("whoever drops it waits", async || {
                let waits = "select count(*) from pg_stat_activity \
                             where datname = current_database() and wait_event_type = 'Lock'";
                look.number(waits).await == 1
            })
            .await;
            trim.run("delete from changefeed.numbered; commit").await;
        };
        let (dropped, ()) = tokio::join!(dropping, trimming);
        dropped.unwrap();
        assert!(store.feeds().await.unwrap().is_empty());
    });
}

/// The writers of all feeds share the inbox, and queue behind whoever waits for a lock on it.
#[test]
fn a_feed_drop_behind_a_long_transaction_does_not_hold_up_writers_of_other_feeds() {
    run(async {
        let (backend, store) = stage().await;
        let admin = backend.session().await;
        admin
            .run(
                "insert into changefeed.feed (feed_id, name) values (1, 'one'), (2, 'two'); \
                 insert into changefeed.shard (feed_id, shard) values (1, 0), (2, 0)",
            )
            .await;
        let feeds = store.feeds().await.unwrap();
        let (long, writer) = (backend.session().await, backend.session().await);
        let publish = "insert into changefeed.change (feed_id, shard, change_id) \
                       values (2, 0, nextval('changefeed.change_id'))";
        long.run("begin").await;
        long.run(publish).await;
        let ended = AtomicBool::new(false);
        let dropping = async {
            let refused = store.drop_feed(&feeds[0]).await.unwrap_err();
            ended.store(true, Ordering::Relaxed);
            assert_eq!(refused.kind(), Kind::Busy, "{refused:?}");
        };
        let writing = async {
            let mut longest = Duration::ZERO;
            while !ended.load(Ordering::Relaxed) {
                let began = Instant::now();
                writer.run(publish).await;
                longest = longest.max(began.elapsed());
            }
            longest
        };
        let ((), longest) = tokio::join!(dropping, writing);
        assert!(longest < Duration::from_secs(2), "{longest:?}");
        long.run("commit").await;
        store.drop_feed(&feeds[0]).await.unwrap();
        assert_eq!(store.feeds().await.unwrap().len(), 1);
    });
}

/// What is captured between the removal of what there is and that of the trigger goes, too.
#[test]
fn a_feed_that_is_dropped_under_its_writers_leaves_nothing() {
    run(async {
        let (backend, store) = stage().await;
        let stop = AtomicBool::new(false);
        let dropping = async {
            for _ in 0..5 {
                let feed = captured("b", table("b"), None, 1);
                let feed = store.create_feed(&feed).await.unwrap();
                store.sweep(SweepGroup(0)).await.unwrap();
                store.drop_feed(&feed).await.unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        };
        let insert = ["insert into b default values"];
        let ((), written) = tokio::join!(dropping, write(&*backend, &stop, &insert));
        assert!(written > 0);
        let left = "select (select count(*) from changefeed.change_row) \
                    + (select count(*) from changefeed.change)";
        assert_eq!(backend.session().await.number(left).await, 0);
    });
}

/// Making a trigger takes fewer rights than locking the table does.
#[test]
fn the_right_to_make_triggers_is_enough() {
    run(async {
        let (backend, _) = stage().await;
        let admin = backend.session().await;
        let role = format!("cf_apply_{:08x}", std::process::id());
        admin
            .run(&format!(
                "drop role if exists {role}; create role {role}; \
                 grant select, trigger on a, b to {role}; \
                 alter schema changefeed owner to {role}; \
                 grant all on all tables in schema changefeed to {role}; \
                 grant all on all sequences in schema changefeed to {role}; \
                 grant all on all functions in schema changefeed to {role}"
            ))
            .await;
        let url = backend.url();
        let more = if url.contains('?') { '&' } else { '?' };
        let url = format!("{url}{more}options=-c%20role%3D{role}");
        let theirs = PostgresStore::connect(&url).await.unwrap();
        theirs
            .apply(&[
                Step::CreateTrigger(trigger("ta", "a")),
                Step::CreateTrigger(trigger("tb", "b")),
            ])
            .await
            .unwrap();
        drop(theirs);
        admin
            .run(&format!("drop owned by {role} cascade; drop role {role}"))
            .await;
    });
}
