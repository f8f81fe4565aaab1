//! Watches, on SQL Server's own terms.

use std::sync::Arc;
use std::time::Instant;

use changefeed::sqlserver::Connection;
use changefeed::{Result, Store, Watch};
use tokio::sync::Mutex;

use super::scratch::{Scratch, series};
use crate::watches::{Client, ROWS, Server, Side};

const TABLES: &str = "
create table changefeed_bench.tracked (id bigint not null primary key, n bigint not null,
    payload nvarchar(400) null);
create table changefeed_bench.untracked (id bigint not null primary key, n bigint not null,
    payload nvarchar(400) null);
create table changefeed_bench.queue (id bigint not null primary key, op smallint not null);";

/// How a queue without us would be worked off, one batch in one statement.
const BARE: &str = "delete top (1000) from changefeed_bench.queue output deleted.id, deleted.op";

impl Server for Scratch {
    type Client = Writer;
    const QUEUE: &'static str = "one worker, batches of 1,000, against delete … output";
    const FASTEST: Option<&'static str> = None;

    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    async fn prepare_watched(&self) -> Result<()> {
        self.run(TABLES).await?;
        for table in ["tracked", "untracked"] {
            self.run(&format!(
                "insert into changefeed_bench.{table} (id, n, payload) \
                 select s.i, 0, N'a row of an application' from {}",
                series(ROWS)
            ))
            .await?;
        }
        Ok(())
    }

    async fn client(&self) -> Result<Writer> {
        Ok(Writer(Mutex::new(self.session().await?)))
    }

    async fn change(&self, rows: i64) -> Result<()> {
        self.run(&format!(
            "update changefeed_bench.tracked set n = n + 1 where id <= {rows}"
        ))
        .await
    }

    async fn tidy(&self, watch: &Watch) -> Result<()> {
        self.update_statistics(&watch.leases_table).await
    }

    async fn queue(&self, _fastest: bool) -> Result<f64> {
        self.run(
            "insert into changefeed_bench.queue (id, op) select id, 1 from changefeed_bench.tracked",
        )
        .await?;
        let mut admin = self.admin.lock().await;
        let began = Instant::now();
        let mut keys = 0;
        loop {
            let rows = admin.query(BARE, &[]).await?;
            if rows.is_empty() {
                return Ok(keys as f64 / began.elapsed().as_secs_f64());
            }
            keys += rows.len();
        }
    }
}

/// One that updates single rows.
pub(crate) struct Writer(Mutex<Connection>);

impl Client for Writer {
    async fn update(&self, side: Side, id: i64) -> Result<()> {
        let table = match side {
            Side::Tracked => "tracked",
            Side::Untracked => "untracked",
        };
        let update = format!("update changefeed_bench.{table} set n = n + 1 where id = {id}");
        self.0.lock().await.batch(&update).await
    }
}
