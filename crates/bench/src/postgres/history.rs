//! Whether a long history makes sweeps and pages slower.

use std::time::Instant;

use changefeed::{After, Cursor, DEFAULT_START, FeedHandle, Result, ShardId};

use super::read::PAGE;
use super::scratch::Scratch;
use super::session::db;
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;

/// Changes that a sweep finds.
const SWEPT: i64 = 1000;

/// What a sweep and a page cost, in milliseconds.
struct Costs {
    sweep: Sample,
    page: Sample,
}

pub(super) async fn measure(
    scratch: &Scratch,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let feed = scratch.feed(1).await?;
    findings.doing(&format!("history: {} changes", scale.short_history));
    extend(scratch, &feed, scale.short_history).await?;
    let short = look(scratch, &feed, scale).await?;
    findings.doing(&format!(
        "history: {} changes (filling takes a while)",
        scale.long_history
    ));
    extend(scratch, &feed, scale.long_history - scale.short_history).await?;
    let long = look(scratch, &feed, scale).await?;
    let (sweep, page) = if scale.long_history >= 10_000_000 {
        (
            "sweep of 1,000 with 10 million numbered, against 100,000",
            "page of 1,000 with 10 million numbered, against 100,000",
        )
    } else {
        (
            "sweep of 1,000 with 1 million numbered, against 100,000",
            "page of 1,000 with 1 million numbered, against 100,000",
        )
    };
    let most = Some(Budget::at_most(1.5));
    findings.add(Measure::medians(
        sweep,
        "ms",
        &long.sweep,
        &short.sweep,
        most,
    ));
    findings.add(Measure::medians(page, "ms", &long.page, &short.page, most));
    Ok(())
}

/// Adds numbered changes as if they had been swept.
async fn extend(scratch: &Scratch, feed: &FeedHandle, changes: i64) -> Result<()> {
    let feed = feed.definition().id;
    scratch
        .run(&format!(
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
    // As autovacuum would do soon: otherwise whoever reads first pays for marking the rows.
    scratch.run("vacuum analyze changefeed.numbered").await?;
    // What was filled in goes to the disk before the clock starts. Not every user may ask for
    // that; then the first commits are a little slower.
    if let Err(error) = scratch.run("checkpoint").await {
        tracing::debug!(%error, "no checkpoint before the measure");
    }
    Ok(())
}

async fn look(scratch: &Scratch, feed: &FeedHandle, scale: &Scale) -> Result<Costs> {
    let insert = scratch
        .admin
        .prepare(
            "insert into changefeed.change (feed_id, shard, change_id) \
             select $1::smallint, 0, nextval('changefeed.change_id') \
             from generate_series(1, $2::bigint)",
        )
        .await
        .map_err(db)?;
    let mut costs = Costs {
        sweep: Sample::default(),
        page: Sample::default(),
    };
    // Both see the same part of the table first: once to warm up, then to count.
    for turn in 0..=scale.looks {
        scratch
            .admin
            .execute(&insert, &[&feed.definition().id.0, &SWEPT])
            .await
            .map_err(db)?;
        let began = Instant::now();
        scratch.db.sweep(scratch.group).await?;
        let sweep = began.elapsed();
        let last = feed.shard_states().await?;
        let last = last.first().and_then(|s| s.last.number()).unwrap_or(0);
        // From anywhere in the history, spread evenly by steps that share no factor with it.
        let span = (last - DEFAULT_START - PAGE as i64).max(1);
        let place = (turn as i64).wrapping_mul(7_368_787) % span;
        let after = After::Cursor(Cursor::Number(DEFAULT_START + place));
        let began = Instant::now();
        feed.read(ShardId(0), after, PAGE).await?;
        let page = began.elapsed();
        if turn > 0 {
            costs.sweep.add_millis(sweep);
            costs.page.add_millis(page);
        }
    }
    Ok(costs)
}
