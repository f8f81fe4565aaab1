//! What keeps the rows of feeds from being read: found by reading as everybody else does.

use changefeed_core::{After, Feed, Finding, Kind, Result, Severity, ShardId, Source};

use crate::error::db;
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
            findings.extend(self.heirs_of(&feed).await?);
            for shard in feed.shards.iter().take(SHARDS) {
                if let Some(finding) = self.try_feed(&feed, shard.shard).await? {
                    findings.push(finding);
                    break;
                }
            }
        }
        Ok(findings)
    }

    /// Tables that inherit from that of a feed, in the way from before there were partitions: their rows
    /// are rows of the table for most queries, but neither captured nor read with it.
    async fn heirs_of(&self, feed: &Feed) -> Result<Option<Finding>> {
        let row = self
            .query_opt(
                "select f.source::text, min(i.inhrelid::regclass::text) from changefeed.feed_source f \
                 join pg_class c on c.oid = f.source and c.relkind = 'r' \
                 join pg_inherits i on i.inhparent = c.oid \
                 where f.feed_id = $1 group by f.source",
                &[&feed.id.0],
            )
            .await
            .map_err(db)?;
        Ok(row.map(|row| {
            let (table, heir): (String, String) = (row.get(0), row.get(1));
            Finding::new(
                Severity::Warning,
                format!("feed {}", feed.name),
                format!(
                    "tables that inherit from {table}, such as {heir}, are not part of the feed"
                ),
                "make a feed of their own from each of them, or use partitions".to_owned(),
            )
        }))
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
