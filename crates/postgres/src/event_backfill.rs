//! Existing rows as events.

use changefeed_core::{Backfill, Error, EventTrigger, Result};
use tokio_postgres::types::Type;

use crate::backfill::{ALL_ROWS, Ordered, State, estimate};
use crate::error::db;
use crate::read;
use crate::row::Cells;
use crate::session::Session;
use crate::source::Table;
use crate::template::fill;
use crate::typed::NoValue;

impl Session {
    pub(crate) async fn backfill_trigger(
        &mut self,
        trigger: &EventTrigger,
        batch: usize,
    ) -> Result<Backfill> {
        if batch == 0 {
            return Err(Error::invalid("a backfill batch needs at least one row"));
        }
        let client = &mut **self;
        let transaction = client.transaction().await.map_err(db)?;
        // Names in a condition are looked up there, too, as in its trigger.
        transaction.batch_execute(ALL_ROWS).await.map_err(db)?;
        let table = Table::find(&*transaction, &trigger.definition.table).await?;
        let row_type = table.hold(&*transaction).await?;
        if table.key.is_empty() {
            return Err(Error::invalid(format!(
                "table {} has no primary key, so a backfill could not say how far it has come",
                table.name
            ))
            .advise("add a primary key to it"));
        }
        if transaction
            .query_opt(
                "select from changefeed.event_backfill where trigger_id = $1",
                &[&trigger.id.0],
            )
            .await
            .map_err(db)?
            .is_none()
        {
            let total = estimate(&*transaction, &table).await?;
            transaction
                .execute(
                    "insert into changefeed.event_backfill (trigger_id, total) values ($1, $2) \
                     on conflict do nothing",
                    &[&trigger.id.0, &total],
                )
                .await
                .map_err(db)?;
        }
        let state = State::lock(
            &*transaction,
            "select last_key::text, done, total, finished_at is not null \
             from changefeed.event_backfill where trigger_id = $1 for update",
            &trigger.id.0,
        )
        .await?;
        if state.finished {
            return Ok(Backfill::new(0, state.done, state.total, true));
        }
        let row = transaction
            .query_one(
                "select e.after, e.order_key, coalesce(e.shard, 'null::smallint'), \
                        (select feed_id from changefeed.event_trigger where trigger_id = $1), \
                        changefeed.safe_columns($2, 't', null) \
                 from changefeed.event_capture(changefeed.event_plan($1), $2, 't', 't') e",
                &[&trigger.id.0, &table.oid],
            )
            .await
            .map_err(db)?;
        let text = |place: usize| row.take::<String>(place);
        let (feed, publish) = match row.take::<Option<i16>>(3)? {
            Some(feed) => (
                feed.to_string(),
                format!(
                    "published as (insert into changefeed.change (feed_id, shard, change_id) \
                     select {feed}, p.shard, p.change_id from sent p),"
                ),
            ),
            None => ("null".to_owned(), String::new()),
        };
        let key = Ordered::primary(&*transaction, &table).await?;
        let resume = key.after(state.last_key.as_deref())?;
        let sql = fill(
            include_str!("sql/event_backfill.sql"),
            &[
                ("key", &key.array()),
                ("image", &text(0)?),
                ("order_key", &text(1)?),
                ("shard", &text(2)?),
                ("order", &key.columns()),
                ("table", &table.alone()),
                ("old_columns", &text(4)?),
                ("new_columns", &text(4)?),
                (
                    "condition",
                    trigger
                        .definition
                        .capture
                        .condition
                        .as_deref()
                        .unwrap_or("true"),
                ),
                ("resume", &resume),
                ("feed", &feed),
                ("publish", &publish),
            ],
        )?;
        let limit = i64::try_from(batch).unwrap_or(i64::MAX);
        let rows = transaction
            .query_typed(
                &sql,
                &[
                    (&trigger.id.0, Type::INT4),
                    (&limit, Type::INT8),
                    (&NoValue, row_type),
                ],
            )
            .await
            .map_err(db)?;
        let row = rows.first().ok_or_else(read::without_end)?;
        let (seen, added): (i64, i64) = (row.take(0)?, row.take(1)?);
        let finished = seen < limit;
        if finished {
            transaction
                .execute(
                    "update changefeed.event_backfill set finished_at = clock_timestamp() \
                     where trigger_id = $1",
                    &[&trigger.id.0],
                )
                .await
                .map_err(db)?;
        }
        transaction.commit().await.map_err(db)?;
        Ok(Backfill::new(
            added,
            state.done + seen,
            state.total,
            finished,
        ))
    }
}
