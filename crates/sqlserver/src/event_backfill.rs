//! Existing rows as events.

use changefeed_core::{Backfill, Error, EventTrigger, Result, fill, words};

use crate::backfill::{estimate, resume_after};
use crate::error::{db, is_duplicate};
use crate::event_capture::{Around, Plan};
use crate::row::Cells;
use crate::session::Session;
use crate::source::Table;
use crate::{event_feeds, event_install, json, quote};

impl Session {
    pub(crate) async fn backfill_trigger(
        &mut self,
        trigger: &EventTrigger,
        batch: usize,
    ) -> Result<Backfill> {
        if batch == 0 {
            return Err(Error::invalid("a backfill batch needs at least one row"));
        }
        let connection = &mut *self.connection;
        let found = connection
            .query(
                "select table_id, feed_id from changefeed.event_trigger \
                 where trigger_id = @P1 and dropped_at is null",
                &[&trigger.id.0],
            )
            .await?;
        let row = found
            .first()
            .ok_or_else(|| words::trigger_gone(&trigger.definition.name))?;
        let table_id: i32 = row.take(0)?;
        let feed: Option<i16> = row.maybe(1)?;
        let table = Table::load(connection, table_id).await?.ok_or_else(|| {
            Error::not_found(format!("table {} was dropped", trigger.definition.table))
        })?;
        if table.key.is_empty() {
            return Err(Error::invalid(format!(
                "table {} has no primary key, so a backfill could not say how far it has come",
                table.name
            ))
            .advise("add a primary key to it"));
        }
        let around = Around {
            binding: event_feeds::binding(connection, &trigger.definition, feed).await?,
            identity: event_install::identity_of(connection, &table).await?,
        };
        let plan = Plan::of(trigger.id, &trigger.definition, &table, around)?;
        let total = estimate(connection, &table).await?;
        let begun = connection
            .tried_execute(
                "insert into changefeed.event_backfill (trigger_id, total) \
                 select @P1, @P2 where not exists \
                 (select 1 from changefeed.event_backfill with (updlock, holdlock) \
                  where trigger_id = @P1)",
                &[&trigger.id.0, &total],
            )
            .await;
        match begun {
            Ok(_) => {}
            // Somebody else began it at the same moment.
            Err(error) if is_duplicate(&error) => {}
            Err(error) => return Err(db(error)),
        }
        let sql = statement(&plan)?;
        // As a batch where it publishes: see `Connection::call`.
        let limit = i32::try_from(batch).unwrap_or(i32::MAX);
        let sql = sql.replacen("@P1", &trigger.id.0.to_string(), 1).replacen(
            "@P2",
            &limit.to_string(),
            1,
        );
        let rows = connection.call(&sql).await?;
        let row = rows
            .first()
            .ok_or_else(|| words::trigger_gone(&trigger.definition.name))?;
        Ok(Backfill::new(
            i64::from(row.take::<i32>(1)?),
            row.take(2)?,
            row.take(3)?,
            row.says(4)?,
        ))
    }
}

/// One batch as one statement.
pub(crate) fn statement(plan: &Plan<'_>) -> Result<String> {
    let table = plan.table;
    let resume = resume_after(&table.key, "t");
    let existing = plan.existing("t")?;
    let order: Vec<String> = table
        .key
        .iter()
        .map(|c| format!("t.{}", quote::identifier(&c.name)))
        .collect();
    let publish = match &plan.binding {
        Some(binding) => format!(
            "insert into changefeed.change (feed_id, shard, change_id) \
             select {}, p.shard, p.change_id from @published p;",
            binding.feed
        ),
        None => String::new(),
    };
    fill(
        include_str!("sql/event_backfill.sql"),
        &[
            ("declare", &resume.declare),
            ("position", &resume.position),
            ("key", &json::array(&table.key, "t")),
            ("wanted", &existing.wanted),
            ("row", &existing.row),
            ("order_key", &existing.order_key),
            ("feed", &plan.feed()),
            ("shard", &existing.shard),
            ("table", &table.sql),
            ("resume", &resume.condition),
            ("order", &order.join(", ")),
            ("publish", &publish),
        ],
    )
}
