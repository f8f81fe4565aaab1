//! Reading pages, against the bare select through the same driver.

use std::time::Instant;

use changefeed::{After, Cursor, DEFAULT_START, FeedHandle, Result, ShardId};

use super::scratch::Scratch;
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;

/// Changes per page.
pub(super) const PAGE: usize = 1000;

const BARE: &str = "select top (@P4) change_sequence_number, change_id from changefeed.change \
     where feed_id = @P1 and shard = @P2 and change_sequence_number > @P3 \
     order by change_sequence_number";

pub(super) async fn measure(
    scratch: &Scratch,
    feed: &FeedHandle,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let mut session = scratch.session().await?;
    let limit = PAGE as i64;
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
            let rows = session
                .query(BARE, &[&feed.definition().id.0, &0_i16, &after, &limit])
                .await?;
            let page: Vec<(Option<i64>, Option<i64>)> =
                rows.iter().map(|row| (row.get(0), row.get(1))).collect();
            after = page.last().and_then(|change| change.0).unwrap_or(after);
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
