//! The feed and the schema that the measures work in, and their removal.

use std::ops::Deref;
use std::sync::Arc;

use changefeed::postgres::PostgresStore;
use changefeed::{Changefeed, FeedHandle, Result};

use super::session::{Session, Target, db};
use crate::machine;
use crate::scratch::{ScratchFeed, not_alone};

/// Held for the whole run by the one process that measures in this database.
const LOCK: i64 = 0x6368_616e_6765_6264;

/// Everything that the measures share.
pub(crate) struct Scratch {
    pub(crate) target: Target,
    pub(crate) admin: Session,
    feed: ScratchFeed,
}

impl Deref for Scratch {
    type Target = ScratchFeed;

    fn deref(&self) -> &ScratchFeed {
        &self.feed
    }
}

impl Scratch {
    /// Connects, installs our tables where they are missing, and clears away what a run that was
    /// killed has left behind.
    pub(crate) async fn prepare(target: Target) -> Result<Self> {
        let database = Changefeed::new(Arc::new(PostgresStore::connect(&target.url).await?));
        let admin = target.session().await?;
        let alone: bool = admin
            .query_one("select pg_try_advisory_lock($1)", &[&LOCK])
            .await
            .map_err(db)?
            .get(0);
        if !alone {
            return Err(not_alone());
        }
        let feed = ScratchFeed::prepare(database).await?;
        let scratch = Scratch {
            target,
            admin,
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
        scratch.take_lease().await?;
        Ok(scratch)
    }

    /// A new scratch feed without any history; the one before is removed.
    pub(crate) async fn feed(&self, shards: i16) -> Result<FeedHandle> {
        self.drop_feed().await?;
        self.create(shards).await
    }

    /// The next value of the sequence.
    pub(crate) async fn next_change_id(&self) -> Result<i64> {
        let row = self
            .admin
            .query_one("select nextval('changefeed.change_id')", &[])
            .await
            .map_err(db)?;
        Ok(row.get(0))
    }

    /// The server's name and version.
    pub(crate) async fn version(&self) -> Result<String> {
        let row = self
            .admin
            .query_one("select current_setting('server_version')", &[])
            .await
            .map_err(db)?;
        Ok(format!("PostgreSQL {}", row.get::<_, String>(0)))
    }

    /// Settings that make the figures mean something else than one would think.
    pub(crate) async fn settings(&self) -> Result<Vec<String>> {
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

    /// Removes everything of the measures.
    pub(crate) async fn remove(self) -> Result<()> {
        self.clear().await
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
                &[&self.lease()],
            )
            .await
            .map_err(db)?;
        Ok(())
    }

    async fn drop_feed(&self) -> Result<()> {
        let Some(feed) = self.existing().await? else {
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
