//! ULID transactions on a server: against a row lock that serialises the same writers, against the
//! same inserts without any order, and in bulk against random UUIDs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use changefeed::{Result, Ulid, Uuid};

use crate::rate;
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;

/// Connections that write at the same time.
const CLIENTS: u64 = 8;
pub(crate) const SHARDS: u64 = 32;
/// A feed of our own.
pub(crate) const FEED: Uuid = Uuid::from_u128(0x5c1a_7e0b_3f5d_4f0e_9a43_6f1f_6b3f_0a11);

/// What a transaction does beside its insert.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    /// A ULID transaction.
    Ours,
    /// Waits for a row of the shard.
    RowLock,
    /// Nothing.
    Unordered,
}

/// One of many who write rows with ULIDs.
pub(crate) trait Client: Send + Sync + 'static {
    /// One transaction in three round trips, whatever the side: begin and wait for the turn, one
    /// row, commit. The ULID is for the sides that have none of their own.
    fn write(&self, side: Side, shard: i32, ulid: Ulid) -> impl Future<Output = Result<()>> + Send;
}

/// A server with tables for rows with ULIDs, with UUIDs, and for turns.
pub(crate) trait Server {
    type Client: Client;
    /// What many ULIDs in one statement are compared with.
    const BULK: &'static str;

    /// A new connection.
    fn client(&self) -> impl Future<Output = Result<Self::Client>>;

    /// Makes the tables.
    fn prepare_ulids(&self) -> impl Future<Output = Result<()>>;

    /// Empties the tables of rows.
    fn clear_rows(&self) -> impl Future<Output = Result<()>>;

    /// Many rows with ULIDs, in one statement.
    fn bulk(&self, rows: i64) -> impl Future<Output = Result<()>>;

    /// The same with random UUIDs.
    fn bulk_random(&self, rows: i64) -> impl Future<Output = Result<()>>;

    /// Removes what is left of the feed.
    fn forget_ulids(&self) -> impl Future<Output = Result<()>>;
}

struct Writer<C> {
    client: C,
    counter: Arc<AtomicU64>,
}

impl<C: Client> Writer<C> {
    async fn write(&self, side: Side, shards: u64) -> Result<()> {
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        let shard = i32::try_from(count.wrapping_mul(2_654_435_761) % shards).unwrap_or(0);
        // Increasing as ours are, so that both indexes grow at their end.
        let ulid = Ulid::from_parts(1 << 63, count);
        self.client.write(side, shard, ulid).await
    }
}

pub(crate) async fn measure(
    server: &impl Server,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    server.prepare_ulids().await?;
    let measured = async {
        turns(server, scale, findings).await?;
        bulk(server, scale, findings).await
    }
    .await;
    server.forget_ulids().await?;
    measured
}

/// Single rows, by writers who wait for each other or do not.
async fn turns(server: &impl Server, scale: &Scale, findings: &mut Findings<'_>) -> Result<()> {
    let unit = "transactions/s";
    let counter = Arc::new(AtomicU64::new(0));
    let mut writers = Vec::new();
    for _ in 0..CLIENTS {
        writers.push(Arc::new(Writer {
            client: server.client().await?,
            counter: counter.clone(),
        }));
    }
    for (name, other, shards, least) in [
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
        let least = Some(Budget::at_least(least));
        findings.add(Measure::compared(name, unit, &ours, &bare, least));
        if shards == 1 {
            let hundred: Sample = std::iter::repeat_n(100.0, scale.turns).collect();
            let name = "one shard, against the 100/s that were hoped for";
            findings.add(Measure::compared(name, unit, &ours, &hundred, None));
        }
    }
    Ok(())
}

/// Many ULIDs in one statement.
async fn bulk<S: Server>(server: &S, scale: &Scale, findings: &mut Findings<'_>) -> Result<()> {
    let rows = scale.backlog;
    let (mut ours, mut bare) = (Sample::default(), Sample::default());
    for round in 0..=scale.rounds {
        findings.doing(S::BULK);
        server.clear_rows().await?;
        let began = Instant::now();
        server.bulk(rows).await?;
        let our_time = began.elapsed();
        let began = Instant::now();
        server.bulk_random(rows).await?;
        let bare_time = began.elapsed();
        if round > 0 {
            ours.add(rows as f64 / our_time.as_secs_f64());
            bare.add(rows as f64 / bare_time.as_secs_f64());
        }
    }
    let least = Some(Budget::at_least(0.5));
    findings.add(Measure::compared(S::BULK, "rows/s", &ours, &bare, least));
    Ok(())
}

/// Everybody writes for a while; transactions per second.
async fn write<C: Client>(
    writers: &[Arc<Writer<C>>],
    side: Side,
    shards: u64,
    length: Duration,
) -> Result<f64> {
    rate::transactions(writers, length, move |writer| async move {
        writer.write(side, shards).await
    })
    .await
}
