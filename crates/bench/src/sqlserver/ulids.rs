//! ULID transactions: against a row lock that serialises the same writers, against the same
//! inserts without any order, and in bulk against random UUIDs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use changefeed::sqlserver::{Connection, SqlServerStore};
use changefeed::{Result, Ulid, UlidOptions, Uuid};
use tokio::sync::Mutex;

use super::scratch::{Scratch, series};
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
create table changefeed_bench.ulid_row (shard int not null, ulid binary(16) not null,
    payload nvarchar(400) not null, primary key (shard, ulid));
create table changefeed_bench.bare_ulid (shard int not null, ulid binary(16) not null,
    payload nvarchar(400) not null, primary key (shard, ulid));
create table changefeed_bench.uuid_row (shard int not null, ulid uniqueidentifier not null,
    payload nvarchar(400) not null, primary key (shard, ulid));
create table changefeed_bench.turn (shard int not null primary key, turns bigint not null);";

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
    store: SqlServerStore,
    session: Mutex<Connection>,
    counter: Arc<AtomicU64>,
}

impl Writer {
    /// One transaction in three round trips, whatever the side: begin and wait for the turn, one
    /// row, commit.
    async fn write(&self, side: Side, shards: u64) -> Result<()> {
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        let shard = i32::try_from(count.wrapping_mul(2_654_435_761) % shards).unwrap_or(0);
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
        // Increasing as ours are, so that both indexes grow at their end.
        let ulid = Ulid::from_parts(1 << 63, count);
        session
            .batch(&insert("bare_ulid", shard, &ulid.to_bytes()))
            .await?;
        session.batch("commit transaction").await
    }

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

fn insert(table: &str, shard: i32, ulid: &[u8]) -> String {
    let hex: String = ulid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "insert into changefeed_bench.{table} (shard, ulid, payload) \
         values ({shard}, 0x{hex}, N'a row')"
    )
}

pub(super) async fn measure(
    scratch: &Scratch,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<String> {
    let version = scratch.version().await?;
    for note in scratch.caveats() {
        findings.note(note);
    }
    scratch.run(TABLES).await?;
    scratch
        .run(&format!(
            "insert into changefeed_bench.turn (shard, turns) select s.i - 1, 0 from {}",
            series(i64::try_from(SHARDS).unwrap_or(1))
        ))
        .await?;
    let measured = measures(scratch, scale, findings).await;
    scratch
        .run(&format!(
            "delete from changefeed.shard_ulid where feed_id = '{FEED}'; \
             delete from changefeed.incident where feed_id = '{FEED}'"
        ))
        .await?;
    measured.map(|()| version)
}

async fn measures(scratch: &Scratch, scale: &Scale, findings: &mut Findings<'_>) -> Result<()> {
    let counter = Arc::new(AtomicU64::new(0));
    let mut writers = Vec::new();
    for _ in 0..CLIENTS {
        writers.push(Arc::new(Writer {
            store: scratch.store.clone(),
            session: Mutex::new(scratch.session().await?),
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
    bulk(scratch, scale, findings).await
}

/// Many ULIDs in one statement.
async fn bulk(scratch: &Scratch, scale: &Scale, findings: &mut Findings<'_>) -> Result<()> {
    let name = "bulk, against newid()";
    let rows = scale.backlog;
    let (mut ours, mut bare) = (Sample::default(), Sample::default());
    let numbers = series(rows);
    for round in 0..=scale.rounds {
        findings.doing(name);
        scratch
            .run(
                "truncate table changefeed_bench.ulid_row; \
                 truncate table changefeed_bench.uuid_row",
            )
            .await?;
        let our_time = timed(
            scratch,
            &format!(
                "begin transaction; \
                 exec changefeed.begin_ulid_transaction @feed_id = '{FEED}', @shard_id = 0; \
                 insert into changefeed_bench.ulid_row (shard, ulid, payload) \
                 select 0, changefeed.ulid_sequence(next value for changefeed.sequence), N'a row' \
                 from {numbers}; \
                 exec changefeed.commit_ulid_transaction; commit transaction"
            ),
        )
        .await?;
        let bare_time = timed(
            scratch,
            &format!(
                "begin transaction; \
                 insert into changefeed_bench.uuid_row (shard, ulid, payload) \
                 select 0, newid(), N'a row' from {numbers}; \
                 commit transaction"
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

async fn timed(scratch: &Scratch, batch: &str) -> Result<Duration> {
    let began = Instant::now();
    scratch.run(batch).await?;
    Ok(began.elapsed())
}

/// Everybody writes for a while; transactions per second.
async fn write(writers: &[Arc<Writer>], side: Side, shards: u64, length: Duration) -> Result<f64> {
    rate::transactions(writers, length, move |writer| async move {
        writer.write(side, shards).await
    })
    .await
}
