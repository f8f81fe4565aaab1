//! Reading pages, against the bare select through the same driver.

use std::time::Instant;

use changefeed::sqlite::rusqlite::{self, Connection};
use changefeed::{After, Cursor, DEFAULT_START, Result, ShardId};

use super::scratch::{Scratch, blocking, db};
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;

/// Changes per page.
const PAGE: usize = 1000;

pub(super) const FILL: &str = "
with recursive i (n) as (values (1) union all select n + 1 from i where n < ?2)
insert into changefeed_change (feed_id, shard, change_id) select ?1, 0, n from i";
const BARE: &str = "select change_sequence_number, change_id from changefeed_numbered
where feed_id = ?1 and shard = 0 and change_sequence_number > ?2
order by change_sequence_number limit ?3";

pub(super) async fn measure(
    scratch: &Scratch,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    findings.doing(&format!("read: writing {} changes", scale.pages * PAGE));
    let feed = scratch.new_feed().await?;
    let feed_id = feed.definition().id.0;
    let mut connection = scratch.store.connection()?;
    let pages = scale.pages;
    connection = blocking(move || {
        connection
            .execute(FILL, (feed_id, (pages * PAGE) as i64))
            .map_err(db)?;
        Ok(connection)
    })
    .await?;
    let (mut ours, mut bare) = (Sample::default(), Sample::default());
    for round in 0..=scale.rounds {
        findings.doing(&format!(
            "read: pages of {PAGE}, round {round} of {}",
            scale.rounds
        ));
        let (back, bare_rate) = blocking(move || {
            let rate = read_bare(&connection, feed_id, pages).map_err(db)?;
            Ok((connection, rate))
        })
        .await?;
        connection = back;

        let began = Instant::now();
        let mut after = After::Cursor(Cursor::Number(DEFAULT_START));
        let mut read = 0_usize;
        for _ in 0..pages {
            let page = feed.read(ShardId(0), after, PAGE).await?;
            after = After::Cursor(page.next);
            read += page.changes.len();
        }
        // Round 0 only warms both up.
        if round > 0 {
            bare.add(bare_rate);
            ours.add(read as f64 / began.elapsed().as_secs_f64());
        }
    }
    let least = Some(Budget::at_least(0.6));
    findings.add(Measure::compared("read", "changes/s", &ours, &bare, least));
    Ok(())
}

/// Changes per second.
fn read_bare(connection: &Connection, feed_id: i16, pages: usize) -> rusqlite::Result<f64> {
    let began = Instant::now();
    let mut after = DEFAULT_START;
    let mut read = 0_usize;
    for _ in 0..pages {
        let mut select = connection.prepare_cached(BARE)?;
        let page: Vec<(i64, i64)> = select
            .query_map((feed_id, after, PAGE as i64), |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?
            .collect::<rusqlite::Result<_>>()?;
        after = page.last().map_or(after, |change| change.0);
        read += page.len();
    }
    Ok(read as f64 / began.elapsed().as_secs_f64())
}
