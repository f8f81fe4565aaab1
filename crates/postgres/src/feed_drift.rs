//! What keeps changes of tables from being captured, and the rows of feeds from being read: the first is mended where
//! that is possible, the second is found by reading as everybody else does.

use changefeed_core::{After, Feed, Finding, Kind, Result, Severity, ShardId, Source, words};
use tokio_postgres::Row;

use crate::capture::{self, Fires};
use crate::error::db;
use crate::filter::Filter;
use crate::patience::Patience;
use crate::quote;
use crate::row::Cells;
use crate::session::Session;
use crate::source::StoredSource;

/// How many shards of a feed are looked at, and how many changes of each.
const SHARDS: usize = 8;
const CHANGES: usize = 1000;

/// A feed beside what captures its table.
struct Look {
    feed: Feed,
    source: Source,
    /// Whether its table is there.
    table: bool,
    /// The triggers that are missing, and those that somebody has switched off.
    missing: Vec<Fires>,
    disabled: Vec<Fires>,
    /// The function is missing, or knows other columns than the table has now.
    stale: bool,
    /// Its rows have lost the key that the feed knows them by: why, and what to do.
    lost: Option<(String, Option<String>)>,
    /// Whether the column that decides the shard is there.
    shard_column: bool,
}

impl Look {
    fn of(row: &Row, feeds: &[Feed]) -> Result<Option<Self>> {
        let id: i16 = row.take(0)?;
        let Some(feed) = feeds.iter().find(|f| f.id.0 == id) else {
            return Ok(None);
        };
        let Some(source @ Source::Captured { .. }) = &feed.source else {
            return Ok(None);
        };
        let (mut missing, mut disabled) = (Vec::new(), Vec::new());
        for (place, fires) in [(2, Fires::ByRow), (3, Fires::OnTruncate)] {
            match row.take::<Option<&str>>(place)? {
                None => missing.push(fires),
                // As usual, or always.
                Some("O" | "A") => {}
                Some(_) => disabled.push(fires),
            }
        }
        let function: Option<&str> = row.take(4)?;
        let columns: Option<&str> = row.take(5)?;
        Ok(Some(Look {
            table: row.take(1)?,
            missing,
            disabled,
            stale: function.is_none_or(|f| columns.is_some_and(|columns| !f.contains(columns))),
            source: source.clone(),
            lost: match row.take::<Option<String>>(6)? {
                Some(problem) => Some((problem, row.take(7)?)),
                None => None,
            },
            shard_column: row.take(8)?,
            feed: feed.clone(),
        }))
    }

    /// Whether something has to be made anew, and can be.
    fn is_mendable(&self) -> bool {
        let fits = self.table && self.lost.is_none() && self.shard_column;
        fits && (self.stale || !self.missing.is_empty())
    }

    fn finding(&self, severity: Severity, message: String, advice: Option<String>) -> Finding {
        Finding::new(
            severity,
            format!("feed {}", self.feed.name),
            message,
            advice,
        )
    }

    fn describe(&self) -> Vec<Finding> {
        let name = &self.feed.name;
        if !self.table {
            let kept = match self.source.keeps_images() {
                true => ", with what it has kept",
                false => "",
            };
            return vec![self.finding(
                Severity::Problem,
                "its table was dropped: nothing is captured".to_owned(),
                Some(format!(
                    "`changefeed feed drop {name}` removes the feed{kept}"
                )),
            )];
        }
        let Some(table) = self.source.table() else {
            return Vec::new();
        };
        let mut findings = Vec::new();
        if let Some((problem, advice)) = &self.lost {
            findings.push(self.finding(Severity::Problem, problem.clone(), advice.clone()));
        }
        if !self.shard_column {
            let column = self.source.shard_by().unwrap_or_default();
            findings.push(self.finding(
                Severity::Warning,
                format!(
                    "column '{column}' of {table}, which decides the shard, was renamed or dropped: changes go \
                     where they went, or to shard 0 if it was dropped"
                ),
                Some(format!(
                    "if it was renamed: `update changefeed.feed_source set shard_by = '…' where feed_id = {}`; \
                     otherwise make another feed",
                    self.feed.id
                )),
            ));
        }
        if !self.missing.is_empty() {
            findings.push(self.finding(
                Severity::Problem,
                format!("a database trigger of it on {table} is missing: changes are not captured"),
                Some(
                    "a running `changefeed serve` or `changefeed deliver` makes it again, where its user may"
                        .to_owned(),
                ),
            ));
        }
        for fires in &self.disabled {
            let trigger = quote::identifier(&capture::trigger_name(self.feed.id, *fires));
            findings.push(self.finding(
                Severity::Problem,
                format!("its database trigger {trigger} is disabled: changes are not captured"),
                Some(format!(
                    "alter table {} enable trigger {trigger}",
                    quote::table(table)
                )),
            ));
        }
        findings
    }
}

impl Session {
    async fn feed_looks(&self) -> Result<Vec<Look>> {
        let rows = self
            .query(include_str!("sql/feed_triggers.sql"), &[])
            .await
            .map_err(db)?;
        let feeds = self.feeds().await?;
        let looks = rows.iter().map(|row| Look::of(row, &feeds));
        looks.filter_map(Result::transpose).collect()
    }

    /// Makes triggers again that are missing, and functions anew whose tables were altered.
    pub(crate) async fn follow_feeds(&mut self) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        for look in self.feed_looks().await? {
            if !look.is_mendable() {
                continue;
            }
            match self.mend(&look).await {
                Ok(true) if !look.missing.is_empty() => findings.push(
                    look.finding(
                        Severity::Warning,
                        "a database trigger of it was missing and was made again; what was written meanwhile \
                         was not captured"
                            .to_owned(),
                        None,
                    ),
                ),
                Ok(true) => findings.push(look.finding(
                    Severity::Ok,
                    words::CAPTURE_RECREATED.to_owned(),
                    None,
                )),
                Ok(false) => {}
                Err(error) => findings.push(look.finding(
                    Severity::Warning,
                    words::capture_not_recreated(&error),
                    error.advice().map(str::to_owned),
                )),
            }
        }
        Ok(findings)
    }

    /// False if somebody else is at it or was, or has dropped the feed. What is looked at before the lock may
    /// be of yesterday: whether images are kept most of all.
    async fn mend(&mut self, look: &Look) -> Result<bool> {
        let mut feed = look.feed.clone();
        let transaction = self.transaction().await.map_err(db)?;
        Patience::Moment.set(&*transaction).await?;
        let held = transaction
            .query_opt(
                "select from changefeed.feed where feed_id = $1 for update skip locked",
                &[&feed.id.0],
            )
            .await
            .map_err(db)?;
        let stored = StoredSource::load(&*transaction, feed.id).await?;
        let Some(stored) = stored.filter(|_| held.is_some()) else {
            return Ok(false);
        };
        if let Some(Source::Captured {
            shard_by, images, ..
        }) = &mut feed.source
        {
            (*shard_by, *images) = (stored.shard_by.clone(), stored.images);
        }
        let rows = transaction
            .query(include_str!("sql/feed_triggers.sql"), &[])
            .await
            .map_err(db)?;
        let id = feed.id;
        let now = rows
            .iter()
            .find_map(|row| Look::of(row, std::slice::from_ref(&feed)).transpose());
        let Some(now) = now.transpose()?.filter(Look::is_mendable) else {
            return Ok(false);
        };
        let table = stored.captured_table(&*transaction, &feed).await?;
        capture::check(&table)?;
        if now.stale {
            capture::write_function(&*transaction, id, &table, &now.source, stored.shards).await?;
        }
        capture::create_triggers(&*transaction, id, &table, &now.missing).await?;
        transaction.commit().await.map_err(db)?;
        Ok(true)
    }

    pub(crate) async fn feed_findings(&self) -> Result<Vec<Finding>> {
        let mut findings: Vec<Finding> = Vec::new();
        let mut lost = Vec::new();
        for look in self.feed_looks().await? {
            findings.extend(look.describe());
            if !look.table || look.lost.is_some() {
                lost.push(look.feed.id);
            }
        }
        for feed in self.feeds().await? {
            // What has just been said would be said again.
            let told = lost.contains(&feed.id);
            if told || feed.source.as_ref().and_then(Source::table).is_none() {
                continue;
            }
            findings.extend(self.heirs_of(&feed).await?);
            findings.extend(self.filter_of(&feed).await?);
            for shard in feed.shards.iter().take(SHARDS) {
                if let Some(finding) = self.try_feed(&feed, shard.shard).await? {
                    findings.push(finding);
                    break;
                }
            }
        }
        Ok(findings)
    }

    /// A filter that names columns which there are no more.
    async fn filter_of(&self, feed: &Feed) -> Result<Option<Finding>> {
        let Some(source) = feed.source.as_ref().filter(|source| source.is_filtered()) else {
            return Ok(None);
        };
        let Some(stored) = StoredSource::load(&***self, feed.id).await? else {
            return Ok(None);
        };
        let table = stored.table(&***self, feed).await?;
        let Err(error) = Filter::of(&table, source).and_then(|filter| filter.check_columns())
        else {
            return Ok(None);
        };
        Ok(Some(Finding::new(
            Severity::Warning,
            format!("feed {}", feed.name),
            format!(
                "its condition no longer keeps any row out, or a column is missing from its images: {}",
                error.message()
            ),
            "drop the feed and make it again with the columns of now".to_owned(),
        )))
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
        let heirs = |row: tokio_postgres::Row| {
            let (table, heir): (String, String) = (row.take(0)?, row.take(1)?);
            Ok(Finding::new(
                Severity::Warning,
                format!("feed {}", feed.name),
                format!(
                    "tables that inherit from {table}, such as {heir}, are not part of the feed"
                ),
                "make a feed of their own from each of them, or use partitions".to_owned(),
            ))
        };
        row.map(heirs).transpose()
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
