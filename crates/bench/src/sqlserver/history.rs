//! Whether a long history makes sweeps and pages slower.

use std::time::Instant;

use changefeed::{After, Cursor, DEFAULT_START, FeedHandle, Result, ShardId};

use super::read::PAGE;
use super::scratch::{Scratch, series};
use super::sweep::backlog;
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;

/// Changes that a sweep finds.
const SWEPT: i64 = 1000;
/// Rows of one statement that fills the table.
const TOGETHER: i64 = 50_000;

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
    // Numbers up to the start of a shard may be given by hand.
    scratch
        .run(&format!(
            "update changefeed.shard set last_change_sequence_number = {} where feed_id = {}",
            DEFAULT_START + scale.long_history,
            feed.definition().id
        ))
        .await?;
    extend(scratch, &feed, 0, scale.short_history).await?;
    let short = look(scratch, &feed, scale.short_history, scale).await?;
    findings.doing(&format!(
        "history: {} changes (filling takes a while)",
        scale.long_history
    ));
    extend(scratch, &feed, scale.short_history, scale.long_history).await?;
    let long = look(scratch, &feed, scale.long_history, scale).await?;
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

/// Adds numbered changes, as old data that came before the feed.
async fn extend(scratch: &Scratch, feed: &FeedHandle, from: i64, to: i64) -> Result<()> {
    let feed = feed.definition().id;
    let rows = series(TOGETHER);
    for done in (from..to).step_by(usize::try_from(TOGETHER).unwrap_or(1)) {
        scratch
            .run(&format!(
                "insert into changefeed.change \
                     (feed_id, shard, change_id, change_sequence_number) \
                 select {feed}, 0, {done} + s.i, {DEFAULT_START} + {done} + s.i from {rows} \
                 where {done} + s.i <= {to}"
            ))
            .await?;
    }
    scratch.update_statistics("changefeed.change").await
}

/// `history` changes have numbers from the default start on.
async fn look(scratch: &Scratch, feed: &FeedHandle, history: i64, scale: &Scale) -> Result<Costs> {
    let insert = backlog("changefeed.change", feed, SWEPT);
    let mut costs = Costs {
        sweep: Sample::default(),
        page: Sample::default(),
    };
    // Both see the same part of the table first: once to warm up, then to count.
    for turn in 0..=scale.looks {
        scratch.run(&insert).await?;
        let began = Instant::now();
        scratch.db.sweep(scratch.group).await?;
        let sweep = began.elapsed();
        // From anywhere in the history, spread evenly by steps that share no factor with it.
        let span = (history - PAGE as i64).max(1);
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
