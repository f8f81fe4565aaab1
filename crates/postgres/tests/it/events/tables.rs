//! Triggers of the application, inheritance, TRUNCATE, altered types, and what `doctor` shows.

use changefeed_core::{Severity, Updates};
use changefeed_testkit::events::{log, told};
use changefeed_testkit::run;
use serde_json::{Value, json};

use crate::events::scene::Scene;

const ORDERS: &str = "create table orders (id int primary key, v text)";

fn row(id: i64, v: &str) -> Value {
    json!({"id": id, "v": v})
}

/// What a trigger of the application changes in turn comes after what it was called for.
#[test]
fn a_row_trigger_that_updates_its_row_comes_after() {
    run(async {
        for (name, late) in [("aaa", false), ("\"00_audit\"", false), ("zzz", true)] {
            let scene = Scene::new(ORDERS).await;
            let create = format!(
                "create function again() returns trigger language plpgsql as $$ begin \
                   update orders set v = 'two' where id = new.id; return null; end $$; \
                 create trigger {name} after insert on orders for each row \
                 execute function again()"
            );
            if late {
                scene.trigger().await;
                scene.session.run(&create).await;
                // Somebody's dispatcher follows.
                scene.store.refresh_triggers().await.unwrap();
            } else {
                scene.session.run(&create).await;
                scene.trigger().await;
            }
            scene
                .session
                .run("insert into orders values (1, 'one'), (2, 'one')")
                .await;
            let told = told(&*scene.store).await;
            assert_eq!(told.len(), 4);
            for id in [1, 2] {
                let mine: Vec<_> = told
                    .iter()
                    .filter(|(_, _, new)| new["id"] == id)
                    .cloned()
                    .collect();
                assert_eq!(
                    mine,
                    [
                        ("INSERT", Value::Null, row(id, "one")),
                        ("UPDATE", row(id, "one"), row(id, "two")),
                    ],
                    "{name}"
                );
            }
        }
    });
}

/// What is written is what counts, not what was asked for; a row that was skipped is none.
#[test]
fn before_triggers_change_what_is_captured() {
    run(async {
        let scene = Scene::new(
            "create table orders (id int primary key, v text); \
             create function change() returns trigger language plpgsql as $$ begin \
               if new.v = 'skip' then return null; end if; \
               new.v := upper(new.v); return new; end $$; \
             create trigger change before insert or update on orders for each row \
             execute function change()",
        )
        .await;
        scene.trigger().await;
        scene
            .session
            .run("insert into orders values (1, 'a'), (2, 'skip'); update orders set v = 'b'")
            .await;
        assert_eq!(
            told(&*scene.store).await,
            [
                ("INSERT", Value::Null, row(1, "A")),
                ("UPDATE", row(1, "A"), row(1, "B")),
            ]
        );
    });
}

/// Statement triggers and deferred constraint triggers that write again.
#[test]
fn other_triggers_of_the_application_are_captured() {
    run(async {
        let scene = Scene::new(
            "create table orders (id int primary key, v text); \
             create function more() returns trigger language plpgsql as $$ begin \
               if pg_trigger_depth() = 1 then \
                 insert into orders values (100, 'statement'); end if; \
               return null; end $$; \
             create function later() returns trigger language plpgsql as $$ begin \
               update orders set v = v || '!' where id = new.id and v not like '%!'; \
               return null; end $$; \
             create trigger a_statement after insert on orders execute function more(); \
             create constraint trigger later after insert on orders deferrable \
             initially deferred for each row execute function later()",
        )
        .await;
        scene.trigger().await;
        scene
            .session
            .run("insert into orders values (1, 'a')")
            .await;
        let told = told(&*scene.store).await;
        let inserts: Vec<_> = told.iter().filter(|(op, ..)| *op == "INSERT").collect();
        let updates: Vec<_> = told.iter().filter(|(op, ..)| *op == "UPDATE").collect();
        assert_eq!((inserts.len(), updates.len()), (2, 2), "{told:?}");
        for (_, old, new) in updates {
            let insert = told.iter().position(|(_, _, n)| n == old).unwrap();
            let update = told.iter().position(|(_, _, n)| n == new).unwrap();
            assert!(insert < update);
        }
    });
}

/// Rows of a child are rows of the parent to whoever reads it. They are captured, or it is said
/// that they are not.
#[test]
fn inheritance_is_captured_or_said() {
    run(async {
        let scene = Scene::new(ORDERS).await;
        scene
            .session
            .run("create table child (extra int) inherits (orders)")
            .await;
        scene.trigger().await;
        scene
            .session
            .run("insert into orders values (1, 'a'); insert into child values (2, 'b', 3)")
            .await;
        scene.session.run("update orders set v = 'c'").await;
        let told = told(&*scene.store).await;
        let of_child = told.iter().filter(|(_, _, new)| new["id"] == 2).count();
        let findings = scene.store.capture_findings().await.unwrap();
        let said = findings
            .iter()
            .any(|f| f.message.contains("inherit") || f.message.contains("child"));
        assert!(of_child == 2 || said, "{told:?} {findings:?}");
        assert_eq!(told.len() - of_child, 2);
    });
}

/// No event, but remembered and shown, with who and when; the write itself works.
#[test]
fn a_truncate_is_remembered_and_shown() {
    run(async {
        let scene = Scene::new(ORDERS).await;
        scene.trigger().await;
        scene
            .session
            .run("insert into orders values (1, 'a')")
            .await;
        scene.session.run("begin; truncate orders; rollback").await;
        assert!(scene.complaints().await.is_empty(), "it was rolled back");
        scene.session.run("truncate orders").await;
        let complaints = scene.complaints().await;
        assert_eq!(complaints.len(), 1);
        let me = scene.session.value("select session_user").await;
        let said = format!("TRUNCATE of public.orders by {me}");
        assert!(complaints[0].message.contains(&said), "{complaints:?}");
        assert_eq!(log(&*scene.store).await.len(), 1);
        scene.session.run("delete from changefeed.event_gap").await;
        assert!(scene.complaints().await.is_empty());
    });
}

/// By hand, by somebody who may.
#[test]
fn a_trigger_that_was_disabled_or_dropped_by_hand_is_shown() {
    run(async {
        let scene = Scene::new(ORDERS).await;
        scene.trigger().await;
        assert!(scene.complaints().await.is_empty());
        scene
            .session
            .run("alter table orders disable trigger all")
            .await;
        let complaints = scene.complaints().await;
        assert!(
            complaints
                .iter()
                .any(|f| f.severity == Severity::Problem && f.message.contains("disabled")),
            "{complaints:?}"
        );
        scene
            .session
            .run("insert into orders values (1, 'a')")
            .await;
        assert!(log(&*scene.store).await.is_empty());
        scene
            .session
            .run("alter table orders enable trigger all")
            .await;
        assert!(scene.complaints().await.is_empty());
        let name = scene
            .session
            .value(
                "select quote_ident(tgname) from pg_trigger where tgrelid = 'orders'::regclass \
                 and tgname like '%insert%'",
            )
            .await;
        scene
            .session
            .run(&format!("drop trigger {name} on orders"))
            .await;
        assert!(!scene.complaints().await.is_empty());
        scene.store.refresh_triggers().await.unwrap();
        assert!(scene.complaints().await.is_empty());
        scene
            .session
            .run("insert into orders values (2, 'b')")
            .await;
        assert_eq!(log(&*scene.store).await.len(), 1);
    });
}

/// `replica` fires nothing, which is documented; the write works and the note is there.
#[test]
fn a_replica_session_makes_no_event_and_doctor_says_so() {
    run(async {
        let scene = Scene::new(ORDERS).await;
        scene.trigger().await;
        let replica = scene.another_session().await;
        replica
            .run("set session_replication_role = replica; insert into orders values (1, 'a')")
            .await;
        assert!(log(&*scene.store).await.is_empty());
        let findings = scene.store.capture_findings().await.unwrap();
        assert!(
            findings
                .iter()
                .any(|f| f.severity == Severity::Note
                    && f.message.contains("session_replication_role")),
            "{findings:?}"
        );
    });
}

/// Another type of the same column, before and after somebody followed.
#[test]
fn a_column_that_changes_its_type_is_followed() {
    run(async {
        let scene = Scene::new(
            "create table orders (id int primary key, v text, w json); \
             create type mood as enum ('glad')",
        )
        .await;
        scene
            .trigger_with(|d| d.capture.update = Updates::Of(vec!["v".into(), "w".into()]))
            .await;
        scene
            .session
            .run("insert into orders values (1, '7', '[1]')")
            .await;
        scene
            .session
            .run("alter table orders alter v type int using v::int")
            .await;
        let other = scene.another_session().await;
        for session in [&scene.session, &other] {
            session.run("update orders set v = v + 1").await;
        }
        scene.store.refresh_triggers().await.unwrap();
        for session in [&scene.session, &other] {
            session.run("update orders set v = v + 1").await;
        }
        scene
            .session
            .run("alter table orders alter v type mood using 'glad', alter w type jsonb")
            .await;
        scene.session.run("update orders set w = '{\"a\":1}'").await;
        scene.store.refresh_triggers().await.unwrap();
        scene.session.run("update orders set v = null").await;
        let values: Vec<Value> = told(&*scene.store)
            .await
            .into_iter()
            .map(|(_, _, new)| new["v"].clone())
            .collect();
        assert_eq!(
            values,
            [
                json!("7"),
                json!(8),
                json!(9),
                json!(10),
                json!(11),
                json!("glad"),
                Value::Null
            ]
        );
        assert!(scene.complaints().await.is_empty());
    });
}

/// Another schema, moved to a third one.
#[test]
fn a_table_of_another_schema_may_move() {
    run(async {
        let scene = Scene::new(
            "create schema sales; create schema \"Old Sales\"; \
             create table sales.orders (id int primary key, v text)",
        )
        .await;
        scene
            .trigger_with(|d| d.table = changefeed_core::TableName::qualified("sales", "orders"))
            .await;
        scene
            .session
            .run("insert into sales.orders values (1, 'a')")
            .await;
        scene
            .session
            .run("alter table sales.orders set schema \"Old Sales\"")
            .await;
        scene
            .session
            .run("insert into \"Old Sales\".orders values (2, 'b')")
            .await;
        scene.store.refresh_triggers().await.unwrap();
        scene
            .session
            .run("insert into \"Old Sales\".orders values (3, 'c')")
            .await;
        let log = log(&*scene.store).await;
        assert_eq!(log.len(), 3);
        assert_eq!(log[2].event.table.schema.as_deref(), Some("Old Sales"));
        assert!(scene.complaints().await.is_empty());
    });
}
