//! SQLite with other processes at the same file: the stock `sqlite3` shell writes, and is killed.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed_core::{After, DEFAULT_START, Store, TableName};
use changefeed_testkit::backend::{
    Backend, SqliteBackend, captured, ids, is_woken, numbers, read_all,
};
use changefeed_testkit::history::{Recorder, Workload};
use changefeed_testkit::process::Running;
use changefeed_testkit::{run, soaking};
use fastrand::Rng;

/// A `sqlite3` process that is fed line by line.
struct Shell {
    process: Running,
    answers: BufReader<std::process::ChildStdout>,
}

impl Shell {
    fn open(path: &Path) -> Self {
        let mut process = Running::start_with_input(
            Command::new("sqlite3")
                .args(["-batch", "-bail", "-cmd", ".timeout 30000"])
                .arg(path)
                .stdout(Stdio::piped())
                .stderr(Stdio::inherit()),
        );
        let answers = BufReader::new(process.child().stdout.take().unwrap());
        Shell { process, answers }
    }

    fn send(&mut self, sql: &str) {
        let stdin = self.process.child().stdin.as_mut().unwrap();
        stdin.write_all(sql.as_bytes()).unwrap();
        stdin.write_all(b"\n").unwrap();
        stdin.flush().unwrap();
    }

    /// Runs statements and waits until they are done.
    fn run(&mut self, sql: &str) {
        self.send(sql);
        self.send("select 'done';");
        let mut line = String::new();
        while line.trim() != "done" {
            line.clear();
            let read = self.answers.read_line(&mut line).unwrap();
            assert!(read > 0, "the shell ended at: {sql}");
        }
    }
}

async fn feed() -> (SqliteBackend, Arc<dyn Store>, changefeed_core::Feed) {
    let backend = SqliteBackend::fresh().await;
    let (store, feed) = (&backend as &dyn Backend).feed(37, 2).await;
    (backend, store, feed)
}

/// Publishing, with ids from the counter and with ids left out, and reading.
#[test]
fn the_stock_shell_can_publish_and_read() {
    run(async {
        let (backend, store, feed) = feed().await;
        let mut shell = Shell::open(&backend.path());
        shell.run(
            "begin immediate;
             update changefeed_change_id set value = value + 1;
             insert into changefeed_change (feed_id, shard, change_id)
               values (37, 0, (select value from changefeed_change_id));
             commit;
             insert into changefeed_change (feed_id, shard) values (37, 0);
             insert into changefeed_change (feed_id, shard, change_id) values (37, 0, 7);",
        );
        assert_eq!(
            ids(&*store, &feed, 0).await,
            [1_000_000_000_000_000, 1_000_000_000_000_001, 7]
        );
        shell.send(
            "select change_id from changefeed_change where feed_id = 37 and shard = 0 \
                    and change_sequence_number > 2000000000000002;",
        );
        let mut line = String::new();
        shell.answers.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "7");
    });
}

/// No function of ours, no extension: the shell knows nothing of us.
#[test]
fn the_stock_shell_can_write_to_a_captured_table_and_wakes_readers() {
    run(async {
        let (backend, store, _) = feed().await;
        let mut shell = Shell::open(&backend.path());
        shell.run("create table orders (id integer primary key, customer text);");
        let feed = store
            .create_feed(&captured(
                "orders",
                TableName::unqualified("orders"),
                Some("customer"),
                4,
            ))
            .await
            .unwrap();
        let mut waiters: Vec<_> = feed
            .shards
            .iter()
            .map(|s| store.listen(&feed, s.shard))
            .collect();
        for waiter in &mut waiters {
            waiter.look();
        }
        shell.run(
            "insert into orders values (1, 'alice'), (2, 'bob'), (3, 'ç'), (4, null);
             update orders set customer = 'carol' where id = 4;
             insert or replace into orders values (2, 'bob');
             delete from orders where id = 1;",
        );
        let shard = changefeed_core::shard_of(changefeed_core::ShardValue::Text("alice"), 4);
        let mine = waiters.get_mut(usize::try_from(shard).unwrap()).unwrap();
        assert!(is_woken(mine).await, "another process woke nobody");
        let mut count = 0;
        for s in &feed.shards {
            count += read_all(&*store, &feed, s.shard.0, 100).await.len();
        }
        // The replaced row is a delete and an insert, or an update: at least one change.
        assert!((7..=9).contains(&count), "{count} changes");
        let page = store
            .read(&feed, changefeed_core::ShardId(shard), After::First, 10)
            .await
            .unwrap();
        assert_eq!(
            page.changes.last().unwrap().content,
            changefeed_core::Content::Gone
        );
    });
}

/// Promise 11: the file is free at once, and nothing of it appears.
#[test]
fn a_writer_process_killed_in_mid_transaction_publishes_nothing() {
    run(async {
        let (backend, store, feed) = feed().await;
        let session = (&backend as &dyn Backend).session().await;
        for round in 0..5i64 {
            let mut shell = Shell::open(&backend.path());
            shell.run(&format!(
                "begin immediate; insert into changefeed_change (feed_id, shard, change_id) \
                 values (37, 0, {});",
                1000 + round
            ));
            shell.process.kill();
            let began = Instant::now();
            session.run(&backend.words().publish(37, 0, round)).await;
            assert!(
                began.elapsed() < Duration::from_secs(1),
                "the dead held the file"
            );
        }
        let expected: Vec<(i64, i64)> = (0..5).map(|n| (DEFAULT_START + 1 + n, n)).collect();
        assert_eq!(numbers(&*store, &feed, 0).await, expected);
    });
}

/// Promises 1 to 5 and 11: writer threads as everywhere, and processes that are killed at random
/// moments around their commit.
#[test]
fn writer_processes_killed_at_random_break_no_promise() {
    run(async {
        let backend = Arc::new(SqliteBackend::fresh().await);
        let (_, feed) = (&*backend as &dyn Backend).feed(37, 2).await;
        let path = backend.path();
        let workload = Workload {
            transactions: 0,
            ..Workload::short()
        };
        let misfortune = Duration::from_secs(if soaking() { 120 } else { 4 });
        workload
            .run(backend, &feed, async |recorder: Recorder, mut rng: Rng| {
                let began = Instant::now();
                let mut id = 1_000_000;
                while began.elapsed() < misfortune {
                    let (path, recorder) = (path.clone(), recorder.clone());
                    let (first, seed) = (id, rng.u64(..));
                    id += 10;
                    tokio::task::spawn_blocking(move || {
                        doomed(&path, &recorder, first, &mut Rng::with_seed(seed));
                    })
                    .await
                    .unwrap();
                }
            })
            .await;
    });
}

/// A process that writes one transaction and is killed before, around or after its commit.
fn doomed(path: &Path, recorder: &Recorder, first: i64, rng: &mut Rng) {
    let mut shell = Shell::open(path);
    let mut writing = recorder.begin("process");
    shell.run("begin immediate;");
    for id in first..first + rng.i64(1..4) {
        let shard = rng.i16(0..2);
        writing.change((37, shard), id);
        shell.run(&format!(
            "insert into changefeed_change (feed_id, shard, change_id) values (37, {shard}, {id});"
        ));
    }
    match rng.u8(..3) {
        0 => {
            shell.process.kill();
            writing.rolled_back();
        }
        1 => {
            shell.send("commit;");
            std::thread::sleep(Duration::from_micros(rng.u64(..1500)));
            shell.process.kill();
            writing.in_doubt();
        }
        _ => {
            shell.run("commit;");
            writing.committed();
            shell.process.kill();
        }
    }
}
