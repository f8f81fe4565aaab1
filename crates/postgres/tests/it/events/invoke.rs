//! Events by hand, in the writer's own transaction and in SQL.

use changefeed_core::{EventStatus, FeedBinding, Operation};
use changefeed_testkit::events::{LEASE, claim, log, row};
use changefeed_testkit::run;
use serde_json::json;

use crate::events::scene::{Role, Scene};

const ORDERS: &str = "create table orders (id int primary key, v text, n int)";

async fn scene() -> Scene {
    let scene = Scene::new(ORDERS).await;
    scene
        .trigger_with(|d| {
            d.capture.manual = true;
            d.capture.feed = Some(FeedBinding {
                feed: "f".parse().unwrap(),
                shard_by: None,
            });
        })
        .await;
    scene
}

/// What is rolled back was never sent; what is committed says what the writer has said about itself.
#[test]
fn an_event_by_hand_belongs_to_the_transaction() {
    run(async {
        let scene = scene().await;
        let session = &scene.session;
        session
            .run("begin; select changefeed.invoke('t', '{\"to\": 1}'); rollback")
            .await;
        session
            .run(
                "begin; set local \"hasura.user\" = '{\"x-hasura-user-id\": \"7\"}'; \
                 set local \"hasura.tracecontext\" = '{\"trace_id\": \"4bf92f3577b34da6a3ce929d0e0e4736\", \
                 \"span_id\": \"00f067aa0ba902b7\"}'; \
                 insert into orders values (1, 'a', 1); \
                 select changefeed.invoke('t', json_build_object('to', 2.50)); commit; \
                 select changefeed.invoke('t')",
            )
            .await;
        let all = log(&*scene.store).await;
        let ops: Vec<Operation> = all.iter().map(|e| e.event.op).collect();
        assert_eq!(
            ops,
            [Operation::Insert, Operation::Manual, Operation::Manual]
        );
        for event in &all[..2] {
            let said = row(event.event.session_variables.as_deref());
            assert_eq!(said, json!({"x-hasura-user-id": "7"}));
            let trace = row(event.event.trace_context.as_deref());
            assert_eq!(trace["span_id"], "00f067aa0ba902b7");
        }
        assert_eq!(all[1].event.new.as_ref().unwrap().get(), "{\"to\" : 2.50}");
        assert_eq!(all[2].event.new.as_ref().unwrap().get(), "{}");
        assert!(all[2].event.session_variables.is_none());
        // The id that it returns is the event's.
        let id = session
            .value("select changefeed.invoke('t', '[1]')::text")
            .await;
        let id = id.parse().unwrap();
        let (event, _) = scene.store.event(id).await.unwrap().unwrap();
        assert_eq!(event.status, EventStatus::Pending);
        let trigger = scene.store.triggers().await.unwrap().remove(0);
        assert_eq!(claim(&*scene.store, &trigger, 9, "x", LEASE).await.len(), 4);
        session.run("select * from changefeed.sweep(0)").await;
        let numbered = session
            .value("select count(*)::text from changefeed.change where change_sequence_number is not null")
            .await;
        assert_eq!(numbered, "4", "it enters the feed, too");
    });
}

/// Who may send events is granted trigger by trigger, and asked of the role that is set.
#[test]
fn only_who_was_allowed_sends_events_of_a_trigger() {
    run(async {
        let scene = scene().await;
        scene
            .trigger_with(|d| {
                d.name = "other".parse().unwrap();
                d.capture.manual = true;
            })
            .await;
        scene
            .trigger_with(|d| d.name = "captured".parse().unwrap())
            .await;
        let (allowed, stranger) = (
            Role::new(&scene, "allowed").await,
            Role::new(&scene, "stranger").await,
        );
        let grant = format!("select changefeed.grant_invoke('t', '{}')", allowed.name);
        scene.session.run(&grant).await;
        // The right to call the function is none on a trigger.
        scene
            .session
            .run(&format!(
                "grant usage on schema changefeed to {0}; \
                 grant execute on function changefeed.invoke to {0}",
                stranger.name
            ))
            .await;
        let writer = scene.as_role(&allowed).await;
        writer.run("select changefeed.invoke('t', '1')").await;
        let refused = [
            (&allowed, "select changefeed.invoke('other', '1')"),
            (&allowed, "select changefeed.invoke('nothing', '1')"),
            (&stranger, "select changefeed.invoke('t', '1')"),
            (
                &stranger,
                "create temp table orders (i int); set search_path = pg_temp; select changefeed.invoke('t', '1')",
            ),
            (
                &allowed,
                "select changefeed.grant_invoke('other', current_user::regrole)",
            ),
            (
                &allowed,
                "insert into changefeed.event_invoker select 1, current_user::regrole",
            ),
        ];
        for (role, sql) in refused {
            let session = scene.as_role(role).await;
            let error = session.query(sql).await.unwrap_err().to_string();
            assert!(
                error.contains("may not send") || error.contains("permission denied"),
                "{sql}: {error}"
            );
        }
        // A role that the session has taken on is the one that is asked.
        scene
            .session
            .run(&format!("set role {}", stranger.name))
            .await;
        let error = scene
            .session
            .query("select changefeed.invoke('t', '1')")
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("may not send"), "{error}");
        scene.session.run("reset role").await;
        let error = scene
            .session
            .query("select changefeed.invoke('captured', '1')")
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("takes no events by hand"), "{error}");
        let revoke = format!("select changefeed.revoke_invoke('t', '{}')", allowed.name);
        scene.session.run(&revoke).await;
        assert!(
            writer
                .query("select changefeed.invoke('t', '1')")
                .await
                .is_err()
        );
        assert_eq!(log(&*scene.store).await.len(), 1);
    });
}
