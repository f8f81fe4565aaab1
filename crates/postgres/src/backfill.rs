//! Giving numbers below the start to rows that are older than the feed.

use changefeed_core::{Backfill, Error, Feed, FeedId, Kind, Result};
use tokio_postgres::GenericClient;
use tokio_postgres::types::{ToSql, Type};

use crate::error::db;
use crate::filter::Filter;
use crate::row::Cells;
use crate::session::Session;
use crate::source::{self, Column, StoredSource, Table};
use crate::template::fill;
use crate::typed::NoValue;
use crate::{quote, read};

/// Tables up to this many rows (by the planner's estimate) are counted exactly.
const COUNT_EXACTLY: i64 = 1_000_000;

/// A policy that hides rows from us is an error, not a backfill of what is left; nobody's functions and
/// operators but the server's are found; and no plan depends on statistics.
pub(crate) const ALL_ROWS: &str = "set local row_security = off; \
     set local search_path = pg_catalog, pg_temp";

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
        feed.require_shard_column(source.shards.count, source.shard_by.as_deref())?;
        let table = source.table(&*transaction, feed).await?;
        let row_type = table.hold(&*transaction).await?;
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
        let key = match source.captured {
            true => Some(Ordered::of_feed(&*transaction, feed.id, &table).await?),
            false => None,
        };
        let (image, here) = match (&feed.source, source.images) {
            (Some(shown), true) => {
                let filter = Filter::of(&table, shown)?;
                (
                    filter.image(&*transaction, "t").await?,
                    "s.image is not null",
                )
            }
            _ => ("null::json".to_owned(), "true"),
        };
        let last = state.last_key.as_deref();
        let sql = statement(&source, &table, key.as_ref(), last, (&image, here))?;
        let limit = i64::try_from(batch).unwrap_or(i64::MAX);
        let rows = transaction
            .query_typed(
                &sql,
                &[
                    (&feed.id.0, Type::INT2),
                    (&limit, Type::INT8),
                    (&NoValue, row_type),
                ],
            )
            .await
            .map_err(db)?;
        let row = rows.first().ok_or_else(read::without_end)?;
        let (seen, added, overflow): (i64, i64, bool) = (row.take(0)?, row.take(1)?, row.take(2)?);
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
            last_key: row.take(0)?,
            done: row.take(1)?,
            total: row.take(2)?,
            finished: row.take(3)?,
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
        .take(0)?;
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
        .take(0)?;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "an estimate of a row count"
    )]
    let total = estimate as i64;
    if total >= COUNT_EXACTLY {
        return Ok(total);
    }
    let counted = format!("select count(*) from {}", table.alone());
    client.query_one(&counted, &[]).await.map_err(db)?.take(0)
}

/// The columns of a key in the order of an index, as a batch goes through a table `t`.
pub(crate) struct Ordered {
    columns: Vec<Column>,
    /// The operator of each by which the index goes.
    greater: Vec<String>,
    equal: Vec<String>,
}

impl Ordered {
    /// The columns that a captured feed knows its rows by.
    async fn of_feed(client: &impl GenericClient, feed: FeedId, table: &Table) -> Result<Self> {
        let lost = client
            .query_one(
                "select problem, advice from changefeed.lost_key($1)",
                &[&feed.0],
            )
            .await
            .map_err(db)?;
        if let Some(problem) = lost.take::<Option<String>>(0)? {
            let advice: String = lost.take(1)?;
            return Err(Error::new(Kind::Unsupported, problem).advise(advice));
        }
        let rows = client
            .query(
                "select k.name, k.equal, k.greater from changefeed.feed_source f \
                 cross join lateral changefeed.key_columns(f.source, changefeed.key_numbers(f)) k \
                 where f.feed_id = $1 order by k.place",
                &[&feed.0],
            )
            .await
            .map_err(db)?;
        Ordered::from(table, &rows)
    }

    /// The primary key of a table.
    pub(crate) async fn primary(client: &impl GenericClient, table: &Table) -> Result<Self> {
        let places: Vec<i16> = table.key.iter().map(|c| c.place).collect();
        let rows = client
            .query(
                "select k.name, k.equal, k.greater from changefeed.key_columns($1, $2) k order by k.place",
                &[&table.oid, &places],
            )
            .await
            .map_err(db)?;
        Ordered::from(table, &rows)
    }

    fn from(table: &Table, rows: &[tokio_postgres::Row]) -> Result<Self> {
        let columns = rows
            .iter()
            .map(|row| table.column(row.take(0)?).cloned())
            .collect::<Result<_>>()?;
        let operators = |place: usize| -> Result<Vec<String>> {
            rows.iter()
                .map(|row| {
                    row.take::<Option<String>>(place)?.ok_or_else(|| {
                        let what = format!("rows of {} cannot be found by its key", table.name);
                        Error::new(Kind::Unsupported, what)
                            .advise("give it a primary key of types of the server, enums, or domains over these")
                    })
                })
                .collect()
        };
        Ok(Ordered {
            columns,
            equal: operators(1)?,
            greater: operators(2)?,
        })
    }

    /// The key of a row as a JSON array of texts.
    pub(crate) fn array(&self) -> String {
        source::key_array(&self.columns, "t")
    }

    pub(crate) fn columns(&self) -> String {
        let columns: Vec<String> = self.columns.iter().map(column).collect();
        columns.join(", ")
    }

    /// The condition that goes on after the last key, a JSON array of texts, if there is one. They are
    /// literals, because those are read by a type's own input function; a text would be cast, and a cast
    /// of somebody's own type may be anybody's function, as may be the check of a domain.
    pub(crate) fn after(&self, last_key: Option<&str>) -> Result<String> {
        let Some(last_key) = last_key else {
            return Ok(String::new());
        };
        let texts: Vec<String> = serde_json::from_str(last_key).map_err(|e| {
            Error::new(
                Kind::Database,
                "the position of the backfill cannot be read",
            )
            .caused_by(e)
        })?;
        let texts: Vec<String> = texts.iter().map(|text| quote::literal(text)).collect();
        let (Some(first), true) = (self.greater.first(), texts.len() == self.columns.len()) else {
            return Err(Error::new(
                Kind::Unsupported,
                "the key of the table is another one than when its backfill began",
            )
            .advise("drop the feed or the trigger, and make it again"));
        };
        if self.greater.iter().all(|greater| greater == first) {
            return Ok(format!(
                "and ({}) {first} ({})",
                self.columns(),
                texts.join(", ")
            ));
        }
        // Types of different schemas have no operator in common for all of them.
        let mut ways = Vec::new();
        for (n, greater) in self.greater.iter().enumerate() {
            let mut way: Vec<String> = (0..n)
                .map(|i| {
                    format!(
                        "{} {} {}",
                        column(&self.columns[i]),
                        self.equal[i],
                        texts[i]
                    )
                })
                .collect();
            way.push(format!(
                "{} {greater} {}",
                column(&self.columns[n]),
                texts[n]
            ));
            ways.push(format!("({})", way.join(" and ")));
        }
        Ok(format!("and ({})", ways.join(" or ")))
    }
}

fn column(column: &Column) -> String {
    format!("t.{}", quote::identifier(&column.name))
}

/// One batch as one statement: picks rows, gives them numbers, moves the position.
fn statement(
    source: &StoredSource,
    table: &Table,
    key: Option<&Ordered>,
    last_key: Option<&str>,
    (image, here): (&str, &str),
) -> Result<String> {
    let shard = table.shard_expression("t", source.shard_by.as_deref(), source.shards)?;
    let (order, resume, array, template) = match key {
        Some(key) => (
            key.columns(),
            key.after(last_key)?,
            key.array(),
            include_str!("sql/backfill_captured.sql"),
        ),
        None => {
            let name = source.change_id_column.as_deref().unwrap_or("change_id");
            let column = column(table.column(name)?);
            let resume = match last_key {
                Some(_) => format!("and {column} > (state.last_key->>0)::bigint"),
                None => String::new(),
            };
            let template = include_str!("sql/backfill_joined.sql");
            (column, resume, String::new(), template)
        }
    };
    fill(
        template,
        &[
            ("order", &order),
            ("resume", &resume),
            ("key", &array),
            ("shard", &shard),
            ("image", image),
            ("here", here),
            ("table", &table.alone()),
            ("number", include_str!("sql/backfill_number.sql")),
        ],
    )
}
