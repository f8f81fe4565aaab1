//! ULID transactions, on SQL Server's own terms.

use changefeed::sqlserver::{Connection, SqlServerStore};
use changefeed::{Result, Ulid, UlidOptions};
use tokio::sync::Mutex;

use super::scratch::{Scratch, series};
use crate::ulids::{Client, FEED, SHARDS, Server, Side};

const TABLES: &str = "
create table changefeed_bench.ulid_row (shard int not null, ulid binary(16) not null,
    payload nvarchar(400) not null, primary key (shard, ulid));
create table changefeed_bench.bare_ulid (shard int not null, ulid binary(16) not null,
    payload nvarchar(400) not null, primary key (shard, ulid));
create table changefeed_bench.uuid_row (shard int not null, ulid uniqueidentifier not null,
    payload nvarchar(400) not null, primary key (shard, ulid));
create table changefeed_bench.turn (shard int not null primary key, turns bigint not null);";

impl Server for Scratch {
    type Client = Writer;
    const BULK: &'static str = "bulk, against newid()";

    async fn client(&self) -> Result<Writer> {
        Ok(Writer {
            store: self.store.clone(),
            session: Mutex::new(self.session().await?),
        })
    }

    async fn prepare_ulids(&self) -> Result<()> {
        self.run(TABLES).await?;
        self.run(&format!(
            "insert into changefeed_bench.turn (shard, turns) select s.i - 1, 0 from {}",
            series(i64::try_from(SHARDS).unwrap_or(1))
        ))
        .await
    }

    async fn clear_rows(&self) -> Result<()> {
        self.run(
            "truncate table changefeed_bench.ulid_row; truncate table changefeed_bench.uuid_row",
        )
        .await
    }

    async fn bulk(&self, rows: i64) -> Result<()> {
        self.run(&format!(
            "begin transaction; \
             exec changefeed.begin_ulid_transaction @feed_id = '{FEED}', @shard_id = 0; \
             insert into changefeed_bench.ulid_row (shard, ulid, payload) \
             select 0, changefeed.ulid_sequence(next value for changefeed.sequence), N'a row' \
             from {}; \
             exec changefeed.commit_ulid_transaction; commit transaction",
            series(rows)
        ))
        .await
    }

    async fn bulk_random(&self, rows: i64) -> Result<()> {
        self.run(&format!(
            "begin transaction; \
             insert into changefeed_bench.uuid_row (shard, ulid, payload) \
             select 0, newid(), N'a row' from {}; \
             commit transaction",
            series(rows)
        ))
        .await
    }

    async fn forget_ulids(&self) -> Result<()> {
        self.run(&format!(
            "delete from changefeed.shard_ulid where feed_id = '{FEED}'; \
             delete from changefeed.incident where feed_id = '{FEED}'; \
             delete from changefeed.ulid_pulse where feed_id = '{FEED}'"
        ))
        .await
    }
}

/// One that writes single rows.
pub(crate) struct Writer {
    store: SqlServerStore,
    session: Mutex<Connection>,
}

impl Writer {
    async fn write_ours(&self, shard: i32) -> Result<()> {
        let options = UlidOptions::new(FEED, shard);
        let mut transaction = self.store.begin_ulid(&options).await?;
        let ulid = transaction.next_ulid()?;
        transaction
            .batch(&insert("ulid_row", shard, &ulid.to_bytes()))
            .await?;
        transaction.commit().await
    }
}

impl Client for Writer {
    async fn write(&self, side: Side, shard: i32, ulid: Ulid) -> Result<()> {
        let begin = match side {
            Side::Ours => return self.write_ours(shard).await,
            // An update locks the row on every platform; hints do not.
            Side::RowLock => format!(
                "begin transaction; \
                 update changefeed_bench.turn set turns = turns + 1 where shard = {shard}"
            ),
            Side::Unordered => "begin transaction".to_owned(),
        };
        let mut session = self.session.lock().await;
        session.batch(&begin).await?;
        session
            .batch(&insert("bare_ulid", shard, &ulid.to_bytes()))
            .await?;
        session.batch("commit transaction").await
    }
}

fn insert(table: &str, shard: i32, ulid: &[u8]) -> String {
    let hex: String = ulid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "insert into changefeed_bench.{table} (shard, ulid, payload) \
         values ({shard}, 0x{hex}, N'a row')"
    )
}
