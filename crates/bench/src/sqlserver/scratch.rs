//! The feed and the schema that the measures work in, and their removal.

use std::sync::Arc;

use changefeed::sqlserver::{Connection, Platform, SqlServerStore, Target};
use changefeed::{Changefeed, Result};
use tokio::sync::Mutex;

use crate::idle::Backends;
use crate::machine;
use crate::scratch::{Place, ScratchFeed, not_alone};

/// Held for the whole run by the one session that measures in this database. Not asked for with no
/// patience at all: Babelfish does not know how to say no at once.
const ALONE: &str = "declare @result int, @lock nvarchar(255) = concat(N'changefeed.bench/', db_id()); \
     exec @result = sp_getapplock @Resource = @lock, @LockMode = 'Exclusive', \
         @LockOwner = 'Session', @LockTimeout = 100; \
     select @result";

/// What the measures write to. `change` is made like ours, without the laws that ours has.
const TABLES: &str = "
create table changefeed_bench.row (id bigint identity primary key, change_id bigint null,
    payload nvarchar(400) not null);
create table changefeed_bench.bare_row (id bigint identity primary key, change_id bigint null,
    payload nvarchar(400) not null);
create table changefeed_bench.change (feed_id smallint not null, shard smallint not null,
    change_id bigint not null, change_sequence_number bigint null,
    primary key (feed_id, shard, change_id));
create unique index ix_bench_needs on changefeed_bench.change (feed_id, shard, change_id)
    where change_sequence_number is null;
create unique index ix_bench_number
    on changefeed_bench.change (feed_id, shard, change_sequence_number) include (change_id)
    where change_sequence_number is not null;";

/// Whatever any of the measures may have made.
const EVERY_TABLE: [&str; 12] = [
    "row",
    "bare_row",
    "change",
    "ulid_row",
    "bare_ulid",
    "uuid_row",
    "turn",
    "orders",
    "bare_orders",
    "tracked",
    "untracked",
    "queue",
];

/// Everything that the measures share.
pub(crate) struct Scratch {
    target: Target,
    pub(crate) url: String,
    pub(crate) admin: Mutex<Connection>,
    pub(crate) store: SqlServerStore,
    pub(crate) feed: ScratchFeed,
}

impl Place for Scratch {
    async fn prepare(url: &str) -> Result<Self> {
        let target = Target::parse(url)?;
        let store = SqlServerStore::connect(url).await?;
        let mut admin = Connection::open(&target).await?;
        let answer = admin.query(ALONE, &[]).await?;
        if answer.first().and_then(|row| row.get::<i32, _>(0)) < Some(0) {
            return Err(not_alone());
        }
        let feed = ScratchFeed::prepare(Changefeed::new(Arc::new(store.clone()))).await?;
        let scratch = Scratch {
            target,
            url: url.to_owned(),
            admin: Mutex::new(admin),
            store,
            feed,
        };
        scratch.clear().await?;
        scratch.run("create schema changefeed_bench").await?;
        scratch.run(TABLES).await?;
        scratch.feed.take_lease().await?;
        Ok(scratch)
    }

    async fn version(&self) -> Result<String> {
        let sql = "select convert(varchar(40), serverproperty('ProductVersion'))";
        let rows = self.admin.lock().await.query(sql, &[]).await?;
        let version: &str = rows.first().and_then(|row| row.get(0)).unwrap_or("?");
        Ok(match self.store.platform() {
            Platform::SqlServer => format!("SQL Server {version}"),
            Platform::Babelfish => format!("Babelfish, as SQL Server {version}"),
        })
    }

    async fn caveats(&self) -> Result<Vec<String>> {
        Ok(match self.store.platform() {
            Platform::SqlServer => Vec::new(),
            Platform::Babelfish => vec![
                "this is Babelfish: both sides run on it, but the budgets are for SQL Server"
                    .to_owned(),
            ],
        })
    }

    async fn remove(self) -> Result<()> {
        self.clear().await
    }
}

impl Scratch {
    /// A connection of the bare side: the same driver.
    pub(crate) async fn session(&self) -> Result<Connection> {
        Connection::open(&self.target).await
    }

    /// Runs a batch that returns nothing.
    pub(crate) async fn run(&self, batch: &str) -> Result<()> {
        self.admin.lock().await.batch(batch).await
    }

    /// As the server would do soon by itself. Babelfish knows no such statement.
    pub(crate) async fn update_statistics(&self, table: &str) -> Result<()> {
        match self.store.platform() {
            Platform::SqlServer => self.run(&format!("update statistics {table}")).await,
            Platform::Babelfish => Ok(()),
        }
    }

    async fn clear(&self) -> Result<()> {
        self.drop_feed().await?;
        for table in EVERY_TABLE {
            self.run(&format!("drop table if exists changefeed_bench.{table}"))
                .await?;
        }
        self.run("drop sequence if exists changefeed_bench.order_id")
            .await?;
        self.run("drop schema if exists changefeed_bench").await?;
        self.run(&format!(
            "delete from changefeed.lease where name = N'{}'",
            self.feed.lease()
        ))
        .await
    }

    pub(crate) async fn drop_feed(&self) -> Result<()> {
        match self.feed.existing().await? {
            Some(feed) => feed.drop_feed().await,
            None => Ok(()),
        }
    }
}

impl Backends for Scratch {
    /// Only Babelfish has a process for each session, and only on this machine it can be seen.
    async fn backends(&self) -> Result<Option<Vec<String>>> {
        if self.store.platform() != Platform::Babelfish {
            return Ok(None);
        }
        let sql = "select session_id from sys.dm_exec_sessions \
                   where program_name = N'changefeed' and database_id = db_id() \
                     and session_id <> @@spid";
        let rows = self.admin.lock().await.query(sql, &[]).await?;
        let processes: Vec<i32> = rows.iter().filter_map(|row| row.get::<i32, _>(0)).collect();
        let visible = processes.iter().all(|pid| machine::is_server_process(*pid));
        Ok(visible.then(|| processes.iter().map(ToString::to_string).collect()))
    }
}

/// A table expression with the column `i` from 1 to `count`: SQL Server 2017 has no series.
pub(crate) fn series(count: i64) -> String {
    let places = (count - 1).max(1).ilog10() + 1;
    let (mut value, mut tables) = ("convert(bigint, 1)".to_owned(), Vec::new());
    for place in 0..places {
        value += &format!(" + {} * d{place}.n", 10_i64.pow(place));
        tables.push(format!(
            "(values (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)) d{place} (n)"
        ));
    }
    let tables = tables.join(" cross join ");
    format!("(select x.i from (select {value} as i from {tables}) x where x.i <= {count}) s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_has_as_many_digits_as_it_needs() {
        assert!(series(1).contains("+ 1 * d0.n as i"));
        assert!(!series(10).contains("d1"));
        assert!(series(11).contains("+ 10 * d1.n as i") && !series(100).contains("d2"));
    }
}
