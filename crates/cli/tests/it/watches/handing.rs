//! Some of the changes, with rows as they were, and functions that fail with some rows only.

use std::process::Stdio;
use std::time::Duration;

use changefeed_receiver::{Receiver, Reply};
use changefeed_testkit::backend::eventually_true;
use changefeed_testkit::process::{Running, terminate};

use serde_json::{Value, json};

use crate::watches::{Journal, changefeed, json_lines, on_every_database, out, processed};

/// A definition with every option, run by `serve`.
#[test]
fn a_watch_of_some_rows_and_columns() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        let journal = Journal::new();
        scene
            .app
            .run("create table sales (id integer primary key, status text, total integer, note text)")
            .await;
        let create = [
            "watch",
            "create",
            "paid",
            "--table",
            "sales",
            "--exec",
            &journal.command(),
            "--when",
            "status = 'paid' and total > 100",
            "--columns",
            "status,total",
            "--on",
            "insert,delete",
            "--with-before",
            "--polling-interval",
            "10ms",
            "--retry-interval",
            "20ms",
        ];
        let (code, _, errors) = out(&url, &create);
        assert_eq!(code, 0, "{errors}");
        let shown = &json_lines(&url, &["watch", "show", "paid", "--json"])[0];
        assert_eq!(shown["when"], "status = 'paid' and total > 100");
        assert_eq!(shown["on"], json!(["insert", "delete"]));
        assert_eq!(shown["columns"], json!(["status", "total"]));
        assert_eq!(shown["with_before"], true);
        assert_eq!(shown["polling_interval"], "10ms");
        let (_, told, _) = out(&url, &["watch", "show", "paid"]);
        assert!(told.contains("when status = 'paid'"), "{told}");
        let mut serving = Running::start(
            changefeed(&url, &["serve", "--allow-exec", "--only", "watch"]).stdout(Stdio::null()),
        );
        let next = async |changes: &str, count: usize| -> Vec<Value> {
            scene.app.run(changes).await;
            eventually_true("it is handed over", async || {
                journal.batches().concat().len() >= count
            })
            .await;
            journal.batches().concat().split_off(count - 1)
        };
        scene
            .app
            .run("insert into sales values (1, 'new', 500, 'a'), (2, 'paid', 5, 'a')")
            .await;
        let handed = next("update sales set status = 'paid' where id = 1", 1).await;
        let row = json!({"id": 1, "status": "paid", "total": 500});
        assert_eq!(handed, [json!({"Operation": 0, "Item": row})]);
        // An update of a row that is wanted is not among the operations.
        scene
            .app
            .run("update sales set total = 600 where id = 1")
            .await;
        scene.app.run("update sales set note = 'b'").await;
        let status = async || json_lines(&url, &["watch", "show", "paid", "--json"])[0].clone();
        eventually_true("all is processed", async || {
            status().await["unprocessed"] == 0
        })
        .await;
        let handed = next("update sales set status = 'sent' where id = 1", 2).await;
        let before = json!({"id": 1, "status": "paid", "total": 600});
        let gone = json!({"Operation": 2, "Item": {"id": 1}, "Before": before});
        assert_eq!(handed, [gone]);
        terminate(serving.pid());
        assert!(serving.wait(Duration::from_secs(20)).success());
        assert_eq!(journal.batches().concat().len(), 2);
    });
}

/// The others are done, and the rest comes under another id.
#[test]
fn a_webhook_says_which_rows_have_failed() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        let receiver = Receiver::start().await.unwrap();
        receiver.next([Reply::Answer {
            status: 200,
            headers: Vec::new(),
            body: "{\"failed\": [{\"index\": 1, \"error\": \"no such address\"}]}".into(),
        }]);
        scene
            .app
            .run("insert into orders values (1, 'a'), (2, 'b'), (3, 'c')")
            .await;
        let hook = receiver.url("/hook");
        let args = [
            "watch",
            "orders",
            "--name",
            "f",
            "--webhook",
            &hook,
            "--retry-interval",
            "20ms",
        ];
        let mut posting = Running::start(&mut changefeed(&url, &args));
        let requests = receiver.wait_for(2).await.unwrap();
        let bodies: Vec<Value> = requests
            .iter()
            .map(|request| serde_json::from_slice(&request.body).unwrap())
            .collect();
        assert_eq!(bodies[0].as_array().unwrap().len(), 3);
        assert_eq!(
            bodies[1],
            json!([{"Operation": 0, "Item": {"id": 2, "note": "b"}}])
        );
        assert_eq!(requests[1].header("changefeed-attempt"), Some("2"));
        processed(&scene).await;
        terminate(posting.pid());
        assert!(posting.wait(Duration::from_secs(10)).success());
    });
}

/// A command that hangs is ended, tried again, and told of.
#[test]
fn a_command_that_hangs_is_ended_and_told_of() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        scene.app.run("insert into orders values (1, 'a')").await;
        let args = [
            "watch",
            "orders",
            "--name",
            "f",
            "--exec",
            "sleep 600",
            "--timeout",
            "50ms",
            "--retry-interval",
            "20ms",
            "--attempts",
            "1000",
        ];
        let mut hanging = Running::start(changefeed(&url, &args).stderr(Stdio::null()));
        eventually_true("doctor tells of it", async || {
            out(&url, &["doctor"])
                .1
                .contains("it had not ended after 50ms")
        })
        .await;
        eventually_true("it is tried again", async || {
            let status = scene.store.watch_status(&scene.watch, 0).await.unwrap();
            status
                .last_error
                .is_some_and(|error| error.contains("50ms"))
        })
        .await;
        terminate(hanging.pid());
        assert!(hanging.wait(Duration::from_secs(20)).success());
    });
}
