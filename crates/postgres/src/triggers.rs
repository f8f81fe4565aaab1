//! Event triggers: their definitions, and what is done by hand.

use std::collections::BTreeMap;

use changefeed_core::{
    EventBits, EventId, EventTrigger, FeedId, Finding, Rate, Result, TableName, TriggerDefinition,
    TriggerId, TriggerName, Uuid, crash_point, words,
};
use serde_json::value::RawValue;
use tokio_postgres::GenericClient;
use tokio_postgres::error::SqlState;

use crate::error::db;
use crate::patience::{Patience, in_use};
use crate::row::Cells;
use crate::session::Session;
use crate::source::Table;
use crate::{event_capture, event_feeds};

/// So few that no lock of theirs is felt.
const ARCHIVED_AT_ONCE: i64 = 5000;

impl Session {
    pub(crate) async fn triggers(&self) -> Result<Vec<EventTrigger>> {
        let client = &**self;
        let rows = client
            .query(include_str!("sql/event_triggers.sql"), &[])
            .await
            .map_err(db)?;
        rows.iter().map(trigger).collect()
    }

    pub(crate) async fn create_trigger(
        &mut self,
        definition: &TriggerDefinition,
        replace: bool,
    ) -> Result<EventTrigger> {
        let client = &mut **self;
        let transaction = client.transaction().await.map_err(db)?;
        let (trigger, feed) = create(&*transaction, definition, replace, Patience::Person).await?;
        transaction.commit().await.map_err(db)?;
        if let Some(feed) = feed {
            self.known.row_types.forget(feed);
        }
        Ok(trigger)
    }

    pub(crate) async fn drop_trigger(&mut self, trigger: &EventTrigger) -> Result<()> {
        {
            let client = &mut **self;
            let transaction = client.transaction().await.map_err(db)?;
            drop(&*transaction, trigger, Patience::Person).await?;
            transaction.commit().await.map_err(db)?;
        }
        crash_point("trigger.dropped");
        self.archive_dropped().await;
        Ok(())
    }

    pub(crate) async fn pause_trigger(
        &self,
        trigger: &EventTrigger,
        reason: Option<&str>,
    ) -> Result<()> {
        let client = &**self;
        let found = pause(
            &**client,
            &trigger.definition.name,
            Some(trigger.id),
            reason,
        )
        .await?;
        if found {
            Ok(())
        } else {
            Err(words::trigger_gone(&trigger.definition.name))
        }
    }

    pub(crate) async fn invoke_trigger(
        &self,
        trigger: &EventTrigger,
        payload: &RawValue,
        key: Uuid,
    ) -> Result<EventId> {
        if !trigger.definition.capture.manual {
            return Err(words::trigger_not_manual(&trigger.definition.name));
        }
        let client = &**self;
        let row = client
            .query_opt(
                include_str!("sql/event_invoke.sql"),
                &[&trigger.id.0, &payload.get(), &key],
            )
            .await
            .map_err(db)?;
        let row = match row {
            Some(row) => row,
            // There is one of this key already, which only a later statement is sure to see.
            None => client
                .query_opt(
                    "select r.change_id, r.bits from changefeed.event_request r where r.key = $1",
                    &[&key],
                )
                .await
                .map_err(db)?
                .ok_or_else(|| words::trigger_gone(&trigger.definition.name))?,
        };
        Ok(EventId::new(row.take(0)?, EventBits::new(row.take(1)?)))
    }

    pub(crate) async fn refresh_triggers(&mut self) -> Result<Vec<Finding>> {
        self.archive_dropped().await;
        let mut findings = self.follow_altered_tables().await?;
        findings.extend(self.follow_feeds().await?);
        Ok(findings)
    }
}

impl Session {
    /// Archives what was not delivered of triggers that were dropped: afterwards and in parts, because
    /// nobody can use the table while its trigger is dropped, and there may be millions. Who does not
    /// come to an end here leaves the rest to the next `refresh_triggers`; nobody delivers it.
    pub(crate) async fn archive_dropped(&self) {
        if let Err(error) = self.archive_all().await {
            tracing::warn!(%error, "events of a dropped trigger are not archived yet");
        }
    }

    pub(crate) async fn archive_all(&self) -> Result<()> {
        let client = &**self;
        // What nested writes of transactions that are over have noted for themselves.
        client
            .batch_execute(
                "delete from changefeed.event_nested \
                 where xid < pg_snapshot_xmin(pg_current_snapshot())",
            )
            .await
            .map_err(db)?;
        let sql = include_str!("sql/event_archive.sql");
        while client
            .execute(sql, &[&ARCHIVED_AT_ONCE])
            .await
            .map_err(db)?
            > 0
        {}
        Ok(())
    }
}

/// Creates an event trigger, or changes the one of its name. Returns also the feed that its events
/// enter.
pub(crate) async fn create(
    client: &impl GenericClient,
    definition: &TriggerDefinition,
    replace: bool,
    patience: Patience,
) -> Result<(EventTrigger, Option<FeedId>)> {
    definition.validate()?;
    let table = Table::find(client, &definition.table).await?;
    event_capture::check(definition, &table)?;
    // The name as it is in the catalogue, with its schema.
    let named = TriggerDefinition {
        table: table.name.clone(),
        ..definition.clone()
    };
    let feed = event_feeds::attach(client, &named).await?;
    let (id, paused) = store(client, &named, &table, feed, replace).await?;
    store_timing(client, id, &named).await?;
    event_capture::uninstall(client, id, patience)
        .await
        .map_err(|e| in_use(e, &table.name))?;
    event_capture::install(client, id, &named, &table, patience).await?;
    if named.capture.order_by.is_some() {
        // What was captured without an order must be found by those who look for one. After
        // the triggers, whose lock lets no writer pass.
        client
            .execute(
                "update changefeed.event set order_key = change_id \
                 where trigger_id = $1 and due_at is not null and order_key is null",
                &[&id.0],
            )
            .await
            .map_err(db)?;
    }
    let trigger = EventTrigger {
        id,
        definition: named,
        paused,
    };
    Ok((trigger, feed))
}

pub(crate) async fn drop(
    client: &impl GenericClient,
    trigger: &EventTrigger,
    patience: Patience,
) -> Result<()> {
    let there = client
        .query_opt(
            "select from changefeed.event_trigger \
             where trigger_id = $1 and dropped_at is null for update",
            &[&trigger.id.0],
        )
        .await
        .map_err(db)?;
    if there.is_none() {
        return Err(words::trigger_gone(&trigger.definition.name));
    }
    event_capture::uninstall(client, trigger.id, patience)
        .await
        .map_err(|e| in_use(e, &trigger.definition.table))?;
    client
        .execute(
            "update changefeed.event_trigger \
             set dropped_at = clock_timestamp(), updated_at = clock_timestamp() \
             where trigger_id = $1",
            &[&trigger.id.0],
        )
        .await
        .map_err(db)?;
    Ok(())
}

/// Pauses the trigger of a name, and of this number if one is given. Returns whether it exists.
pub(crate) async fn pause(
    client: &impl GenericClient,
    name: &TriggerName,
    id: Option<TriggerId>,
    reason: Option<&str>,
) -> Result<bool> {
    let found = client
        .execute(
            "update changefeed.event_trigger \
             set paused_because = $3, updated_at = clock_timestamp() \
             where name = $1 and trigger_id = coalesce($2::int, trigger_id) \
               and dropped_at is null",
            &[&name.as_str(), &id.map(|id| id.0), &reason],
        )
        .await
        .map_err(db)?;
    Ok(found > 0)
}

/// Writes the definition. Returns its number and whether it is paused.
async fn store(
    client: &impl GenericClient,
    definition: &TriggerDefinition,
    table: &Table,
    feed: Option<changefeed_core::FeedId>,
    replace: bool,
) -> Result<(TriggerId, Option<String>)> {
    let json = json(definition)?;
    let places = json_of_places(table)?;
    let existing = client
        .query_opt(
            "select trigger_id, source::oid, paused_because from changefeed.event_trigger \
             where name = $1 and dropped_at is null for update",
            &[&definition.name.as_str()],
        )
        .await
        .map_err(db)?;
    let Some(existing) = existing else {
        let row = client
            .query_one(
                "insert into changefeed.event_trigger \
                 (name, source, schema_name, table_name, definition, columns, feed_id, columns_of) \
                 values ($1, $2::oid::regclass, $3, $4, $5::text::jsonb, $6::text::jsonb, $7, \
                         changefeed.place_of($2)) \
                 returning trigger_id",
                &[
                    &definition.name.as_str(),
                    &table.oid,
                    &table.name.schema,
                    &table.name.name,
                    &json,
                    &places,
                    &feed.map(|f| f.0),
                ],
            )
            .await
            .map_err(|e| match e.code() {
                Some(code) if *code == SqlState::UNIQUE_VIOLATION => {
                    words::trigger_name_taken(&definition.name)
                }
                _ => db(e),
            })?;
        return Ok((TriggerId(row.take(0)?), None));
    };
    if !replace {
        return Err(words::trigger_name_taken(&definition.name));
    }
    let id = TriggerId(existing.take(0)?);
    if existing.take::<u32>(1)? != table.oid {
        // The rows of another table.
        client
            .execute(
                "delete from changefeed.event_backfill where trigger_id = $1",
                &[&id.0],
            )
            .await
            .map_err(db)?;
    }
    client
        .execute(
            "update changefeed.event_trigger \
             set source = $2::oid::regclass, columns_of = changefeed.place_of($2), schema_name = $3, table_name = $4, definition = $5::text::jsonb, \
                 columns = $6::text::jsonb, feed_id = $7, updated_at = clock_timestamp() \
             where trigger_id = $1",
            &[
                &id.0,
                &table.oid,
                &table.name.schema,
                &table.name.name,
                &json,
                &places,
                &feed.map(|f| f.0),
            ],
        )
        .await
        .map_err(db)?;
    Ok((id, existing.take(2)?))
}

/// Writes what of the definition statements need.
async fn store_timing(
    client: &impl GenericClient,
    id: TriggerId,
    definition: &TriggerDefinition,
) -> Result<()> {
    let (delivery, rate) = (&definition.delivery, definition.delivery.rate);
    client
        .execute(
            "update changefeed.event_trigger \
             set wait_ms = $2, pace_us = $3, burst = $4, paced_at = null where trigger_id = $1",
            &[
                &id.0,
                &delivery.wait_ms(),
                &rate.map(Rate::pace_us),
                &rate.map_or(1, Rate::burst),
            ],
        )
        .await
        .map_err(db)?;
    Ok(())
}

fn json<T: serde::Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| words::definition_unwritable().caused_by(e))
}

/// The place of every column, by which a renamed one is found again.
fn json_of_places(table: &Table) -> Result<String> {
    let places: BTreeMap<&str, i16> = table
        .columns
        .iter()
        .map(|c| (c.name.as_str(), c.place))
        .collect();
    json(&places)
}

/// Stores a definition whose columns were renamed.
pub(crate) async fn rewrite(
    client: &impl GenericClient,
    id: TriggerId,
    definition: &TriggerDefinition,
    table: &Table,
) -> Result<()> {
    client
        .execute(
            "update changefeed.event_trigger \
             set definition = $2::text::jsonb, columns = $3::text::jsonb, \
                 columns_of = changefeed.place_of(source), schema_name = $4, \
                 table_name = $5, updated_at = clock_timestamp() \
             where trigger_id = $1",
            &[
                &id.0,
                &json(definition)?,
                &json_of_places(table)?,
                &table.name.schema,
                &table.name.name,
            ],
        )
        .await
        .map_err(db)?;
    Ok(())
}

/// A trigger of the table `event_trigger`, with the name its table has now.
pub(crate) fn trigger(row: &tokio_postgres::Row) -> Result<EventTrigger> {
    let (id, text): (i32, String) = (row.take(0)?, row.take(1)?);
    let mut definition: TriggerDefinition = serde_json::from_str(&text)
        .map_err(|e| words::definition_unreadable(format_args!("trigger {id}")).caused_by(e))?;
    if let (Some(schema), Some(name)) = (
        row.take::<Option<String>>(3)?,
        row.take::<Option<String>>(4)?,
    ) {
        definition.table = TableName::qualified(schema, name);
    }
    Ok(EventTrigger {
        id: TriggerId(id),
        definition,
        paused: row.take(2)?,
    })
}
