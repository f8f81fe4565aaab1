//! What keeps the rows of feeds from being read: found by reading as everybody else does.

use changefeed_core::{After, Feed, Finding, Kind, Result, Severity, ShardId, Source};

use crate::session::Session;

/// How many shards of a feed are looked at, and how many changes of each.
const SHARDS: usize = 8;
const CHANGES: usize = 1000;

impl Session {
    pub(crate) async fn look_at_feeds(&self) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        for feed in self.feeds().await? {
            if feed.source.as_ref().and_then(Source::table).is_none() {
                continue;
            }
            for shard in feed.shards.iter().take(SHARDS) {
                if let Some(finding) = self.try_feed(&feed, shard.shard).await? {
                    findings.push(finding);
                    break;
                }
            }
        }
        Ok(findings)
    }

    async fn try_feed(&self, feed: &Feed, shard: ShardId) -> Result<Option<Finding>> {
        let mut after = After::First;
        // A page ends before a change that cannot be read, so the next one tells.
        for _ in 0..2 {
            let error = match self.read(feed, shard, after, CHANGES).await {
                Ok(page) if page.more && page.changes.len() < CHANGES => {
                    after = After::Cursor(page.next);
                    continue;
                }
                Ok(_) => return Ok(None),
                Err(error) => error,
            };
            return match error.kind() {
                Kind::Unsupported | Kind::Permission | Kind::NotFound => Ok(Some(Finding::new(
                    Severity::Problem,
                    format!("feed {}", feed.name),
                    error.message().to_owned(),
                    error.advice().map(str::to_owned),
                ))),
                _ => Err(error),
            };
        }
        Ok(None)
    }
}
