//! Event triggers: their definitions, and what people do with them.

use async_trait::async_trait;
use changefeed_core::{
    Backfill, Error, EventBits, EventId, EventTrigger, Feed, Finding, NewFeed, Rate, Result,
    Source, TriggerDefinition, TriggerId, TriggerStore, Updates, Uuid, crash_point, words,
};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::value::RawValue;

use crate::error::Explain;
use crate::event_capture::{self, Plan};
use crate::source::Table;
use crate::{SqliteStore, event_backfill, event_drift, event_log, feed_drift, feeds, ulid_feeds};

#[async_trait]
impl TriggerStore for SqliteStore {
    async fn triggers(&self) -> Result<Vec<EventTrigger>> {
        self.reading(|tx| list(tx)).await
    }

    async fn create_trigger(
        &self,
        definition: &TriggerDefinition,
        replace: bool,
    ) -> Result<EventTrigger> {
        definition.validate()?;
        let definition = definition.clone();
        self.writing(move |tx| create(tx, definition, replace))
            .await
    }

    async fn drop_trigger(&self, trigger: &EventTrigger) -> Result<()> {
        let trigger = trigger.clone();
        self.writing(move |tx| drop(tx, &trigger)).await?;
        crash_point("trigger.dropped");
        Ok(())
    }

    async fn pause_trigger(&self, trigger: &EventTrigger, reason: Option<&str>) -> Result<()> {
        let (trigger, reason) = (trigger.clone(), reason.map(str::to_owned));
        self.writing(move |tx| pause(tx, &trigger, reason.as_deref()))
            .await?;
        self.announce();
        Ok(())
    }

    async fn invoke_trigger(
        &self,
        trigger: &EventTrigger,
        payload: &RawValue,
        key: Uuid,
    ) -> Result<EventId> {
        let (trigger, payload) = (trigger.clone(), payload.get().to_owned());
        let id = self
            .writing(move |tx| invoke(tx, &trigger, &payload, key))
            .await?;
        self.announce();
        Ok(id)
    }

    async fn backfill_trigger(&self, trigger: &EventTrigger, batch: usize) -> Result<Backfill> {
        let trigger = trigger.clone();
        let step = self
            .writing(move |tx| event_backfill::step(tx, &trigger, batch))
            .await?;
        crash_point("backfill.after_commit");
        self.announce();
        Ok(step)
    }

    async fn refresh_triggers(&self) -> Result<Vec<Finding>> {
        // Nothing is locked while everything is as it should be.
        let stale = self
            .reading(|tx| Ok(event_drift::is_stale(tx)? || feed_drift::is_stale(tx)?))
            .await?;
        if !stale {
            return self.reading(|tx| event_drift::findings(tx)).await;
        }
        self.writing(|tx| {
            let mut findings = feed_drift::refresh(tx)?;
            findings.extend(event_drift::refresh(tx)?);
            Ok(findings)
        })
        .await
    }

    async fn capture_findings(&self) -> Result<Vec<Finding>> {
        self.reading(|tx| {
            let mut findings = event_drift::findings(tx)?;
            findings.extend(feed_drift::findings(tx)?);
            findings.extend(ulid_feeds::findings(tx)?);
            findings.extend(event_drift::limits(tx)?);
            Ok(findings)
        })
        .await
    }
}

/// All that were not dropped, by name.
pub(crate) fn list(tx: &Connection) -> Result<Vec<EventTrigger>> {
    let mut statement = tx
        .prepare_cached(
            "select trigger_id, definition, paused_because from changefeed_event_trigger \
             where dropped_at is null order by name",
        )
        .explained()?;
    let mut rows = statement.query([]).explained()?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().explained()? {
        found.push(trigger(row)?);
    }
    Ok(found)
}

/// The trigger as it is now, or an error that says it is gone.
pub(crate) fn current(tx: &Connection, known: &EventTrigger) -> Result<EventTrigger> {
    let mut statement = tx
        .prepare_cached(
            "select trigger_id, definition, paused_because from changefeed_event_trigger \
             where trigger_id = ?1 and dropped_at is null",
        )
        .explained()?;
    let mut rows = statement.query([known.id.0]).explained()?;
    match rows.next().explained()? {
        Some(row) => trigger(row),
        None => Err(words::trigger_gone(&known.definition.name)),
    }
}

fn trigger(row: &Row<'_>) -> Result<EventTrigger> {
    let id = TriggerId(row.get(0).explained()?);
    let text: String = row.get(1).explained()?;
    let definition = serde_json::from_str(&text).map_err(|error| {
        words::definition_unreadable(format_args!("trigger {}", id.0)).caused_by(error)
    })?;
    Ok(EventTrigger {
        id,
        definition,
        paused: row.get(2).explained()?,
    })
}

pub(crate) fn create(
    tx: &Connection,
    mut definition: TriggerDefinition,
    replace: bool,
) -> Result<EventTrigger> {
    let existing: Option<(i32, Option<String>)> = tx
        .query_row(
            "select trigger_id, paused_because from changefeed_event_trigger \
             where name = ?1 and dropped_at is null",
            [definition.name.as_str()],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()
        .explained()?;
    if existing.is_some() && !replace {
        return Err(words::trigger_name_taken(&definition.name));
    }
    let table = Table::find(tx, &definition.table)?;
    definition.table.name = table.name.clone();
    bind_feed(tx, &definition)?;
    let id = match &existing {
        Some((id, _)) => TriggerId(*id),
        None => TriggerId(
            tx.query_row(
                "insert into changefeed_event_trigger (name, table_name, definition) \
                 values (?1, ?2, '{}') returning trigger_id",
                params![definition.name.as_str(), table.name],
                |row| row.get(0),
            )
            .explained()?,
        ),
    };
    let plan = Plan::of(tx, id, &definition, table)?;
    plan.install(tx)?;
    store(tx, id, &definition)?;
    // Other columns, another condition, another table: it may all be sent again.
    event_backfill::forget(tx, id)?;
    if existing.is_some() && definition.capture.order_by.is_some() {
        // Captured while nobody asked for an order: each may go by itself.
        tx.execute(
            "update changefeed_event set order_key = '' || change_id \
             where trigger_id = ?1 and due_at is not null and order_key is null",
            [id.0],
        )
        .explained()?;
    }
    crash_point("trigger.before_commit");
    Ok(EventTrigger {
        id,
        definition,
        paused: existing.and_then(|(_, paused)| paused),
    })
}

/// Writes a definition down.
pub(crate) fn store(tx: &Connection, id: TriggerId, definition: &TriggerDefinition) -> Result<()> {
    let text = serde_json::to_string(definition)
        .map_err(|error| words::definition_unwritable().caused_by(error))?;
    let rate = definition.delivery.rate;
    tx.execute(
        "update changefeed_event_trigger \
         set table_name = ?2, definition = ?3, wait_ms = ?4, pace_us = ?5, burst = ?6 \
         where trigger_id = ?1",
        params![
            id.0,
            definition.table.name,
            text,
            definition.delivery.wait_ms(),
            rate.map(Rate::pace_us),
            rate.map_or(1, Rate::burst)
        ],
    )
    .explained()?;
    Ok(())
}

/// Makes the feed that a definition names ready for its events.
fn bind_feed(tx: &Connection, definition: &TriggerDefinition) -> Result<()> {
    let Some(binding) = &definition.capture.feed else {
        return Ok(());
    };
    let existing = feeds::list(tx)?
        .into_iter()
        .find(|feed| feed.name == binding.feed);
    match existing {
        None => {
            feeds::create(
                tx,
                NewFeed {
                    source: Some(Source::Events),
                    ..NewFeed::new(binding.feed.clone())
                },
            )?;
            Ok(())
        }
        Some(feed) => match feed.source {
            Some(Source::Events) => Ok(()),
            None => feeds::mark_events(tx, feed.id),
            Some(source) => Err(Error::invalid(format!(
                "feed '{}' is already made from {}, so no events can enter it",
                feed.name,
                source.table().map_or_else(String::new, ToString::to_string)
            ))
            .advise("name another feed; one that does not exist is created")),
        },
    }
}

/// Refuses to drop a feed that a trigger writes to.
pub(crate) fn check_unused(tx: &Connection, feed: &Feed) -> Result<()> {
    let user = list(tx)?.into_iter().find(|trigger| {
        let bound = trigger.definition.capture.feed.as_ref();
        bound.is_some_and(|bound| bound.feed == feed.name)
    });
    match user {
        None => Ok(()),
        Some(trigger) => Err(Error::invalid(format!(
            "event trigger '{}' writes to feed '{}'",
            trigger.definition.name, feed.name
        ))
        .advise("drop the trigger first, or replace it by one without the feed")),
    }
}

pub(crate) fn drop(tx: &Connection, trigger: &EventTrigger) -> Result<()> {
    event_capture::remove(tx, trigger.id)?;
    let dropped = tx
        .execute(
            "update changefeed_event_trigger \
             set dropped_at = cast((julianday('now') - 2440587.5) * 86400000.0 as integer) \
             where trigger_id = ?1 and dropped_at is null",
            [trigger.id.0],
        )
        .explained()?;
    if dropped == 0 {
        return Err(words::trigger_gone(&trigger.definition.name));
    }
    event_backfill::forget(tx, trigger.id)?;
    for sql in [
        // An instance that delivers one of them at this moment finds its lease lost.
        "update changefeed_event \
         set state = 'a', due_at = null, lease_owner = null, generation = generation + 1 \
         where trigger_id = ?1 and due_at is not null",
        "delete from changefeed_staged where owner = 4294967296 + ?1",
    ] {
        tx.execute(sql, [trigger.id.0]).explained()?;
    }
    Ok(())
}

pub(crate) fn pause(tx: &Connection, trigger: &EventTrigger, reason: Option<&str>) -> Result<()> {
    let changed = tx
        .execute(
            "update changefeed_event_trigger set paused_because = ?2 \
             where trigger_id = ?1 and dropped_at is null",
            params![trigger.id.0, reason],
        )
        .explained()?;
    if changed == 0 {
        return Err(words::trigger_gone(&trigger.definition.name));
    }
    Ok(())
}

fn invoke(tx: &Connection, trigger: &EventTrigger, payload: &str, key: Uuid) -> Result<EventId> {
    if let Some((change_id, bits)) = event_log::request(tx, key)? {
        return Ok(EventId::new(change_id, EventBits::new(bits)));
    }
    let trigger = current(tx, trigger)?;
    let definition = &trigger.definition;
    if !definition.capture.manual {
        return Err(words::trigger_not_manual(&definition.name));
    }
    let table = event_drift::table_of(tx, &trigger)?;
    let plan = Plan::of(tx, trigger.id, definition, table)?;
    let feed = plan.binding.as_ref().map(|binding| binding.feed.0);
    tx.prepare_cached(
        "insert into changefeed_captured_event (trigger_id, op, new, order_key, feed_id, shard) \
         values (?1, 'M', ?2, ?3, ?4, 0)",
    )
    .and_then(|mut s| s.execute(params![trigger.id.0, payload, plan.keyless_order(), feed]))
    .explained()?;
    let change_id: i64 = tx
        .query_row("select value from changefeed_change_id", [], |row| {
            row.get(0)
        })
        .explained()?;
    let bits: i64 = tx
        .query_row(
            "select bits from changefeed_event where change_id = ?1",
            [change_id],
            |row| row.get(0),
        )
        .explained()?;
    event_log::note_request(tx, key, change_id, bits)?;
    Ok(EventId::new(change_id, EventBits::new(bits)))
}

/// Whether anything but a person makes events of this trigger.
pub(crate) fn captures(definition: &TriggerDefinition) -> bool {
    let capture = &definition.capture;
    capture.insert || capture.delete || capture.update != Updates::Ignored
}
