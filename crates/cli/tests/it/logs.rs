//! What the log on standard error says, and how often.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use changefeed_testkit::backend::{Backend, PostgresBackend};
use changefeed_testkit::postgres::Cluster;
use changefeed_testkit::process::Running;
use changefeed_testkit::{eventually, run};
use serde_json::Value;

fn changefeed(url: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_changefeed"));
    command
        .args(["--config", "/dev/null"])
        .env("CHANGEFEED_DB", url)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null());
    command
}

/// The lines of a log, each of which must be an object.
fn lines(log: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect()
}

/// 53 equal lines in 13 seconds were seen.
#[test]
fn a_database_that_is_away_is_told_of_once_and_then_counted() {
    run(async {
        let cluster = Cluster::start_new();
        let backend = PostgresBackend::on(&cluster.url()).await;
        (&backend as &dyn Backend).feed(37, 1).await;
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let _serving = Running::start(
            changefeed(&backend.url())
                .args(["--log-format", "json", "serve", "--listen", "127.0.0.1:0"])
                .stdout(Stdio::null())
                .stderr(std::fs::File::create(&log).unwrap()),
        );
        let says = async |words: &str| {
            let there = || async {
                let said = lines(&log);
                said.iter()
                    .any(|line| line["message"].as_str().unwrap().contains(words))
                    .then_some(())
            };
            eventually(words, there).await;
        };
        says("this instance sweeps").await;
        tokio::task::block_in_place(|| cluster.stop_immediate());
        says("trying again").await;
        // Long enough for dozens of attempts.
        tokio::time::sleep(Duration::from_secs(8)).await;
        let mut told: BTreeMap<String, usize> = BTreeMap::new();
        for line in lines(&log) {
            if line["level"] == "WARN" {
                let what = [&line["message"], &line["error"], &line["group"]];
                *told.entry(format!("{what:?}")).or_default() += 1;
            }
        }
        assert!(!told.is_empty());
        assert!(told.values().all(|times| *times == 1), "{told:#?}");
        assert!(told.len() < 20, "{told:#?}");
        tokio::task::block_in_place(|| cluster.start());
    });
}

#[test]
fn a_dead_letter_is_logged_with_where_to_look() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shop.db");
    let url = format!("sqlite:{}", path.display());
    let done = |args: &str| {
        let ended = changefeed(&url).args(args.split(' ')).output().unwrap();
        assert!(ended.status.success(), "{args}: {ended:?}");
    };
    done("migrate");
    let shell = |sql: &str| {
        let ended = Command::new("sqlite3").arg(&path).arg(sql).status();
        assert!(ended.unwrap().success());
    };
    shell("create table orders (id integer primary key)");
    // Nobody listens on port 9.
    done(
        "trigger create paid --table orders --webhook http://127.0.0.1:9/x --retries 1 --interval 1s",
    );
    shell("insert into orders values (1)");
    let log = directory.path().join("log");
    let _delivering = Running::start(
        changefeed(&url)
            .args(["--log-format", "json", "deliver"])
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap()),
    );
    run(async {
        let dead = eventually("the dead letter is logged", || async {
            let said = lines(&log);
            said.iter()
                .any(|line| line["level"] == "ERROR")
                .then_some(said)
        })
        .await;
        let of = |level: &str| {
            let found: Vec<&Value> = dead.iter().filter(|line| line["level"] == level).collect();
            assert_eq!(found.len(), 1, "{dead:#?}");
            found[0].clone()
        };
        let (failed, given_up) = (of("WARN"), of("ERROR"));
        assert_eq!(failed["message"], "a delivery failed; trying again");
        assert_eq!(
            (&failed["trigger"], &failed["attempt"]),
            (&"paid".into(), &1.into())
        );
        assert_eq!(given_up["attempt"], 2);
        assert_eq!(given_up["error"], "127.0.0.1:9 refused the connection");
        let event = given_up["event"].as_str().unwrap();
        assert!(event.len() == 36 && failed["event"] == event, "{event}");
    });
}
