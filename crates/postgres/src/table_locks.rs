//! The application's tables that definitions are about, locked before anything is done to one.
//!
//! A writer that has one of them and waits for another, which we have, must never find us waiting
//! for the first: the server may choose the writer to fail. So we wait only while we hold nothing
//! that a writer wants, and take everything else at once or not at all.

use std::time::Duration;

use changefeed_core::{Result, Source, Step, TableName};
use tokio_postgres::GenericClient;

use crate::error::db;
use crate::patience::in_use;
use crate::row::Cells;
use crate::tracking::lock_table;
use crate::{names, quote};

/// What steps need for themselves.
#[derive(Debug, Default)]
struct Needs<'a> {
    /// Tables that get a trigger.
    captured: Vec<&'a TableName>,
    watched: Vec<&'a TableName>,
    changed_triggers: Vec<String>,
    dropped_triggers: Vec<i32>,
    dropped_feeds: Vec<i16>,
    put_watches: Vec<String>,
    dropped_watches: Vec<String>,
}

impl<'a> Needs<'a> {
    fn of(steps: &'a [Step]) -> Needs<'a> {
        let mut needs = Needs::default();
        for step in steps {
            match step {
                Step::CreateFeed(new) => {
                    if let Some(Source::Captured { table, .. }) = &new.source {
                        needs.captured.push(table);
                    }
                }
                Step::DropFeed(feed) => needs.dropped_feeds.push(feed.id.0),
                Step::CreateTrigger(definition) => {
                    needs.captured.push(&definition.table);
                }
                Step::ChangeTrigger(definition) => {
                    needs.captured.push(&definition.table);
                    needs.changed_triggers.push(definition.name.to_string());
                }
                Step::DropTrigger(trigger) => needs.dropped_triggers.push(trigger.id.0),
                Step::PutWatch(spec) => {
                    needs.watched.push(&spec.table);
                    needs.put_watches.push(spec.name.to_string());
                }
                Step::DropWatch(watch) => needs.dropped_watches.push(watch.name.to_string()),
                Step::ChangeFeed(_)
                | Step::PauseTrigger(..)
                | Step::PutSubscription(..)
                | Step::PauseSubscription(..)
                | Step::DropSubscription(_) => {}
            }
        }
        needs
    }
}

/// A table, and how it is locked.
struct Wanted {
    name: TableName,
    mode: &'static str,
}

/// Locks what the steps need, until the transaction ends. The table that `first` names is the one
/// that is waited for; when another is in use, that one is named there, for the next time.
pub(crate) async fn lock(
    client: &impl GenericClient,
    steps: &[Step],
    patience: Duration,
    first: &mut Option<TableName>,
) -> Result<()> {
    let needs = Needs::of(steps);
    let wait = format!("set local lock_timeout = {}", patience.as_millis().max(1));
    client.batch_execute(&wait).await.map_err(db)?;
    let captured = names::quoted(client, &needs.captured).await?;
    let watched = names::quoted(client, &needs.watched).await?;
    // Instances take these before they look at the table, and so do we.
    let backlogs = client
        .query(
            include_str!("sql/apply_backlogs.sql"),
            &[&watched, &needs.put_watches, &needs.dropped_watches],
        )
        .await
        .map_err(db)?;
    for row in &backlogs {
        lock_table(client, row.take(0)?).await?;
    }
    let mut wanted = tables(client, &needs, &captured, &watched).await?;
    // Sorted before: the others keep their order.
    wanted.sort_by_key(|table| Some(&table.name) != first.as_ref());
    for (n, table) in wanted.iter().enumerate() {
        let at_once = if n == 0 { "" } else { " nowait" };
        let lock = format!(
            "lock table only {} in {} mode{at_once}",
            quote::table(&table.name),
            table.mode
        );
        client.batch_execute(&lock).await.map_err(|e| {
            *first = Some(table.name.clone());
            in_use(db(e), &table.name)
        })?;
    }
    // A transaction that registers a consumer or moves a cursor holds these.
    for sql in [
        "select from changefeed.feed where feed_id = any($1) for update nowait",
        "select from changefeed.shard_definition where feed_id = any($1) for update nowait",
        "select from changefeed.consumer where feed_id = any($1) for update nowait",
    ] {
        if needs.dropped_feeds.is_empty() {
            break;
        }
        client
            .execute(sql, &[&needs.dropped_feeds])
            .await
            .map_err(db)?;
    }
    Ok(())
}

async fn tables(
    client: &impl GenericClient,
    needs: &Needs<'_>,
    captured: &[String],
    watched: &[String],
) -> Result<Vec<Wanted>> {
    let rows = client
        .query(
            include_str!("sql/apply_tables.sql"),
            &[
                &captured,
                &watched,
                &needs.changed_triggers,
                &needs.dropped_triggers,
                &needs.dropped_feeds,
                &needs.dropped_watches,
            ],
        )
        .await
        .map_err(db)?;
    let wanted = rows.iter().map(|row| {
        Ok(Wanted {
            name: TableName::qualified(row.take::<String>(0)?, row.take::<String>(1)?),
            mode: match row.take(2)? {
                true => "access exclusive",
                false => "share row exclusive",
            },
        })
    });
    wanted.collect()
}
