//! Writers that have no right on anything of ours.

use changefeed_core::FeedBinding;
use changefeed_testkit::events::{log, told};
use changefeed_testkit::run;
use serde_json::{Value, json};

use crate::events::scene::{Role, Scene};

const ORDERS: &str = "create table orders (id int primary key, v text, n int)";

/// Statement, row and condition, with a feed, before and after the table was altered.
#[test]
fn a_writer_without_any_right_on_our_schema_is_captured() {
    run(async {
        let scene = Scene::new(ORDERS).await;
        scene.trigger().await;
        scene
            .trigger_with(|d| {
                d.name = "feed".parse().unwrap();
                d.capture.condition = Some("new.n > 0 or old.n > 0".into());
                d.capture.feed = Some(FeedBinding {
                    feed: "f".parse().unwrap(),
                    shard_by: Some("id".into()),
                });
            })
            .await;
        let role = Role::new(&scene, "writer").await;
        scene
            .session
            .run(&format!(
                "revoke all on schema changefeed from public; \
                 revoke all on all tables in schema changefeed from public; \
                 grant select, insert, update, delete, truncate on orders to {}",
                role.name
            ))
            .await;
        let writer = scene.as_role(&role).await;
        assert!(
            writer
                .query("select * from changefeed.event")
                .await
                .is_err(),
            "the role sees nothing of ours"
        );
        let write = "insert into orders (id, v, n) values (1, 'a', 1), (2, 'b', 0); \
                     update orders set v = 'c'; delete from orders";
        writer.run(write).await;
        assert_eq!(log(&*scene.store).await.len(), 6 + 3);
        scene
            .session
            .run("alter table orders add column extra int default 7")
            .await;
        writer.run(write).await;
        let told = told(&*scene.store).await;
        assert!(told.len() >= 9 + 9, "{}", told.len());
        writer.run("truncate orders").await;
        let complaints = scene.complaints().await;
        assert!(
            complaints.iter().any(|f| f.message.contains(&role.name)),
            "{complaints:?}"
        );
        assert_eq!(
            told[9],
            (
                "INSERT",
                Value::Null,
                json!({"id": 1, "v": "a", "n": 1, "extra": 7})
            )
        );
    });
}

/// Nobody else can attach our functions to a table of his own, or call them.
#[test]
fn our_functions_are_not_for_others() {
    run(async {
        let scene = Scene::new(ORDERS).await;
        scene.trigger().await;
        scene
            .trigger_with(|d| {
                d.name = "row".parse().unwrap();
                d.capture.condition = Some("true".into());
            })
            .await;
        let role = Role::new(&scene, "stranger").await;
        scene
            .session
            .run(&format!(
                "grant usage on schema changefeed to {}",
                role.name
            ))
            .await;
        let stranger = scene.as_role(&role).await;
        stranger
            .run("create table mine (id int, v text, n int)")
            .await;
        let functions = scene
            .session
            .query(
                "select p.proname from pg_proc p \
                 where p.pronamespace = 'changefeed'::regnamespace \
                   and p.prorettype = 'trigger'::regtype and p.prosecdef",
            )
            .await
            .unwrap();
        assert!(functions.len() >= 3);
        for function in functions {
            let function = function[0].as_deref().unwrap();
            let refused = stranger
                .execute(&format!(
                    "create trigger x after insert on mine for each row \
                     execute function changefeed.{function}()"
                ))
                .await;
            assert!(refused.is_err(), "{function} can be used by anybody");
        }
        for call in [
            "select changefeed.event_row(1, 'mine'::regclass, 'INSERT')",
            "select changefeed.event_statement(1, 'mine'::regclass, 'I')",
            "select * from changefeed.event_capture(1, 'mine'::regclass, 'a', 'b')",
        ] {
            assert!(stranger.execute(call).await.is_err(), "{call}");
        }
    });
}
