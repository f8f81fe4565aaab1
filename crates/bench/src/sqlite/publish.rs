//! Publishing: a row and its change in one transaction, against the row alone.

use std::time::{Duration, Instant};

use changefeed::Result;
use changefeed::sqlite::rusqlite::{self, Connection, TransactionBehavior};

use super::scratch::{Scratch, blocking, db};
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;

/// What a row of the application holds.
const PAYLOAD: &str = "a row of an application, with about a hundred characters of text in it, \
     as such rows often have.";

pub(super) async fn measure(
    scratch: &Scratch,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let feed_id = scratch.new_feed().await?.definition().id.0;
    let slice = scale.slice;
    // One connection for both sides: the same journal mode, the same synchronous setting.
    let mut connection = scratch.store.connection()?;
    let (mut bare, mut ours) = (Sample::default(), Sample::default());
    for turn in 0..=scale.turns {
        if turn % 6 == 1 {
            findings.doing(&format!("publish: turn {turn} of {}", scale.turns));
        }
        let (back, bare_rate, ours_rate) = blocking(move || {
            let bare = write(&mut connection, slice, write_bare).map_err(db)?;
            let ours = write(&mut connection, slice, |c| write_ours(c, feed_id)).map_err(db)?;
            Ok((connection, bare, ours))
        })
        .await?;
        connection = back;
        // The first turn only warms both up.
        if turn > 0 {
            bare.add(bare_rate);
            ours.add(ours_rate);
        }
    }
    let least = Some(Budget::at_least(0.6));
    findings.add(Measure::compared(
        "publish",
        "transactions/s",
        &ours,
        &bare,
        least,
    ));
    Ok(())
}

fn write_bare(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction
        .prepare_cached("insert into changefeed_bench_bare (payload) values (?1)")?
        .execute([PAYLOAD])?;
    transaction.commit()
}

fn write_ours(connection: &mut Connection, feed_id: i16) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction
        .prepare_cached("update changefeed_change_id set value = value + 1")?
        .execute([])?;
    transaction
        .prepare_cached(
            "insert into changefeed_bench_row (payload, change_id) \
             select ?1, value from changefeed_change_id",
        )?
        .execute([PAYLOAD])?;
    transaction
        .prepare_cached(
            "insert into changefeed_change (feed_id, shard, change_id) \
             select ?1, 0, value from changefeed_change_id",
        )?
        .execute([feed_id])?;
    transaction.commit()
}

/// Writes for a while; transactions per second.
pub(super) fn write(
    connection: &mut Connection,
    length: Duration,
    mut transaction: impl FnMut(&mut Connection) -> rusqlite::Result<()>,
) -> rusqlite::Result<f64> {
    let began = Instant::now();
    let mut transactions = 0_u64;
    while began.elapsed() < length {
        transaction(connection)?;
        transactions += 1;
    }
    Ok(transactions as f64 / began.elapsed().as_secs_f64())
}
