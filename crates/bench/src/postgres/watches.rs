//! Watches, on PostgreSQL's own terms.

use std::sync::Arc;
use std::time::Instant;

use changefeed::postgres::tokio_postgres::Statement;
use changefeed::{Result, Store, Watch};

use super::scratch::Scratch;
use super::session::{Session, db};
use crate::watches::{Client, Server, Side};

const TABLES: &str = "
    create table changefeed_bench.tracked (id bigint primary key, n bigint not null, payload text);
    insert into changefeed_bench.tracked
    select i, 0, 'a row of an application' from generate_series(1, 100000) i;
    create table changefeed_bench.untracked (like changefeed_bench.tracked including all);
    insert into changefeed_bench.untracked select * from changefeed_bench.tracked;
    create sequence changefeed_bench.queued;
    create table changefeed_bench.queue (id bigint primary key, version bigint not null, op smallint);
    create index on changefeed_bench.queue (version)";

/// How a queue without us would be worked off, one batch in one statement, as everybody writes it.
const BARE: &str = "delete from changefeed_bench.queue where id in ( \
     select id from changefeed_bench.queue order by version limit 1000 for update skip locked) \
     returning id, version, op";

/// The same in the fastest form that we know.
const FASTEST: &str = "delete from changefeed_bench.queue where ctid = any(array( \
     select ctid from changefeed_bench.queue order by version limit 1000 for update skip locked)) \
     returning id, version, op";

impl Server for Scratch {
    type Client = Writer;
    const QUEUE: &'static str = "one worker, batches of 1,000, against delete … returning";
    const FASTEST: Option<&'static str> = Some("the same, against delete … returning by ctid");

    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    async fn prepare_watched(&self) -> Result<()> {
        self.run(TABLES).await?;
        self.run("vacuum analyze changefeed_bench.tracked, changefeed_bench.untracked")
            .await
    }

    async fn client(&self) -> Result<Writer> {
        let session = self.target.session().await?;
        let update = |table| format!("update changefeed_bench.{table} set n = n + 1 where id = $1");
        Ok(Writer {
            tracked: session.prepare(&update("tracked")).await.map_err(db)?,
            untracked: session.prepare(&update("untracked")).await.map_err(db)?,
            session,
        })
    }

    async fn change(&self, rows: i64) -> Result<()> {
        self.run(&format!(
            "update changefeed_bench.tracked set n = n + 1 where id <= {rows}"
        ))
        .await?;
        // A vacuum after every small change would be the work, and not what is measured.
        if rows < 1000 {
            return Ok(());
        }
        self.run("vacuum changefeed_bench.tracked").await
    }

    async fn tidy(&self, watch: &Watch) -> Result<()> {
        // As autovacuum would do soon.
        self.run(&format!(
            "vacuum {}, changefeed.changes_{}",
            watch.leases_table, watch.table_id
        ))
        .await
    }

    async fn queue(&self, fastest: bool) -> Result<f64> {
        self.run(
            "insert into changefeed_bench.queue \
             select id, nextval('changefeed_bench.queued'), 1 from changefeed_bench.tracked",
        )
        .await?;
        self.run("vacuum analyze changefeed_bench.queue").await?;
        let statement = if fastest { FASTEST } else { BARE };
        let statement = self.admin.prepare(statement).await.map_err(db)?;
        let began = Instant::now();
        let mut keys = 0;
        loop {
            let rows = self.admin.query(&statement, &[]).await.map_err(db)?;
            if rows.is_empty() {
                return Ok(keys as f64 / began.elapsed().as_secs_f64());
            }
            keys += rows.len();
        }
    }
}

/// One that updates single rows.
pub(crate) struct Writer {
    session: Session,
    tracked: Statement,
    untracked: Statement,
}

impl Client for Writer {
    async fn update(&self, side: Side, id: i64) -> Result<()> {
        let statement = match side {
            Side::Tracked => &self.tracked,
            Side::Untracked => &self.untracked,
        };
        self.session.execute(statement, &[&id]).await.map_err(db)?;
        Ok(())
    }
}
