//! Following tables that were altered after their feed was made.
//!
//! SQLite itself keeps a trigger with its table. What it cannot know is that a new unique index removes
//! rows, and that a table which was rebuilt under its old name has lost its triggers. So the triggers
//! are compared with what they should be, word for word, and made again.

use std::collections::BTreeMap;

use changefeed_core::{Feed, Finding, Result, Severity, Source};
use rusqlite::Connection;

use crate::error::Explain;
use crate::inspect::Table;
use crate::{arrange, capture, feeds};

/// A feed whose triggers are not as they should be.
struct Drifted {
    feed: Feed,
    table: Table,
    shard_by: Option<String>,
    shards: i16,
    lost: bool,
}

fn drifted(tx: &Connection) -> Result<Vec<Drifted>> {
    let mut found = Vec::new();
    for feed in feeds::list(tx)? {
        let Some(source @ Source::Captured { shard_by, .. }) = &feed.source else {
            continue;
        };
        // One whose table or column is gone says so to its readers.
        let Ok(table) = Table::behind(tx, &feed, source) else {
            continue;
        };
        let shard_by = match shard_by.as_deref().map(|c| table.column(c)).transpose() {
            Ok(shard_by) => shard_by.map(str::to_owned),
            Err(_) => continue,
        };
        if table.check_capture(tx).is_err() {
            continue;
        }
        let shards: i16 = tx
            .prepare_cached("select shards from changefeed_feed_source where feed_id = ?1")
            .and_then(|mut s| s.query_row([feed.id.0], |row| row.get(0)))
            .explained()?;
        let there: BTreeMap<String, String> = tx
            .prepare_cached(
                "select name, sql from sqlite_master where type = 'trigger' and name glob ?1",
            )
            .and_then(|mut s| {
                s.query_map([capture::trigger_name(feed.id, "*")], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })?
                .collect()
            })
            .explained()?;
        let wanted = capture::triggers(tx, feed.id, &table, shard_by.as_deref(), shards)?;
        let same = wanted.len() == there.len()
            && wanted
                .iter()
                .all(|trigger| there.get(&trigger.name).is_some_and(|sql| trigger.is(sql)))
            && arrange::is_arranged(tx, &table.name)?;
        if !same {
            found.push(Drifted {
                lost: there.is_empty(),
                feed,
                table,
                shard_by,
                shards,
            });
        }
    }
    Ok(found)
}

/// Whether there is anything to do for `refresh`.
pub(crate) fn is_stale(tx: &Connection) -> Result<bool> {
    Ok(!drifted(tx)?.is_empty())
}

/// Makes the triggers of feeds what they should be.
pub(crate) fn refresh(tx: &Connection) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for drifted in drifted(tx)? {
        let Drifted { feed, table, .. } = &drifted;
        tx.execute_batch("savepoint changefeed_refresh")
            .explained()?;
        let made = capture::remove(tx, feed.id).and_then(|()| {
            let shard_by = drifted.shard_by.as_deref();
            capture::install(tx, feed.id, table, shard_by, drifted.shards)
        });
        if made.is_err() {
            tx.execute_batch("rollback to changefeed_refresh")
                .explained()?;
        }
        tx.execute_batch("release changefeed_refresh").explained()?;
        let (severity, message) = match made {
            Err(error) => (
                Severity::Problem,
                format!("its triggers do not fit table {}: {error}", table.name),
            ),
            Ok(()) if drifted.lost => (
                Severity::Warning,
                format!(
                    "its triggers on table {} were missing, as after a table was rebuilt; they were \
                     made again, but what was written meanwhile was not captured",
                    table.name
                ),
            ),
            Ok(()) => (
                Severity::Ok,
                format!(
                    "table {} or its triggers were altered; the triggers of the feed were made again",
                    table.name
                ),
            ),
        };
        findings.push(finding(feed, severity, message));
    }
    Ok(findings)
}

/// What keeps changes from being captured.
pub(crate) fn findings(tx: &Connection) -> Result<Vec<Finding>> {
    Ok(drifted(tx)?
        .iter()
        .map(|drifted| {
            let table = &drifted.table.name;
            match drifted.lost {
                true => finding(
                    &drifted.feed,
                    Severity::Problem,
                    format!(
                        "its triggers on table {table} are missing, as after a table was rebuilt: \
                         nothing is captured"
                    ),
                ),
                false => finding(
                    &drifted.feed,
                    Severity::Warning,
                    format!("table {table} or its triggers were altered since the feed was made"),
                ),
            }
        })
        .collect())
}

fn finding(feed: &Feed, severity: Severity, message: String) -> Finding {
    let advice = match severity {
        Severity::Warning | Severity::Problem => {
            Some("`changefeed serve` and `changefeed deliver` make the triggers again".to_owned())
        }
        Severity::Ok | Severity::Note => None,
    };
    Finding {
        severity,
        subject: format!("feed '{}'", feed.name),
        message,
        advice,
    }
}
