//! A consumer that takes its time: it reads everything there is, then nothing for a while, so that a
//! lag can be seen to grow and to vanish.

use std::time::Duration;

use changefeed::{After, CancellationToken, ConsumerName, FeedHandle, Result};

/// The time between two reports.
const PAUSE: Duration = Duration::from_secs(25);
/// Changes in a page.
const PAGE: usize = 1000;

pub(super) async fn run(feed: &FeedHandle, stop: &CancellationToken) -> Result<()> {
    let name: ConsumerName = "report".parse()?;
    loop {
        for shard in feed.definition().shards.iter().map(|s| s.shard) {
            let mut stored = feed.consumer_cursor(&name, shard).await?;
            loop {
                let after = stored.map_or(After::First, After::Cursor);
                let page = feed.read(shard, after, PAGE).await?;
                feed.store_cursor(&name, shard, stored, page.next).await?;
                stored = Some(page.next);
                if page.changes.is_empty() {
                    break;
                }
            }
        }
        let pause = tokio::time::sleep(PAUSE);
        if stop.run_until_cancelled(pause).await.is_none() {
            return Ok(());
        }
    }
}
