//! A database with the table `event`, and clients in processes of their own.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdout, Stdio};
use std::time::Duration;

use changefeed_core::{Feed, FeedStore, SchemaStore, Ulid, UlidOptions, UlidStore};
use changefeed_postgres::{PostgresStore, UlidTransaction};
use changefeed_testkit::backend::{Backend, PostgresBackend, PostgresSession, Session};
use changefeed_testkit::eventually;
use changefeed_testkit::process::Running;
use changefeed_testkit::ulids::{FEED, POSTGRES_TABLE, feed_of_events};

use crate::ulids::process;

/// What `begin_ulid` is asked for in shard 0.
pub(crate) fn options() -> UlidOptions {
    UlidOptions::new(FEED, 0)
}

/// The same with another timeout.
pub(crate) fn patience(timeout: Duration) -> UlidOptions {
    UlidOptions {
        timeout,
        ..options()
    }
}

pub(crate) struct Scene {
    pub(crate) backend: PostgresBackend,
    pub(crate) store: PostgresStore,
    pub(crate) feed: Feed,
    pub(crate) admin: Box<dyn Session>,
}

/// A database with the table `event` and the feed `events` of one shard.
pub(crate) async fn scene() -> Scene {
    scene_on(PostgresBackend::fresh().await).await
}

/// The same on a database of the test's own.
pub(crate) async fn scene_on(backend: PostgresBackend) -> Scene {
    let store = PostgresStore::connect(&backend.url()).await.unwrap();
    store.migrate().await.unwrap();
    let admin = (&backend as &dyn Backend).session().await;
    admin.run(POSTGRES_TABLE).await;
    let feed = store.create_feed(&feed_of_events(1)).await.unwrap();
    Scene {
        backend,
        store,
        feed,
        admin,
    }
}

impl Scene {
    /// A store with connections of its own, as another process would have it.
    pub(crate) async fn other_store(&self) -> PostgresStore {
        PostgresStore::connect(&self.backend.url()).await.unwrap()
    }

    pub(crate) async fn session(&self) -> PostgresSession {
        PostgresSession::connect(&self.backend.url()).await.unwrap()
    }

    /// How often the lock of shard 0 was burned.
    pub(crate) async fn incidents(&self) -> i64 {
        self.incidents_of(0).await
    }

    pub(crate) async fn incidents_of(&self, shard: i32) -> i64 {
        let all = self.store.incidents().await.unwrap();
        assert!(all.iter().all(|i| i.feed == FEED));
        let of = all.iter().filter(|i| i.shard == shard);
        of.map(|i| i.count).sum()
    }

    /// The notes that are committed, by ULID.
    pub(crate) async fn notes(&self) -> Vec<String> {
        let rows = self.admin.query("select note from event order by ulid");
        rows.await
            .unwrap()
            .into_iter()
            .flatten()
            .flatten()
            .collect()
    }

    /// Waits until so many sessions wait in `begin`.
    pub(crate) async fn queued(&self, count: i64) {
        eventually(&format!("{count} sessions queue"), || async {
            let waiting = self
                .admin
                .number(
                    "select count(*) from pg_stat_activity where datname = current_database() \
                     and state = 'active' and query like '%changefeed.%ulid%' \
                     and pid <> pg_backend_pid()",
                )
                .await;
            (waiting == count).then_some(())
        })
        .await;
    }

    /// Waits until nobody holds or awaits an advisory lock.
    pub(crate) async fn unlocked(&self) {
        eventually("no lock is left", || async {
            (self.locks().await == 0).then_some(())
        })
        .await;
    }

    pub(crate) async fn locks(&self) -> i64 {
        self.admin
            .number(
                "select count(*) from pg_locks where locktype = 'advisory' and database = \
                 (select oid from pg_database where datname = current_database())",
            )
            .await
    }
}

/// Writes one row in an open transaction.
pub(crate) async fn insert(transaction: &mut UlidTransaction, note: &str) -> Ulid {
    let ulid = transaction.next_ulid().unwrap();
    transaction
        .execute(
            "insert into event (shard, ulid, note) values (0, $1, $2)",
            &[&ulid.to_bytes().as_slice(), &note],
        )
        .await
        .unwrap();
    ulid
}

/// Writes one row in a transaction of its own.
pub(crate) async fn write(store: &PostgresStore, note: &str) -> Ulid {
    let mut transaction = store.begin_ulid(&options()).await.unwrap();
    let ulid = insert(&mut transaction, note).await;
    transaction.commit().await.unwrap();
    ulid
}

/// A client in a process of its own.
pub(crate) struct Client {
    pub(crate) process: Running,
    answers: BufReader<ChildStdout>,
}

impl Client {
    pub(crate) fn start(url: &str) -> Self {
        let mut process = process::start(url, Stdio::inherit());
        let mut answers = BufReader::new(process.child().stdout.take().unwrap());
        let mut ready = answers.by_ref().lines();
        assert!(ready.any(|line| line.unwrap() == "ready"));
        Client { process, answers }
    }

    /// Tells it what to do, without waiting for the answer.
    pub(crate) fn tell(&mut self, line: &str) {
        let input = self.process.child().stdin.as_mut().unwrap();
        writeln!(input, "{line}").unwrap();
        input.flush().unwrap();
    }

    /// Its next answer; empty when it is gone.
    pub(crate) fn answer(&mut self) -> String {
        let mut line = String::new();
        tokio::task::block_in_place(|| self.answers.read_line(&mut line)).unwrap();
        line.trim().to_owned()
    }

    /// Tells it what to do and returns what it answers.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer()
    }

    /// Tells it what to do, which must work.
    pub(crate) fn must(&mut self, line: &str) {
        assert_eq!(self.ask(line), "done", "{line}");
    }
}
