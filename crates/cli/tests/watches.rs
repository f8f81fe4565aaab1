//! Watches as processes: what is typed and printed, and what becomes of the rows of a process that
//! is killed, frozen past its lease, or dies by the row itself.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, and its name says what it is about"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use changefeed_receiver::{Receiver, Reply};
use changefeed_testkit::backend::{Backend, PostgresBackend, SqliteBackend, eventually_true};
use changefeed_testkit::process::{Running, is_alive, terminate};
use changefeed_testkit::run;
use changefeed_testkit::watching::{Scene, orders};
use serde_json::{Value, json};

fn changefeed(url: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_changefeed"));
    command
        .args(args)
        .env("CHANGEFEED_DB", url)
        .env("RUST_LOG", "error")
        .env_remove("CHANGEFEED_CRASH_AT");
    command
}

/// Runs to the end; returns the exit code, standard output and standard error.
fn out(url: &str, args: &[&str]) -> (i32, String, String) {
    let output = changefeed(url, args).stdin(Stdio::null()).output().unwrap();
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn json_lines(url: &str, args: &[&str]) -> Vec<Value> {
    let (code, said, errors) = out(url, args);
    assert_eq!(code, 0, "{errors}");
    let lines = said.lines();
    lines.map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn on_every_database(case: impl AsyncFn(Scene)) {
    run(async {
        let sqlite: Arc<dyn Backend> = Arc::new(SqliteBackend::fresh().await);
        case(Scene::new(sqlite).await).await;
        let postgres: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        case(Scene::new(postgres).await).await;
    });
}

/// A function that appends its batches to a file, one JSON array per line. Each append is one
/// write, so that instances do not mix.
struct Journal {
    dir: tempfile::TempDir,
}

impl Journal {
    fn new() -> Self {
        Journal {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("journal")
    }

    fn command(&self) -> String {
        format!("cat >> {}", self.path().display())
    }

    fn batches(&self) -> Vec<Vec<Value>> {
        let text = std::fs::read_to_string(self.path()).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The table as whoever follows the journal knows it.
    fn copy(&self) -> BTreeMap<i64, Option<String>> {
        let mut copy = BTreeMap::new();
        for change in self.batches().into_iter().flatten() {
            let id = change["Item"]["id"].as_i64().unwrap();
            if change["Operation"] == 2 {
                copy.remove(&id);
            } else {
                let note = change["Item"]["note"].as_str().map(str::to_owned);
                copy.insert(id, note);
            }
        }
        copy
    }
}

/// An instance of function `f` with a short lease.
fn instance(url: &str, exec: &str, crash_at: Option<&str>) -> Running {
    let mut command = changefeed(
        url,
        &[
            "watch",
            "orders",
            "--name",
            "f",
            "--exec",
            exec,
            "--batch",
            "10",
            "--lease",
            "800ms",
            "--interval",
            "20ms",
        ],
    );
    command.stdout(Stdio::null()).stderr(Stdio::null());
    if let Some(place) = crash_at {
        command.env("CHANGEFEED_CRASH_AT", place);
    }
    Running::start(&mut command)
}

async fn processed(scene: &Scene) {
    eventually_true("everything is processed", async || {
        let status = scene.store.watch_status(&scene.watch, 0).await.unwrap();
        status.unprocessed == 0
    })
    .await;
}

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
        assert_eq!(created[0]["definition"]["batch"], 7);
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
        let watch = status.iter().find(|line| line["kind"] == "watch").unwrap();
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
                    "--interval",
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
                    "--interval",
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
            (vec!["watch", "orders"], 2, "the function has no name"),
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
                vec!["watch", "orders", "--name", "x", "--lease", "5"],
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
            (vec!["watch", "drop", "f"], 2, "Nobody is there to answer"),
        ] {
            let (got, said, errors) = out(&url, &args);
            assert_eq!(got, code, "{args:?}: {errors}");
            assert!(errors.contains(words), "{args:?}: {errors}");
            assert_eq!(said, "", "{args:?}");
        }
        assert_eq!(json_lines(&url, &["watch", "list", "--json"]).len(), 1);
    });
}

/// `kill -9` right after a lease, before and after a call, and after a batch was settled.
#[test]
fn promise_11_a_crash_at_any_named_place_loses_nothing() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        let journal = Journal::new();
        for (id, place) in [
            "watch.leased",
            "watch.before",
            "watch.after",
            "watch.settled",
        ]
        .into_iter()
        .enumerate()
        {
            scene
                .app
                .run(&format!("insert into orders values ({id}, '{place}')"))
                .await;
            let mut doomed = instance(&url, &journal.command(), Some(place));
            let status = doomed.wait(Duration::from_secs(20));
            assert!(!status.success(), "{place} was never passed");
        }
        let _healthy = instance(&url, &journal.command(), None);
        processed(&scene).await;
        assert_eq!(journal.copy(), orders(&*scene.app).await);
        let status = scene.store.watch_status(&scene.watch, 1).await.unwrap();
        assert_eq!(status.parked, 0);
    });
}

/// Frozen with its rows for longer than their lease; another processes them; then it wakes up and
/// its function succeeds, too late.
#[test]
fn promise_9_a_frozen_instance_loses_its_rows_and_cannot_speak_for_them() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        let journal = Journal::new();
        let started = journal.dir.path().join("started");
        let end = journal.dir.path().join("end");
        let slow = format!(
            "cat > /dev/null; touch {}; while ! test -e {}; do sleep 0.01; done",
            started.display(),
            end.display()
        );
        let frozen = instance(&url, &slow, None);
        scene.app.run("insert into orders values (1, 'a')").await;
        eventually_true("it is called", async || started.exists()).await;
        let held = generation(&scene).await;
        frozen.freeze();
        let other = instance(&url, &format!("{}; sleep 0.5", journal.command()), None);
        eventually_true("the other has it", async || {
            journal.batches().len() == 1 && generation(&scene).await > held
        })
        .await;
        // While the other one is still at it.
        std::fs::write(&end, "").unwrap();
        frozen.thaw();
        processed(&scene).await;
        assert_eq!(journal.batches().len(), 1, "nobody was handed it once more");
        scene.app.run("update orders set note = 'b'").await;
        drop(frozen);
        processed(&scene).await;
        assert_eq!(journal.copy(), orders(&*scene.app).await);
        drop(other);
    });
}

/// The generation of the newest lease; 0 where there is none.
async fn generation(scene: &Scene) -> i64 {
    let leases = &scene.watch.leases_table;
    let sql = format!("select coalesce(max(_changefeed_lease_generation), 0) from {leases}");
    scene.app.number(&sql).await
}

/// A row that kills the process of its function does so only as often as it has attempts, and
/// takes no other row with it.
#[test]
fn a_row_that_kills_its_process_is_parked_alone() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        let journal = Journal::new();
        let values: Vec<String> = (1..=10).map(|id| format!("({id}, 'a')")).collect();
        scene
            .app
            .run(&format!("insert into orders values {}", values.join(", ")))
            .await;
        // The command kills the instance that has started it: the parent of its shell.
        let deadly = format!(
            "f={}/batch.$$; cat > $f; grep -q '\"id\":7,' $f && kill -9 $PPID; cat $f >> {}",
            journal.dir.path().display(),
            journal.path().display()
        );
        eventually_true("only the deadly row is left", async || {
            let mut one = instance(&url, &deadly, None);
            eventually_true("it dies or has nothing to do", async || {
                one.ended().is_some() || {
                    let status = scene.store.watch_status(&scene.watch, 0).await.unwrap();
                    status.unprocessed == 0
                }
            })
            .await;
            let status = scene.store.watch_status(&scene.watch, 0).await.unwrap();
            status.unprocessed == 0
        })
        .await;
        let status = scene.store.watch_status(&scene.watch, 10).await.unwrap();
        assert_eq!(status.parked, 1);
        let parked = &status.parked_changes[0];
        assert_eq!(parked.key.get(), "{\"id\":7}");
        let error = parked.error.as_deref().unwrap();
        assert!(
            error.ends_with("did not report back: outcome unknown"),
            "{error}"
        );
    });
}

/// Told to stop, an instance lets its function finish, and leaves nothing behind.
#[test]
fn a_stopped_instance_finishes_its_call() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        let journal = Journal::new();
        let started = journal.dir.path().join("started");
        let slow = format!(
            "touch {}; sleep 0.5; {}",
            started.display(),
            journal.command()
        );
        let mut stopped = instance(&url, &slow, None);
        scene.app.run("insert into orders values (1, 'a')").await;
        eventually_true("it is called", async || started.exists()).await;
        terminate(stopped.pid());
        assert!(stopped.wait(Duration::from_secs(10)).success());
        assert_eq!(journal.batches().len(), 1);
        processed(&scene).await;
    });
}

/// A command that cannot keep its lease is ended, with everything it has started.
#[test]
fn a_command_that_lost_its_lease_is_ended_with_its_children() {
    run(async {
        let backend: Arc<dyn Backend> = Arc::new(PostgresBackend::fresh().await);
        let scene = Scene::new(backend).await;
        let journal = Journal::new();
        let child = journal.dir.path().join("child");
        let slow = format!("sleep 600 & echo $! > {}; wait", child.display());
        let _instance = instance(&scene.backend.url(), &slow, None);
        scene.app.run("insert into orders values (1, 'a')").await;
        eventually_true("it is called", async || pid(&child).is_some()).await;
        let sleeping = pid(&child).unwrap();
        // Renewals are refused: the rows belong to nobody any more.
        scene
            .app
            .run(&format!(
                "update {} set _changefeed_lease_generation = -1",
                scene.watch.leases_table
            ))
            .await;
        eventually_true("its child is gone", async || !is_alive(sleeping)).await;
    });
}

fn pid(file: &Path) -> Option<u32> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Ten processes, some of them killed, and a table that never rests.
#[test]
fn promises_9_to_12_hold_for_processes_that_are_killed_and_frozen() {
    on_every_database(async |scene| {
        let url = scene.backend.url();
        let journal = Journal::new();
        let mut instances: Vec<Running> = (0..10)
            .map(|_| instance(&url, &journal.command(), None))
            .collect();
        for round in 0..30 {
            let id = fastrand::i64(0..20);
            let sql = match fastrand::u8(..4) {
                0 => format!("delete from orders where id = {id}"),
                _ => format!(
                    "insert into orders values ({id}, '{round}') \
                     on conflict (id) do update set note = excluded.note"
                ),
            };
            scene.app.run(&sql).await;
            let victim = fastrand::usize(..instances.len());
            match round % 3 {
                0 => {
                    instances[victim].kill();
                    instances[victim] = instance(&url, &journal.command(), None);
                }
                // A process that is stopped while it writes holds an SQLite file, also against
                // the application; nothing of ours can help that.
                1 if scene.backend.words().two_phase => instances[victim].freeze(),
                _ => instances.iter().for_each(Running::thaw),
            }
        }
        instances.iter().for_each(Running::thaw);
        processed(&scene).await;
        // An instance that was killed may have left a command behind that still writes.
        eventually_true("the journal tells the table", async || {
            journal.copy() == orders(&*scene.app).await
        })
        .await;
    });
}
