//! Sweeping a backlog, against giving as many rows any number, in one statement and without us.

use std::time::Instant;

use changefeed::futures::future::try_join_all;
use changefeed::sqlserver::Connection;
use changefeed::{Error, FeedHandle, Kind, Result};

use super::scratch::{Scratch, series};
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;

/// Sessions that write the backlog together, so that it is mixed as real ones are.
const WRITERS: i64 = 4;
/// Changes per transaction.
const TOGETHER: i64 = 500;

/// The same indexes are kept, and the same column is written.
const BARE: &str = "update changefeed_bench.change \
     set change_sequence_number = change_id + 1000000000000000 \
     where change_sequence_number is null";

/// Opens a transaction whose snapshot is older than everything that comes now.
pub(super) const HOLD: &str = "set transaction isolation level snapshot; begin transaction; \
     select count(*) from changefeed.feed";
const RELEASE: &str = "rollback transaction; set transaction isolation level read committed";

/// Leaves the feed with everything that was swept, for the next measures.
pub(super) async fn measure(
    scratch: &Scratch,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<FeedHandle> {
    let feed = scratch.feed(2).await?;
    let mut writers = Vec::new();
    for _ in 0..WRITERS {
        writers.push(scratch.session().await?);
    }
    let mut other = scratch.session().await?;
    let versioned = allows_snapshots(&mut other).await?;
    if !versioned {
        findings.note(
            "sweep: ALLOW_SNAPSHOT_ISOLATION is off, so nobody can hold a snapshot; what sweeping \
             costs under one is not measured",
        );
    }
    let (mut ours, mut held, mut bare) = (Sample::default(), Sample::default(), Sample::default());
    let rounds = scale.rounds.min(3);
    for round in 1..=rounds {
        findings.doing(&format!(
            "sweep: a backlog of {} changes, round {round} of {rounds}",
            scale.backlog
        ));
        fill(&mut writers, "changefeed.change", &feed, scale.backlog).await?;
        ours.add(drain(scratch, scale.backlog).await?);

        scratch
            .run("truncate table changefeed_bench.change")
            .await?;
        fill(
            &mut writers,
            "changefeed_bench.change",
            &feed,
            scale.backlog,
        )
        .await?;
        let began = Instant::now();
        let numbered = other.execute(BARE, &[]).await?;
        bare.add(numbered as f64 / began.elapsed().as_secs_f64());

        if versioned {
            other.batch(HOLD).await?;
            fill(&mut writers, "changefeed.change", &feed, scale.backlog).await?;
            held.add(drain(scratch, scale.backlog).await?);
            other.batch(RELEASE).await?;
        }
    }
    let unit = "changes/s";
    let least = Some(Budget::at_least(0.45));
    findings.add(Measure::compared("sweep", unit, &ours, &bare, least));
    if versioned {
        let name = "sweep under a held snapshot, against without";
        let least = Some(Budget::at_least(0.6));
        findings.add(Measure::compared(name, unit, &held, &ours, least));
        small_sweeps(scratch, &feed, &mut other, scale, findings).await?;
    }
    Ok(feed)
}

pub(super) async fn allows_snapshots(session: &mut Connection) -> Result<bool> {
    let rows = session
        .query(
            "select convert(int, snapshot_isolation_state) from sys.databases \
             where name = db_name()",
            &[],
        )
        .await?;
    Ok(rows.first().and_then(|row| row.get::<i32, _>(0)) == Some(1))
}

/// Whether sweeping gets slower and slower while a snapshot is held.
async fn small_sweeps(
    scratch: &Scratch,
    feed: &FeedHandle,
    other: &mut Connection,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    findings.doing(&format!(
        "sweep: {} small sweeps under a held snapshot",
        scale.small_sweeps
    ));
    let insert = backlog("changefeed.change", feed, 4);
    other.batch(HOLD).await?;
    let mut rates = Vec::with_capacity(scale.small_sweeps);
    for _ in 0..scale.small_sweeps {
        scratch.run(&insert).await?;
        let began = Instant::now();
        let changes = scratch.db.sweep(scratch.group).await?.changes();
        rates.push(1.0 / began.elapsed().as_secs_f64());
        expect(4, changes)?;
    }
    other.batch(RELEASE).await?;
    let sample = scale.small_sample.min(rates.len());
    let first: Sample = rates[..sample].iter().copied().collect();
    let last: Sample = rates[rates.len() - sample..].iter().copied().collect();
    findings.add(Measure::medians(
        "small sweeps under a held snapshot, last against first",
        "sweeps/s",
        &last,
        &first,
        Some(Budget::at_least(0.6)),
    ));
    Ok(())
}

/// Inserts changes of two shards.
pub(super) fn backlog(table: &str, feed: &FeedHandle, changes: i64) -> String {
    format!(
        "insert into {table} (feed_id, shard, change_id) \
         select {}, convert(smallint, s.i % {}), next value for changefeed.change_id from {}",
        feed.definition().id,
        feed.definition().shards.len(),
        series(changes)
    )
}

async fn fill(writers: &mut [Connection], table: &str, feed: &FeedHandle, rows: i64) -> Result<()> {
    let each = rows / i64::try_from(writers.len()).unwrap_or(1);
    let insert = &backlog(table, feed, TOGETHER);
    try_join_all(writers.iter_mut().map(|writer| async move {
        for _ in 0..each / TOGETHER {
            writer.batch(insert).await?;
        }
        Ok::<_, Error>(())
    }))
    .await?;
    Ok(())
}

/// Sweeps until nothing is left; changes per second.
async fn drain(scratch: &Scratch, expected: i64) -> Result<f64> {
    let began = Instant::now();
    let changes = scratch.drain().await?;
    let took = began.elapsed().as_secs_f64();
    expect(expected, changes)?;
    Ok(changes as f64 / took)
}

/// A figure for work that was not done would be worth nothing.
fn expect(expected: i64, changes: i64) -> Result<()> {
    if changes == expected {
        return Ok(());
    }
    Err(Error::new(
        Kind::Database,
        format!("{changes} changes were swept instead of {expected}"),
    )
    .advise("another instance may sweep the scratch feed; stop it and try again"))
}
