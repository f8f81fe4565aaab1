//! Publishing: a row and its change in one statement, against the row alone.

use std::sync::Arc;
use std::time::Duration;

use changefeed::Result;
use changefeed::postgres::tokio_postgres::{self, Statement};

use super::scratch::Scratch;
use super::session::{Session, db};
use crate::rate;
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;
use crate::sweeping::Sweeping;

/// Connections that write at the same time.
const CLIENTS: usize = 8;
/// What a row of the application holds.
const PAYLOAD: &str = "a row of an application, with about a hundred characters of text in it, \
     as such rows often have.";

const BARE: &str = "insert into changefeed_bench.bare_row (payload) values ($1)";
const OURS: &str = "with published as ( \
     insert into changefeed_bench.row (payload, change_id) \
     values ($1, nextval('changefeed.change_id')) returning change_id) \
     insert into changefeed.change (feed_id, shard, change_id) \
     select $2::smallint, $3::smallint, change_id from published";

#[derive(Clone, Copy)]
enum Side {
    Bare,
    Ours,
}

struct Writer {
    session: Session,
    bare: Statement,
    ours: Statement,
    feed_id: i16,
    shard: i16,
}

impl Writer {
    async fn write(&self, side: Side) -> Result<()> {
        match side {
            Side::Bare => self.session.execute(&self.bare, &[&PAYLOAD]).await,
            Side::Ours => {
                let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
                    [&PAYLOAD, &self.feed_id, &self.shard];
                self.session.execute(&self.ours, &parameters).await
            }
        }
        .map_err(db)?;
        Ok(())
    }
}

pub(super) async fn measure(
    scratch: &Scratch,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let feed = scratch.feed(2).await?;
    let mut writers = Vec::new();
    for client in 0..CLIENTS {
        let session = scratch.target.session().await?;
        let bare = session.prepare(BARE).await.map_err(db)?;
        let ours = session.prepare(OURS).await.map_err(db)?;
        let shard = i16::from(client % 2 == 1);
        writers.push(Arc::new(Writer {
            session,
            bare,
            ours,
            feed_id: feed.definition().id.0,
            shard,
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
