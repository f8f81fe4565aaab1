//! Following tables that were altered after their feed was made.
//!
//! SQLite itself keeps a trigger with its table. What it cannot know is that a new unique index removes
//! rows, and that a table which was rebuilt under its old name has lost its triggers. So the triggers
//! are compared with what they should be, word for word, and made again.

use std::collections::BTreeMap;

use changefeed_core::{Feed, Finding, Result, Severity, ShardRange, Source};
use rusqlite::{Connection, params};

use crate::error::Explain;
use crate::filter::Filter;
use crate::source::Table;
use crate::{arrange, capture, feeds};

/// A feed whose triggers are not as they should be.
struct Drifted {
    feed: Feed,
    table: Table,
    source: Source,
    shards: ShardRange,
    lost: bool,
    /// Its triggers are as they should be, because SQLite has followed a renamed column of the key in them.
    renamed_only: bool,
}

fn drifted(tx: &Connection) -> Result<Vec<Drifted>> {
    let mut found = Vec::new();
    for feed in feeds::list(tx)? {
        let Some(
            source @ Source::Captured {
                table: named,
                images,
                when,
                columns,
                ..
            },
        ) = &feed.source
        else {
            continue;
        };
        // One whose table, column or key is gone says so to its readers.
        let Ok(table) = Table::behind(tx, &feed, source) else {
            continue;
        };
        let shard_by = match source.shard_by().map(|c| table.column(c)).transpose() {
            Ok(shard_by) => shard_by.map(str::to_owned),
            Err(_) => continue,
        };
        let source = Source::Captured {
            table: named.clone(),
            shard_by,
            images: *images,
            when: when.clone(),
            columns: columns.clone(),
        };
        if table.check_capture(tx).is_err() {
            continue;
        }
        let Some(shards) = feeds::shards(tx, feed.id)? else {
            continue;
        };
        let key_names: Option<String> = tx
            .prepare_cached("select key_names from changefeed_feed_source where feed_id = ?1")
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
        // Triggers whose filter does not fit any more cannot be recreated, and are left as they are.
        if Filter::of(&table, &source).is_err() {
            continue;
        }
        let wanted = capture::triggers(tx, feed.id, &table, &source, shards)?;
        let same = wanted.len() == there.len()
            && wanted
                .iter()
                .all(|trigger| there.get(&trigger.name).is_some_and(|sql| trigger.is(sql)))
            && arrange::is_arranged(tx, &table.name)?;
        if !same || key_names != Some(table.key_names()) {
            found.push(Drifted {
                renamed_only: same,
                lost: ["insert", "update", "delete"]
                    .iter()
                    .any(|event| !there.contains_key(&capture::trigger_name(feed.id, event))),
                feed,
                table,
                source,
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
        let made = capture::remove(tx, feed.id)
            .and_then(|()| capture::install(tx, feed.id, table, &drifted.source, drifted.shards))
            .and_then(|()| {
                // Columns of the key may have been renamed.
                tx.execute(
                    "update changefeed_feed_source set key_names = ?2 where feed_id = ?1",
                    params![feed.id.0, table.key_names()],
                )
                .explained()
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
            Ok(_) if drifted.lost => (
                Severity::Warning,
                format!(
                    "its triggers on table {} were missing, as after a table was rebuilt; they were \
                     made again, but what was written meanwhile was not captured",
                    table.name
                ),
            ),
            Ok(_) => (
                Severity::Ok,
                format!(
                    "table {} or its triggers were altered; the triggers of the feed were made again",
                    table.name
                ),
            ),
        };
        if severity != Severity::Ok || !drifted.renamed_only {
            findings.push(finding(feed, severity, message));
        }
    }
    Ok(findings)
}

/// Feeds whose table is gone, has got another key or cannot be captured any more, and why. A renamed shard column is followed by SQLite
/// in our triggers.
fn deaf(tx: &Connection) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for feed in feeds::list(tx)? {
        let Some(source @ Source::Captured { .. }) = &feed.source else {
            continue;
        };
        let fits = Table::behind(tx, &feed, source).and_then(|table| {
            if let Some(column) = source.shard_by()
                && table.column(column).is_err()
            {
                findings.push(Finding {
                    advice: Some(format!(
                        "update changefeed_feed_source set shard_by = '…' where feed_id = {}",
                        feed.id
                    )),
                    ..finding(
                        &feed,
                        Severity::Warning,
                        format!(
                            "column '{column}' of {}, which decides the shard, was renamed: changes go where \
                             they went, but the triggers cannot be recreated",
                            table.name
                        ),
                    )
                });
            }
            if let Err(error) = Filter::of(&table, source) {
                findings.push(Finding {
                    advice: Some("drop the feed and make it again with the columns of now".to_owned()),
                    ..finding(
                        &feed,
                        Severity::Warning,
                        format!(
                            "what it leaves out is as it was, but its triggers cannot be recreated: {}",
                            error.message()
                        ),
                    )
                });
            }
            table.check_capture(tx)
        });
        if let Err(error) = fits {
            findings.push(Finding {
                advice: error.advice().map(str::to_owned).or_else(|| {
                    Some(format!(
                        "`changefeed feed drop {}` removes the feed",
                        feed.name
                    ))
                }),
                ..finding(
                    &feed,
                    Severity::Problem,
                    format!("nothing is captured: {}", error.message()),
                )
            });
        }
    }
    Ok(findings)
}

/// What keeps changes from being captured.
pub(crate) fn findings(tx: &Connection) -> Result<Vec<Finding>> {
    let mut findings = deaf(tx)?;
    findings.extend(drifted(tx)?.iter().map(|drifted| {
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
    }));
    Ok(findings)
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
        subject: format!("feed {}", feed.name),
        message,
        advice,
    }
}
