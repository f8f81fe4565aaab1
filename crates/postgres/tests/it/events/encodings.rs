//! Databases whose texts are not UTF-8, and bytes that are no text at all.

use changefeed_core::{FeedBinding, Outcome, Verdict};
use changefeed_testkit::backend::{read_all, settle};
use changefeed_testkit::events::{LEASE, attempts, claim, finish, finished, log, row, shown, told};
use changefeed_testkit::postgres::{Database, server_url};
use changefeed_testkit::run;
use serde_json::json;

use crate::events::scene::Scene;

async fn in_encoding(encoding: &str) -> Scene {
    let database = Database::encoded(&server_url().await, encoding).await;
    Scene::on(database, "create table orders (id int primary key, v text)").await
}

/// `SQL_ASCII` takes any byte. One such row is sent as well as it can be, and stops nobody.
#[test]
fn invalid_bytes_do_not_stop_the_deliveries() {
    run(async {
        let scene = in_encoding("SQL_ASCII").await;
        scene
            .session
            .run("insert into orders values (-1, convert_from('\\xfe'::bytea, 'SQL_ASCII'))")
            .await;
        let trigger = scene
            .trigger_with(|d| {
                d.capture.feed = Some(FeedBinding {
                    feed: "f".parse().unwrap(),
                    shard_by: None,
                });
            })
            .await;
        scene
            .session
            .run(
                "insert into orders values (1, 'good'); \
                 insert into orders values (2, convert_from('\\x61ff62e9'::bytea, 'SQL_ASCII')); \
                 insert into orders values (3, 'also good'); \
                 begin; do $$ begin perform set_config('changefeed.session_variables', \
                   convert_from('\\x22ff22'::bytea, 'SQL_ASCII'), true); end $$; \
                 update orders set v = 'x' where id = 2; commit",
            )
            .await;
        let held = claim(&*scene.store, &trigger, 10, "a", LEASE).await;
        assert_eq!(held.len(), 4);
        assert_eq!(
            row(held[1].event.new.as_deref()),
            json!({"id": 2, "v": "a\u{fffd}b\u{fffd}"})
        );
        for event in &held {
            finish(&*scene.store, event, Verdict::Delivered).await;
        }
        assert_eq!(told(&*scene.store).await.len(), 4);
        for group in scene.store.sweep_groups().await.unwrap() {
            settle(&*scene.store, group).await;
        }
        let feed = &scene.store.feeds().await.unwrap()[0];
        assert_eq!(
            read_all(&*scene.store, feed, 0, 100).await.len(),
            4,
            "nor do they stop readers of the feed"
        );
        scene.store.backfill_trigger(&trigger, 10).await.unwrap();
        assert_eq!(
            claim(&*scene.store, &trigger, 10, "a", LEASE).await.len(),
            4
        );
    });
}

/// A byte that is a letter in no encoding fits into the type "char".
#[test]
fn a_char_beyond_ascii_does_not_stop_the_deliveries() {
    run(async {
        let scene = Scene::new("create table orders (id int primary key, c \"char\")").await;
        let trigger = scene
            .trigger_with(|d| {
                d.capture.feed = Some(FeedBinding {
                    feed: "f".parse().unwrap(),
                    shard_by: None,
                });
            })
            .await;
        scene
            .session
            .run("insert into orders values (1, (-56)::\"char\"), (2, 'a')")
            .await;
        let held = claim(&*scene.store, &trigger, 10, "a", LEASE).await;
        assert_eq!(held.len(), 2);
        assert_eq!(log(&*scene.store).await.len(), 2);
        for group in scene.store.sweep_groups().await.unwrap() {
            settle(&*scene.store, group).await;
        }
        let feed = &scene.store.feeds().await.unwrap()[0];
        assert_eq!(read_all(&*scene.store, feed, 0, 100).await.len(), 2);
    });
}

/// What a receiver answers may hold letters that the database has none for; the outcome counts,
/// and so do those that are written together with it.
#[test]
fn an_answer_that_the_database_cannot_spell_is_written_all_the_same() {
    run(async {
        let scene = in_encoding("LATIN1").await;
        let trigger = scene.trigger().await;
        scene
            .session
            .run("insert into orders values (1, 'é'), (2, 'plain')")
            .await;
        let held = claim(&*scene.store, &trigger, 10, "a", LEASE).await;
        assert_eq!(
            row(held[0].event.new.as_deref()),
            json!({"id": 1, "v": "é"})
        );
        let mut strange = finished(&held[0], Verdict::GiveUp);
        strange.attempt.outcome = Outcome::Failure;
        strange.attempt.response = Some(changefeed_testkit::events::raw(
            "{\"body\":\"日本 🙂 \\u65e5\"}",
        ));
        strange.attempt.error = Some("the receiver said 日本".into());
        let plain = finished(&held[1], Verdict::Delivered);
        let late = scene.store.finish_events(&[strange, plain]).await;
        assert!(late.expect("both outcomes are written").is_empty());
        assert_eq!(
            attempts(&*scene.store, held[1].event.id).await,
            ["1 success 200"]
        );
        let (_, attempts) = shown(&*scene.store, held[0].event.id).await;
        assert_eq!(attempts.len(), 1);
    });
}

/// The server's own settings are not those of the events that a backfill makes.
#[test]
fn a_backfill_writes_values_as_capture_does() {
    run(async {
        let scene = Scene::new(
            "create table orders (id int primary key, t timestamptz, b bytea, i interval, \
               f float8, m money, d date, ts timestamp)",
        )
        .await;
        scene
            .session
            .run(&format!(
                "alter database {0} set timezone = 'America/St_Johns'; \
                 alter database {0} set datestyle = 'German'; \
                 alter database {0} set bytea_output = 'escape'; \
                 alter database {0} set intervalstyle = 'sql_standard'; \
                 alter database {0} set extra_float_digits = -15",
                scene.database.name()
            ))
            .await;
        let values = "'2026-01-01 00:00+00', '\\x00ff', '1 year 2 days', 0.1::float8 + 0.2, \
                      '1234.5', '2026-01-31', '2026-01-31 12:00'";
        scene
            .session
            .run(&format!("insert into orders values (1, {values})"))
            .await;
        // Connected after the settings were made.
        let store = changefeed_postgres::PostgresStore::connect(scene.database.url())
            .await
            .unwrap();
        let trigger = scene.trigger().await;
        scene
            .session
            .run(&format!("insert into orders values (2, {values})"))
            .await;
        use changefeed_core::TriggerStore;
        store.backfill_trigger(&trigger, 10).await.unwrap();
        let told = told(&*scene.store).await;
        let (captured, backfilled) = (&told[0].2, &told[1].2);
        for column in ["t", "b", "i", "f", "m", "d", "ts"] {
            assert_eq!(backfilled[column], captured[column], "{column}");
        }
    });
}
