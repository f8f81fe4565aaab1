//! ULID transactions, on PostgreSQL's own terms.

use changefeed::postgres::PostgresStore;
use changefeed::postgres::tokio_postgres::Statement;
use changefeed::postgres::tokio_postgres::types::ToSql;
use changefeed::{Result, Ulid, UlidOptions};

use super::scratch::Scratch;
use super::session::{Session, db};
use crate::ulids::{Client, FEED, Server, Side};

const TABLES: &str = "
    create table changefeed_bench.ulid_row
        (shard integer, ulid bytea, payload text, primary key (shard, ulid));
    create table changefeed_bench.bare_ulid (like changefeed_bench.ulid_row including all);
    create table changefeed_bench.uuid_row
        (shard integer, ulid uuid, payload text, primary key (shard, ulid));
    create table changefeed_bench.turn (shard integer primary key);
    insert into changefeed_bench.turn select generate_series(0, 31);";

impl Server for Scratch {
    type Client = Writer;
    const BULK: &'static str = "bulk, against gen_random_uuid()";

    async fn client(&self) -> Result<Writer> {
        let session = self.target.session().await?;
        let lock = "select shard from changefeed_bench.turn where shard = $1 for update";
        let bare = "insert into changefeed_bench.bare_ulid (shard, ulid, payload) \
                    values ($1, $2, 'a row')";
        Ok(Writer {
            store: self.store.clone(),
            lock: session.prepare(lock).await.map_err(db)?,
            bare: session.prepare(bare).await.map_err(db)?,
            session,
        })
    }

    async fn prepare_ulids(&self) -> Result<()> {
        self.run(TABLES).await
    }

    async fn clear_rows(&self) -> Result<()> {
        self.run("truncate changefeed_bench.ulid_row, changefeed_bench.uuid_row")
            .await
    }

    async fn bulk(&self, rows: i64) -> Result<()> {
        self.run(&format!(
            "begin; select changefeed.begin_ulid_transaction('{FEED}', 0); \
             insert into changefeed_bench.ulid_row \
             select 0, changefeed.ulid_sequence(nextval('changefeed.sequence')), 'a row' \
             from (select i from generate_series(1, {rows}) i order by i) s; \
             select changefeed.commit_ulid_transaction(); commit"
        ))
        .await
    }

    async fn bulk_random(&self, rows: i64) -> Result<()> {
        self.run(&format!(
            "begin; insert into changefeed_bench.uuid_row \
             select 0, gen_random_uuid(), 'a row' \
             from (select i from generate_series(1, {rows}) i order by i) s; commit"
        ))
        .await
    }

    async fn forget_ulids(&self) -> Result<()> {
        self.run(&format!(
            "delete from changefeed.shard_ulid where feed_id = '{FEED}'; \
             delete from changefeed.incident where feed_id = '{FEED}'"
        ))
        .await
    }
}

/// One that writes single rows.
pub(crate) struct Writer {
    store: PostgresStore,
    session: Session,
    lock: Statement,
    bare: Statement,
}

impl Writer {
    async fn write_ours(&self, shard: i32) -> Result<()> {
        let options = UlidOptions::new(FEED, shard);
        let mut transaction = self.store.begin_ulid(&options).await?;
        let ulid = transaction.next_ulid()?.to_bytes();
        let insert = "insert into changefeed_bench.ulid_row (shard, ulid, payload) \
                      values ($1, $2, 'a row')";
        let statement = transaction.prepare_cached(insert).await.map_err(db)?;
        transaction
            .execute(&statement, &[&shard, &ulid.as_slice()])
            .await
            .map_err(db)?;
        transaction.commit().await
    }
}

impl Client for Writer {
    async fn write(&self, side: Side, shard: i32, ulid: Ulid) -> Result<()> {
        let session = &self.session;
        match side {
            Side::Ours => return self.write_ours(shard).await,
            Side::RowLock => {
                let parameters: [&(dyn ToSql + Sync); 1] = [&shard];
                tokio::try_join!(
                    session.batch_execute("begin"),
                    session.query(&self.lock, &parameters),
                )
                .map_err(db)?;
            }
            Side::Unordered => session.batch_execute("begin").await.map_err(db)?,
        }
        session
            .execute(&self.bare, &[&shard, &ulid.to_bytes().as_slice()])
            .await
            .map_err(db)?;
        session.batch_execute("commit").await.map_err(db)
    }
}
