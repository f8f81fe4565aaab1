//! Sweeping a backlog, against giving as many rows any number, in one statement and without us.

use std::time::Instant;

use changefeed::{Error, FeedHandle, Kind, Result};

use super::{Server, Side};
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;
use crate::scratch::ScratchFeed;

/// Leaves the feed with everything that was swept, for the next measures.
pub(super) async fn measure(
    server: &impl Server,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<FeedHandle> {
    let scratch = server.scratch();
    let feed = server.new_feed(2).await?;
    let (mut ours, mut held, mut bare) = (Sample::default(), Sample::default(), Sample::default());
    let rounds = scale.rounds.min(3);
    for round in 1..=rounds {
        findings.doing(&format!(
            "sweep: a backlog of {} changes, round {round} of {rounds}",
            scale.backlog
        ));
        server.fill(Side::Ours, &feed, scale.backlog).await?;
        ours.add(drain(scratch, scale.backlog).await?);

        server.fill(Side::Bare, &feed, scale.backlog).await?;
        let began = Instant::now();
        let numbered = server.number_bare().await?;
        bare.add(numbered as f64 / began.elapsed().as_secs_f64());

        if let Some(snapshot) = server.hold_snapshot().await? {
            server.fill(Side::Ours, &feed, scale.backlog).await?;
            held.add(drain(scratch, scale.backlog).await?);
            drop(snapshot);
        }
    }
    let unit = "changes/s";
    let least = Some(Budget::at_least(0.45));
    findings.add(Measure::compared("sweep", unit, &ours, &bare, least));
    match server.hold_snapshot().await? {
        Some(snapshot) => {
            let name = "sweep under a held snapshot, against without";
            let least = Some(Budget::at_least(0.6));
            findings.add(Measure::compared(name, unit, &held, &ours, least));
            small_sweeps(server, &feed, scale, findings).await?;
            drop(snapshot);
        }
        None => findings.note(
            "sweep: nobody can hold a snapshot in this database; what sweeping costs under one is \
             not measured",
        ),
    }
    Ok(feed)
}

/// Whether sweeping gets slower and slower while a snapshot is held.
async fn small_sweeps(
    server: &impl Server,
    feed: &FeedHandle,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let scratch = server.scratch();
    findings.doing(&format!(
        "sweep: {} small sweeps under a held snapshot",
        scale.small_sweeps
    ));
    let mut rates = Vec::with_capacity(scale.small_sweeps);
    for _ in 0..scale.small_sweeps {
        server.add(feed, 4).await?;
        let began = Instant::now();
        let changes = scratch.db.sweep(scratch.group).await?.changes();
        rates.push(1.0 / began.elapsed().as_secs_f64());
        expect(4, changes)?;
    }
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

/// Sweeps until nothing is left; changes per second.
async fn drain(scratch: &ScratchFeed, expected: i64) -> Result<f64> {
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
