//! The feed and the schema that the measures work in, and their removal.

use std::sync::Arc;

use changefeed::postgres::PostgresStore;
use changefeed::{Changefeed, Result};

use super::session::{Session, Target, db};
use crate::machine;
use crate::scratch::{Place, ScratchFeed, not_alone};

/// Held for the whole run by the one process that measures in this database.
const LOCK: i64 = 0x6368_616e_6765_6264;

/// Everything that the measures share.
pub(crate) struct Scratch {
    pub(crate) target: Target,
    pub(crate) admin: Session,
    pub(crate) store: PostgresStore,
    pub(crate) feed: ScratchFeed,
}

impl Place for Scratch {
    async fn prepare(url: &str) -> Result<Self> {
        let target = Target::parse(url)?;
        let store = PostgresStore::connect(&target.url).await?;
        let admin = target.session().await?;
        let alone: bool = admin
            .query_one("select pg_try_advisory_lock($1)", &[&LOCK])
            .await
            .map_err(db)?
            .get(0);
        if !alone {
            return Err(not_alone());
        }
        let feed = ScratchFeed::prepare(Changefeed::new(Arc::new(store.clone()))).await?;
        let scratch = Scratch {
            target,
            admin,
            store,
            feed,
        };
        scratch.clear().await?;
        scratch
            .run(
                "create schema changefeed_bench; \
                 create table changefeed_bench.row (id bigint generated always as identity \
                   primary key, change_id bigint, payload text not null); \
                 create table changefeed_bench.bare_row \
                   (like changefeed_bench.row including all); \
                 create table changefeed_bench.heap (like changefeed.inbox_0); \
                 create table changefeed_bench.numbered \
                   (like changefeed.numbered including all)",
            )
            .await?;
        scratch.feed.take_lease().await?;
        Ok(scratch)
    }

    async fn version(&self) -> Result<String> {
        let row = self
            .admin
            .query_one("select current_setting('server_version')", &[])
            .await
            .map_err(db)?;
        Ok(format!("PostgreSQL {}", row.get::<_, String>(0)))
    }

    async fn caveats(&self) -> Result<Vec<String>> {
        let rows = self
            .admin
            .query(
                "select name, setting from pg_settings where setting = 'off' \
                 and name in ('fsync', 'synchronous_commit', 'full_page_writes') order by 1",
                &[],
            )
            .await
            .map_err(db)?;
        Ok(rows
            .iter()
            .map(|row| {
                format!(
                    "{} is {} on this server: commits cost less than usual on both sides",
                    row.get::<_, String>(0),
                    row.get::<_, String>(1)
                )
            })
            .collect())
    }

    async fn remove(self) -> Result<()> {
        self.clear().await
    }
}

impl Scratch {
    /// The server's processes that work for whoever has this name, except for the one of `admin`;
    /// `None` where they are not visible from here.
    pub(crate) async fn server_processes(&self, name: &str) -> Result<Option<Vec<String>>> {
        let rows = self
            .admin
            .query(
                "select pid from pg_stat_activity where application_name = $1 \
                 and pid <> pg_backend_pid()",
                &[&name],
            )
            .await
            .map_err(db)?;
        let processes: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
        let visible = processes.iter().all(|pid| machine::is_server_process(*pid));
        Ok(visible.then(|| processes.iter().map(ToString::to_string).collect()))
    }

    /// Runs statements that return nothing.
    pub(crate) async fn run(&self, statements: &str) -> Result<()> {
        self.admin.batch_execute(statements).await.map_err(db)
    }

    /// What was filled in goes to the disk before the clock starts. Not every user may ask for that;
    /// then the first commits are a little slower.
    pub(crate) async fn write_to_disk(&self) {
        if let Err(error) = self.run("checkpoint").await {
            tracing::debug!(%error, "no checkpoint before the measure");
        }
    }

    async fn clear(&self) -> Result<()> {
        self.drop_feed().await?;
        self.run(
            "set client_min_messages = warning; drop schema if exists changefeed_bench cascade",
        )
        .await?;
        self.admin
            .execute(
                "delete from changefeed.lease where name = $1",
                &[&self.feed.lease()],
            )
            .await
            .map_err(db)?;
        Ok(())
    }

    pub(crate) async fn drop_feed(&self) -> Result<()> {
        let Some(feed) = self.feed.existing().await? else {
            return Ok(());
        };
        // Where nobody else has changes, the tables are emptied at once; deleting millions of
        // rows would leave as many dead ones behind.
        for table in ["numbered", "inbox_0", "inbox_1", "inbox_2", "inbox_3"] {
            self.run(&format!(
                "do $$ begin \
                   set local lock_timeout = '2s'; \
                   lock table changefeed.{table} in access exclusive mode; \
                   if not exists (select from changefeed.{table} where feed_id < {id}) \
                      and not exists (select from changefeed.{table} where feed_id > {id}) then \
                     truncate changefeed.{table}; \
                   end if; \
                 exception when lock_not_available then null; end $$",
                id = feed.definition().id
            ))
            .await?;
        }
        feed.drop_feed().await?;
        self.run("vacuum changefeed.numbered, changefeed.progress")
            .await
    }
}
