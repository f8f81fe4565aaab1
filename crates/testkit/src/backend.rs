//! What the conformance suite needs to know of a database: how to get a fresh one, how to speak
//! plain SQL to it as an application would, and which words it uses.

mod postgres;
mod sqlite;
mod sqlserver;

pub use postgres::{PostgresBackend, PostgresSession};
pub use sqlite::{SqliteBackend, SqliteSession};
pub use sqlserver::{SqlServerBackend, SqlServerSession};

use std::fmt;
use std::hash::Hash;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use changefeed_core::{
    After, Change, Feed, FeedName, NewFeed, Page, Remedy, ShardId, Source, Store, SweepGroup,
    TableName, Ulid, UlidOptions,
};

use crate::sqlserver::given_server;
use crate::ulids::UlidWrite;
use crate::{eventually, patience};

/// Rows as text, NULL as `None`.
pub type Rows = Vec<Vec<Option<String>>>;

/// What a database answered to SQL of ours.
#[derive(Debug, Clone)]
pub struct SqlError {
    /// Its words, with its code where it has one.
    pub message: String,
    /// Whether the connection is gone, so that nobody knows what became of the statement.
    pub connection_lost: bool,
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// A fresh database of its own, for one test case.
#[async_trait]
pub trait Backend: Send + Sync {
    /// Its address, as a user would give it with `--db`.
    fn url(&self) -> String;

    /// The words of its SQL.
    fn words(&self) -> Words;

    /// A new instance of the store, as another process would have it. Nothing is installed by
    /// this.
    async fn store(&self) -> Arc<dyn Store>;

    /// Writes rows to the table `event` in one ULID transaction of its Rust interface.
    async fn write_ulids(
        &self,
        options: UlidOptions,
        write: UlidWrite,
    ) -> changefeed_core::Result<Vec<Ulid>>;

    /// A connection of the application, if the database can be reached.
    async fn try_session(&self) -> Result<Box<dyn Session>, SqlError>;

    /// The shell that comes with the database, told to run this SQL: a writer that is not ours.
    fn shell(&self, sql: &str) -> Command;

    /// Brings to an end what clients that were killed have left at the server, and says whether
    /// nothing is at work any more. Where a client's death is noticed at once there is nothing
    /// to do.
    async fn at_rest(&self) -> bool {
        true
    }
}

/// A case on a fresh database of every kind that this test run has: the SQL Server only where there
/// is one.
pub async fn on_every_backend(case: impl AsyncFn(Arc<dyn Backend>)) {
    case(Arc::new(SqliteBackend::fresh().await)).await;
    on_every_server(case).await;
}

/// The same without SQLite: what is about several processes that hold no common file.
pub async fn on_every_server(case: impl AsyncFn(Arc<dyn Backend>)) {
    case(Arc::new(PostgresBackend::fresh().await)).await;
    if given_server().is_some() {
        case(Arc::new(SqlServerBackend::fresh().await)).await;
    }
}

/// A connection of an application that knows nothing of us but the SQL interface.
#[async_trait]
pub trait Session: Send + Sync {
    /// Runs one or more statements.
    async fn execute(&self, sql: &str) -> Result<(), SqlError>;

    /// Runs a query.
    async fn query(&self, sql: &str) -> Result<Rows, SqlError>;

    /// The connection breaks without a goodbye.
    async fn kill(self: Box<Self>);
}

impl dyn Session + '_ {
    /// Runs statements that must work.
    pub async fn run(&self, sql: &str) {
        if let Err(error) = self.execute(sql).await {
            panic!("{error}\nin {sql}");
        }
    }

    /// The first column of the first row, which must be there.
    pub async fn value(&self, sql: &str) -> String {
        match self.query(sql).await {
            Ok(rows) => rows
                .first()
                .and_then(|row| row.first().cloned().flatten())
                .unwrap_or_else(|| panic!("no value from {sql}")),
            Err(error) => panic!("{error}\nin {sql}"),
        }
    }

    /// The same, as a number.
    pub async fn number(&self, sql: &str) -> i64 {
        let value = self.value(sql).await;
        value
            .parse()
            .unwrap_or_else(|_| panic!("'{value}' is no number, from {sql}"))
    }
}

/// The words of a dialect. SQL is an interface, so these are part of what is tested.
#[derive(Debug, Clone, Copy)]
pub struct Words {
    /// What comes before our names: `changefeed.` or `changefeed_`.
    pub prefix: &'static str,
    /// Begins a transaction that will write.
    pub begin: &'static str,
    /// Draws the next change id within a transaction: statements of which one returns it.
    pub draw_change_id: &'static str,
    /// Whether an id that was drawn stays drawn when its transaction is rolled back.
    pub draws_are_final: bool,
    /// Whether a process that is stopped while it writes keeps everybody else from writing.
    pub one_writer: bool,
    /// Whether it runs on this machine, with nothing in between.
    pub beside_us: bool,
    /// The type of a column with a ULID.
    pub ulid_type: &'static str,
    /// Pretends that a newer version of ours was installed.
    pub install_newer: &'static str,
    /// Whether names keep the case they were written in.
    pub keeps_case: bool,
    /// Whether the database has two-phase commit.
    pub two_phase: bool,
    /// What a writer says about itself within a transaction, before it writes.
    pub say: &'static str,
    /// What it says when it has written.
    pub said: &'static str,
    /// Has the database note in a table `stolen` every event that changes hands before its lease
    /// is over.
    pub guard: &'static str,
    /// Whether a trigger knows which old row belongs to which new one where a statement changes
    /// the keys of many; where it does not, a table needs a key for its updates to be captured.
    pub pairs_changed_keys: bool,
    /// Whether writes go on after a column was renamed or dropped that a trigger of ours names.
    /// Where they do not, the trigger has to be made anew before the next write.
    pub triggers_survive_renames: bool,
    /// Writes (1, 'b', 2) and (2, 'c', 3) to a table `orders` of three columns, and only `total`
    /// where the id is there already.
    pub upsert: &'static str,
    /// Writes (1, 'z', 9) and (3, 'd', 4), and nothing where the id is there already.
    pub insert_missing: &'static str,
    /// Writes ({a}, {b}, '{note}') and ({c}, {b}, '{note}') to the columns `id`, `customer_id` and `note` of a table
    /// `orders`, and only the note where the id is there already.
    pub put_two: &'static str,
    /// Removes all rows of `orders` at once, where a feed can tell that.
    pub truncate: Option<&'static str>,
    /// Has a session keep to foreign keys, where it does not by itself.
    pub keep_foreign_keys: Option<&'static str>,
    /// Writes ({id}, '{note}') to a table `orders` of two columns, whether the id is there or not.
    pub put_order: &'static str,
    /// Whether two who do that for the same new id at once clash.
    pub puts_clash: bool,
    /// Within a transaction: keeps everybody from writing to the backlogs of the table {table_id}.
    pub hold_backlogs: &'static str,
    /// Whether the changed columns that a watch is told are those whose values differ, and not those
    /// that were written.
    pub columns_by_value: bool,
    /// A time long ago, as our tables hold it.
    pub long_ago: &'static str,
}

/// As PostgreSQL and SQLite have it.
const UPSERT: &str = "insert into orders values (1, 'b', 2), (2, 'c', 3) \
     on conflict (id) do update set total = excluded.total";
const PUT_TWO: &str = "insert into orders (id, customer_id, note) values ({a}, {b}, '{note}'), ({c}, {b}, '{note}') \
     on conflict (id) do update set note = excluded.note";
const INSERT_MISSING: &str =
    "insert into orders values (1, 'z', 9), (3, 'd', 4) on conflict do nothing";

impl Words {
    /// Our table of that name.
    pub fn our(&self, table: &str) -> String {
        format!("{}{table}", self.prefix)
    }

    /// Tells our triggers, within a transaction, who writes and as part of which trace.
    pub fn say(&self, variables: &str, trace: &str) -> String {
        self.say
            .replace("{variables}", variables)
            .replace("{trace}", trace)
    }

    /// Publishes a change under an id of the application's.
    pub fn publish(&self, feed: i16, shard: i16, change_id: i64) -> String {
        let change = self.our("change");
        format!(
            "insert into {change} (feed_id, shard, change_id) values ({feed}, {shard}, {change_id})"
        )
    }

    /// Publishes several changes in one statement.
    pub fn publish_many(
        &self,
        feed: i16,
        shard: i16,
        ids: impl IntoIterator<Item = i64>,
    ) -> String {
        let change = self.our("change");
        let values: Vec<String> = ids
            .into_iter()
            .map(|id| format!("({feed}, {shard}, {id})"))
            .collect();
        format!(
            "insert into {change} (feed_id, shard, change_id) values {}",
            values.join(", ")
        )
    }

    /// Publishes so many changes in one statement, with ids from `first`.
    pub fn publish_range(&self, feed: i16, shard: i16, first: i64, count: i64) -> String {
        let (change, last) = (self.our("change"), first + count - 1);
        format!(
            "with recursive n(i) as (select {first} union all select i + 1 from n where i < {last}) \
             insert into {change} (feed_id, shard, change_id) select {feed}, {shard}, i from n"
        )
    }

    /// Publishes old data under a number below the start.
    pub fn publish_old(&self, feed: i16, shard: i16, change_id: i64, number: i64) -> String {
        let change = self.our("change");
        format!(
            "insert into {change} (feed_id, shard, change_id, change_sequence_number) \
             values ({feed}, {shard}, {change_id}, {number})"
        )
    }

    /// Reads a page as an application in another language would, by plain SQL.
    pub fn read(&self, feed: i16, shard: i16, after: i64, limit: usize) -> String {
        let change = self.our("change");
        format!(
            "select change_sequence_number, change_id from {change} \
             where feed_id = {feed} and shard = {shard} and change_sequence_number > {after} \
             order by change_sequence_number limit {limit}"
        )
    }

    /// Registers a feed and shards by plain SQL.
    pub fn register(&self, feed: i16, name: &str, shards: &[i16]) -> String {
        let values: Vec<String> = shards.iter().map(|s| format!("({feed}, {s})")).collect();
        format!(
            "insert into {} (feed_id, name) values ({feed}, '{name}'); \
             insert into {} (feed_id, shard) values {}",
            self.our("feed"),
            self.our("shard"),
            values.join(", ")
        )
    }
}

/// Short forms that most cases use.
impl dyn Backend + '_ {
    /// How many times longer than on the databases that run beside the tests an answer may take.
    pub fn patience(&self) -> u32 {
        if self.words().beside_us {
            1
        } else {
            patience()
        }
    }

    /// A connection of the application.
    pub async fn session(&self) -> Box<dyn Session> {
        self.try_session().await.unwrap()
    }

    /// A store on an installed schema.
    pub async fn installed(&self) -> Arc<dyn Store> {
        let store = self.store().await;
        store.migrate().await.unwrap();
        store
    }

    /// A feed of the given id with shards from 0, on an installed schema.
    pub async fn feed(&self, id: i16, shards: i16) -> (Arc<dyn Store>, Feed) {
        let store = self.installed().await;
        let feed = store
            .create_feed(&NewFeed {
                id: Some(changefeed_core::FeedId(id)),
                shards,
                ..NewFeed::new(name(&format!("feed-{id}")))
            })
            .await
            .unwrap();
        (store, feed)
    }

    /// Numbers everything that is committed.
    pub async fn settle(&self, store: &dyn Store) {
        for group in store.sweep_groups().await.unwrap() {
            settle(store, group).await;
        }
    }
}

/// Sweeps a group until there is nothing left to number.
pub async fn settle(store: &dyn Store, group: SweepGroup) {
    if store.needs_sweeping() {
        while store.sweep(group).await.unwrap().changes() > 0 {}
    }
}

/// A feed name.
pub fn name(text: &str) -> FeedName {
    text.parse().unwrap()
}

/// A feed on a table whose changes our trigger publishes.
pub fn captured(feed: &str, table: TableName, shard_by: Option<&str>, shards: i16) -> NewFeed {
    NewFeed {
        shards,
        source: Some(Source::Captured {
            table,
            shard_by: shard_by.map(str::to_owned),
            images: false,
            when: None,
            columns: None,
        }),
        ..NewFeed::new(name(feed))
    }
}

/// A whole shard, paged with the given page size.
pub async fn read_all(store: &dyn Store, feed: &Feed, shard: i16, page: usize) -> Vec<Change> {
    let mut after = After::First;
    let mut all = Vec::new();
    loop {
        let read = store.read(feed, ShardId(shard), after, page).await;
        let Page { changes, next, .. } = match read {
            // A machine may be too busy to answer in time.
            Err(error) if error.kind().remedy() == Remedy::Retry => continue,
            read => read.unwrap(),
        };
        if changes.is_empty() {
            return all;
        }
        assert!(changes.len() <= page, "a page over its limit");
        assert_eq!(changes.last().map(|c| c.cursor), Some(next));
        all.extend(changes);
        after = next.into();
    }
}

/// Number and change id of a whole shard.
pub async fn numbers(store: &dyn Store, feed: &Feed, shard: i16) -> Vec<(i64, i64)> {
    read_all(store, feed, shard, 10_000)
        .await
        .iter()
        .map(|change| (change.cursor.number().unwrap(), change.change_id.unwrap()))
        .collect()
}

/// Change ids of a whole shard, in order.
pub async fn ids(store: &dyn Store, feed: &Feed, shard: i16) -> Vec<i64> {
    numbers(store, feed, shard)
        .await
        .into_iter()
        .map(|(_, id)| id)
        .collect()
}

/// Whether news for a listener comes within the time that news takes.
pub async fn is_woken<P: Eq + Hash>(waiter: &mut changefeed_core::Listener<P>) -> bool {
    tokio::time::timeout(Duration::from_secs(10), waiter.news())
        .await
        .is_ok()
}

/// Waits until the store numbers what is committed, sweeping where that is needed, and returns
/// the change ids of the shard when there are `count`.
pub async fn wait_for(store: &dyn Store, feed: &Feed, shard: i16, count: usize) -> Vec<i64> {
    eventually(&format!("{count} changes in shard {shard}"), || async {
        for s in &feed.shards {
            settle(store, s.sweep_group).await;
        }
        let ids = ids(store, feed, shard).await;
        (ids.len() >= count).then_some(ids)
    })
    .await
}

/// Waits until a condition holds. Not by `eventually`, whose questions may move to another thread: those
/// of an async closure may borrow.
pub async fn eventually_true(what: &str, mut ask: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30) * patience();
    while !ask().await {
        assert!(tokio::time::Instant::now() < deadline, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
