//! Event triggers: inserts with capture against inserts without, and deliveries.

use std::time::Instant;

use changefeed::sqlite::rusqlite::{self, Connection, TransactionBehavior};
use changefeed::{Changefeed, Result, TableName};

use super::publish::write;
use super::scratch::{Scratch, blocking, db};
use crate::events::{self, Orders};
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;

/// Rows of one statement.
const BULK: u64 = 20_000;
/// Nothing is delivered there, so it does not matter that nobody listens.
const NOWHERE: &str = "http://127.0.0.1:9/";

const CREATE: &str = "
create table changefeed_bench_order (id integer primary key, customer integer not null,
  note text not null, amount real not null, ordered_at text not null default current_timestamp);
create table changefeed_bench_bare_order (id integer primary key, customer integer not null,
  note text not null, amount real not null, ordered_at text not null default current_timestamp);
";
/// Attempts go with their events.
const CLEAR_LOG: &str = "delete from changefeed_event where trigger_id in
  (select trigger_id from changefeed_event_trigger where table_name = 'changefeed_bench_order')";
const REMOVE: &str = "
delete from changefeed_event_trigger where table_name = 'changefeed_bench_order';
drop table if exists changefeed_bench_order;
drop table if exists changefeed_bench_bare_order;
";

pub(super) async fn measure(
    scratch: &Scratch,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    events::refuse_others(scratch.db()).await?;
    // What a run that was killed has left behind.
    clear(scratch).await?;
    scratch.run(CREATE).await?;
    let measured = async {
        capture(scratch, scale, findings).await?;
        bulk(scratch, scale, findings).await?;
        scratch.run(CLEAR_LOG).await?;
        events::deliveries::measure(scratch.db(), scratch, scale, None, findings).await
    }
    .await;
    let cleared = clear(scratch).await;
    measured.and(cleared)
}

async fn clear(scratch: &Scratch) -> Result<()> {
    scratch.run(CLEAR_LOG).await?;
    events::drop_trigger(scratch.db()).await?;
    scratch.run(REMOVE).await
}

impl Orders for Scratch {
    fn db(&self) -> &Changefeed {
        &self.feed.db
    }

    fn table(&self) -> TableName {
        TableName::unqualified("changefeed_bench_order")
    }

    async fn order(&self, count: u64) -> Result<()> {
        let connection = self.store.connection()?;
        blocking(move || insert_many(&connection, "changefeed_bench_order", count).map_err(db))
            .await
    }

    async fn tidy(&self) -> Result<()> {
        self.run("pragma wal_checkpoint(truncate)").await
    }
}

async fn capture(scratch: &Scratch, scale: &Scale, findings: &mut Findings<'_>) -> Result<()> {
    scratch.send_to(NOWHERE).await?;
    let slice = scale.slice;
    // One connection for both sides: the same journal mode, the same synchronous setting.
    let mut connection = scratch.store.connection()?;
    let (mut bare, mut ours) = (Sample::default(), Sample::default());
    for turn in 0..=scale.turns {
        if turn % 6 == 1 {
            findings.doing(&format!("capture: turn {turn} of {}", scale.turns));
        }
        let (back, bare_rate, our_rate) = blocking(move || {
            let bare = write(&mut connection, slice, |c| {
                insert(c, "changefeed_bench_bare_order")
            });
            let ours = write(&mut connection, slice, |c| {
                insert(c, "changefeed_bench_order")
            });
            Ok((connection, bare.map_err(db)?, ours.map_err(db)?))
        })
        .await?;
        connection = back;
        // The first turn only warms both up.
        if turn > 0 {
            bare.add(bare_rate);
            ours.add(our_rate);
        }
    }
    findings.add(Measure::compared(
        "inserts with capture",
        "transactions/s",
        &ours,
        &bare,
        Some(Budget::at_least(0.5)),
    ));
    Ok(())
}

/// One statement with many rows: here the disk does not hide what capture costs.
async fn bulk(scratch: &Scratch, scale: &Scale, findings: &mut Findings<'_>) -> Result<()> {
    let mut connection = scratch.store.connection()?;
    let (mut bare, mut ours) = (Sample::default(), Sample::default());
    for round in 0..=scale.rounds {
        findings.doing(&format!("capture: {BULK} rows at once, round {round}"));
        let (back, bare_time, our_time) = blocking(move || {
            let began = Instant::now();
            insert_many(&connection, "changefeed_bench_bare_order", BULK).map_err(db)?;
            let bare_time = began.elapsed();
            let began = Instant::now();
            insert_many(&connection, "changefeed_bench_order", BULK).map_err(db)?;
            Ok((connection, bare_time, began.elapsed()))
        })
        .await?;
        connection = back;
        if round > 0 {
            bare.add_millis(bare_time);
            ours.add_millis(our_time);
        }
    }
    let name = "insert of 20,000 rows at once with capture";
    findings.add(Measure::compared(name, "ms", &ours, &bare, None));
    Ok(())
}

fn insert_many(connection: &Connection, table: &str, rows: u64) -> rusqlite::Result<()> {
    let insert = format!(
        "with recursive i(n) as (select 1 union all select n + 1 from i where n < ?1) \
         insert into {table} (customer, note, amount) \
         select n % 1000, 'a note of the customer about order ' || n, n / 100.0 from i"
    );
    connection.execute(&insert, [i64::try_from(rows).unwrap_or(i64::MAX)])?;
    Ok(())
}

fn insert(connection: &mut Connection, table: &str) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction
        .prepare_cached(&format!(
            "insert into {table} (customer, note, amount) \
             values (?1, 'a note of the customer about an order', 12.34)"
        ))?
        .execute([7])?;
    transaction.commit()
}
