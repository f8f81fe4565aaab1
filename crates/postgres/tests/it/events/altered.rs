//! What is left of a trigger when its table, its definition or its database is not what it was.

use changefeed_core::{Kind, Severity, Updates};
use changefeed_postgres::PostgresStore;
use changefeed_testkit::backend::{PostgresSession, Session};
use changefeed_testkit::events::{everything, told, told_by};
use changefeed_testkit::postgres::{empty_database, program};
use changefeed_testkit::run;
use serde_json::json;

use crate::events::scene::Scene;

const ORDERS: &str = "create table orders (id int primary key, v text, secret text)";

/// A list of columns is also a promise about all others.
#[test]
fn a_payload_whose_columns_are_gone_is_empty_and_not_everything() {
    run(async {
        let scene = Scene::new(ORDERS).await;
        scene
            .trigger_with(|d| d.capture.payload = Some(vec!["v".into()]))
            .await;
        scene.session.run("alter table orders drop column v").await;
        for write in ["values (1, 'x')", "values (2, 'y')"] {
            let insert = format!("insert into orders (id, secret) {write}");
            scene.session.run(&insert).await;
            scene.store.refresh_triggers().await.unwrap();
        }
        let carried: Vec<_> = told(&*scene.store).await.into_iter().map(|t| t.2).collect();
        assert_eq!(carried, [json!({}), json!({})]);
    });
}

/// Also in the time before somebody has looked at the altered table.
#[test]
fn listened_columns_count_at_once_after_a_change_of_the_table() {
    run(async {
        let scene = Scene::new(ORDERS).await;
        scene
            .trigger_with(|d| {
                d.capture.insert = false;
                d.capture.update = Updates::Of(vec!["v".into()]);
            })
            .await;
        scene
            .session
            .run(
                "insert into orders values (1, 'a', 's'); alter table orders add column n int; \
                 alter table orders rename column v to w; update orders set n = 1; \
                 update orders set w = 'b'",
            )
            .await;
        let told = told(&*scene.store).await;
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].2["w"], "b");
    });
}

/// One table that lost everything does not stop the work for others.
#[test]
fn a_table_without_columns_is_no_obstacle() {
    run(async {
        let scene = Scene::new("create table orders (v text); create table fine (id int)").await;
        scene.trigger().await;
        let fine = everything("fine", "fine");
        scene.store.create_trigger(&fine, false).await.unwrap();
        scene.session.run("alter table orders drop column v").await;
        scene.store.refresh_triggers().await.unwrap();
        scene.store.capture_findings().await.unwrap();
        scene
            .session
            .run("insert into orders default values; insert into fine values (1)")
            .await;
        assert_eq!(told_by(&*scene.store, "t").await[0].2, json!({}));
        assert_eq!(told_by(&*scene.store, "fine").await.len(), 1);
    });
}

/// By hand, and only a live one.
#[test]
fn the_row_of_a_trigger_is_dropped_and_not_deleted() {
    run(async {
        let scene = Scene::new(ORDERS).await;
        let trigger = scene.trigger().await;
        let delete = "delete from changefeed.event_trigger";
        let refused = scene.session.execute(delete).await.unwrap_err();
        assert!(refused.message.contains("must be dropped"), "{refused}");
        scene.store.drop_trigger(&trigger).await.unwrap();
        scene.session.run(delete).await;
    });
}

/// Whatever the writer has set: how a text is read must not change with it.
#[test]
fn a_condition_means_the_same_in_every_session() {
    run(async {
        let scene = Scene::new(ORDERS).await;
        scene
            .trigger_with(|d| {
                d.capture.condition = Some("new.v = '\\' and new.secret = 'z'".into());
            })
            .await;
        scene
            .session
            .run(
                "set standard_conforming_strings = off; \
                 insert into orders values (1, E'\\\\', 'z'), (2, 'x', 'y')",
            )
            .await;
        let told = told(&*scene.store).await;
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].2["id"], 1);
    });
}

/// In a subquery, where a name may also be one of ours.
#[test]
fn a_condition_may_name_columns_of_other_tables() {
    run(async {
        let scene = Scene::new(
            "create table orders (id int primary key, v text); \
             create table vip (id int, key int, before int); insert into vip values (2, 1, 1)",
        )
        .await;
        scene
            .trigger_with(|d| {
                let vip = "exists (select from public.vip where id = new.id and key = 1 \
                           and before = 1)";
                d.capture.condition = Some(vip.into());
            })
            .await;
        scene
            .session
            .run("insert into orders values (1, 'a'), (2, 'b')")
            .await;
        let told = told(&*scene.store).await;
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].2["id"], 2);
    });
}

/// Tables have other numbers there, and columns too.
#[test]
fn a_restored_database_goes_on_capturing_the_same() {
    run(async {
        let scene = Scene::new(
            "create table orders (gone int, id int primary key, v text, secret text); \
             alter table orders drop column gone",
        )
        .await;
        scene
            .trigger_with(|d| d.capture.payload = Some(vec!["id".into(), "v".into()]))
            .await;
        let dump = program("pg_dump")
            .args(["-d", scene.database.url()])
            .output()
            .unwrap();
        assert!(dump.status.success());
        let restored = empty_database().await;
        let restored_session: Box<dyn Session> =
            Box::new(PostgresSession::connect(restored.url()).await.unwrap());
        // So that objects get other numbers than they had.
        restored_session.run("create table filler (x int)").await;
        let script = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(script.path(), &dump.stdout).unwrap();
        let loaded = program("psql")
            .args(["-q", "-v", "ON_ERROR_STOP=1", "-d", restored.url(), "-f"])
            .arg(script.path())
            .output()
            .unwrap();
        assert!(loaded.status.success(), "{loaded:?}");
        let store = PostgresStore::connect(restored.url()).await.unwrap();
        let insert = |id: i64| format!("insert into orders values ({id}, 'v', 'secret')");
        for id in 1..=2 {
            restored_session.run(&insert(id)).await;
            changefeed_core::TriggerStore::refresh_triggers(&store)
                .await
                .unwrap();
        }
        let carried: Vec<_> = told(&store).await.into_iter().map(|t| t.2).collect();
        assert_eq!(
            carried,
            [json!({"id": 1, "v": "v"}), json!({"id": 2, "v": "v"})]
        );
        let findings = changefeed_core::TriggerStore::capture_findings(&store)
            .await
            .unwrap();
        assert!(
            findings.iter().all(|f| f.severity <= Severity::Note),
            "{findings:?}"
        );
    });
}

/// A policy hides rows from us: that is an error, not a backfill of what is left.
#[test]
fn a_backfill_that_would_miss_rows_is_refused() {
    run(async {
        let scene = Scene::new(
            "create table orders (id int primary key); insert into orders values (1), (2); \
             alter table orders enable row level security, force row level security; \
             create policy half on orders using (id = 1)",
        )
        .await;
        let role = crate::events::scene::Role::new(&scene, "poor").await;
        let trigger = scene.trigger().await;
        scene
            .session
            .run(&format!(
                "grant usage on schema changefeed to {0}; \
                 grant select, insert, update, delete on all tables in schema changefeed to {0}; \
                 grant all on all sequences in schema changefeed to {0}; \
                 grant execute on all functions in schema changefeed to {0}; \
                 grant select on orders to {0}",
                role.name
            ))
            .await;
        let url = changefeed_testkit::postgres::as_role(scene.database.url(), &role.name, "secret");
        let store = PostgresStore::connect(&url).await.unwrap();
        let refused = changefeed_core::TriggerStore::backfill_trigger(&store, &trigger, 10)
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), Kind::Permission, "{refused:?}");
    });
}
