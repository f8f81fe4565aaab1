//! ULID transactions: against a row lock that serialises the same writers, against the same
//! inserts without any order, and in bulk against random UUIDs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use changefeed::postgres::PostgresStore;
use changefeed::postgres::tokio_postgres::Statement;
use changefeed::{Result, Ulid, UlidOptions, Uuid};

use super::scratch::Scratch;
use super::session::{Session, db};
use crate::rate;
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;

/// Connections that write at the same time.
const CLIENTS: u64 = 8;
const SHARDS: u64 = 32;
/// A feed of our own.
const FEED: Uuid = Uuid::from_u128(0x5c1a_7e0b_3f5d_4f0e_9a43_6f1f_6b3f_0a11);

const TABLES: &str = "
    create table changefeed_bench.ulid_row
        (shard integer, ulid bytea, payload text, primary key (shard, ulid));
    create table changefeed_bench.bare_ulid (like changefeed_bench.ulid_row including all);
    create table changefeed_bench.uuid_row
        (shard integer, ulid uuid, payload text, primary key (shard, ulid));
    create table changefeed_bench.turn (shard integer primary key);
    insert into changefeed_bench.turn select generate_series(0, 31);";

/// What a transaction does beside its insert.
#[derive(Clone, Copy)]
enum Side {
    /// A ULID transaction.
    Ours,
    /// Waits for a row of the shard.
    RowLock,
    /// Nothing.
    Unordered,
}

struct Writer {
    store: PostgresStore,
    session: Session,
    lock: Statement,
    bare: Statement,
    counter: Arc<AtomicU64>,
}

impl Writer {
    /// One transaction in three round trips, whatever the side: begin and wait for the turn, one
    /// row, commit.
    async fn write(&self, side: Side, shards: u64) -> Result<()> {
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        let shard = i32::try_from(count.wrapping_mul(2_654_435_761) % shards).unwrap_or(0);
        if let Side::Ours = side {
            let mut transaction = self
                .store
                .begin_ulid(&UlidOptions::new(FEED, shard))
                .await?;
            let ulid = transaction.next_ulid()?.to_bytes();
            let insert = "insert into changefeed_bench.ulid_row (shard, ulid, payload) \
                          values ($1, $2, 'a row')";
            let statement = transaction.prepare_cached(insert).await.map_err(db)?;
            transaction
                .execute(&statement, &[&shard, &ulid.as_slice()])
                .await
                .map_err(db)?;
            return transaction.commit().await;
        }
        match side {
            Side::RowLock => {
                let parameters: [&(dyn changefeed::postgres::tokio_postgres::types::ToSql + Sync);
                    1] = [&shard];
                tokio::try_join!(
                    self.session.batch_execute("begin"),
                    self.session.query(&self.lock, &parameters),
                )
                .map_err(db)?;
            }
            _ => self.session.batch_execute("begin").await.map_err(db)?,
        }
        // Increasing as ours are, so that both indexes grow at their end.
        let ulid = Ulid::from_parts(1 << 63, count).to_bytes();
        self.session
            .execute(&self.bare, &[&shard, &ulid.as_slice()])
            .await
            .map_err(db)?;
        self.session.batch_execute("commit").await.map_err(db)
    }
}

pub(super) async fn measure(
    scratch: &Scratch,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<String> {
    let version = scratch.version().await?;
    scratch.admin.batch_execute(TABLES).await.map_err(db)?;
    let store = PostgresStore::connect(&scratch.target.url).await?;
    let counter = Arc::new(AtomicU64::new(0));
    let mut writers = Vec::new();
    for _ in 0..CLIENTS {
        let session = scratch.target.session().await?;
        let lock = "select shard from changefeed_bench.turn where shard = $1 for update";
        let bare = "insert into changefeed_bench.bare_ulid (shard, ulid, payload) \
                    values ($1, $2, 'a row')";
        writers.push(Arc::new(Writer {
            store: store.clone(),
            lock: session.prepare(lock).await.map_err(db)?,
            bare: session.prepare(bare).await.map_err(db)?,
            session,
            counter: counter.clone(),
        }));
    }
    for (name, other, shards, budget) in [
        (
            "one shard, 8 writers, against a row lock",
            Side::RowLock,
            1,
            0.5,
        ),
        (
            "32 shards, 8 writers, against no order",
            Side::Unordered,
            SHARDS,
            0.6,
        ),
    ] {
        findings.doing(name);
        let (mut ours, mut bare) = (Sample::default(), Sample::default());
        for turn in 0..=scale.turns {
            let sides = (
                write(&writers, Side::Ours, shards, scale.slice).await?,
                write(&writers, other, shards, scale.slice).await?,
            );
            // The first turn only warms up.
            if turn > 0 {
                ours.add(sides.0);
                bare.add(sides.1);
            }
        }
        let budget = Some(Budget::at_least(budget));
        findings.add(Measure::compared(
            name,
            "transactions/s",
            &ours,
            &bare,
            budget,
        ));
        if shards == 1 {
            let hundred: Sample = std::iter::repeat_n(100.0, scale.turns).collect();
            let name = "one shard, against the 100/s that were hoped for";
            findings.add(Measure::compared(
                name,
                "transactions/s",
                &ours,
                &hundred,
                None,
            ));
        }
    }
    bulk(scratch, scale, findings).await?;
    scratch
        .admin
        .execute(
            "delete from changefeed.shard_ulid where feed_id = $1",
            &[&FEED],
        )
        .await
        .map_err(db)?;
    scratch
        .admin
        .execute(
            "delete from changefeed.incident where feed_id = $1",
            &[&FEED],
        )
        .await
        .map_err(db)?;
    Ok(version)
}

/// Many ULIDs in one statement.
async fn bulk(scratch: &Scratch, scale: &Scale, findings: &mut Findings<'_>) -> Result<()> {
    let name = "bulk, against gen_random_uuid()";
    let rows = scale.backlog;
    let (mut ours, mut bare) = (Sample::default(), Sample::default());
    let ordered = format!("(select i from generate_series(1, {rows}) i order by i) s");
    for round in 0..=scale.rounds {
        findings.doing(name);
        let clear = "truncate changefeed_bench.ulid_row, changefeed_bench.uuid_row";
        scratch.admin.batch_execute(clear).await.map_err(db)?;
        let our_time = timed(
            &scratch.admin,
            &format!(
                "begin; select changefeed.begin_ulid_transaction('{FEED}', 0); \
                 insert into changefeed_bench.ulid_row \
                 select 0, changefeed.ulid_sequence(nextval('changefeed.sequence')), 'a row' \
                 from {ordered}; \
                 select changefeed.commit_ulid_transaction(); commit"
            ),
        )
        .await?;
        let bare_time = timed(
            &scratch.admin,
            &format!(
                "begin; insert into changefeed_bench.uuid_row \
                 select 0, gen_random_uuid(), 'a row' from {ordered}; commit"
            ),
        )
        .await?;
        if round > 0 {
            ours.add(rows as f64 / our_time.as_secs_f64());
            bare.add(rows as f64 / bare_time.as_secs_f64());
        }
    }
    let budget = Some(Budget::at_least(0.5));
    findings.add(Measure::compared(name, "rows/s", &ours, &bare, budget));
    Ok(())
}

async fn timed(session: &Session, sql: &str) -> Result<Duration> {
    let began = Instant::now();
    session.batch_execute(sql).await.map_err(db)?;
    Ok(began.elapsed())
}

/// Everybody writes for a while; transactions per second.
async fn write(writers: &[Arc<Writer>], side: Side, shards: u64, length: Duration) -> Result<f64> {
    rate::transactions(writers, length, move |writer| async move {
        writer.write(side, shards).await
    })
    .await
}
