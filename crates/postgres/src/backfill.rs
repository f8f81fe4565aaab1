//! Giving numbers below the start to rows that are older than the feed.

use changefeed_core::{Backfill, Error, Feed, Kind, Result};
use tokio_postgres::GenericClient;
use tokio_postgres::types::ToSql;

use crate::error::db;
use crate::quote;
use crate::session::Session;
use crate::source::{StoredSource, Table};
use crate::template::fill;

/// Tables up to this many rows (by the planner's estimate) are counted exactly.
const COUNT_EXACTLY: i64 = 1_000_000;

/// A policy that hides rows from us is an error, not a backfill of what is left.
pub(crate) const ALL_ROWS: &str = "set local row_security = off";

impl Session {
    pub(crate) async fn backfill(&mut self, feed: &Feed, batch: usize) -> Result<Backfill> {
        feed.require_numbers("backfilled")?;
        if batch == 0 {
            return Err(Error::invalid("a backfill batch needs at least one row"));
        }
        let client = &mut **self;
        let transaction = client.transaction().await.map_err(db)?;
        transaction.batch_execute(ALL_ROWS).await.map_err(db)?;
        let Some(source) = StoredSource::load(&*transaction, feed.id).await? else {
            return Err(Error::invalid(format!(
                "feed '{}' does not know where its rows are, so there is nothing to backfill",
                feed.name
            ))
            .advise("create feeds with --from TABLE or --rows TABLE"));
        };
        feed.require_shard_column(source.shards, source.shard_by.as_deref())?;
        let table = source.table(&*transaction, feed).await?;
        table.hold(&*transaction).await?;
        begin(&*transaction, feed, &table).await?;
        let state = State::lock(
            &*transaction,
            "select last_key::text, done, total, finished_at is not null \
             from changefeed.backfill where feed_id = $1 for update",
            &feed.id.0,
        )
        .await?;
        if state.finished {
            return Ok(Backfill::new(0, state.done, state.total, true));
        }
        let sql = statement(&source, &table, state.last_key.as_deref())?;
        let limit = i64::try_from(batch).unwrap_or(i64::MAX);
        let row = transaction
            .query_one(&sql, &[&feed.id.0, &limit])
            .await
            .map_err(db)?;
        let (seen, added, overflow): (i64, i64, bool) = (row.get(0), row.get(1), row.get(2));
        if overflow {
            transaction.rollback().await.map_err(db)?;
            // Readers must not wait for ever for what cannot come.
            client
                .execute(
                    "update changefeed.backfill set finished_at = clock_timestamp() \
                     where feed_id = $1",
                    &[&feed.id.0],
                )
                .await
                .map_err(db)?;
            return Err(feed.no_room_for(&table.name));
        }
        let finished = seen < limit;
        if finished {
            transaction
                .execute(
                    "update changefeed.backfill set finished_at = clock_timestamp() \
                     where feed_id = $1",
                    &[&feed.id.0],
                )
                .await
                .map_err(db)?;
            // Readers that wait at the frontier may go on into the live range.
            transaction
                .execute(
                    "select pg_notify('changefeed', format('%s/%s/backfilled', feed_id, shard)) \
                     from changefeed.shard_definition where feed_id = $1",
                    &[&feed.id.0],
                )
                .await
                .map_err(db)?;
        }
        transaction.commit().await.map_err(db)?;
        Ok(Backfill::new(
            added,
            state.done + added,
            state.total,
            finished,
        ))
    }
}

/// How far a backfill has come.
pub(crate) struct State {
    /// The key of the last row done, a JSON array of texts.
    pub(crate) last_key: Option<String>,
    pub(crate) done: i64,
    pub(crate) total: i64,
    pub(crate) finished: bool,
}

impl State {
    /// Reads it under a lock, so that there is one backfill at a time.
    pub(crate) async fn lock(
        client: &impl GenericClient,
        sql: &str,
        of: &(dyn ToSql + Sync),
    ) -> Result<Self> {
        let row = client.query_one(sql, &[of]).await.map_err(db)?;
        Ok(State {
            last_key: row.get(0),
            done: row.get(1),
            total: row.get(2),
            finished: row.get(3),
        })
    }
}

/// Writes the state row of a backfill that has not begun.
async fn begin(client: &impl GenericClient, feed: &Feed, table: &Table) -> Result<()> {
    let begun = client
        .query_opt(
            "select from changefeed.backfill where feed_id = $1",
            &[&feed.id.0],
        )
        .await
        .map_err(db)?;
    if begun.is_some() {
        return Ok(());
    }
    let total = estimate(client, table).await?;
    let room: i64 = client
        .query_one(
            "select coalesce(min(d.start - greatest(d.start - 1000000000000000, d.trimmed_to, 0)), 0) \
             from changefeed.shard_definition d where d.feed_id = $1",
            &[&feed.id.0],
        )
        .await
        .map_err(db)?
        .get(0);
    if total > room {
        return Err(feed.no_room_for(&table.name));
    }
    client
        .execute(
            "insert into changefeed.backfill (feed_id, total) values ($1, $2) \
             on conflict do nothing",
            &[&feed.id.0, &total],
        )
        .await
        .map_err(db)?;
    Ok(())
}

/// How many rows a table has: exactly, unless counting would take long.
pub(crate) async fn estimate(client: &impl GenericClient, table: &Table) -> Result<i64> {
    let estimate: f32 = client
        .query_one(
            "select reltuples from pg_class where oid = $1",
            &[&table.oid],
        )
        .await
        .map_err(db)?
        .get(0);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "an estimate of a row count"
    )]
    let total = estimate as i64;
    if total >= COUNT_EXACTLY {
        return Ok(total);
    }
    let counted = format!("select count(*) from {}", table.sql);
    Ok(client.query_one(&counted, &[]).await.map_err(db)?.get(0))
}

/// The condition that goes on after the last key of a table `t`, a JSON array of texts. They are
/// literals, because those are read by a type's own input function; a text would be cast, and a
/// cast of somebody's own type may be anybody's function.
pub(crate) fn resume_after(table: &Table, columns: &str, last_key: &str) -> Result<String> {
    let texts: Vec<String> = serde_json::from_str(last_key).map_err(|e| {
        Error::new(
            Kind::Database,
            "the position of the backfill cannot be read",
        )
        .caused_by(e)
    })?;
    let last: Vec<String> = table
        .key
        .iter()
        .zip(&texts)
        .map(|(column, text)| format!("{}::{}", quote::literal(text), column.type_sql))
        .collect();
    Ok(format!("where ({columns}) > ({})", last.join(", ")))
}

/// One batch as one statement: picks rows, gives them numbers, moves the position.
fn statement(source: &StoredSource, table: &Table, last_key: Option<&str>) -> Result<String> {
    let shard = table.shard_expression("t", source.shard_by.as_deref(), source.shards)?;
    let (order, resume, template) = if source.captured {
        let columns: Vec<String> = table
            .key
            .iter()
            .map(|c| format!("t.{}", quote::identifier(&c.name)))
            .collect();
        let columns = columns.join(", ");
        let resume = match last_key {
            Some(key) => resume_after(table, &columns, key)?,
            None => String::new(),
        };
        (columns, resume, include_str!("sql/backfill_captured.sql"))
    } else {
        let column = source.change_id_column.as_deref().unwrap_or("change_id");
        let column = format!("t.{}", quote::identifier(column));
        let resume = match last_key {
            Some(_) => format!("and {column} > (state.last_key->>0)::bigint"),
            None => String::new(),
        };
        (column, resume, include_str!("sql/backfill_joined.sql"))
    };
    Ok(fill(
        template,
        &[
            ("order", &order),
            ("resume", &resume),
            ("key", &table.key_array("t")),
            ("shard", &shard),
            ("table", &table.sql),
            ("number", include_str!("sql/backfill_number.sql")),
        ],
    ))
}
