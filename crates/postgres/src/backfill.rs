//! Giving numbers below the start to rows that are older than the feed.

use changefeed_core::{Backfill, Error, Feed, Result};
use tokio_postgres::GenericClient;

use crate::error::db;
use crate::source::{StoredSource, Table};
use crate::template::fill;
use crate::{PostgresStore, quote};

/// Tables up to this many rows (by the planner's estimate) are counted exactly.
const COUNT_EXACTLY: i64 = 1_000_000;

impl PostgresStore {
    pub(crate) async fn backfill_batch(&self, feed: &Feed, batch: usize) -> Result<Backfill> {
        if batch == 0 {
            return Err(Error::invalid("a backfill batch needs at least one row"));
        }
        let mut client = self.client().await?;
        let transaction = client.transaction().await.map_err(db)?;
        let Some(source) = StoredSource::load(&*transaction, feed.id).await? else {
            return Err(Error::invalid(format!(
                "feed '{}' does not know where its rows are, so there is nothing to backfill",
                feed.name
            ))
            .advise("create feeds with --from TABLE or --rows TABLE"));
        };
        source.require_shard(feed)?;
        let table = source.table(&*transaction, feed).await?;
        begin(&*transaction, feed, &table).await?;
        // One backfill at a time; the position is read under the lock.
        let state = transaction
            .query_one(
                "select last_key is not null, done, total, finished_at is not null \
                 from changefeed.backfill where feed_id = $1 for update",
                &[&feed.id.0],
            )
            .await
            .map_err(db)?;
        let (resumed, done, total, finished): (bool, i64, i64, bool) =
            (state.get(0), state.get(1), state.get(2), state.get(3));
        if finished {
            return Ok(progress(0, done, total, true));
        }
        let sql = statement(&source, &table, resumed)?;
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
            return Err(no_room(feed, &table));
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
        Ok(progress(added, done + added, total, finished))
    }
}

pub(crate) fn progress(added: i64, done: i64, total: i64, finished: bool) -> Backfill {
    let count = |n: i64| u64::try_from(n).unwrap_or(0);
    Backfill {
        added: count(added),
        done: count(done),
        total: count(total),
        finished,
    }
}

fn no_room(feed: &Feed, table: &Table) -> Error {
    Error::invalid(format!(
        "the rows of {} do not fit below the start of feed '{}'",
        table.name, feed.name
    ))
    .advise("create the feed with a larger --start")
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
        return Err(no_room(feed, table));
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

/// The condition that goes on after the last key of a table `t`, kept in `state`.
pub(crate) fn resume_after(table: &Table, columns: &str) -> String {
    let last: Vec<String> = table
        .key
        .iter()
        .enumerate()
        .map(|(i, c)| format!("(state.last_key->>{i})::{}", c.type_sql))
        .collect();
    format!("where ({columns}) > ({})", last.join(", "))
}

/// One batch as one statement: picks rows, gives them numbers, moves the position.
fn statement(source: &StoredSource, table: &Table, resumed: bool) -> Result<String> {
    let shard = table.shard_expression("t", source.shard_by.as_deref(), source.shards)?;
    let (order, resume, template) = if source.captured {
        let columns: Vec<String> = table
            .key
            .iter()
            .map(|c| format!("t.{}", quote::identifier(&c.name)))
            .collect();
        let columns = columns.join(", ");
        let resume = resume_after(table, &columns);
        (columns, resume, include_str!("sql/backfill_captured.sql"))
    } else {
        let column = source.change_id_column.as_deref().unwrap_or("change_id");
        let column = format!("t.{}", quote::identifier(column));
        let resume = format!("and {column} > (state.last_key->>0)::bigint");
        (column, resume, include_str!("sql/backfill_joined.sql"))
    };
    Ok(fill(
        template,
        &[
            ("order", &order),
            ("resume", if resumed { &resume } else { "" }),
            ("key", &table.key_array("t")),
            ("shard", &shard),
            ("table", &table.sql),
            ("number", include_str!("sql/backfill_number.sql")),
        ],
    ))
}
