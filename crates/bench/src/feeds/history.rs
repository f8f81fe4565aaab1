//! Whether a long history makes sweeps and pages slower.

use std::time::Instant;

use changefeed::{After, Cursor, DEFAULT_START, FeedHandle, Result, ShardId};

use super::Server;
use crate::http::PAGE;
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;

/// Changes that a sweep finds.
const SWEPT: i64 = 1000;

/// What a sweep and a page cost, in milliseconds.
#[derive(Default)]
struct Costs {
    sweep: Sample,
    page: Sample,
}

pub(super) async fn measure(
    server: &impl Server,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let feed = server.new_feed(1).await?;
    findings.doing(&format!("history: {} changes", scale.short_history));
    server.extend(&feed, 0, scale.short_history).await?;
    let short = look(server, &feed, scale.short_history, scale).await?;
    findings.doing(&format!(
        "history: {} changes (filling takes a while)",
        scale.long_history
    ));
    server
        .extend(&feed, scale.short_history, scale.long_history)
        .await?;
    let long = look(server, &feed, scale.long_history, scale).await?;
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

/// `history` changes have numbers from the default start on.
async fn look(
    server: &impl Server,
    feed: &FeedHandle,
    history: i64,
    scale: &Scale,
) -> Result<Costs> {
    let scratch = server.scratch();
    let mut costs = Costs::default();
    // Both see the same part of the table first: once to warm up, then to count.
    for turn in 0..=scale.looks {
        server.add(feed, SWEPT).await?;
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
