//! Publishing: a row and its change in one transaction, against the row alone.

use std::sync::Arc;
use std::time::Duration;

use changefeed::Result;

use super::{Server, Side, Writer};
use crate::rate;
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;
use crate::sweeping::Sweeping;

/// Connections that write at the same time.
const CLIENTS: usize = 8;

pub(super) async fn measure(
    server: &impl Server,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let scratch = server.scratch();
    let feed = server.new_feed(2).await?;
    let mut writers = Vec::new();
    for client in 0..CLIENTS {
        let shard = i16::from(client % 2 == 1);
        writers.push(Arc::new(server.writer(&feed, shard).await?));
    }
    // Slices take turns, so that whatever else the machine does meets all of them alike.
    for side in [Side::Bare, Side::Ours] {
        write(&writers, side, scale.slice).await?;
    }
    let (mut bare, mut ours, mut swept) = (Sample::default(), Sample::default(), Sample::default());
    for turn in 1..=scale.turns {
        if turn % 6 == 1 {
            findings.doing(&format!(
                "publish: 8 clients, turn {turn} of {}",
                scale.turns
            ));
        }
        bare.add(write(&writers, Side::Bare, scale.slice).await?);
        ours.add(write(&writers, Side::Ours, scale.slice).await?);
        // The sweeper has to keep up with what is written, not to work off what was.
        scratch.drain().await?;
        let sweeping = Sweeping::start(&scratch.db, &feed);
        swept.add(write(&writers, Side::Ours, scale.slice).await?);
        sweeping.stop().await;
        scratch.drain().await?;
    }
    scratch.take_lease().await?;
    let unit = "transactions/s";
    let least = Some(Budget::at_least(0.75));
    findings.add(Measure::compared("publish", unit, &ours, &bare, least));
    let name = "publish while a sweeper runs";
    findings.add(Measure::compared(name, unit, &swept, &bare, None));
    Ok(())
}

/// Everybody writes for a while; transactions per second.
async fn write<W: Writer>(writers: &[Arc<W>], side: Side, length: Duration) -> Result<f64> {
    rate::transactions(writers, length, move |writer| async move {
        writer.write(side).await
    })
    .await
}
