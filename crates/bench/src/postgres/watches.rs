//! Watches: what tracking costs writers, how fast one worker is, whether its history makes it
//! slower, and how soon a change reaches the function.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use changefeed::postgres::PostgresStore;
use changefeed::postgres::tokio_postgres::Statement;
use changefeed::{
    CancellationToken, Closure, Result, RowChange, Store, TableName, Take, Watch, WatchFrom,
    WatchName, WatchSettings, WatchSpec, Watcher,
};

use super::scratch::Scratch;
use super::session::{Session, db};
use crate::rate;
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;

/// Connections that write at the same time.
const CLIENTS: usize = 4;
/// Rows of the watched table.
const ROWS: i64 = 100_000;
/// Rows in a batch.
const BATCH: usize = 1000;
/// Changes per second that are followed.
const RATE: u64 = 200;
/// Rows of the short history.
const SHORT: i64 = 10_000;

const TABLES: &str = "
    create table changefeed_bench.tracked (id bigint primary key, n bigint not null, payload text);
    insert into changefeed_bench.tracked
    select i, 0, 'a row of an application' from generate_series(1, 100000) i;
    create table changefeed_bench.untracked (like changefeed_bench.tracked including all);
    insert into changefeed_bench.untracked select * from changefeed_bench.tracked;
    create sequence changefeed_bench.queued;
    create table changefeed_bench.queue (id bigint primary key, version bigint not null, op smallint);
    create index on changefeed_bench.queue (version)";

/// How a queue without us would be worked off, one batch in one statement, as everybody writes it.
const BARE: &str = "delete from changefeed_bench.queue where id in ( \
     select id from changefeed_bench.queue order by version limit 1000 for update skip locked) \
     returning id, version, op";

/// The same in the fastest form that we know.
const FASTEST: &str = "delete from changefeed_bench.queue where ctid = any(array( \
     select ctid from changefeed_bench.queue order by version limit 1000 for update skip locked)) \
     returning id, version, op";

#[derive(Clone, Copy)]
enum Side {
    Tracked,
    Untracked,
}

struct Writer {
    session: Session,
    tracked: Statement,
    untracked: Statement,
    counter: Arc<AtomicU64>,
}

impl Writer {
    async fn write(&self, side: Side) -> Result<()> {
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        let place = count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        let id = 1 + i64::try_from(place).unwrap_or(0) % ROWS;
        let statement = match side {
            Side::Tracked => &self.tracked,
            Side::Untracked => &self.untracked,
        };
        self.session.execute(statement, &[&id]).await.map_err(db)?;
        Ok(())
    }
}

/// The watched table and its one function.
struct Scene<'a> {
    scratch: &'a Scratch,
    store: Arc<dyn Store>,
    watch: Watch,
}

pub(super) async fn measure(
    scratch: &Scratch,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<String> {
    let version = scratch.version().await?;
    scratch.run(TABLES).await?;
    scratch
        .run("vacuum analyze changefeed_bench.tracked, changefeed_bench.untracked")
        .await?;
    let store: Arc<dyn Store> = Arc::new(PostgresStore::connect(&scratch.target.url).await?);
    let name: WatchName = "changefeed-bench".parse()?;
    forget(&*store, &name).await?;
    let watch = store
        .open_watch(&WatchSpec::new(
            name.clone(),
            TableName::qualified("changefeed_bench", "tracked"),
        ))
        .await?;
    let scene = Scene {
        scratch,
        store,
        watch,
    };
    let measured = measures(&scene, scale, findings).await;
    forget(&*scene.store, &name).await?;
    measured.map(|()| version)
}

/// Removes the watch of a run, also of one that was killed.
async fn forget(store: &dyn Store, name: &WatchName) -> Result<()> {
    let watches = store.watches().await?;
    match watches.iter().find(|w| w.name == *name) {
        Some(watch) => store.drop_watch(watch).await,
        None => Ok(()),
    }
}

async fn measures(scene: &Scene<'_>, scale: &Scale, findings: &mut Findings<'_>) -> Result<()> {
    for note in scene.scratch.settings().await? {
        findings.note(note);
    }
    latency(scene, scale, findings).await?;
    updates(scene, scale, findings).await?;
    drain(scene, scale, findings).await?;
    history(scene, scale, findings).await
}

/// Single-row updates, with and without tracking.
async fn updates(scene: &Scene<'_>, scale: &Scale, findings: &mut Findings<'_>) -> Result<()> {
    let name = "tracked single-row updates, 4 clients";
    findings.doing(name);
    let counter = Arc::new(AtomicU64::new(0));
    let mut writers = Vec::new();
    for _ in 0..CLIENTS {
        let session = scene.scratch.target.session().await?;
        let update = |table| format!("update changefeed_bench.{table} set n = n + 1 where id = $1");
        writers.push(Arc::new(Writer {
            tracked: session.prepare(&update("tracked")).await.map_err(db)?,
            untracked: session.prepare(&update("untracked")).await.map_err(db)?,
            session,
            counter: counter.clone(),
        }));
    }
    let write = async |side| {
        rate::transactions(
            &writers,
            scale.slice,
            move |writer: Arc<Writer>| async move { writer.write(side).await },
        )
        .await
    };
    let (mut ours, mut bare) = (Sample::default(), Sample::default());
    for turn in 0..=scale.turns {
        let sides = (write(Side::Tracked).await?, write(Side::Untracked).await?);
        // The first turn only warms up.
        if turn > 0 {
            ours.add(sides.0);
            bare.add(sides.1);
        }
        scene.work_off(10_000).await?;
    }
    let budget = Some(Budget::at_least(0.65));
    findings.add(Measure::compared(
        name,
        "transactions/s",
        &ours,
        &bare,
        budget,
    ));
    Ok(())
}

/// One worker and a function that does nothing, against a queue of the same keys.
async fn drain(scene: &Scene<'_>, scale: &Scale, findings: &mut Findings<'_>) -> Result<()> {
    let name = "one worker, batches of 1,000, against delete … returning";
    let (mut ours, mut bare, mut fastest) =
        (Sample::default(), Sample::default(), Sample::default());
    for round in 0..=scale.rounds {
        findings.doing(name);
        scene.change(ROWS).await?;
        let began = Instant::now();
        let changes = scene.work_off(BATCH).await?;
        let our_rate = changes as f64 / began.elapsed().as_secs_f64();
        let rates = (scene.queue(BARE).await?, scene.queue(FASTEST).await?);
        // The first round only warms up.
        if round > 0 {
            ours.add(our_rate);
            bare.add(rates.0);
            fastest.add(rates.1);
        }
        // As autovacuum would do soon.
        scene
            .scratch
            .run(&format!(
                "vacuum {}, changefeed.changes_{}",
                scene.watch.leases_table, scene.watch.table_id
            ))
            .await?;
    }
    let budget = Some(Budget::at_least(0.3));
    findings.add(Measure::compared(name, "rows/s", &ours, &bare, budget));
    let name = "the same, against delete … returning by ctid";
    findings.add(Measure::compared(name, "rows/s", &ours, &fastest, None));
    findings.add(Measure::alone(
        "one worker, batches of 1,000",
        "rows/s",
        ours.median(),
        Some(Budget::at_least(10_000.0)),
    ));
    Ok(())
}

/// What a look costs after a short and after a long history.
async fn history(scene: &Scene<'_>, scale: &Scale, findings: &mut Findings<'_>) -> Result<()> {
    findings.doing("history: 10,000 changes");
    scene
        .store
        .reset_watch(&scene.watch, WatchFrom::Now)
        .await?;
    scene.change(SHORT).await?;
    scene.work_off(10_000).await?;
    let short = scene.look(scale).await?;
    let mut done = SHORT;
    while done < scale.long_history {
        findings.doing(&format!(
            "history: {done} of {} changes (this takes a while)",
            scale.long_history
        ));
        scene.change(ROWS).await?;
        scene.work_off(10_000).await?;
        done += ROWS;
    }
    let long = scene.look(scale).await?;
    let (empty, small) = if scale.long_history >= 10_000_000 {
        (
            "poll that finds nothing, 10 million processed, against 10,000",
            "poll that finds 10 rows, 10 million processed, against 10,000",
        )
    } else {
        (
            "poll that finds nothing, 1 million processed, against 10,000",
            "poll that finds 10 rows, 1 million processed, against 10,000",
        )
    };
    let most = Some(Budget::at_most(1.3));
    findings.add(Measure::medians(empty, "ms", &long.0, &short.0, most));
    findings.add(Measure::medians(small, "ms", &long.1, &short.1, most));
    Ok(())
}

/// From the commit to the function, with a steady trickle of changes.
async fn latency(scene: &Scene<'_>, scale: &Scale, findings: &mut Findings<'_>) -> Result<()> {
    findings.doing("latency: commit to function at 200 changes/s");
    let session = scene.scratch.target.session().await?;
    let update = session
        .prepare("update changefeed_bench.tracked set n = $2 where id = $1")
        .await
        .map_err(db)?;
    let seen: Arc<Mutex<HashMap<i64, Instant>>> = Arc::default();
    let function = {
        let seen = seen.clone();
        Closure(move |changes: Vec<RowChange>| {
            let now = Instant::now();
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            for change in &changes {
                // `{"id":17,…`
                let id = change.item.get().trim_start_matches("{\"id\":");
                let id = id.split(',').next().and_then(|id| id.parse().ok());
                seen.entry(id.unwrap_or(0)).or_insert(now);
            }
            std::future::ready(Ok::<(), String>(()))
        })
    };
    let stop = CancellationToken::new();
    let watcher = Watcher::new(
        scene.store.clone(),
        scene.watch.clone(),
        WatchSettings::default(),
        "changefeed-bench",
    );
    let shutdown = stop.clone();
    let running = tokio::spawn(async move { watcher.run(&function, shutdown).await });
    let changes = i64::try_from(scale.follow.as_secs() * RATE)
        .unwrap_or(1000)
        .min(ROWS);
    let mut turns =
        tokio::time::interval(Duration::from_secs(1) / u32::try_from(RATE).unwrap_or(1));
    let mut committed = HashMap::new();
    for id in 1..=changes {
        turns.tick().await;
        session.execute(&update, &[&id, &id]).await.map_err(db)?;
        committed.insert(id, Instant::now());
    }
    let patience = Instant::now() + Duration::from_secs(10);
    let count = || seen.lock().unwrap_or_else(PoisonError::into_inner).len();
    while count() < committed.len() && Instant::now() < patience {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.cancel();
    running.await.map_err(|e| {
        changefeed::Error::new(changefeed::Kind::Database, "the watcher was cut off").caused_by(e)
    })??;
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    if seen.len() < committed.len() {
        findings.note(format!(
            "latency: {} changes did not reach the function",
            committed.len() - seen.len()
        ));
    }
    let latencies: Sample = committed
        .iter()
        .filter_map(|(id, at)| Some(seen.get(id)?.saturating_duration_since(*at)))
        .map(|time| time.as_secs_f64() * 1000.0)
        .collect();
    for (name, part, most) in [
        ("commit to function, p50", 0.5, Some(20.0)),
        ("commit to function, p99", 0.99, None),
    ] {
        findings.add(Measure::alone(
            name,
            "ms",
            latencies.quantile(part),
            most.map(Budget::at_most),
        ));
    }
    Ok(())
}

impl Scene<'_> {
    /// Hands everything to a function that does nothing; returns how much that was.
    async fn work_off(&self, batch: usize) -> Result<u64> {
        let settings = WatchSettings {
            batch,
            ..WatchSettings::default()
        };
        let mut watcher = Watcher::new(
            self.store.clone(),
            self.watch.clone(),
            settings,
            "changefeed-bench",
        );
        let nothing = Closure(|_: Vec<RowChange>| std::future::ready(Ok::<(), String>(())));
        let never = CancellationToken::new();
        while watcher.turn(&nothing, &never).await? {}
        Ok(watcher.totals().changes)
    }

    /// Fills a queue with the same keys and works it off by this statement; rows per second.
    async fn queue(&self, statement: &str) -> Result<f64> {
        self.scratch
            .run(
                "insert into changefeed_bench.queue \
                 select id, nextval('changefeed_bench.queued'), 1 from changefeed_bench.tracked",
            )
            .await?;
        self.scratch
            .run("vacuum analyze changefeed_bench.queue")
            .await?;
        let statement = self.scratch.admin.prepare(statement).await.map_err(db)?;
        let began = Instant::now();
        let mut keys = 0;
        loop {
            let rows = self
                .scratch
                .admin
                .query(&statement, &[])
                .await
                .map_err(db)?;
            if rows.is_empty() {
                return Ok(keys as f64 / began.elapsed().as_secs_f64());
            }
            keys += rows.len();
        }
    }

    /// Changes so many rows.
    async fn change(&self, rows: i64) -> Result<()> {
        self.scratch
            .run(&format!(
                "update changefeed_bench.tracked set n = n + 1 where id <= {rows}"
            ))
            .await?;
        self.scratch.run("vacuum changefeed_bench.tracked").await
    }

    /// The cost of polls that find nothing, and of those that find a little.
    async fn look(&self, scale: &Scale) -> Result<(Sample, Sample)> {
        let settings = WatchSettings::default();
        let take = Take {
            owner: "changefeed-bench",
            settings: &settings,
        };
        let (mut empty, mut small) = (Sample::default(), Sample::default());
        // As autovacuum would do soon.
        self.scratch
            .run(&format!(
                "vacuum {}, changefeed.changes_{}",
                self.watch.leases_table, self.watch.table_id
            ))
            .await?;
        for turn in 0..scale.looks * 5 {
            self.work_off(100).await?;
            let began = Instant::now();
            self.store.take(&self.watch, take).await?;
            if turn > scale.looks {
                empty.add_millis(began.elapsed());
            }
            self.change_few().await?;
            let began = Instant::now();
            self.work_off(100).await?;
            if turn > scale.looks {
                small.add_millis(began.elapsed());
            }
        }
        Ok((empty, small))
    }

    async fn change_few(&self) -> Result<()> {
        self.scratch
            .run("update changefeed_bench.tracked set n = n + 1 where id <= 10")
            .await
    }
}
