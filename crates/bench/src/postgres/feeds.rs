//! Feeds, on PostgreSQL's own terms.

use changefeed::futures::future::try_join_all;
use changefeed::postgres::tokio_postgres::{self, Statement};
use changefeed::{Error, FeedHandle, Result};

use super::scratch::Scratch;
use super::session::{Session, db};
use crate::feeds::{self, Server, Side, Snapshots};
use crate::idle::Backends;
use crate::latency::Publish;
use crate::scratch::ScratchFeed;

/// What a row of the application holds.
const PAYLOAD: &str = "a row of an application, with about a hundred characters of text in it, \
     as such rows often have.";

const BARE_ROW: &str = "insert into changefeed_bench.bare_row (payload) values ($1)";
const ROW: &str = "with published as ( \
     insert into changefeed_bench.row (payload, change_id) \
     values ($1, nextval('changefeed.change_id')) returning change_id) \
     insert into changefeed.change (feed_id, shard, change_id) \
     select $2::smallint, $3::smallint, change_id from published";

/// Sessions that write a backlog together.
const WRITERS: i64 = 4;
/// Changes per transaction.
const TOGETHER: i64 = 500;

const BACKLOG: &str = "insert into changefeed.change (feed_id, shard, change_id) \
     select $1::smallint, (i % $2::bigint)::smallint, nextval('changefeed.change_id') \
     from generate_series(1, $3::bigint) i";
const HEAP: &str = "insert into changefeed_bench.heap (feed_id, shard, change_id, xid) \
     select $1::smallint, (i % $2::bigint)::smallint, nextval('changefeed.change_id'), \
     pg_current_xact_id() from generate_series(1, $3::bigint) i";
/// Copies without numbering, as a sweep would that need not know what is committed.
const COPY: &str = "insert into changefeed_bench.numbered \
     (feed_id, shard, change_sequence_number, change_id) \
     select feed_id, shard, change_id + 1000000000000000, change_id from changefeed_bench.heap";

const PAGE: &str = "select change_sequence_number, change_id from changefeed.numbered \
     where feed_id = $1 and shard = 0 and change_sequence_number > $2 \
     order by change_sequence_number limit $3";

impl Backends for Scratch {
    async fn backends(&self) -> Result<Option<Vec<String>>> {
        self.server_processes(&self.target.application_name).await
    }
}

impl Snapshots for Scratch {
    type Snapshot = Session;

    async fn hold_snapshot(&self) -> Result<Option<Session>> {
        let session = self.target.session().await?;
        session
            .batch_execute(
                "begin isolation level repeatable read; select count(*) from changefeed.feed",
            )
            .await
            .map_err(db)?;
        Ok(Some(session))
    }
}

impl Server for Scratch {
    type Writer = Writer;
    type Trickle = Trickle;
    type Reader = Reader;

    fn scratch(&self) -> &ScratchFeed {
        &self.feed
    }

    async fn new_feed(&self, shards: i16) -> Result<FeedHandle> {
        self.drop_feed().await?;
        self.feed.create(shards).await
    }

    async fn writer(&self, feed: &FeedHandle, shard: i16) -> Result<Writer> {
        let session = self.target.session().await?;
        Ok(Writer {
            bare: session.prepare(BARE_ROW).await.map_err(db)?,
            ours: session.prepare(ROW).await.map_err(db)?,
            session,
            feed_id: feed.definition().id.0,
            shard,
        })
    }

    async fn trickle(&self, feed: &FeedHandle) -> Result<Trickle> {
        let session = self.target.session().await?;
        let insert = "insert into changefeed.change (feed_id, shard, change_id) values ($1, 0, $2)";
        Ok(Trickle {
            statement: session.prepare(insert).await.map_err(db)?,
            session,
            feed_id: feed.definition().id.0,
        })
    }

    async fn reader(&self) -> Result<Reader> {
        let session = self.target.session().await?;
        Ok(Reader {
            statement: session.prepare(PAGE).await.map_err(db)?,
            session,
        })
    }

    async fn next_change_id(&self) -> Result<i64> {
        let drawn = "select nextval('changefeed.change_id')";
        let row = self.admin.query_one(drawn, &[]).await.map_err(db)?;
        Ok(row.get(0))
    }

    async fn add(&self, feed: &FeedHandle, changes: i64) -> Result<()> {
        let statement = self.admin.prepare(BACKLOG).await.map_err(db)?;
        write(&self.admin, &statement, feed, changes).await
    }

    async fn fill(&self, side: Side, feed: &FeedHandle, changes: i64) -> Result<()> {
        let insert = match side {
            Side::Ours => BACKLOG,
            Side::Bare => {
                self.run("truncate changefeed_bench.heap").await?;
                HEAP
            }
        };
        try_join_all((0..WRITERS).map(|_| async {
            let session = self.target.session().await?;
            let statement = session.prepare(insert).await.map_err(db)?;
            for _ in 0..changes / WRITERS / TOGETHER {
                write(&session, &statement, feed, TOGETHER).await?;
            }
            Ok::<_, Error>(())
        }))
        .await?;
        Ok(())
    }

    async fn number_bare(&self) -> Result<u64> {
        self.admin.execute(COPY, &[]).await.map_err(db)
    }

    /// As if they had been swept.
    async fn extend(&self, feed: &FeedHandle, from: i64, to: i64) -> Result<()> {
        let (feed, changes) = (feed.definition().id, to - from);
        self.run(&format!(
            "begin; \
             insert into changefeed.numbered \
               (feed_id, shard, change_sequence_number, change_id) \
             select {feed}, 0, s.last_change_sequence_number + i, i \
             from changefeed.shard s, generate_series(1, {changes}::bigint) i \
             where s.feed_id = {feed} and s.shard = 0; \
             insert into changefeed.progress \
               (feed_id, shard, last_change_sequence_number, sweep_id, snapshot) \
             select p.feed_id, p.shard, p.last_change_sequence_number + {changes}, \
                    p.sweep_id + 1, p.snapshot \
             from changefeed.progress p where p.feed_id = {feed} and p.shard = 0 \
             order by p.last_change_sequence_number desc, p.sweep_id desc limit 1; \
             commit"
        ))
        .await?;
        Server::tidy(self).await?;
        self.write_to_disk().await;
        Ok(())
    }

    /// As autovacuum would do soon: otherwise whoever reads first pays for marking the rows.
    async fn tidy(&self) -> Result<()> {
        self.run("vacuum analyze changefeed.numbered, changefeed.progress")
            .await
    }
}

async fn write(
    session: &Session,
    insert: &Statement,
    feed: &FeedHandle,
    changes: i64,
) -> Result<()> {
    let feed = feed.definition();
    session
        .execute(insert, &[&feed.id.0, &(feed.shards.len() as i64), &changes])
        .await
        .map_err(db)?;
    Ok(())
}

/// One that writes rows, with their changes or without.
pub(crate) struct Writer {
    session: Session,
    bare: Statement,
    ours: Statement,
    feed_id: i16,
    shard: i16,
}

impl feeds::Writer for Writer {
    async fn write(&self, side: Side) -> Result<()> {
        match side {
            Side::Bare => self.session.execute(&self.bare, &[&PAYLOAD]).await,
            Side::Ours => {
                let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
                    [&PAYLOAD, &self.feed_id, &self.shard];
                self.session.execute(&self.ours, &parameters).await
            }
        }
        .map_err(db)?;
        Ok(())
    }
}

/// A writer of single changes.
pub(crate) struct Trickle {
    session: Session,
    statement: Statement,
    feed_id: i16,
}

impl Publish for Trickle {
    async fn publish(&mut self, change_id: i64) -> Result<()> {
        self.session
            .execute(&self.statement, &[&self.feed_id, &change_id])
            .await
            .map_err(db)?;
        Ok(())
    }
}

/// One that reads by the bare select.
pub(crate) struct Reader {
    session: Session,
    statement: Statement,
}

impl feeds::Reader for Reader {
    async fn page(
        &mut self,
        feed: &FeedHandle,
        after: i64,
        limit: usize,
    ) -> Result<Vec<(i64, i64)>> {
        let rows = self
            .session
            .query(
                &self.statement,
                &[&feed.definition().id.0, &after, &(limit as i64)],
            )
            .await
            .map_err(db)?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }
}
