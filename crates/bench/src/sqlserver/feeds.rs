//! Feeds, on SQL Server's own terms.

use changefeed::futures::future::try_join_all;
use changefeed::sqlserver::Connection;
use changefeed::{DEFAULT_START, Error, FeedHandle, Kind, Result};
use tokio::sync::Mutex;

use super::scratch::{Scratch, series};
use crate::feeds::{self, Server, Side, Snapshots};
use crate::latency::Publish;
use crate::scratch::ScratchFeed;

const BARE_ROW: &str = "insert into changefeed_bench.bare_row (payload) values \
     (N'a row of an application, with about a hundred characters of text in it, as such rows often \
     have.')";

/// Sessions that write a backlog together.
const WRITERS: i64 = 4;
/// Changes per transaction.
const TOGETHER: i64 = 500;
/// Rows of one statement that makes a history.
const HISTORY: i64 = 50_000;
/// What is swept gets numbers above any history.
const LONGEST: i64 = 1_000_000_000;

/// The same indexes are kept, and the same column is written.
const NUMBER_BARE: &str = "update changefeed_bench.change \
     set change_sequence_number = change_id + 1000000000000000 \
     where change_sequence_number is null";

const PAGE: &str = "select top (@P4) change_sequence_number, change_id from changefeed.change \
     where feed_id = @P1 and shard = @P2 and change_sequence_number > @P3 \
     order by change_sequence_number";

impl Snapshots for Scratch {
    type Snapshot = Connection;

    async fn hold_snapshot(&self) -> Result<Option<Connection>> {
        let mut session = self.session().await?;
        let allowed = session
            .query(
                "select convert(int, snapshot_isolation_state) from sys.databases \
                 where name = db_name()",
                &[],
            )
            .await?;
        if allowed.first().and_then(|row| row.get::<i32, _>(0)) != Some(1) {
            return Ok(None);
        }
        session
            .batch(
                "set transaction isolation level snapshot; begin transaction; \
                 select count(*) from changefeed.feed",
            )
            .await?;
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
        Ok(Writer {
            session: Mutex::new(self.session().await?),
            // As docs/sqlserver.md has it.
            ours: format!(
                "begin transaction; \
                 declare @change_id bigint = next value for changefeed.change_id; \
                 insert into changefeed_bench.row (change_id, payload) values \
                 (@change_id, N'a row of an application, with about a hundred characters of text \
                  in it, as such rows often have.'); \
                 insert into changefeed.change (feed_id, shard, change_id) \
                 values ({}, {shard}, @change_id); \
                 commit transaction",
                feed.definition().id
            ),
        })
    }

    async fn trickle(&self, feed: &FeedHandle) -> Result<Trickle> {
        Ok(Trickle {
            session: self.session().await?,
            feed_id: feed.definition().id.0,
        })
    }

    async fn reader(&self) -> Result<Reader> {
        Ok(Reader(self.session().await?))
    }

    async fn next_change_id(&self) -> Result<i64> {
        let mut admin = self.admin.lock().await;
        let rows = admin
            .query("select next value for changefeed.change_id", &[])
            .await?;
        let drawn = rows.first().and_then(|row| row.get(0));
        drawn.ok_or_else(|| Error::new(Kind::Database, "the sequence gave no value"))
    }

    async fn add(&self, feed: &FeedHandle, changes: i64) -> Result<()> {
        self.run(&backlog("changefeed.change", feed, changes)).await
    }

    async fn fill(&self, side: Side, feed: &FeedHandle, changes: i64) -> Result<()> {
        let table = match side {
            Side::Ours => "changefeed.change",
            Side::Bare => {
                self.run("truncate table changefeed_bench.change").await?;
                "changefeed_bench.change"
            }
        };
        let insert = &backlog(table, feed, TOGETHER);
        try_join_all((0..WRITERS).map(|_| async move {
            let mut session = self.session().await?;
            for _ in 0..changes / WRITERS / TOGETHER {
                session.batch(insert).await?;
            }
            Ok::<_, Error>(())
        }))
        .await?;
        Ok(())
    }

    async fn number_bare(&self) -> Result<u64> {
        self.admin.lock().await.execute(NUMBER_BARE, &[]).await
    }

    /// As old data that came before the feed: numbers up to the start of a shard may be given by
    /// hand.
    async fn extend(&self, feed: &FeedHandle, from: i64, to: i64) -> Result<()> {
        let feed = feed.definition().id;
        if from == 0 {
            self.run(&format!(
                "update changefeed.shard set last_change_sequence_number = {} \
                 where feed_id = {feed}",
                DEFAULT_START + LONGEST
            ))
            .await?;
        }
        let rows = series(HISTORY);
        for done in (from..to).step_by(usize::try_from(HISTORY).unwrap_or(1)) {
            self.run(&format!(
                "insert into changefeed.change (feed_id, shard, change_id, change_sequence_number) \
                 select {feed}, 0, {done} + s.i, {DEFAULT_START} + {done} + s.i from {rows} \
                 where {done} + s.i <= {to}"
            ))
            .await?;
        }
        Server::tidy(self).await
    }

    async fn tidy(&self) -> Result<()> {
        self.update_statistics("changefeed.change").await
    }
}

/// Inserts changes over all shards.
fn backlog(table: &str, feed: &FeedHandle, changes: i64) -> String {
    format!(
        "insert into {table} (feed_id, shard, change_id) \
         select {}, convert(smallint, s.i % {}), next value for changefeed.change_id from {}",
        feed.definition().id,
        feed.definition().shards.len(),
        series(changes)
    )
}

/// One that writes rows, with their changes or without, one batch on either side.
pub(crate) struct Writer {
    session: Mutex<Connection>,
    ours: String,
}

impl feeds::Writer for Writer {
    async fn write(&self, side: Side) -> Result<()> {
        let sql = match side {
            Side::Bare => BARE_ROW,
            Side::Ours => &self.ours,
        };
        self.session.lock().await.batch(sql).await
    }
}

/// A writer of single changes.
pub(crate) struct Trickle {
    session: Connection,
    feed_id: i16,
}

impl Publish for Trickle {
    async fn publish(&mut self, change_id: i64) -> Result<()> {
        let feed_id = self.feed_id;
        self.session
            .batch(&format!(
                "insert into changefeed.change (feed_id, shard, change_id) \
                 values ({feed_id}, 0, {change_id})"
            ))
            .await
    }
}

/// One that reads by the bare select.
pub(crate) struct Reader(Connection);

impl feeds::Reader for Reader {
    async fn page(
        &mut self,
        feed: &FeedHandle,
        after: i64,
        limit: usize,
    ) -> Result<Vec<(i64, i64)>> {
        let limit = limit as i64;
        let rows = self
            .0
            .query(PAGE, &[&feed.definition().id.0, &0_i16, &after, &limit])
            .await?;
        Ok(rows
            .iter()
            .filter_map(|row| row.get(0).zip(row.get(1)))
            .collect())
    }
}
