//! A client of ULID transactions in a process of its own, so that it can be frozen and killed. It
//! is told what to do line by line, and answers each line with one.

use std::process::{Command, Stdio};
use std::time::Duration;

use changefeed_core::{Error, UlidOptions};
use changefeed_postgres::tokio_postgres::IsolationLevel;
use changefeed_postgres::{PostgresStore, UlidTransaction};
use changefeed_testkit::process::Running;
use changefeed_testkit::run;
use changefeed_testkit::ulids::{FEED, Writer};
use futures_util::TryStreamExt;
use tokio::io::{AsyncBufReadExt, BufReader};

/// Where the process finds its database. Without it this is not the process, but one of the tests.
const URL: &str = "CHANGEFEED_TEST_ULID_CLIENT";

/// Starts this very program with nothing to do but to be the client.
pub(crate) fn start(url: &str, stderr: Stdio) -> Running {
    Running::start_with_input(
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "ulids::process::client", "--nocapture"])
            .env(URL, url)
            .stdout(Stdio::piped())
            .stderr(stderr),
    )
}

#[test]
fn client() {
    let Ok(url) = std::env::var(URL) else {
        return;
    };
    run(async {
        let store = PostgresStore::connect(&url).await.unwrap();
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        let mut open = None;
        // On a line of its own, whatever the test harness has printed.
        say("\nready");
        while let Some(line) = lines.next_line().await.unwrap() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match obey(&store, &mut open, &words).await {
                Ok(answer) => say(&answer),
                Err(error) => say(&format!("{:?}: {error}", error.kind())),
            }
        }
    });
}

#[allow(clippy::print_stdout, reason = "this is how the process answers")]
fn say(line: &str) {
    println!("{line}");
}

async fn obey(
    store: &PostgresStore,
    open: &mut Option<UlidTransaction>,
    words: &[&str],
) -> Result<String, Error> {
    let options = UlidOptions::new(FEED, 0);
    match words {
        ["begin"] => *open = Some(store.begin_ulid(&options).await?),
        ["begin-repeatable-read"] => {
            let level = IsolationLevel::RepeatableRead;
            *open = Some(store.begin_ulid_with(&options, level).await?);
        }
        ["insert", note] => {
            let transaction = open.as_mut().unwrap();
            let ulid = transaction.next_ulid()?;
            let bytes = ulid.to_bytes();
            transaction
                .execute(
                    "insert into event (shard, ulid, note) values (0, $1, $2)",
                    &[&bytes.as_slice(), note],
                )
                .await
                .unwrap();
            return Ok(ulid.to_string());
        }
        ["commit"] => open.take().unwrap().commit().await?,
        ["rollback"] => open.take().unwrap().rollback().await?,
        // A result without an end, which this process reads for as long as it lives.
        ["flood"] => {
            let transaction = open.take().unwrap();
            tokio::spawn(async move {
                let rows = transaction
                    .query_raw(
                        "select repeat('x', 100000), pg_sleep(0.001) \
                         from generate_series(1, 1000000)",
                        std::iter::empty::<i32>(),
                    )
                    .await
                    .unwrap();
                rows.try_for_each(|_| async { Ok(()) }).await.unwrap();
            });
        }
        // Waits for the shard on so many connections more.
        ["queue", count] => {
            for _ in 0..count.parse().unwrap() {
                let (store, options) = (store.clone(), options.clone());
                tokio::spawn(async move {
                    let _transaction = store.begin_ulid(&options).await;
                    std::future::pending::<()>().await;
                });
            }
        }
        // Writes until it is told to stop by the end of its input, or by a signal.
        ["write", name, seed, timeout, count] => {
            let timeout = Duration::from_millis(timeout.parse().unwrap());
            let mut writer = Writer::new(store.clone(), name, seed.parse().unwrap(), timeout);
            for _ in 0..count.parse().unwrap() {
                say(&writer.write().await.to_string());
            }
        }
        other => panic!("unknown: {other:?}"),
    }
    Ok("done".to_owned())
}
