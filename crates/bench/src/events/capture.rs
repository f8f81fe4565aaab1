//! Capture: inserts into a table with an event trigger, against inserts into one without.

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed::Result;

use super::{Client, Server, Side};
use crate::rate;
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;

/// Connections that write at the same time.
const CLIENTS: usize = 8;
/// Rows of one statement.
const BULK: u64 = 100_000;
/// Nothing is delivered here, so it does not matter that nobody listens.
const NOWHERE: &str = "http://127.0.0.1:9/";

/// Many clients, one row per transaction.
pub(crate) async fn single(
    server: &impl Server,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    server.send_to(NOWHERE).await?;
    let mut writers = Vec::new();
    for _ in 0..CLIENTS {
        writers.push(Arc::new(server.client().await?));
    }
    let (mut bare, mut ours) = (Sample::default(), Sample::default());
    for turn in 0..=scale.turns {
        if turn % 6 == 1 {
            let turns = scale.turns;
            findings.doing(&format!("capture: 8 clients, turn {turn} of {turns}"));
        }
        let bare_rate = write(&writers, Side::Bare, scale.slice).await?;
        let our_rate = write(&writers, Side::Ours, scale.slice).await?;
        // The first turn only warms both up.
        if turn > 0 {
            bare.add(bare_rate);
            ours.add(our_rate);
        }
    }
    findings.add(Measure::compared(
        "inserts with capture, 8 clients",
        "transactions/s",
        &ours,
        &bare,
        Some(Budget::at_least(0.6)),
    ));
    Ok(())
}

/// One statement with many rows.
pub(crate) async fn bulk(
    server: &impl Server,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    server.send_to(NOWHERE).await?;
    let (mut bare, mut ours) = (Sample::default(), Sample::default());
    for round in 0..=scale.rounds {
        findings.doing(&format!(
            "capture: 100,000 rows at once, round {} of {}",
            round.max(1),
            scale.rounds
        ));
        server.clear_log().await?;
        server.clear_orders().await?;
        let bare_time = timed(server.order_bare(BULK)).await?;
        let our_time = timed(server.order(BULK)).await?;
        if round > 0 {
            bare.add_millis(bare_time);
            ours.add_millis(our_time);
        }
    }
    findings.add(Measure::compared(
        "insert of 100,000 rows at once with capture",
        "ms",
        &ours,
        &bare,
        Some(Budget::at_most(4.0)),
    ));
    Ok(())
}

async fn timed(work: impl Future<Output = Result<()>>) -> Result<Duration> {
    let began = Instant::now();
    work.await?;
    Ok(began.elapsed())
}

/// Everybody writes for a while; transactions per second.
async fn write<C: Client>(clients: &[Arc<C>], side: Side, length: Duration) -> Result<f64> {
    rate::transactions(clients, length, move |client: Arc<C>| async move {
        client.order(side).await
    })
    .await
}
