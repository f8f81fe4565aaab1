//! ULID transactions, against the same inserts in transactions that take the write lock at once.

use std::time::{Duration, Instant};

use changefeed::sqlite::begin_ulid;
use changefeed::sqlite::rusqlite::{Connection, TransactionBehavior, params};
use changefeed::{Result, Ulid, UlidOptions, Uuid};

use super::scratch::{Scratch, blocking, db};
use crate::report::{Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;

/// A feed of our own.
const FEED: Uuid = Uuid::from_u128(0x5c1a_7e0b_3f5d_4f0e_9a43_6f1f_6b3f_0a11);

const CREATE: &str = "
create table changefeed_bench_ulid (shard integer, ulid blob, payload text,
                                    primary key (shard, ulid)) without rowid;
create table changefeed_bench_bare_ulid (shard integer, ulid blob, payload text,
                                         primary key (shard, ulid)) without rowid;
";
const REMOVE: &str = "
drop table if exists changefeed_bench_ulid;
drop table if exists changefeed_bench_bare_ulid;
delete from changefeed_shard_ulid where feed_id = '5c1a7e0b-3f5d-4f0e-9a43-6f1f6b3f0a11';
";

pub(super) async fn measure(
    scratch: &Scratch,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    scratch.run(REMOVE).await?;
    scratch.run(CREATE).await?;
    let measured = single_rows(scratch, scale, findings).await;
    scratch.run(REMOVE).await?;
    measured
}

async fn single_rows(scratch: &Scratch, scale: &Scale, findings: &mut Findings<'_>) -> Result<()> {
    let name = "one row and one ULID";
    findings.doing(name);
    let slice = scale.slice;
    let mut connection = scratch.store.connection()?;
    let (mut bare, mut ours) = (Sample::default(), Sample::default());
    let mut count = 0;
    for turn in 0..=scale.turns {
        let (back, bare_rate, ours_rate) = blocking(move || {
            let bare = rate(slice, || write_bare(&mut connection, &mut count))?;
            let ours = rate(slice, || write_ours(&mut connection))?;
            Ok(((connection, count), bare, ours))
        })
        .await?;
        (connection, count) = back;
        // The first turn only warms both up.
        if turn > 0 {
            bare.add(bare_rate);
            ours.add(ours_rate);
        }
    }
    findings.add(Measure::compared(
        name,
        "transactions/s",
        &ours,
        &bare,
        None,
    ));
    Ok(())
}

fn write_bare(connection: &mut Connection, count: &mut u64) -> Result<()> {
    *count += 1;
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(db)?;
    transaction
        .prepare_cached("insert into changefeed_bench_bare_ulid values (0, ?1, 'a row')")
        .and_then(|mut s| s.execute(params![Ulid::from_parts(1 << 63, *count).to_bytes()]))
        .map_err(db)?;
    transaction.commit().map_err(db)
}

fn write_ours(connection: &mut Connection) -> Result<()> {
    let mut transaction = begin_ulid(connection, &UlidOptions::new(FEED, 0))?;
    let ulid = transaction.next_ulid()?;
    transaction
        .prepare_cached("insert into changefeed_bench_ulid values (0, ?1, 'a row')")
        .and_then(|mut s| s.execute(params![ulid.to_bytes()]))
        .map_err(db)?;
    transaction.commit()
}

/// Transactions per second.
fn rate(length: Duration, mut write: impl FnMut() -> Result<()>) -> Result<f64> {
    let began = Instant::now();
    let mut transactions = 0_u64;
    while began.elapsed() < length {
        write()?;
        transactions += 1;
    }
    Ok(transactions as f64 / began.elapsed().as_secs_f64())
}
