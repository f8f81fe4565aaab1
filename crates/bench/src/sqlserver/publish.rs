//! Publishing: a row and its change in one transaction, against the row alone.

use std::sync::Arc;
use std::time::Duration;

use changefeed::Result;
use changefeed::sqlserver::Connection;
use tokio::sync::Mutex;

use super::scratch::Scratch;
use crate::rate;
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;
use crate::sweeping::Sweeping;

/// Connections that write at the same time.
const CLIENTS: usize = 8;

const BARE: &str = "insert into changefeed_bench.bare_row (payload) values \
     (N'a row of an application, with about a hundred characters of text in it, as such rows often \
     have.')";

#[derive(Clone, Copy)]
enum Side {
    Bare,
    Ours,
}

struct Writer {
    session: Mutex<Connection>,
    ours: String,
}

impl Writer {
    /// One batch on either side.
    async fn write(&self, side: Side) -> Result<()> {
        let sql = match side {
            Side::Bare => BARE,
            Side::Ours => &self.ours,
        };
        self.session.lock().await.batch(sql).await
    }
}

/// As docs/sqlserver.md has it.
fn ours(feed_id: i16, shard: i16) -> String {
    format!(
        "begin transaction; \
         declare @change_id bigint = next value for changefeed.change_id; \
         insert into changefeed_bench.row (change_id, payload) values \
         (@change_id, N'a row of an application, with about a hundred characters of text in it, \
          as such rows often have.'); \
         insert into changefeed.change (feed_id, shard, change_id) \
         values ({feed_id}, {shard}, @change_id); \
         commit transaction"
    )
}

pub(super) async fn measure(
    scratch: &Scratch,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let feed = scratch.feed(2).await?;
    let mut writers = Vec::new();
    for client in 0..CLIENTS {
        writers.push(Arc::new(Writer {
            session: Mutex::new(scratch.session().await?),
            ours: ours(feed.definition().id.0, i16::from(client % 2 == 1)),
        }));
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
async fn write(writers: &[Arc<Writer>], side: Side, length: Duration) -> Result<f64> {
    rate::transactions(writers, length, move |writer| async move {
        writer.write(side).await
    })
    .await
}
