//! What it costs when nothing happens: a sweeper, and a thousand readers who wait.

use std::time::{Duration, Instant};

use changefeed::{After, Changefeed, Error, FeedHandle, Kind, Result};
use tokio::task::JoinSet;

use crate::machine;
use crate::report::{Budget, Findings, Measure};
use crate::sweeping::Sweeping;

/// Readers who wait.
const WAITERS: usize = 1000;
/// Until the sweeper has slowed down.
const SETTLE: Duration = Duration::from_millis(2500);
/// Until every waiter has looked once: a server may need seconds for the first look of each connection.
const PATIENCE: Duration = Duration::from_secs(60);
/// So often in a row nobody may have been seen at work.
const CALM: u32 = 20;
/// Finds the server's processes that work for us.
pub(crate) trait Backends {
    /// Their process ids; `None` where they are not visible from here.
    fn backends(&self) -> impl Future<Output = Result<Option<Vec<String>>>>;
}

/// Until the readers have had their first look and wait: nobody stands in line for a connection, and only a sweep or a look
/// for news may be at work. Says whether it came to that.
async fn all_wait(db: &Changefeed) -> bool {
    let deadline = Instant::now() + PATIENCE;
    let mut calm = 0;
    while calm < CALM {
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
        let now = db.store().connections();
        let at_work = now.open.saturating_sub(now.idle);
        calm = match now.waiting == 0 && at_work <= 3 {
            true => calm + 1,
            false => 0,
        };
    }
    true
}

/// Waits, and looks what that took.
pub(crate) async fn measure(
    db: &Changefeed,
    feed: &FeedHandle,
    server: &impl Backends,
    length: Duration,
    findings: &mut Findings<'_>,
) -> Result<()> {
    findings.doing("idle: a sweeper and 1,000 waiting readers");
    let sweeping = Sweeping::start(db, feed);
    let mut waiters = JoinSet::new();
    let shards = &feed.definition().shards;
    for shard in shards.iter().cycle().take(WAITERS) {
        let (feed, shard) = (feed.clone(), shard.shard);
        let wait = PATIENCE + SETTLE + length + Duration::from_secs(30);
        waiters.spawn(async move { feed.poll(shard, After::Last, 100, wait).await });
    }
    if !all_wait(db).await {
        findings.note(
            "idle: after a minute some readers had not begun to wait; the figure is of them too",
        );
    }
    tokio::time::sleep(SETTLE).await;
    // A waiter that is back already got something, or failed: then this was not idleness.
    if let Some(ended) = waiters.try_join_next() {
        ended.map_err(|e| Error::new(Kind::Database, "a reader was cut off").caused_by(e))??;
        return Err(Error::new(
            Kind::Busy,
            "somebody else publishes to the feed of this measure",
        ));
    }
    let backends = server.backends().await?;
    let alone = backends.is_none();
    let mut processes = backends.unwrap_or_default();
    processes.push("self".to_owned());
    let used = |processes: &[String]| -> Duration {
        processes.iter().filter_map(|p| machine::cpu_time(p)).sum()
    };
    let (before, began) = (used(&processes), Instant::now());
    tokio::time::sleep(length).await;
    let took = used(&processes).saturating_sub(before);
    let share = 100.0 * took.as_secs_f64() / began.elapsed().as_secs_f64();
    let resident = machine::resident_mebibytes();
    waiters.shutdown().await;
    sweeping.stop().await;
    match resident {
        Some(resident) => {
            let most = Some(Budget::at_most(2.0));
            findings.add(Measure::alone(
                "idle, processor",
                "% of a core",
                share,
                most,
            ));
            let most = Some(Budget::at_most(64.0));
            findings.add(Measure::alone("idle, memory", "MiB", resident, most));
            if alone {
                findings.note(
                    "idle: the server's processes are not visible here, so only our own \
                     processor time is counted",
                );
            }
        }
        None => findings.note("idle: this system does not tell what processes use (no /proc)"),
    }
    Ok(())
}
