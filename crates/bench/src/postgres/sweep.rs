//! Sweeping a backlog, against copying as many rows without numbering them.

use std::time::Instant;

use changefeed::futures::future::try_join_all;
use changefeed::{Error, FeedHandle, Kind, Result};

use super::scratch::Scratch;
use super::session::{Session, db};
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;

/// Sessions that write the backlog together, so that it is mixed as real ones are.
const WRITERS: i64 = 4;
/// Changes per transaction.
const TOGETHER: i64 = 500;

const BACKLOG: &str = "insert into changefeed.change (feed_id, shard, change_id) \
     select $1::smallint, (i % 2)::smallint, nextval('changefeed.change_id') \
     from generate_series(1, $2::bigint) i";
const HEAP: &str = "insert into changefeed_bench.heap (feed_id, shard, change_id, xid) \
     select $1::smallint, (i % 2)::smallint, nextval('changefeed.change_id'), \
     pg_current_xact_id() from generate_series(1, $2::bigint) i";
const COPY: &str = "insert into changefeed_bench.numbered \
     (feed_id, shard, change_sequence_number, change_id) \
     select feed_id, shard, change_id + 1000000000000000, change_id from changefeed_bench.heap";

/// Leaves the feed with everything that was swept, for the next measures.
pub(super) async fn measure(
    scratch: &Scratch,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<FeedHandle> {
    let feed = scratch.feed(2).await?;
    let mut writers = Vec::new();
    for _ in 0..WRITERS {
        writers.push(scratch.target.session().await?);
    }
    let other = scratch.target.session().await?;
    let (mut ours, mut held, mut bare) = (Sample::default(), Sample::default(), Sample::default());
    let rounds = scale.rounds.min(3);
    for round in 1..=rounds {
        findings.doing(&format!(
            "sweep: a backlog of {} changes, round {round} of {rounds}",
            scale.backlog
        ));
        fill(&writers, BACKLOG, &feed, scale.backlog).await?;
        ours.add(drain(scratch, scale.backlog).await?);

        scratch.run("truncate changefeed_bench.heap").await?;
        fill(&writers, HEAP, &feed, scale.backlog).await?;
        let began = Instant::now();
        let copied = scratch.admin.execute(COPY, &[]).await.map_err(db)?;
        bare.add(copied as f64 / began.elapsed().as_secs_f64());

        hold_snapshot(&other).await?;
        fill(&writers, BACKLOG, &feed, scale.backlog).await?;
        held.add(drain(scratch, scale.backlog).await?);
        other.batch_execute("rollback").await.map_err(db)?;
    }
    let unit = "changes/s";
    let least = Some(Budget::at_least(0.45));
    findings.add(Measure::compared("sweep", unit, &ours, &bare, least));
    let name = "sweep under a held snapshot, against without";
    let least = Some(Budget::at_least(0.6));
    findings.add(Measure::compared(name, unit, &held, &ours, least));
    small_sweeps(scratch, &feed, &other, scale, findings).await?;
    Ok(feed)
}

/// Whether sweeping gets slower and slower while a snapshot is held.
async fn small_sweeps(
    scratch: &Scratch,
    feed: &FeedHandle,
    other: &Session,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    findings.doing(&format!(
        "sweep: {} small sweeps under a held snapshot",
        scale.small_sweeps
    ));
    let insert = scratch.admin.prepare(BACKLOG).await.map_err(db)?;
    hold_snapshot(other).await?;
    let mut rates = Vec::with_capacity(scale.small_sweeps);
    for _ in 0..scale.small_sweeps {
        scratch
            .admin
            .execute(&insert, &[&feed.definition().id.0, &4_i64])
            .await
            .map_err(db)?;
        let began = Instant::now();
        let changes = scratch.db.sweep(scratch.group).await?.changes();
        rates.push(1.0 / began.elapsed().as_secs_f64());
        expect(4, changes)?;
    }
    other.batch_execute("rollback").await.map_err(db)?;
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

/// Opens a transaction whose snapshot is older than everything that comes now.
async fn hold_snapshot(session: &Session) -> Result<()> {
    session
        .batch_execute(
            "begin isolation level repeatable read; select count(*) from changefeed.feed",
        )
        .await
        .map_err(db)
}

async fn fill(writers: &[Session], statement: &str, feed: &FeedHandle, rows: i64) -> Result<()> {
    let each = rows / i64::try_from(writers.len()).unwrap_or(1);
    try_join_all(writers.iter().map(|writer| async move {
        let statement = writer.prepare(statement).await.map_err(db)?;
        for _ in 0..each / TOGETHER {
            writer
                .execute(&statement, &[&feed.definition().id.0, &TOGETHER])
                .await
                .map_err(db)?;
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
