//! From the commit to whoever waits for it, with a steady trickle of changes.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use changefeed::futures::StreamExt;
use changefeed::{After, Changefeed, Error, FeedHandle, Kind, Result, ShardId};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::sweeping::Sweeping;

/// Changes of a feed per second.
const RATE: u32 = 500;
/// How long the last change may take before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// The first ones pay for what is done once: connections that are opened, statements that a session reads for the first
/// time. They count only where there are few others.
const WARMING: usize = 250;

/// One that writes changes: returns when the change with this id is committed.
pub(crate) trait Publish: Send + 'static {
    /// Commits one change, in a feed one of shard 0.
    fn publish(&mut self, change_id: i64) -> impl Future<Output = Result<()>> + Send;
}

/// When each change was committed and seen, in nanoseconds from the beginning.
#[derive(Debug)]
pub(crate) struct Log {
    began: Instant,
    first_id: i64,
    committed: Vec<AtomicU64>,
    seen: Vec<AtomicU64>,
}

impl Log {
    /// For so many changes with ids from the first one on.
    pub(crate) fn new(first_id: i64, changes: usize) -> Self {
        let blank = || (0..changes).map(|_| AtomicU64::new(0)).collect();
        Log {
            began: Instant::now(),
            first_id,
            committed: blank(),
            seen: blank(),
        }
    }

    fn mark(&self, marks: &[AtomicU64], change_id: i64) -> bool {
        let now = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let place = usize::try_from(change_id - self.first_id).ok();
        match place.and_then(|place| marks.get(place)) {
            Some(mark) => {
                mark.store(now, Ordering::Relaxed);
                true
            }
            None => false,
        }
    }

    /// A change has arrived; false if it is none of ours.
    pub(crate) fn saw(&self, change_id: i64) -> bool {
        self.mark(&self.seen, change_id)
    }

    /// Whether every change has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.seen
            .iter()
            .all(|seen| seen.load(Ordering::Relaxed) > 0)
    }

    /// Milliseconds from commit to arrival. The arrival may be first: its message can overtake
    /// the answer to the writer.
    pub(crate) fn latencies(&self) -> Sample {
        let warming = match self.committed.len() > 4 * WARMING {
            true => WARMING,
            false => 0,
        };
        self.committed
            .iter()
            .zip(&self.seen)
            .skip(warming)
            .map(|(committed, seen)| {
                let (committed, seen) = (
                    committed.load(Ordering::Relaxed),
                    seen.load(Ordering::Relaxed),
                );
                seen.saturating_sub(committed) as f64 / 1e6
            })
            .collect()
    }
}

/// Publishes every change of the log, so many per second; the writers take turns. Returns how many
/// per second it could be.
pub(crate) async fn publish<P: Publish>(writers: Vec<P>, log: &Arc<Log>, rate: u32) -> Result<f64> {
    let mut tasks = JoinSet::new();
    let count = writers.len();
    let changes = log.committed.len();
    let between = Duration::from_secs(1) * u32::try_from(count).unwrap_or(1) / rate;
    let began = Instant::now();
    for (place, mut writer) in writers.into_iter().enumerate() {
        let log = log.clone();
        tasks.spawn(async move {
            // The writers take turns instead of writing all at once.
            tokio::time::sleep(Duration::from_secs(1) * place as u32 / rate).await;
            let mut turns = tokio::time::interval(between);
            turns.set_missed_tick_behavior(MissedTickBehavior::Burst);
            for change in (place..changes).step_by(count) {
                turns.tick().await;
                let change_id = log.first_id + change as i64;
                writer.publish(change_id).await?;
                log.mark(&log.committed, change_id);
            }
            Ok::<_, Error>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|e| Error::new(Kind::Database, "a writer was cut off").caused_by(e))??;
    }
    Ok(changes as f64 / began.elapsed().as_secs_f64())
}

/// Says so if the machine was too slow to publish at that rate.
pub(crate) fn judge_rate(could: f64, rate: u32, findings: &mut Findings<'_>) {
    if could < 0.95 * f64::from(rate) {
        findings.note(format!(
            "latency: this machine could commit only {could:.0} changes/s instead of {rate}"
        ));
    }
}

/// Publishes through `writers` for a while, and follows.
pub(crate) async fn measure<P: Publish>(
    db: &Changefeed,
    feed: &FeedHandle,
    writers: Vec<P>,
    first_id: i64,
    length: Duration,
    findings: &mut Findings<'_>,
) -> Result<()> {
    findings.doing("latency: commit to follower at 500 changes/s");
    let changes = (length.as_secs_f64() * f64::from(RATE)) as usize;
    let sweeping = Sweeping::start(db, feed);
    let log = Arc::new(Log::new(first_id, changes));
    let following = {
        let (stream, log) = (feed.follow(ShardId(0), After::First), log.clone());
        async move {
            let mut stream = pin!(stream);
            let mut left = changes;
            while left > 0 {
                let Some(change) = stream.next().await else {
                    break;
                };
                if log.saw(change?.change_id.unwrap_or(0)) {
                    left -= 1;
                }
            }
            Ok::<_, Error>(())
        }
    };
    let following = tokio::spawn(following);
    let rate = publish(writers, &log, RATE).await?;
    tokio::time::timeout(PATIENCE, following)
        .await
        .map_err(|e| {
            Error::new(Kind::Database, "changes did not reach their follower").caused_by(e)
        })?
        .map_err(|e| Error::new(Kind::Database, "the follower was cut off").caused_by(e))??;
    judge_rate(rate, RATE, findings);
    sweeping.stop().await;
    let latencies = log.latencies();
    for (name, part, most) in [
        ("latency, p50", 0.5, Some(5.0)),
        ("latency, p99", 0.99, Some(25.0)),
        ("latency, longest", 1.0, None),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_who_is_first_waited_no_time() {
        let log = Log::new(100, 2);
        assert!(log.saw(100));
        assert!(log.mark(&log.committed, 100));
        assert!(!log.saw(99) && !log.saw(102));
        assert_eq!(log.latencies().quantile(1.0), 0.0);
    }

    #[test]
    fn what_is_done_once_is_not_measured() {
        let log = Log::new(0, 5 * WARMING);
        for change in 0..5 * WARMING {
            log.committed[change].store(1, Ordering::Relaxed);
            let late = if change < WARMING {
                2_000_000_000
            } else {
                1_000_001
            };
            log.seen[change].store(late, Ordering::Relaxed);
        }
        assert_eq!(log.latencies().quantile(1.0), 1.0);
    }
}
