//! Capture: inserts into a table with an event trigger, against inserts into one without.

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed::Result;
use changefeed::postgres::tokio_postgres::Statement;

use super::insert;
use crate::events::Orders;
use crate::postgres::rate;
use crate::postgres::scratch::Scratch;
use crate::postgres::session::{Session, db};
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;

/// Connections that write at the same time.
const CLIENTS: usize = 8;
/// Rows of one statement.
const BULK: u64 = 100_000;
/// Nothing is delivered here, so it does not matter that nobody listens.
const NOWHERE: &str = "http://127.0.0.1:9/";

#[derive(Clone, Copy)]
enum Side {
    Bare,
    Ours,
}

struct Writer {
    session: Session,
    bare: Statement,
    ours: Statement,
}

impl Writer {
    async fn new(scratch: &Scratch) -> Result<Self> {
        let session = scratch.target.session().await?;
        let statement = |table: &str| {
            format!(
                "insert into changefeed_bench.{table} (customer, note, amount) \
                 values ($1, 'a note of the customer about an order', 12.34)"
            )
        };
        Ok(Writer {
            bare: session
                .prepare(&statement("bare_orders"))
                .await
                .map_err(db)?,
            ours: session.prepare(&statement("orders")).await.map_err(db)?,
            session,
        })
    }

    async fn write(&self, side: Side) -> Result<()> {
        let statement = match side {
            Side::Bare => &self.bare,
            Side::Ours => &self.ours,
        };
        self.session
            .execute(statement, &[&7_i32])
            .await
            .map_err(db)?;
        Ok(())
    }
}

/// Many clients, one row per transaction.
pub(super) async fn single(
    scratch: &Scratch,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    scratch.send_to(NOWHERE).await?;
    let mut writers = Vec::new();
    for _ in 0..CLIENTS {
        writers.push(Arc::new(Writer::new(scratch).await?));
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
pub(super) async fn bulk(
    scratch: &Scratch,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    scratch.send_to(NOWHERE).await?;
    let (mut bare, mut ours) = (Sample::default(), Sample::default());
    for round in 0..=scale.rounds {
        findings.doing(&format!(
            "capture: 100,000 rows at once, round {} of {}",
            round.max(1),
            scale.rounds
        ));
        super::clear_log(scratch).await?;
        scratch
            .run("truncate changefeed_bench.orders, changefeed_bench.bare_orders")
            .await?;
        let bare_time = timed(scratch, &insert("bare_orders", BULK)).await?;
        let our_time = timed(scratch, &insert("orders", BULK)).await?;
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

async fn timed(scratch: &Scratch, statement: &str) -> Result<Duration> {
    let began = Instant::now();
    scratch.run(statement).await?;
    Ok(began.elapsed())
}

/// Everybody writes for a while; transactions per second.
async fn write(writers: &[Arc<Writer>], side: Side, length: Duration) -> Result<f64> {
    rate::transactions(writers, length, move |writer| async move {
        writer.write(side).await
    })
    .await
}
