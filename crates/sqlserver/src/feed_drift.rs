//! Tables that were altered after a feed was made of them. The trigger of a feed names the key of
//! its table and the column that decides the shard: if one of these was renamed, every write fails
//! until the trigger is recreated.

use changefeed_core::{
    Error, FeedId, Finding, Result, Severity, ShardRange, Source, TableName, words,
};
use tiberius::Row;

use crate::capture;
use crate::connection::Connection;
use crate::feeds;
use crate::filter::Filter;
use crate::platform::Platform;
use crate::quote;
use crate::row::Cells;
use crate::session::Session;
use crate::source::Table;
use crate::table_trigger::{self, Patience, give_up};

/// A feed beside its table as it is now.
struct Look {
    feed: FeedId,
    name: String,
    source: Source,
    shards: ShardRange,
    /// None if it is gone.
    table: Option<Table>,
    /// The database trigger as it is, if it is on the table.
    known: Option<String>,
    /// It may be there, but is not for this user to see.
    hidden: bool,
    disabled: bool,
    /// As it should be, in the words of this platform.
    wanted: Result<String>,
    /// Why the columns that the feed knows its rows by do not tell them apart any more.
    moved: Option<Error>,
    /// One of these columns is gone, or one that its filter names: whatever the trigger says, writes fail.
    keyless: bool,
}

impl Look {
    async fn at(connection: &mut Connection, row: &Row) -> Result<Self> {
        let feed = FeedId(row.take(0)?);
        let mut table = Table::load(connection, row.maybe(2)?.unwrap_or_default()).await?;
        let known_by = match (&mut table, row.maybe::<&str>(9)?) {
            (Some(table), Some(key)) => table.known_by(key),
            _ => Ok(None),
        };
        let (mut moved, mut keyless) = match known_by {
            Ok(moved) => (moved, false),
            Err(gone) => (Some(gone), true),
        };
        let source = Source::Captured {
            table: TableName::unqualified(""),
            shard_by: row.maybe_text(3)?,
            images: row.says(8)?,
            when: row.maybe_text(10)?,
            columns: feeds::columns_of(row.maybe_text(11)?)?,
        };
        // A trigger that asks for a column which is gone fails writes, and cannot be made anew either.
        if let Some(Err(gone)) = table.as_ref().map(|table| Filter::of(table, &source)) {
            let again = "drop the feed and make it again with the columns of now";
            moved.get_or_insert(gone.advise(again));
            keyless = true;
        }
        let shards = ShardRange {
            first: row.maybe(12)?.unwrap_or(0),
            count: row.maybe(4)?.unwrap_or(1),
        };
        let platform = connection.platform();
        let wanted = match &table {
            Some(table) => capture::check(table)
                .and_then(|()| capture::trigger(feed, table, &source, shards))
                .map(|sql| platform.statement(&sql).into_owned()),
            None => Ok(String::new()),
        };
        Ok(Look {
            feed,
            name: row.text(1)?,
            source,
            shards,
            table,
            known: row.maybe_text(5)?,
            hidden: row.maybe::<bool>(7)? == Some(false),
            disabled: row.says(6)?,
            wanted,
            moved,
            keyless,
        })
    }

    /// Whether the trigger can be made anew, and must be.
    fn is_stale(&self) -> bool {
        self.table.is_some()
            && !self.hidden
            && !self.keyless
            && self
                .wanted
                .as_ref()
                .is_ok_and(|wanted| !same(self.known.as_deref(), wanted))
    }

    fn finding(&self, severity: Severity, message: String, advice: Option<String>) -> Finding {
        Finding::new(severity, format!("feed {}", self.name), message, advice)
    }

    fn stuck(&self, error: &Error) -> Finding {
        let lost = self.source.shard_by().unwrap_or("its key");
        self.finding(
            Severity::Problem,
            format!("its table was altered, and writes to it may fail: {error}"),
            Some(format!(
                "if {lost} was renamed: `update changefeed.feed_source set shard_by = N'…' where \
                 feed_id = {}`, and a running `changefeed serve` makes the database trigger anew",
                self.feed
            )),
        )
    }

    fn describe(&self) -> Vec<Finding> {
        let Some(table) = &self.table else {
            return vec![self.finding(
                Severity::Problem,
                "its table was dropped, or this user may not see it".to_owned(),
                Some(format!(
                    "grant select on it to this user; if it was dropped, `changefeed feed drop {}` removes \
                     the feed",
                    self.name
                )),
            )];
        };
        let mends = "a running `changefeed serve` or `changefeed deliver` makes it anew, where its \
                     user may alter the table";
        let mut findings = Vec::new();
        if let Some(moved) = &self.moved {
            let message = match (self.keyless, &self.known) {
                (true, None) => format!("nothing is captured: {}", moved.message()),
                (true, Some(_)) => format!("writes to its table fail: {}", moved.message()),
                (false, _) => moved.message().to_owned(),
            };
            let advice = moved.advice().map(str::to_owned);
            findings.push(self.finding(Severity::Problem, message, advice));
        }
        match &self.wanted {
            _ if self.keyless => {}
            Err(error) => findings.push(self.stuck(error)),
            Ok(_) if self.hidden => findings.push(self.finding(
                Severity::Note,
                format!(
                    "this user may not see the database trigger on {}, so whether it fits the \
                     table is not known",
                    table.name
                ),
                Some(format!(
                    "grant view definition on {} to this user",
                    table.sql
                )),
            )),
            Ok(_) if self.known.is_none() => findings.push(self.finding(
                Severity::Problem,
                format!(
                    "its database trigger on {} is missing: nothing is captured",
                    table.name
                ),
                Some(mends.to_owned()),
            )),
            Ok(_) if self.is_stale() => findings.push(self.finding(
                Severity::Problem,
                format!(
                    "the key of {} or the table itself was altered: writes fail until the database \
                     trigger is recreated",
                    table.name
                ),
                Some(mends.to_owned()),
            )),
            Ok(_) => {}
        }
        if let Err(error) = capture::check_owner(table) {
            let advice = error.advice().map(str::to_owned);
            findings.push(self.finding(Severity::Problem, error.to_string(), advice));
        }
        if self.disabled {
            findings.push(self.finding(
                Severity::Problem,
                "its database trigger is disabled: nothing is captured".to_owned(),
                Some(format!(
                    "enable trigger {} on {}",
                    quote::identifier(&capture::trigger_name(self.feed)),
                    table.sql
                )),
            ));
        }
        if findings.is_empty() {
            let message = format!("captures {}", table.name);
            findings.push(self.finding(Severity::Ok, message, None));
        }
        findings
    }
}

/// Whether a trigger has this text. The server keeps it as it was sent, but for blanks at its ends.
fn same(known: Option<&str>, wanted: &str) -> bool {
    known.is_some_and(|known| known.trim() == wanted.trim())
}

impl Session {
    /// What keeps changes of feeds from being captured.
    pub(crate) async fn look_at_feeds(&mut self) -> Result<Vec<Finding>> {
        let looks = self.feed_looks().await?;
        let mut findings: Vec<Finding> = looks.iter().flat_map(Look::describe).collect();
        findings.extend(self.left_triggers().await?);
        // Babelfish versions rows.
        if self.connection.platform() == Platform::SqlServer {
            findings.extend(self.never_numbered().await?);
        }
        Ok(findings)
    }

    /// Changes with ids of the application's own, above our sequence, that no sweep will number.
    async fn never_numbered(&mut self) -> Result<Vec<Finding>> {
        let connection = &mut *self.connection;
        let rows = connection
            .query(include_str!("sql/never_numbered.sql"), &[])
            .await?;
        let found = rows.iter().map(|row| {
            let (feed, shard): (&str, i16) = (row.take(0)?, row.take(1)?);
            let (count, first): (i64, i64) = (row.take(2)?, row.take(3)?);
            Ok(Finding::new(
                Severity::Problem,
                format!("feed {feed}"),
                format!(
                    "{count} changes of shard {shard} will never be numbered: their ids, from {first} on, are above \
                     those of changefeed.change_id"
                ),
                "allow snapshots (`alter database current set allow_snapshot_isolation on`), or draw ids from \
                 changefeed.change_id"
                    .to_owned(),
            ))
        });
        found.collect()
    }

    /// Triggers that somebody has left on tables: by deleting what they are for, or by restoring a table.
    async fn left_triggers(&mut self) -> Result<Vec<Finding>> {
        let connection = &mut *self.connection;
        let rows = connection
            .query(include_str!("sql/left_triggers.sql"), &[])
            .await?;
        let left = rows.iter().map(|row| {
            let (schema, name, table): (&str, &str, &str) =
                (row.take(0)?, row.take(1)?, row.take(2)?);
            Ok(Finding::new(
                Severity::Problem,
                format!("trigger {name}"),
                format!(
                    "it is on {schema}.{table} and belongs to nothing: writes to the table may fail"
                ),
                format!(
                    "drop trigger {}.{}",
                    quote::identifier(schema),
                    quote::identifier(name)
                ),
            ))
        });
        left.collect()
    }

    /// Makes triggers of feeds anew whose tables were altered.
    pub(crate) async fn follow_feeds(&mut self) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        for look in self.feed_looks().await? {
            if look.keyless && look.known.is_some() {
                findings.push(self.take_off(&look).await);
                continue;
            }
            if let Err(error) = &look.wanted
                && !look.keyless
            {
                findings.push(look.stuck(error));
            }
            // One that somebody has switched off stays as it is: made anew it would be on.
            if !look.is_stale() || look.disabled {
                continue;
            }
            match self.remake(&look).await {
                Ok(true) if look.known.is_none() => findings.push(
                    look.finding(
                        Severity::Warning,
                        "its database trigger was missing and was made again; what was written \
                     meanwhile was not captured"
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
                Err(error) => findings.push(look.stuck(&error)),
            }
        }
        Ok(findings)
    }

    /// Makes the trigger anew for the table as it is. False if somebody else has done it.
    async fn remake(&mut self, look: &Look) -> Result<bool> {
        let Some(table) = &look.table else {
            return Ok(false);
        };
        let connection = &mut *self.connection;
        connection.begin().await?;
        let done = async {
            // Another instance that does the same, or drops the feed, waits here.
            let there = connection
                .execute(
                    "update changefeed.feed with (updlock, rowlock) set name = name where feed_id = @P1",
                    &[&look.feed.0],
                )
                .await?;
            let now = connection
                .query(include_str!("sql/feed_triggers.sql"), &[])
                .await?;
            let mut known = None;
            for row in &now {
                if row.take::<i16>(0)? == look.feed.0 {
                    known = row.maybe::<&str>(5)?;
                }
            }
            if there == 0 || known != look.known.as_deref() {
                return Ok(false);
            }
            capture::install(
                connection,
                look.feed,
                table,
                &look.source,
                look.shards,
                Patience::Moment,
            )
            .await?;
            connection.commit().await?;
            Ok(true)
        }
        .await;
        self.known.joins.forget(look.feed);
        if !matches!(done, Ok(true)) {
            give_up(connection).await;
        }
        done
    }

    /// Takes a trigger off a table that has lost a column of the feed's key: every write would fail.
    async fn take_off(&mut self, look: &Look) -> Finding {
        let connection = &mut *self.connection;
        let name = capture::trigger_name(look.feed);
        let table = look.table.as_ref().map(|t| t.id).unwrap_or_default();
        let removed = async {
            connection.begin().await?;
            table_trigger::remove(connection, &name, table, Patience::Moment).await?;
            connection.commit().await
        }
        .await;
        let why = look.moved.as_ref().map(Error::message).unwrap_or_default();
        match removed {
            Ok(()) => look.finding(
                Severity::Problem,
                format!("its database trigger was taken off, because writes failed by it: {why}"),
                look.moved
                    .as_ref()
                    .and_then(|moved| moved.advice().map(str::to_owned)),
            ),
            Err(error) => {
                give_up(connection).await;
                look.stuck(&error)
            }
        }
    }

    async fn feed_looks(&mut self) -> Result<Vec<Look>> {
        let connection = &mut *self.connection;
        let rows = connection
            .query(include_str!("sql/feed_triggers.sql"), &[])
            .await?;
        let mut looks = Vec::new();
        for row in &rows {
            looks.push(Look::at(connection, row).await?);
        }
        Ok(looks)
    }
}
