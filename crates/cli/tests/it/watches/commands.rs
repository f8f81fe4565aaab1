//! What is typed and printed.

use std::process::Stdio;
use std::time::Duration;

use changefeed_receiver::{Receiver, Reply};
use changefeed_testkit::backend::eventually_true;
use changefeed_testkit::process::{Running, terminate};
use serde_json::{Value, json};

use crate::watches::{Journal, changefeed, json_lines, on_every_database, out, processed};

/// From the first change to the end of the watch.
#[test]
fn the_life_of_a_watch() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        scene.store.drop_watch(&scene.watch).await.unwrap();
        let created = json_lines(
            &url,
            &[
                "watch", "create", "mail", "--table", "orders", "--exec", "false", "--batch", "7",
                "--json",
            ],
        );
        assert_eq!(created[0]["name"], "mail");
        assert_eq!(created[0]["function_id"], "1f5964a2ce98072e");
        assert_eq!(created[0]["batch"], 7);
        scene.app.run("insert into orders values (1, 'a')").await;
        let listed = json_lines(&url, &["watch", "list", "--json"]);
        assert_eq!(listed[0]["unprocessed"], 1);
        assert_eq!(listed[0]["suggested_workers"], 1);

        // Ad hoc, under the same name: the same function.
        let mut printing = Running::start(
            changefeed(
                &url,
                &[
                    "watch",
                    "orders",
                    "--name",
                    "mail",
                    "--json",
                    "--with-version",
                ],
            )
            .stdout(Stdio::piped()),
        );
        let stdout = printing.child().stdout.take().unwrap();
        let mut printed = std::io::BufRead::lines(std::io::BufReader::new(stdout));
        let first: Value = serde_json::from_str(&printed.next().unwrap().unwrap()).unwrap();
        assert_eq!(first["Operation"], 0);
        assert_eq!(first["Item"], json!({"id": 1, "note": "a"}));
        assert!(first["Version"].is_string());
        terminate(printing.pid());
        assert!(printing.wait(Duration::from_secs(10)).success());

        let status = json_lines(&url, &["status", "--json"]);
        let watch = &status[0]["watches"][0];
        assert_eq!(
            (&watch["name"], &watch["unprocessed"]),
            (&json!("mail"), &json!(0))
        );
        let (code, said, _) = out(&url, &["watch", "show", "mail"]);
        assert_eq!(code, 0);
        assert!(said.contains("function id 1f5964a2ce98072e"), "{said}");
        assert_eq!(
            out(
                &url,
                &["watch", "reset", "mail", "--from", "beginning", "--yes"]
            )
            .0,
            0
        );
        assert_eq!(
            json_lines(&url, &["watch", "list", "--json"])[0]["unprocessed"],
            1
        );
        assert_eq!(out(&url, &["watch", "drop", "mail", "--yes"]).0, 0);
        assert!(json_lines(&url, &["watch", "list", "--json"]).is_empty());
    });
}

/// What is defined is run by `serve`, if it may run commands; what it gives up can be tried again.
#[test]
fn serve_runs_what_is_defined() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        let journal = Journal::new();
        let gate = journal.dir.path().join("open");
        let exec = format!("test -e {} && {}", gate.display(), journal.command());
        assert_eq!(
            out(
                &url,
                &[
                    "watch",
                    "create",
                    "g",
                    "--table",
                    "orders",
                    "--exec",
                    &exec,
                    "--attempts",
                    "2",
                    "--retry-interval",
                    "20ms",
                ]
            )
            .0,
            0
        );
        scene.app.run("insert into orders values (1, 'a')").await;
        let mut serving = Running::start(
            changefeed(&url, &["serve", "--allow-exec", "--only", "watch"]).stdout(Stdio::null()),
        );
        eventually_true("it is parked", async || {
            json_lines(&url, &["watch", "show", "g", "--json"])[0]["parked"] == 1
        })
        .await;
        let shown = &json_lines(&url, &["watch", "show", "g", "--json"])[0];
        let parked = &shown["parked_changes"][0];
        assert_eq!(parked["key"], json!({"id": 1}));
        assert_eq!(parked["operation"], "insert");
        assert_eq!(parked["attempts"], 2);
        assert_eq!(parked["error"], "exit status: 1");
        std::fs::write(&gate, "").unwrap();
        let retried = json_lines(&url, &["watch", "retry", "g", "--json"]);
        assert_eq!(retried[0], json!({"watch": "g", "retried": 1}));
        eventually_true("it arrives", async || journal.batches().len() == 1).await;
        terminate(serving.pid());
        assert!(serving.wait(Duration::from_secs(10)).success());
    });
}

/// Signed and known by the same name in every attempt.
#[test]
fn a_webhook_gets_batches() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        let receiver = Receiver::start().await.unwrap();
        receiver.next([Reply::Status(503)]);
        let mut posting = Running::start(
            changefeed(
                &url,
                &[
                    "watch",
                    "orders",
                    "--name",
                    "f",
                    "--webhook",
                    &receiver.url("/hook"),
                    "--secret-env",
                    "WATCH_SECRET",
                    "--retry-interval",
                    "20ms",
                ],
            )
            .env("WATCH_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
        );
        scene.app.run("insert into orders values (1, 'a')").await;
        let requests = receiver.wait_for(2).await.unwrap();
        let [first, second] = requests.as_slice() else {
            panic!("{} requests", requests.len());
        };
        let body: Value = serde_json::from_slice(&second.body).unwrap();
        assert_eq!(
            body,
            json!([{"Operation": 0, "Item": {"id": 1, "note": "a"}}])
        );
        assert_eq!(first.header("webhook-id"), second.header("webhook-id"));
        assert!(
            second
                .header("webhook-signature")
                .unwrap()
                .starts_with("v1,")
        );
        assert_eq!(second.header("changefeed-attempt"), Some("2"));
        processed(&scene).await;
        terminate(posting.pid());
        assert!(posting.wait(Duration::from_secs(10)).success());
    });
}

/// One sentence and advice; 2 for what was typed wrong, 1 for what failed.
#[test]
fn wrong_input_gets_one_clear_sentence() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        scene.app.run("create table keyless (id integer)").await;
        for (args, code, words) in [
            (vec!["watch"], 2, "watch what?"),
            (
                vec!["watch", "orders", "--name", "x", "--on", "truncate"],
                2,
                "'truncate' is not an operation",
            ),
            (
                vec!["watch", "orders", "--when", "note ="],
                2,
                "the condition cannot be used",
            ),
            (
                vec!["watch", "orders", "--when", "nte = 'a'"],
                2,
                "orders has no column 'nte'",
            ),
            (
                vec!["watch", "orders", "--columns", "note,nte"],
                2,
                "orders has no column 'nte'",
            ),
            (
                vec!["watch", "orders", "--polling-interval", "5m"],
                2,
                "needs a name",
            ),
            (
                vec!["watch", "orders", "--name", "x", "--keep"],
                2,
                "cannot be used with",
            ),
            (
                vec!["watch", "orders", "--name", "a b"],
                2,
                "'a b' is not a watch name",
            ),
            (
                vec!["watch", "a b", "--name", "x"],
                2,
                "'a b' is not a table name",
            ),
            (
                vec!["watch", "nothing", "--name", "x"],
                1,
                "there is no table nothing",
            ),
            (
                vec!["watch", "keyless", "--name", "x"],
                2,
                "has no primary key",
            ),
            (
                vec!["watch", "keyless", "--name", "f"],
                2,
                "has no primary key",
            ),
            (
                vec!["watch", "orders", "--name", "x", "--batch", "0"],
                2,
                "a batch of 0 rows",
            ),
            (
                vec!["watch", "orders", "--name", "x", "--batch", "-5"],
                2,
                "-5",
            ),
            (
                vec!["watch", "orders", "--name", "x", "--lease", "soon"],
                2,
                "is not a duration",
            ),
            (
                vec![
                    "watch",
                    "orders",
                    "--name",
                    "x",
                    "--lease",
                    "1s",
                    "--renewal",
                    "1s",
                ],
                2,
                "cannot be renewed in time",
            ),
            (
                vec!["watch", "orders", "--name", "x", "--from", "here"],
                2,
                "no place to begin",
            ),
            (
                vec![
                    "watch",
                    "orders",
                    "--name",
                    "x",
                    "--exec",
                    "a",
                    "--webhook",
                    "b",
                ],
                2,
                "cannot be used with",
            ),
            (
                vec!["watch", "create", "x", "--table", "orders"],
                2,
                "nothing to do with its changes",
            ),
            (
                vec!["watch", "show", "nobody"],
                1,
                "there is no watch 'nobody'",
            ),
            (
                vec!["watch", "retry", "nobody"],
                1,
                "there is no watch 'nobody'",
            ),
            (
                vec!["watch", "drop", "nobody", "--yes"],
                1,
                "there is no watch 'nobody'",
            ),
            (
                vec!["watch", "drop", "f"],
                2,
                "There is no terminal to ask on",
            ),
        ] {
            let (got, said, errors) = out(&url, &args);
            assert_eq!(got, code, "{args:?}: {errors}");
            assert!(errors.contains(words), "{args:?}: {errors}");
            assert_eq!(said, "", "{args:?}");
        }
        assert_eq!(json_lines(&url, &["watch", "list", "--json"]).len(), 1);
    });
}

/// A definition is not replaced by chance.
#[test]
fn a_definition_is_replaced_only_when_that_is_said() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        let create = |more: &[&str]| {
            let mut args = vec!["watch", "create", "f", "--table", "orders"];
            args.extend(more);
            out(&url, &args)
        };
        // One that runs elsewhere gets a definition, and the same one twice is the same.
        assert_eq!(create(&["--exec", "true"]).0, 0);
        assert_eq!(create(&["--exec", "true"]).0, 0);
        let (code, said, errors) = create(&["--exec", "false"]);
        assert_eq!((code, said.as_str()), (1, ""), "{errors}");
        assert!(
            errors.contains("has another definition already"),
            "{errors}"
        );
        assert!(errors.contains("--replace"), "{errors}");
        let defined = || json_lines(&url, &["watch", "list", "--json"])[0].clone();
        assert_eq!(defined()["exec"], "true");
        assert_eq!(create(&["--exec", "false", "--replace"]).0, 0);
        assert_eq!(defined()["exec"], "false");
    });
}

/// Printed, and by name of the columns.
#[test]
fn changed_columns_are_told_on_request() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        let journal = Journal::new();
        let command = journal.command();
        let mut args = vec!["watch", "orders", "--name", "c", "--exec", &command];
        args.extend(["--with-columns", "--with-version"]);
        let _instance = Running::start(changefeed(&url, &args).stdout(Stdio::null()));
        eventually_true("it watches", async || {
            json_lines(&url, &["watch", "list", "--json"]).len() == 2
        })
        .await;
        scene.app.run("insert into orders values (1, 'a')").await;
        eventually_true("it is told", async || journal.batches().len() == 1).await;
        scene.app.run("update orders set note = 'b'").await;
        eventually_true("that too", async || journal.batches().len() == 2).await;
        let changes = journal.batches().concat();
        assert_eq!(changes[0].get("ChangedColumns"), None);
        assert_eq!(changes[1]["ChangedColumns"], json!(["note"]));
        let version = |n: usize| changes[n]["Version"].as_str().unwrap().parse::<i64>();
        assert!(version(0).unwrap() < version(1).unwrap());
    });
}

/// With what to do about it, and an exit code for scripts.
#[test]
fn doctor_speaks_about_watches() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        assert_eq!(out(&url, &["doctor"]).0, 0);
        scene
            .app
            .run(&format!("drop table {}", scene.watch.leases_table))
            .await;
        let (code, said, _) = out(&url, &["doctor"]);
        assert_eq!(code, 1);
        assert!(said.contains("PROBLEM  watch f: its"), "{said}");
        scene.app.run("drop table orders").await;
        let (code, said, _) = out(&url, &["doctor"]);
        assert_eq!(code, 1);
        assert!(said.contains("watch f: its table was dropped"), "{said}");
        assert!(said.contains("changefeed watch drop f"), "{said}");
        assert_eq!(out(&url, &["watch", "drop", "f", "--yes"]).0, 0);
        assert_eq!(out(&url, &["doctor"]).0, 0);
    });
}
