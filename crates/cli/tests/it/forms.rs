//! The forms that scripts depend on, on every database: what is typed, what is printed with
//! `--json`, and that the program can do the whole life of a feed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use changefeed::{Cursor, ShardId};
use changefeed_testkit::backend::{Backend, PostgresBackend, SqliteBackend, on_every_backend};
use changefeed_testkit::postgres::program;
use changefeed_testkit::process::{Running, terminate};
use changefeed_testkit::{eventually, run};
use serde_json::{Value, json};

fn command(url: &str, args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_changefeed"));
    command
        .args(args.split(' '))
        .env("CHANGEFEED_DB", url)
        .env("RUST_LOG", "error");
    command
}

/// Runs to the end, which must be a success; returns standard output.
fn out(url: &str, args: &str) -> String {
    let output = command(url, args).stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args}: {errors}");
    assert_eq!(errors, "", "{args}");
    String::from_utf8(output.stdout).unwrap()
}

/// One JSON object per line.
fn lines(url: &str, args: &str) -> Vec<Value> {
    out(url, args)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn on_every_database(case: impl AsyncFn(Arc<dyn Backend>)) {
    run(on_every_backend(case));
}

/// From `migrate` to `uninstall`.
#[test]
fn the_life_of_a_feed() {
    on_every_database(async |backend| {
        let url = backend.url();
        assert_eq!(
            lines(&url, "migrate --json"),
            [json!({"from": 0, "to": changefeed::SCHEMA_VERSION})]
        );
        assert_eq!(
            out(&url, "migrate"),
            format!(
                "changefeed schema {} is already there\n",
                changefeed::SCHEMA_VERSION
            )
        );
        let session = backend.session().await;
        session
            .run("create table orders (id integer primary key, customer_id integer, note text)")
            .await;
        session
            .run("insert into orders values (1, 10, 'old'), (2, 11, 'old')")
            .await;
        let created = lines(
            &url,
            "feed create orders --id 37 --shards 2 --from orders --shard-by customer_id --json",
        );
        assert_eq!(created[0]["id"], 37);
        assert_eq!(created[0]["name"], "orders");
        assert_eq!(created[0]["source"]["kind"], "captured");
        assert_eq!(lines(&url, "feed list --json"), created);
        session
            .run("insert into orders values (3, 12, 'new')")
            .await;
        session
            .run("insert into orders values (4, 14, 'new')")
            .await;
        session.run("delete from orders where id = 3").await;

        let swept = lines(&url, "sweep --group 0 --once --json");
        assert_eq!(swept.len(), 1);
        for field in ["changes", "lag_ms", "iterations"] {
            assert!(swept[0][field].is_i64(), "{swept:?}");
        }
        let read = "feed read orders --shard 0 --after first --limit 1000 --json";
        let text = out(&url, read);
        assert!(
            text.starts_with(
                "{\"feed\":\"orders\",\"shard\":0,\"cursor\":\"2000000000000001\",\
                 \"change_id\":\"1000000000000000\",\"op\":\"insert\",\"key\":{\"id\":3},\"row\":null}\n"
            ),
            "{text}"
        );
        let changes = lines(&url, read);
        assert_eq!(changes.len(), 3);
        assert_eq!(
            changes[1]["row"],
            json!({"id": 4, "customer_id": 14, "note": "new"})
        );
        let cursor = changes[0]["cursor"].as_str().unwrap();
        assert_eq!(
            lines(&url, &format!("feed read orders --after {cursor} --json")),
            changes[1..]
        );
        assert_eq!(
            lines(&url, "feed read orders --after last --json"),
            [0i32; 0]
        );

        let backfilled = lines(&url, "feed backfill orders --batch 1 --json");
        assert_eq!(backfilled[0]["finished"], true, "{backfilled:?}");
        let all = lines(&url, read);
        assert_eq!(all[0]["row"]["id"], 1, "the old row comes first");

        out(
            &url,
            "consumer set mailer --feed orders --cursor 2000000000000002",
        );
        let consumers = lines(&url, "consumer list --json");
        assert_eq!(consumers[0]["name"], "mailer");
        assert_eq!(consumers[0]["cursor"], "2000000000000002");
        assert_eq!(consumers[0]["lag_changes"], 1);
        let status = &lines(&url, "status --json")[0];
        assert_eq!(status["feeds"][0]["shards"].as_array().unwrap().len(), 2);
        assert_eq!(status["feeds"][0]["shards"][0]["pending"], 0);
        assert_eq!(status["consumers"][0]["name"], "mailer");

        eventually("what the consumer has read is trimmed", || async {
            out(&url, "feed trim orders --older-than 0s --json");
            let kept = lines(&url, read);
            (kept.len() == 1).then_some(())
        })
        .await;
        out(&url, "consumer drop mailer --feed orders");
        out(&url, "feed drop orders --yes");
        assert_eq!(lines(&url, "feed list --json"), [0i32; 0]);
        out(&url, "uninstall --yes");
        session.run("insert into orders values (5, 1, 'x')").await;
    });
}

/// `tail` prints changes as they come, goes on where its consumer stopped, and stops when told.
#[test]
fn tail_follows_and_goes_on_where_it_stopped() {
    on_every_database(async |backend| {
        let url = backend.url();
        out(&url, "migrate");
        out(&url, "feed create plain --id 37 --shards 2");
        let (session, words) = (backend.session().await, backend.words());
        let _sweeper = Running::start(
            command(&url, "sweep")
                .stdout(Stdio::null())
                .stderr(Stdio::null()),
        );
        let mut seen = Vec::new();
        for round in 0..3i64 {
            let mut tail = Running::start(
                command(&url, "feed tail plain --after first --consumer c --json")
                    .stdout(Stdio::piped())
                    .stderr(Stdio::null()),
            );
            let mut printed = BufReader::new(tail.child().stdout.take().unwrap());
            for id in [10 * round, 10 * round + 1] {
                let shard = i16::try_from(id % 2).unwrap();
                session.run(&words.publish(37, shard, id)).await;
                let mut line = String::new();
                printed.read_line(&mut line).unwrap();
                let change: Value = serde_json::from_str(&line).unwrap();
                assert_eq!(change["shard"], shard);
                seen.push(change["change_id"].as_str().unwrap().to_owned());
            }
            // Its cursor is stored after the line was printed.
            eventually("both cursors are stored", || async {
                let behind = lines(&url, "consumer list --json");
                let caught_up = behind.iter().filter(|c| c["lag_changes"] == 0).count();
                (caught_up == 2).then_some(())
            })
            .await;
            terminate(tail.pid());
            assert!(tail.wait(Duration::from_secs(10)).success());
        }
        assert_eq!(seen, ["0", "1", "10", "11", "20", "21"]);
    });
}

/// Long polling: an answer as soon as there is one, and an empty one after the time.
#[test]
fn read_can_wait() {
    on_every_database(async |backend| {
        let url = backend.url();
        out(&url, "migrate");
        out(&url, "feed create plain --id 37");
        let (session, words) = (backend.session().await, backend.words());
        assert_eq!(out(&url, "feed read plain --wait 50ms --json"), "");
        let mut waiting = Running::start(
            command(&url, "feed read plain --wait 60s --json").stdout(Stdio::piped()),
        );
        session.run(&words.publish(37, 0, 5)).await;
        out(&url, "sweep --once");
        assert!(waiting.wait(Duration::from_secs(20)).success());
        let mut line = String::new();
        BufReader::new(waiting.child().stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.contains("\"change_id\":\"5\""), "{line}");
    });
}

/// What `migrate --print` prints can be run by a person with the database's own shell, and is
/// then the same as what `migrate` does.
#[test]
fn the_printed_migration_installs_the_same() {
    run(async {
        let sqlite = SqliteBackend::fresh().await;
        let postgres = PostgresBackend::fresh().await;
        let mut psql = program("psql");
        psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", &postgres.url()]);
        let mut sqlite3 = Command::new("sqlite3");
        sqlite3.arg("-bail").arg(sqlite.path());
        for (url, shell) in [(sqlite.url(), sqlite3), (postgres.url(), psql)] {
            let mut shell = shell;
            let script = out(&url, "migrate --print");
            let mut child = shell
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            child
                .stdin
                .take()
                .unwrap()
                .write_all(script.as_bytes())
                .unwrap();
            assert!(child.wait().unwrap().success(), "{url}");
            assert_eq!(
                out(&url, "migrate"),
                format!(
                    "changefeed schema {} is already there\n",
                    changefeed::SCHEMA_VERSION
                )
            );
            out(&url, "feed create x");
        }
    });
}

/// `| head` is not an error.
#[test]
fn a_reader_that_goes_away_is_no_error() {
    run(async {
        let backend = SqliteBackend::fresh().await;
        let url = backend.url();
        out(&url, "migrate");
        out(&url, "feed create plain --id 37");
        let session = (&backend as &dyn Backend).session().await;
        session
            .run(&backend.words().publish_range(37, 0, 1, 10_000))
            .await;
        let mut reading = Running::start(
            command(&url, "feed read plain --limit 10000 --json")
                .stdout(Stdio::piped())
                .stderr(Stdio::piped()),
        );
        let mut line = String::new();
        let mut stdout = BufReader::new(reading.child().stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        drop(stdout);
        assert!(reading.wait(Duration::from_secs(20)).success());
        let mut errors = String::new();
        BufReader::new(reading.child().stderr.take().unwrap())
            .read_line(&mut errors)
            .unwrap();
        assert_eq!(errors, "");
    });
}

/// Every shell gets a script, without a database.
#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = out("sqlite:/nonexistent/x.db", &format!("completions {shell}"));
        assert!(script.contains("changefeed"), "{shell}");
    }
}

/// It updates and deletes orders: never those of somebody else.
#[test]
fn the_demo_leaves_a_table_alone_that_it_did_not_make() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).display().to_string();
    let demo = |name: &str| {
        let args = "serve --demo --duration 1s --listen 127.0.0.1:0 --db sqlite:";
        let mut demo = command("sqlite:elsewhere", &format!("{args}{}", file(name)));
        demo.stdin(Stdio::null()).output().unwrap()
    };
    let table = "create table orders (id integer primary key, status text)";
    let made = Command::new("sqlite3")
        .args([&file("mine"), table])
        .status();
    assert!(made.unwrap().success());
    let before = std::fs::read(file("mine")).unwrap();
    let refused = demo("mine");
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        said.contains("has a table orders that the demo did not make"),
        "{said}"
    );
    assert!(
        std::fs::read(file("mine")).unwrap() == before,
        "nothing was changed"
    );
    // Its own it goes on with.
    for _ in 0..2 {
        let ended = demo("new");
        assert!(
            ended.status.success(),
            "{}",
            String::from_utf8_lossy(&ended.stderr)
        );
    }
}

/// A feed that says how long its changes are kept, by every way of saying so.
#[test]
fn how_long_changes_are_kept_is_said_with_the_feed() {
    on_every_database(async |backend| {
        let url = backend.url();
        let store = backend.installed().await;
        let create = "feed create kept --trim-after 30d --trim-unread-after 90d --json";
        let made = lines(&url, create);
        let kept = json!({"trim_after": "30days", "trim_unread_after": "90days"});
        assert_eq!(made[0]["retention"], kept);
        let changed = lines(&url, "feed retention kept --trim-after 1h --json");
        let hour = json!({"trim_after": "1h", "trim_unread_after": null});
        assert_eq!(changed[0]["retention"], hour);
        assert_eq!(lines(&url, "feed list --json")[0]["retention"], hour);
        let said = out(&url, "feed retention kept --off");
        assert_eq!(said, "feed kept keeps all changes\n");
        for (wrong, because) in [
            ("feed retention kept", "--trim-after"),
            ("feed retention kept --trim-unread-after 1h", "--trim-after"),
            (
                "feed retention kept --trim-after 2h --trim-unread-after 1h",
                "cannot be removed before",
            ),
            (
                "feed trim kept --older-than 2h --unread-older-than 1h",
                "cannot be removed before",
            ),
        ] {
            let output = command(&url, wrong).output().unwrap();
            assert_eq!(output.status.code(), Some(2), "{wrong}");
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(said.contains(because), "{wrong}: {said}");
        }
        let session = backend.session().await;
        let id = store.feeds().await.unwrap()[0].id.0;
        session
            .run(&backend.words().publish_range(id, 0, 1, 3))
            .await;
        backend.settle(&*store).await;
        let feed = store.feeds().await.unwrap().remove(0);
        let start = Cursor::Number(changefeed::DEFAULT_START);
        store
            .store_cursor(&"gone".parse().unwrap(), &feed, ShardId(0), None, start)
            .await
            .unwrap();
        let trim = "feed trim kept --older-than 0s --unread-older-than 0s --json";
        eventually("they are gone", || async {
            let removed = lines(&url, trim)[0]["removed"].as_u64().unwrap();
            assert!(removed == 0 || removed == 3, "{removed}");
            (removed == 3).then_some(())
        })
        .await;
    });
}
