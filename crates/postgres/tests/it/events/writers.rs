//! Every kind of writer, and every kind of transaction.

use std::io::Write;
use std::process::Stdio;

use changefeed_core::{FeedBinding, OrderBy, Verdict};
use changefeed_testkit::backend::eventually_true;
use changefeed_testkit::events::{LEASE, claim, finish, log, told};
use changefeed_testkit::postgres::program;
use changefeed_testkit::run;
use serde_json::{Value, json};

use crate::events::scene::Scene;

const ORDERS: &str = "create table orders (id int primary key, v text)";

/// COPY, by psql.
#[test]
fn copy_is_captured_row_by_row() {
    run(async {
        let scene = Scene::new(ORDERS).await;
        scene.trigger().await;
        let mut psql = program("psql")
            .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", scene.database.url()])
            .args(["-c", "copy orders from stdin"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = psql.stdin.take().unwrap();
        for n in 0..1000 {
            writeln!(input, "{n}\ttext {n}").unwrap();
        }
        drop(input);
        assert!(psql.wait().unwrap().success());
        let told = told(&*scene.store).await;
        assert_eq!(told.len(), 1000);
        assert_eq!(
            told[999],
            ("INSERT", Value::Null, json!({"id": 999, "v": "text 999"}))
        );
    });
}

/// MERGE, ON CONFLICT, data-modifying WITH, SELECT FOR UPDATE: each changed row once.
#[test]
fn statements_that_do_several_things_are_captured() {
    run(async {
        let scene = Scene::new(ORDERS).await;
        scene.trigger().await;
        scene
            .session
            .run("insert into orders values (1, 'a'), (2, 'b'), (3, 'c')")
            .await;
        scene
            .session
            .run(
                "merge into orders t using (values (1, 'm'), (2, null), (9, 'n')) s(id, v) \
                 on t.id = s.id \
                 when matched and s.v is null then delete \
                 when matched then update set v = s.v \
                 when not matched then insert values (s.id, s.v)",
            )
            .await;
        scene
            .session
            .run(
                "with gone as (delete from orders where id = 3 returning *) \
                 insert into orders select id + 100, v from gone",
            )
            .await;
        scene
            .session
            .run("begin; select * from orders for update; commit")
            .await;
        let mut ops: Vec<_> = told(&*scene.store).await[3..]
            .iter()
            .map(|(op, old, new)| format!("{op} {} {}", old["id"], new["id"]))
            .collect();
        ops.sort();
        assert_eq!(
            ops,
            [
                "DELETE 2 null",
                "DELETE 3 null",
                "INSERT null 103",
                "INSERT null 9",
                "UPDATE 1 1",
            ]
        );
    });
}

/// The isolation of the writer is its own affair: nothing of ours makes it fail. Each writes rows
/// of its own, so without us there would be nothing to wait for.
#[test]
fn writers_in_repeatable_read_and_serializable_do_not_suffer() {
    run(async {
        let scene = Scene::new(ORDERS).await;
        let trigger = scene
            .trigger_with(|d| {
                d.capture.order_by = Some(OrderBy::Key);
                d.capture.feed = Some(FeedBinding {
                    feed: "f".parse().unwrap(),
                    shard_by: None,
                });
            })
            .await;
        let mut tasks = Vec::new();
        for writer in 0..8 {
            let session = scene.another_session().await;
            let (level, write) = match writer % 2 {
                0 => (
                    "repeatable read",
                    "update orders set v = v || 'x' where id = ",
                ),
                // A read would conflict with the writes of others even without us.
                _ => ("serializable", "select "),
            };
            tasks.push(tokio::spawn(async move {
                for n in 0..25 {
                    let id = writer * 1000 + n;
                    session
                        .run(&format!(
                            "begin isolation level {level}; insert into orders values ({id}, 'a'); \
                             {write} {id}; commit"
                        ))
                        .await;
                }
            }));
        }
        // Deliveries go on meanwhile.
        while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
            for event in claim(&*scene.store, &trigger, 50, "a", LEASE).await {
                finish(&*scene.store, &event, Verdict::Delivered).await;
            }
            for group in scene.store.sweep_groups().await.unwrap() {
                scene.store.sweep(group).await.unwrap();
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(log(&*scene.store).await.len(), 8 * 25 + 4 * 25);
    });
}

/// Nothing before `commit prepared`, everything after it.
#[test]
fn a_prepared_transaction_makes_its_events_when_it_is_committed() {
    run(async {
        let scene = Scene::new(ORDERS).await;
        let trigger = scene.trigger().await;
        let id = format!("events-{}", fastrand::u64(..));
        scene
            .session
            .run(&format!(
                "begin; insert into orders values (1, 'a'); prepare transaction '{id}'"
            ))
            .await;
        assert!(
            claim(&*scene.store, &trigger, 1, "a", LEASE)
                .await
                .is_empty()
        );
        scene.session.run(&format!("commit prepared '{id}'")).await;
        assert_eq!(claim(&*scene.store, &trigger, 1, "a", LEASE).await.len(), 1);
        scene
            .session
            .run(&format!(
                "begin; insert into orders values (2, 'a'); prepare transaction '{id}'"
            ))
            .await;
        scene
            .session
            .run(&format!("rollback prepared '{id}'"))
            .await;
        assert_eq!(log(&*scene.store).await.len(), 1);
    });
}

/// Anything may be in the settings; the write works, and the event is readable.
#[test]
fn whatever_a_session_says_about_itself_the_write_works() {
    run(async {
        let scene = Scene::new(ORDERS).await;
        let trigger = scene.trigger().await;
        let sayings = [
            "",
            " ",
            "{",
            "null",
            "17",
            "\"x\"",
            "{\"a\":1}",
            "é\u{1}",
            "00-a-b-01",
        ];
        for (id, saying) in sayings.iter().enumerate() {
            scene
                .session
                .run(&format!(
                    "begin; set local \"changefeed.session_variables\" = '{saying}'; \
                     set local \"changefeed.trace_context\" = '{saying}'; \
                     insert into orders values ({id}, 'a'); commit; \
                     insert into orders values ({id} + 100, 'after')"
                ))
                .await;
        }
        let held = claim(&*scene.store, &trigger, 100, "a", LEASE).await;
        assert_eq!(held.len(), 2 * sayings.len());
        for event in held {
            let id = changefeed_testkit::events::row(event.event.new.as_deref())["id"]
                .as_u64()
                .unwrap();
            if id >= 100 {
                assert!(event.event.session_variables.is_none());
                assert!(event.event.trace_context.is_none());
            }
        }
        let rows = scene
            .session
            .query("select session_variables, trace_context from changefeed.event_log")
            .await;
        assert_eq!(rows.unwrap().len(), 2 * sayings.len());
    });
}

/// A writer that is in the middle of its transaction when the trigger gets an order: its events
/// are found all the same.
#[test]
fn events_of_a_writer_that_overlaps_a_replacement_are_delivered() {
    run(async {
        let scene = Scene::new(ORDERS).await;
        let trigger = scene.trigger().await;
        let writer = scene.another_session().await;
        writer
            .run("begin; insert into orders values (1, 'a')")
            .await;
        let mut ordered = trigger.definition.clone();
        ordered.capture.order_by = Some(OrderBy::Key);
        let replacing = tokio::spawn({
            let store = scene.store.clone();
            async move { store.create_trigger(&ordered, true).await.unwrap() }
        });
        eventually_true("the replacement waits for the writer", async || {
            scene
                .session
                .number("select count(*) from pg_locks where not granted and relation = 'orders'::regclass")
                .await
                > 0
        })
        .await;
        writer.run("commit").await;
        let trigger = replacing.await.unwrap();
        let held = claim(&*scene.store, &trigger, 10, "a", LEASE).await;
        assert_eq!(held.len(), 1, "captured, committed, and never delivered");
    });
}

/// A long transaction does not hold up the events of others.
#[test]
fn an_open_transaction_holds_up_nobody() {
    run(async {
        let scene = Scene::new(ORDERS).await;
        let trigger = scene.trigger().await;
        let open = scene.another_session().await;
        open.run("begin; insert into orders values (1, 'open')")
            .await;
        scene
            .session
            .run("insert into orders values (2, 'b')")
            .await;
        let held = claim(&*scene.store, &trigger, 10, "a", LEASE).await;
        assert_eq!(held.len(), 1);
        open.run("commit").await;
        let held = claim(&*scene.store, &trigger, 10, "a", LEASE).await;
        assert_eq!(held.len(), 1, "the late one is not skipped");
    });
}
