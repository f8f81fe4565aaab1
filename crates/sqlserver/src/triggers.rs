//! Event triggers: their definitions, and what is done by hand.

use std::collections::BTreeMap;

use changefeed_core::{
    EventBits, EventId, EventTrigger, FeedId, Finding, Rate, Result, TableName, TriggerDefinition,
    TriggerId, TriggerName, Uuid, crash_point, words,
};
use serde_json::value::RawValue;
use tiberius::Row;

use crate::connection::Connection;
use crate::error::{db, is_duplicate};
use crate::event_capture::{Around, Plan, trigger_name};
use crate::row::{Cells, first, only};
use crate::session::Session;
use crate::source::Table;
use crate::table_trigger::{self, Patience};
use crate::{event_feeds, event_install, quote};

/// So few that no lock of theirs is felt.
const ARCHIVED_AT_ONCE: i32 = 2000;

impl Session {
    pub(crate) async fn triggers(&mut self) -> Result<Vec<EventTrigger>> {
        let connection = &mut *self.connection;
        let rows = connection
            .query(include_str!("sql/event_triggers.sql"), &[])
            .await?;
        rows.iter().map(trigger).collect()
    }

    pub(crate) async fn create_trigger(
        &mut self,
        definition: &TriggerDefinition,
        replace: bool,
    ) -> Result<EventTrigger> {
        let connection = &mut *self.connection;
        connection.begin().await?;
        let made = async {
            let made = create(connection, definition, replace).await?;
            connection.commit().await?;
            Ok(made)
        };
        match made.await {
            Ok((trigger, feed)) => {
                if let Some(feed) = feed {
                    self.known.joins.forget(feed);
                }
                Ok(trigger)
            }
            Err(error) => {
                table_trigger::give_up(connection).await;
                Err(error)
            }
        }
    }

    pub(crate) async fn drop_trigger(&mut self, trigger: &EventTrigger) -> Result<()> {
        {
            let connection = &mut *self.connection;
            connection.begin().await?;
            drop(connection, trigger).await?;
            connection.commit().await?;
        }
        crash_point("trigger.dropped");
        self.archive_dropped().await;
        Ok(())
    }

    pub(crate) async fn pause_trigger(
        &mut self,
        trigger: &EventTrigger,
        reason: Option<&str>,
    ) -> Result<()> {
        let connection = &mut *self.connection;
        let name = &trigger.definition.name;
        match pause(connection, name, Some(trigger.id), reason).await? {
            true => Ok(()),
            false => Err(words::trigger_gone(&trigger.definition.name)),
        }
    }

    pub(crate) async fn invoke_trigger(
        &mut self,
        trigger: &EventTrigger,
        payload: &RawValue,
        key: Uuid,
    ) -> Result<EventId> {
        if !trigger.definition.capture.manual {
            return Err(words::trigger_not_manual(&trigger.definition.name));
        }
        let connection = &mut *self.connection;
        connection.begin().await?;
        let rows = connection
            .query(
                include_str!("sql/event_invoke.sql"),
                &[&trigger.id.0, &payload.get(), &key.to_string()],
            )
            .await?;
        let Some(row) = rows.first() else {
            connection.rollback().await?;
            return Err(words::trigger_gone(&trigger.definition.name));
        };
        let change_id: i64 = row.take(0)?;
        if let Some(feed) = row.maybe::<i16>(2)? {
            // As a batch: see `Connection::call`.
            let publish = format!(
                "insert into changefeed.change (feed_id, shard, change_id) \
                 values ({feed}, 0, {change_id})"
            );
            connection.batch(&publish).await?;
        }
        connection.commit().await?;
        let bits = EventBits::new(row.take(1)?);
        Ok(EventId::new(change_id, bits))
    }

    pub(crate) async fn refresh_triggers(&mut self) -> Result<Vec<Finding>> {
        self.archive_dropped().await;
        let mut findings = self.follow_feeds().await?;
        findings.extend(self.follow_altered_tables().await?);
        Ok(findings)
    }

    pub(crate) async fn capture_findings(&mut self) -> Result<Vec<Finding>> {
        let mut findings = self.look_at_feeds().await?;
        findings.extend(self.look_at_capture().await?);
        findings.extend(self.ulid_findings().await?);
        Ok(findings)
    }
}

impl Session {
    /// Archives what was not delivered of triggers that were dropped: afterwards and in parts, because
    /// nobody can use the table while its trigger is dropped, and there may be millions. Who does not
    /// come to an end here leaves the rest to the next `refresh_triggers`; nobody delivers it.
    pub(crate) async fn archive_dropped(&mut self) {
        if let Err(error) = self.archive_all().await {
            tracing::warn!(%error, "events of a dropped trigger are not archived yet");
        }
    }

    async fn archive_all(&mut self) -> Result<()> {
        let connection = &mut *self.connection;
        let sql = include_str!("sql/event_archive.sql");
        while connection.execute(sql, &[&ARCHIVED_AT_ONCE]).await? > 0 {}
        Ok(())
    }
}

/// Creates an event trigger, or changes the one of its name. Returns also the feed that its events
/// enter.
pub(crate) async fn create(
    connection: &mut Connection,
    definition: &TriggerDefinition,
    replace: bool,
) -> Result<(EventTrigger, Option<FeedId>)> {
    definition.validate()?;
    let table = Table::find(connection, &definition.table).await?;
    // The name as it is in the catalogue, with its schema.
    let named = TriggerDefinition {
        table: table.name.clone(),
        ..definition.clone()
    };
    // What is wrong with it shows before anything is made or waited for.
    let identity = event_install::identity_of(connection, &table).await?;
    let around = Around {
        identity,
        ..Around::default()
    };
    Plan::of(TriggerId(0), &named, &table, around.clone())?;
    let binding = event_feeds::attach(connection, &named).await?;
    let feed = binding.as_ref().map(|b| b.feed);
    let (id, paused) = store(connection, &named, &table, feed, replace).await?;
    let plan = Plan::of(id, &named, &table, Around { binding, ..around })?;
    event_install::install(connection, &plan, Patience::Person).await?;
    if named.capture.order_by.is_some() {
        // What was captured without an order must be found by those who look for one. After
        // the trigger, whose lock lets no writer pass.
        connection
            .execute(
                "update changefeed.event set order_key = change_id \
                 where trigger_id = @P1 and due_at is not null and order_key is null",
                &[&id.0],
            )
            .await?;
    }
    let trigger = EventTrigger {
        id,
        definition: named,
        paused,
    };
    Ok((trigger, feed))
}

pub(crate) async fn drop(connection: &mut Connection, trigger: &EventTrigger) -> Result<()> {
    let there = connection
        .execute(
            "update changefeed.event_trigger \
             set dropped_at = sysutcdatetime(), updated_at = sysutcdatetime() \
             where trigger_id = @P1 and dropped_at is null",
            &[&trigger.id.0],
        )
        .await?;
    if there == 0 {
        connection.rollback().await?;
        return Err(words::trigger_gone(&trigger.definition.name));
    }
    let captured = connection
        .query(
            "select table_id from changefeed.event_trigger \
             where trigger_id = @P1 and capture_sql is not null",
            &[&trigger.id.0],
        )
        .await?;
    if let Some(table_id) = first(&captured, 0)? {
        let name = trigger_name(trigger.id);
        table_trigger::remove(connection, &name, table_id, Patience::Person).await?;
    }
    connection
        .execute(
            "delete from changefeed.event_backfill where trigger_id = @P1",
            &[&trigger.id.0],
        )
        .await?;
    Ok(())
}

/// Pauses the trigger of a name, and of this number if one is given. Returns whether it exists.
pub(crate) async fn pause(
    connection: &mut Connection,
    name: &TriggerName,
    id: Option<TriggerId>,
    reason: Option<&str>,
) -> Result<bool> {
    let sql = format!(
        "update changefeed.event_trigger \
         set paused_because = {}, updated_at = sysutcdatetime() \
         where name = @P1 and trigger_id = isnull(@P2, trigger_id) and dropped_at is null",
        quote::nullable(reason)
    );
    let found = connection
        .execute(&sql, &[&name.as_str(), &id.map(|id| id.0)])
        .await?;
    Ok(found > 0)
}

/// Writes the definition. Returns its number and whether it is paused.
async fn store(
    connection: &mut Connection,
    definition: &TriggerDefinition,
    table: &Table,
    feed: Option<FeedId>,
    replace: bool,
) -> Result<(TriggerId, Option<String>)> {
    // An update, because it locks the row everywhere.
    connection
        .execute(
            "update changefeed.event_trigger set updated_at = sysutcdatetime() \
             where name = @P1 and dropped_at is null",
            &[&definition.name.as_str()],
        )
        .await?;
    let existing = connection
        .query(
            "select trigger_id, table_id, paused_because from changefeed.event_trigger \
             where name = @P1 and dropped_at is null",
            &[&definition.name.as_str()],
        )
        .await?;
    let Some(existing) = existing.first() else {
        let schema = table.name.schema.as_deref().unwrap_or("dbo");
        let inserted = connection
            .tried(
                "insert into changefeed.event_trigger \
                 (name, table_id, schema_name, table_name, definition, columns, feed_id) \
                 output inserted.trigger_id \
                 values (@P1, @P2, @P3, @P4, @P5, @P6, @P7)",
                &[
                    &definition.name.as_str(),
                    &table.id,
                    &schema,
                    &table.name.name,
                    &json(definition)?,
                    &json_of_places(table)?,
                    &feed.map(|f| f.0),
                ],
            )
            .await;
        return match inserted {
            Ok(rows) => {
                let id = TriggerId(only(&rows)?.take(0)?);
                store_timing(connection, id, definition).await?;
                Ok((id, None))
            }
            Err(error) if is_duplicate(&error) => Err(words::trigger_name_taken(&definition.name)),
            Err(error) => Err(db(error)),
        };
    };
    if !replace {
        return Err(words::trigger_name_taken(&definition.name));
    }
    let id = TriggerId(existing.take(0)?);
    if existing.maybe::<i32>(1)? != Some(table.id) {
        // The rows of another table.
        connection
            .execute(
                "delete from changefeed.event_backfill where trigger_id = @P1",
                &[&id.0],
            )
            .await?;
    }
    rewrite(connection, id, definition, table).await?;
    store_timing(connection, id, definition).await?;
    connection
        .execute(
            "update changefeed.event_trigger set feed_id = @P2 where trigger_id = @P1",
            &[&id.0, &feed.map(|f| f.0)],
        )
        .await?;
    Ok((id, existing.maybe_text(2)?))
}

fn json<T: serde::Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| words::definition_unwritable().caused_by(e))
}

/// The place of every column, by which a renamed one is found again.
fn json_of_places(table: &Table) -> Result<String> {
    let places: BTreeMap<&str, i32> = table
        .columns
        .iter()
        .map(|c| (c.name.as_str(), c.place))
        .collect();
    json(&places)
}

/// Writes what of the definition statements need.
async fn store_timing(
    connection: &mut Connection,
    id: TriggerId,
    definition: &TriggerDefinition,
) -> Result<()> {
    let (delivery, rate) = (&definition.delivery, definition.delivery.rate);
    connection
        .execute(
            "update changefeed.event_trigger \
             set wait_ms = @P2, pace_us = @P3, burst = @P4, paced_at = null where trigger_id = @P1",
            &[
                &id.0,
                &delivery.wait_ms(),
                &rate.map(Rate::pace_us),
                &rate.map_or(1, Rate::burst),
            ],
        )
        .await?;
    Ok(())
}

/// Stores a definition and what its table is like now.
pub(crate) async fn rewrite(
    connection: &mut Connection,
    id: TriggerId,
    definition: &TriggerDefinition,
    table: &Table,
) -> Result<()> {
    let schema = table.name.schema.as_deref().unwrap_or("dbo");
    connection
        .execute(
            "update changefeed.event_trigger \
             set table_id = @P2, schema_name = @P3, table_name = @P4, definition = @P5, \
                 columns = @P6, updated_at = sysutcdatetime() \
             where trigger_id = @P1",
            &[
                &id.0,
                &table.id,
                &schema,
                &table.name.name,
                &json(definition)?,
                &json_of_places(table)?,
            ],
        )
        .await?;
    Ok(())
}

/// A trigger of the table `event_trigger`, with the name its table has now.
pub(crate) fn trigger(row: &Row) -> Result<EventTrigger> {
    let (id, text): (i32, &str) = (row.take(0)?, row.take(1)?);
    let mut definition: TriggerDefinition = serde_json::from_str(text)
        .map_err(|e| words::definition_unreadable(format_args!("trigger {id}")).caused_by(e))?;
    if let (Some(schema), Some(name)) = (row.maybe::<&str>(3)?, row.maybe::<&str>(4)?) {
        definition.table = TableName::qualified(schema, name);
    }
    Ok(EventTrigger {
        id: TriggerId(id),
        definition,
        paused: row.maybe_text(2)?,
    })
}
