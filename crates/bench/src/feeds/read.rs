//! Reading pages, against the bare select through the same driver.

use std::time::Instant;

use changefeed::{After, Cursor, DEFAULT_START, FeedHandle, Result, ShardId};

use super::{Reader, Server};
use crate::http::PAGE;
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;

pub(super) async fn measure(
    server: &impl Server,
    feed: &FeedHandle,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    server.tidy().await?;
    let mut reader = server.reader().await?;
    let (mut ours, mut bare) = (Sample::default(), Sample::default());
    for round in 0..=scale.rounds {
        findings.doing(&format!(
            "read: pages of {PAGE}, round {} of {}",
            round.max(1),
            scale.rounds
        ));
        let began = Instant::now();
        let mut after = DEFAULT_START;
        let mut read = 0_usize;
        for _ in 0..scale.pages {
            let page = reader.page(feed, after, PAGE).await?;
            after = page.last().map_or(after, |change| change.0);
            read += page.len();
        }
        let bare_rate = read as f64 / began.elapsed().as_secs_f64();

        let began = Instant::now();
        let mut after = After::Cursor(Cursor::Number(DEFAULT_START));
        let mut read = 0_usize;
        for _ in 0..scale.pages {
            let page = feed.read(ShardId(0), after, PAGE).await?;
            after = After::Cursor(page.next);
            read += page.changes.len();
        }
        let ours_rate = read as f64 / began.elapsed().as_secs_f64();
        // The first round only warms both up.
        if round > 0 {
            bare.add(bare_rate);
            ours.add(ours_rate);
        }
    }
    let least = Some(Budget::at_least(0.6));
    findings.add(Measure::compared("read", "changes/s", &ours, &bare, least));
    Ok(())
}
