//! A sweeper in the background, as `serve` runs one.

use changefeed::{CancellationToken, Changefeed, FeedHandle, Result, SweepGroup, SweepTotals};
use tokio::task::JoinHandle;

/// Who sweeps the scratch feed.
pub(crate) const OWNER: &str = "changefeed bench";

/// A sweeper that runs until it is stopped or dropped.
pub(crate) struct Sweeping {
    shutdown: CancellationToken,
    task: Option<JoinHandle<Result<SweepTotals>>>,
}

impl Sweeping {
    /// Starts one, if the store needs it.
    pub(crate) fn start(db: &Changefeed, feed: &FeedHandle) -> Self {
        let shutdown = CancellationToken::new();
        let group = feed
            .definition()
            .shards
            .first()
            .map_or(SweepGroup::default(), |shard| shard.sweep_group);
        let task = db.needs_sweeping().then(|| {
            let sweeper = db.sweeper(group, OWNER);
            tokio::spawn(sweeper.run(|_| {}, shutdown.clone()))
        });
        Sweeping { shutdown, task }
    }

    /// Waits until it has ended.
    pub(crate) async fn stop(mut self) {
        self.shutdown.cancel();
        if let Some(task) = self.task.take() {
            // What it swept shows elsewhere; how it ended does not matter any more.
            let _ = task.await;
        }
    }
}

impl Drop for Sweeping {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}
