//! A client that is not ours: Python with pymssql, by the documented T-SQL alone.

use std::process::Command;

use changefeed_core::{DEFAULT_START, ShardId};
use changefeed_testkit::backend::{Backend, SqlServerBackend, read_all};
use changefeed_testkit::run;

/// It publishes, sweeps, waits, reads and keeps a cursor; we see what it has seen.
#[test]
fn pymssql_uses_a_feed_by_the_documented_sql_alone() {
    run(async {
        let backend = SqlServerBackend::fresh().await;
        let store = backend.store().await;
        store.migrate().await.unwrap();
        let python =
            std::env::var("CHANGEFEED_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let mut command = Command::new(python);
        command.arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../testkit/python/sqlserver_feeds.py"
        ));
        command.arg(backend.url());
        let output = tokio::task::spawn_blocking(move || command.output().unwrap());
        let output = output.await.unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");

        let feeds = store.feeds().await.unwrap();
        let feed = feeds
            .iter()
            .find(|f| f.name.as_str() == "my_event")
            .unwrap();
        let mut ours = Vec::new();
        for shard in &feed.shards {
            for change in read_all(&*store, feed, shard.shard.0, 7).await {
                ours.push(format!(
                    "{} {} {}",
                    shard.shard,
                    change.cursor,
                    change.change_id.unwrap()
                ));
            }
        }
        let theirs: Vec<String> = told
            .lines()
            .map(|line| line.splitn(4, ' ').take(3).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(ours, theirs);
        assert_eq!(ours.len(), 21);
        let consumers = store.consumers().await.unwrap();
        let mail = consumers
            .iter()
            .find(|c| c.name.as_str() == "mail")
            .unwrap();
        assert_eq!(mail.shard, ShardId(0));
        assert_eq!(mail.cursor.number(), Some(DEFAULT_START + 4));
    });
}
