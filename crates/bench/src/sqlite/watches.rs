//! Watches: what tracking costs the writer, and how fast one worker is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use changefeed::sqlite::rusqlite::Connection;
use changefeed::{
    CancellationToken, Closure, Result, RowChange, Store, TableName, Watch, WatchName,
    WatchSettings, WatchSpec, Watcher,
};

use super::scratch::{Scratch, blocking, db};
use crate::report::{Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;

/// Rows of the watched table.
const ROWS: i64 = 20_000;

const CREATE: &str = "
create table changefeed_bench_tracked (id integer primary key, n integer, payload text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)
insert into changefeed_bench_tracked select i, 0, 'a row of an application' from n;
create table changefeed_bench_untracked (id integer primary key, n integer, payload text);
insert into changefeed_bench_untracked select * from changefeed_bench_tracked;
";
const REMOVE: &str = "
drop table if exists changefeed_bench_tracked;
drop table if exists changefeed_bench_untracked;
";

pub(super) async fn measure(
    scratch: &Scratch,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let name: WatchName = "changefeed-bench".parse()?;
    let store: Arc<dyn Store> = Arc::new(scratch.store.clone());
    forget(&*store, &name).await?;
    scratch.run(REMOVE).await?;
    scratch.run(CREATE).await?;
    let watch = store
        .open_watch(&WatchSpec::new(
            name.clone(),
            TableName::unqualified("changefeed_bench_tracked"),
        ))
        .await?;
    let measured = measures(scratch, &store, &watch, scale, findings).await;
    forget(&*store, &name).await?;
    scratch.run(REMOVE).await?;
    measured
}

/// Removes the watch of a run, also of one that was killed.
async fn forget(store: &dyn Store, name: &WatchName) -> Result<()> {
    let watches = store.watches().await?;
    match watches.iter().find(|w| w.name == *name) {
        Some(watch) => store.drop_watch(watch).await,
        None => Ok(()),
    }
}

async fn measures(
    scratch: &Scratch,
    store: &Arc<dyn Store>,
    watch: &Watch,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let name = "tracked single-row updates";
    findings.doing(name);
    let slice = scale.slice;
    let mut connection = scratch.store.connection()?;
    let (mut ours, mut bare) = (Sample::default(), Sample::default());
    for turn in 0..=scale.turns {
        let (back, our_rate, bare_rate) = blocking(move || {
            let ours = rate(&connection, slice, "changefeed_bench_tracked")?;
            let bare = rate(&connection, slice, "changefeed_bench_untracked")?;
            Ok((connection, ours, bare))
        })
        .await?;
        connection = back;
        // The first turn only warms both up.
        if turn > 0 {
            ours.add(our_rate);
            bare.add(bare_rate);
        }
        work_off(store, watch).await?;
    }
    findings.add(Measure::compared(
        name,
        "transactions/s",
        &ours,
        &bare,
        None,
    ));

    let name = "one worker, batches of 1,000";
    findings.doing(name);
    let mut rates = Sample::default();
    for _ in 0..scale.rounds {
        scratch
            .run("update changefeed_bench_tracked set n = n + 1")
            .await?;
        let began = Instant::now();
        let changes = work_off(store, watch).await?;
        rates.add(changes as f64 / began.elapsed().as_secs_f64());
    }
    findings.add(Measure::alone(name, "rows/s", rates.median(), None));
    Ok(())
}

/// Hands everything to a function that does nothing; returns how much that was.
async fn work_off(store: &Arc<dyn Store>, watch: &Watch) -> Result<u64> {
    let settings = WatchSettings {
        batch: 1000,
        ..WatchSettings::default()
    };
    let mut watcher = Watcher::new(store.clone(), watch.clone(), settings, "changefeed-bench");
    let nothing = Closure(|_: Vec<RowChange>| std::future::ready(Ok::<(), String>(())));
    let never = CancellationToken::new();
    while watcher.turn(&nothing, &never).await? {}
    Ok(watcher.totals().changes)
}

/// Single-row updates per second.
fn rate(connection: &Connection, length: Duration, table: &str) -> Result<f64> {
    let sql = format!("update {table} set n = n + 1 where id = ?1");
    let began = Instant::now();
    let mut transactions = 0_u64;
    while began.elapsed() < length {
        let place = transactions.wrapping_mul(7_368_787);
        let id = 1 + i64::try_from(place).unwrap_or(0) % ROWS;
        connection
            .prepare_cached(&sql)
            .and_then(|mut s| s.execute([id]))
            .map_err(db)?;
        transactions += 1;
    }
    Ok(transactions as f64 / began.elapsed().as_secs_f64())
}
