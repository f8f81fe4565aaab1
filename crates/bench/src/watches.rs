//! Watches: what tracking costs writers, how fast one worker is, whether its history makes it
//! slower, and how soon a change reaches the function.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use changefeed::{
    CancellationToken, Closure, Result, RowChange, Store, TableName, Watch, WatchFrom, WatchName,
    WatchSettings, WatchSpec, Watcher,
};
use changefeed_core::Take;

use crate::rate;
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;

/// Connections that write at the same time.
const CLIENTS: usize = 4;
/// Rows of the watched table.
pub(crate) const ROWS: i64 = 100_000;
/// Rows in a batch.
const BATCH: usize = 1000;
/// Changes per second that are followed.
const RATE: u64 = 200;
/// Rows of the short history.
const SHORT: i64 = 10_000;

/// With tracking or without.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Tracked,
    Untracked,
}

/// One of many clients of a server.
pub(crate) trait Client: Send + Sync + 'static {
    /// Changes one row in a transaction of its own.
    fn update(&self, side: Side, id: i64) -> impl Future<Output = Result<()>> + Send;
}

/// A server with two tables of rows, `changefeed_bench.tracked` and one that nobody watches.
pub(crate) trait Server {
    type Client: Client;
    /// How a queue of keys is worked off there without us.
    const QUEUE: &'static str;
    /// The same in the fastest form that we know, if that is another one.
    const FASTEST: Option<&'static str>;

    fn store(&self) -> Arc<dyn Store>;

    /// Makes the tables.
    fn prepare_watched(&self) -> impl Future<Output = Result<()>>;

    /// A new connection.
    fn client(&self) -> impl Future<Output = Result<Self::Client>>;

    /// Changes so many rows at once.
    fn change(&self, rows: i64) -> impl Future<Output = Result<()>>;

    /// Does what the database would do by itself sooner or later.
    fn tidy(&self, watch: &Watch) -> impl Future<Output = Result<()>>;

    /// Fills a queue with the keys of all rows and works it off; rows per second.
    fn queue(&self, fastest: bool) -> impl Future<Output = Result<f64>>;
}

/// Updates rows all over the table.
struct Writer<C> {
    client: C,
    counter: Arc<AtomicU64>,
}

impl<C: Client> Writer<C> {
    async fn write(&self, side: Side) -> Result<()> {
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        let place = count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        let id = 1 + i64::try_from(place).unwrap_or(0) % ROWS;
        self.client.update(side, id).await
    }
}

/// The watched table and its one function.
struct Scene<'a, S> {
    server: &'a S,
    store: Arc<dyn Store>,
    watch: Watch,
}

/// Watches the table for as long as the measures take.
pub(crate) async fn measure<S: Server>(
    server: &S,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let store = server.store();
    server.prepare_watched().await?;
    let name: WatchName = "changefeed-bench".parse()?;
    forget(&*store, &name).await?;
    let watch = store
        .open_watch(&WatchSpec::new(
            name.clone(),
            TableName::qualified("changefeed_bench", "tracked"),
        ))
        .await?;
    let scene = Scene {
        server,
        store,
        watch,
    };
    let measured = measures(&scene, scale, findings).await;
    forget(&*scene.store, &name).await?;
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

async fn measures<S: Server>(
    scene: &Scene<'_, S>,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    latency(scene, scale, findings).await?;
    updates(scene, scale, findings).await?;
    drain(scene, scale, findings).await?;
    history(scene, scale, findings).await
}

/// Single-row updates, with and without tracking.
async fn updates<S: Server>(
    scene: &Scene<'_, S>,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let name = "tracked single-row updates, 4 clients";
    findings.doing(name);
    let counter = Arc::new(AtomicU64::new(0));
    let mut writers = Vec::new();
    for _ in 0..CLIENTS {
        writers.push(Arc::new(Writer {
            client: scene.server.client().await?,
            counter: counter.clone(),
        }));
    }
    let write = async |side| {
        rate::transactions(
            &writers,
            scale.slice,
            move |writer: Arc<Writer<S::Client>>| async move { writer.write(side).await },
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
async fn drain<S: Server>(
    scene: &Scene<'_, S>,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let (mut ours, mut bare, mut fastest) =
        (Sample::default(), Sample::default(), Sample::default());
    for round in 0..=scale.rounds {
        findings.doing("one worker, batches of 1,000");
        scene.server.change(ROWS).await?;
        let began = Instant::now();
        let changes = scene.work_off(BATCH).await?;
        let our_rate = changes as f64 / began.elapsed().as_secs_f64();
        let bare_rate = scene.server.queue(false).await?;
        let fastest_rate = match S::FASTEST {
            Some(_) => scene.server.queue(true).await?,
            None => bare_rate,
        };
        // The first round only warms up.
        if round > 0 {
            ours.add(our_rate);
            bare.add(bare_rate);
            fastest.add(fastest_rate);
        }
        scene.server.tidy(&scene.watch).await?;
    }
    let budget = Some(Budget::at_least(0.3));
    findings.add(Measure::compared(S::QUEUE, "rows/s", &ours, &bare, budget));
    if let Some(name) = S::FASTEST {
        findings.add(Measure::compared(name, "rows/s", &ours, &fastest, None));
    }
    findings.add(Measure::alone(
        "one worker, batches of 1,000",
        "rows/s",
        ours.median(),
        Some(Budget::at_least(10_000.0)),
    ));
    Ok(())
}

/// What a look costs after a short and after a long history.
async fn history<S: Server>(
    scene: &Scene<'_, S>,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    findings.doing("history: 10,000 changes");
    scene
        .store
        .reset_watch(&scene.watch, WatchFrom::Now)
        .await?;
    scene.server.change(SHORT).await?;
    scene.work_off(10_000).await?;
    let short = scene.look(scale).await?;
    let mut done = SHORT;
    while done < scale.long_history {
        findings.doing(&format!(
            "history: {done} of {} changes (this takes a while)",
            scale.long_history
        ));
        scene.server.change(ROWS).await?;
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
async fn latency<S: Server>(
    scene: &Scene<'_, S>,
    scale: &Scale,
    findings: &mut Findings<'_>,
) -> Result<()> {
    findings.doing("latency: commit to function at 200 changes/s");
    let client = scene.server.client().await?;
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
        client.update(Side::Tracked, id).await?;
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

impl<S: Server> Scene<'_, S> {
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

    /// The cost of polls that find nothing, and of those that find a little.
    async fn look(&self, scale: &Scale) -> Result<(Sample, Sample)> {
        let settings = WatchSettings::default();
        let take = Take {
            owner: "changefeed-bench",
            settings: &settings,
        };
        let (mut empty, mut small) = (Sample::default(), Sample::default());
        self.server.tidy(&self.watch).await?;
        for turn in 0..scale.looks * 5 {
            self.work_off(100).await?;
            let began = Instant::now();
            self.store.take(&self.watch, take).await?;
            if turn > scale.looks {
                empty.add_millis(began.elapsed());
            }
            self.server.change(10).await?;
            let began = Instant::now();
            self.work_off(100).await?;
            if turn > scale.looks {
                small.add_millis(began.elapsed());
            }
        }
        Ok((empty, small))
    }
}
