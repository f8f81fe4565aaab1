//! A fresh file for each test, and short words for what tests do to it.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use changefeed_core::{
    After, Content, Feed, FeedId, FeedStore, Listener, NewFeed, Page, SchemaStore, ShardId, Source,
    TableName,
};
use changefeed_sqlite::SqliteStore;
use changefeed_sqlite::rusqlite::Connection;
use tempfile::TempDir;

/// A database file of one test.
pub(crate) struct Lab {
    dir: TempDir,
    pub(crate) store: SqliteStore,
}

impl Lab {
    /// With our tables installed.
    pub(crate) async fn new() -> Lab {
        let lab = Lab::bare().await;
        lab.store.migrate().await.unwrap();
        lab
    }

    /// Without them.
    pub(crate) async fn bare() -> Lab {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path().join("test.db")).await.unwrap();
        Lab { dir, store }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("test.db")
    }

    /// Closes the store and keeps the file, as long as its directory is kept.
    pub(crate) fn close(self) -> TempDir {
        drop(self.store);
        self.dir
    }

    /// Another store, as another process would have it.
    pub(crate) async fn other(&self) -> SqliteStore {
        SqliteStore::open(self.path()).await.unwrap()
    }

    /// A connection of an application.
    pub(crate) fn app(&self) -> Connection {
        let app = Connection::open(self.path()).unwrap();
        app.busy_timeout(Duration::from_secs(30)).unwrap();
        app
    }

    /// Runs SQL in the stock shell. The shell stops at the first error, which is returned.
    pub(crate) fn shell(&self, sql: &str) -> Result<String, String> {
        let mut shell = Command::new("sqlite3")
            .args(["-batch", "-bail", "-cmd", ".timeout 30000"])
            .arg(self.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("these tests need the stock `sqlite3` shell: install the package sqlite3");
        shell
            .stdin
            .take()
            .unwrap()
            .write_all(sql.as_bytes())
            .unwrap();
        let output = shell.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() {
            Ok(text(output.stdout))
        } else {
            Err(text(output.stderr))
        }
    }

    /// A feed with an id and shards from 0.
    pub(crate) async fn feed(&self, id: i16, shards: i16) -> Feed {
        self.create(NewFeed {
            id: Some(FeedId(id)),
            shards,
            ..named(&format!("feed-{id}"))
        })
        .await
    }

    /// A feed that captures a table.
    pub(crate) async fn captured(&self, table: &str, shard_by: Option<&str>, shards: i16) -> Feed {
        self.create(captured(table, shard_by, shards)).await
    }

    /// A feed over a table that keeps its own change ids.
    pub(crate) async fn joined(&self, table: &str) -> Feed {
        self.create(NewFeed {
            source: Some(Source::Joined {
                table: TableName::unqualified(table),
                change_id_column: "change_id".to_owned(),
                shard_by: None,
            }),
            ..named("joined")
        })
        .await
    }

    pub(crate) async fn create(&self, new: NewFeed) -> Feed {
        self.store.create_feed(&new).await.unwrap()
    }

    pub(crate) async fn page(&self, feed: &Feed, shard: i16, after: After, limit: usize) -> Page {
        self.store
            .read(feed, ShardId(shard), after, limit)
            .await
            .unwrap()
    }

    /// Number and change id of a whole shard.
    pub(crate) async fn numbers(&self, feed: &Feed, shard: i16) -> Vec<(i64, i64)> {
        let page = self.page(feed, shard, After::First, 10_000).await;
        page.changes
            .iter()
            .map(|c| (c.cursor.number().unwrap(), c.change_id.unwrap()))
            .collect()
    }

    /// The rows behind a whole shard: JSON, `gone` or `unknown`.
    pub(crate) async fn rows(&self, feed: &Feed, shard: i16) -> Vec<String> {
        let page = self.page(feed, shard, After::First, 10_000).await;
        page.changes.iter().map(|c| content(&c.content)).collect()
    }

    /// The first key column of every change of a whole shard, as plain SQL shows it.
    pub(crate) fn keys(&self, feed: &Feed, shard: i16) -> Vec<String> {
        let app = self.app();
        let mut statement = app
            .prepare(
                "select quote(r.key1) from changefeed_change c \
                 join changefeed_change_row r on r.change_id = c.change_id \
                 where c.feed_id = ?1 and c.shard = ?2 order by c.change_sequence_number",
            )
            .unwrap();
        let keys = statement
            .query_map([feed.id.0, shard], |row| row.get(0))
            .unwrap();
        keys.map(Result::unwrap).collect()
    }
}

pub(crate) fn named(name: &str) -> NewFeed {
    NewFeed::new(name.parse().unwrap())
}

pub(crate) fn captured(table: &str, shard_by: Option<&str>, shards: i16) -> NewFeed {
    NewFeed {
        shards,
        source: Some(Source::Captured {
            table: TableName::unqualified(table),
            shard_by: shard_by.map(str::to_owned),
            images: false,
            when: None,
            columns: None,
        }),
        ..named(&format!("captured-{shards}"))
    }
}

pub(crate) fn content(content: &Content) -> String {
    match content {
        Content::Unknown => "unknown".to_owned(),
        Content::Gone => "gone".to_owned(),
        Content::Row(row) => row.get().to_owned(),
        Content::Images { .. } => "images".to_owned(),
    }
}

/// Whether news comes; the time is a ceiling for a slow machine, not a wait.
pub(crate) async fn is_woken(waiter: &mut Listener) -> bool {
    tokio::time::timeout(Duration::from_secs(20), waiter.news())
        .await
        .is_ok()
}
