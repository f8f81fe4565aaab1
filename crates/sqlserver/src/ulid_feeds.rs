//! Reading feeds that are ordered by ULIDs: the application's rows are the feed.

use changefeed_core::{
    After, Change, Cursor, Error, Feed, Finding, Incident, Kind, PAGE_BYTES, Page, Result, ShardId,
    ShardState, Source, SweepGroup, TableName, Ulid, Uuid, begin_ulid, fill, ulid_of_row, words,
};

use crate::error::db;
use crate::row::{Cells, first, only};
use crate::session::Session;
use crate::source::Table;
use crate::{quote, read};

/// Checks that a table can be read as a ULID feed, and says why not.
pub(crate) fn check(table: &Table, shard_column: &str, ulid_column: &str) -> Result<()> {
    if !table.column(shard_column)?.is_integer() {
        return Err(words::shard_not_integer(&table.name, shard_column));
    }
    let column = table.column(ulid_column)?;
    match column.type_sql.as_str() {
        "binary(16)" | "varbinary(16)" => Ok(()),
        // A uniqueidentifier is ordered by its last bytes first.
        other => Err(words::not_a_ulid(
            &table.name,
            ulid_column,
            other,
            "binary(16)",
        )),
    }
}

/// Where the rows of a ULID feed are.
struct Place<'a> {
    ulids: Uuid,
    table: &'a TableName,
    shard_column: &'a str,
    ulid_column: &'a str,
}

impl<'a> Place<'a> {
    fn of(feed: &'a Feed) -> Result<Self> {
        match &feed.source {
            Some(Source::Ulid {
                feed: ulids,
                table,
                shard_column,
                ulid_column,
            }) => Ok(Place {
                ulids: *ulids,
                table,
                shard_column,
                ulid_column,
            }),
            _ => Err(Error::invalid(format!("feed '{}' has no ULIDs", feed.name))),
        }
    }
}

pub(crate) fn page_sql(table: &Table, shard_column: &str, ulid_column: &str) -> Result<String> {
    fill(
        include_str!("sql/ulid_page.sql"),
        &[
            ("row", &table.row_json("t")),
            ("table", &table.sql),
            ("shard", &quote::identifier(shard_column)),
            ("ulid", &quote::identifier(ulid_column)),
        ],
    )
}

pub(crate) fn newest_sql(table: &Table, shard_column: &str, ulid_column: &str) -> Result<String> {
    fill(
        "select top (1) t.{ulid} from {table} t where t.{shard} = @P1 order by t.{ulid} desc",
        &[
            ("table", &table.sql),
            ("shard", &quote::identifier(shard_column)),
            ("ulid", &quote::identifier(ulid_column)),
        ],
    )
}

impl Session {
    pub(crate) async fn read_ulids(
        &mut self,
        feed: &Feed,
        shard: ShardId,
        after: After,
        limit: usize,
    ) -> Result<Page> {
        let limit = Page::check_limit(limit)?;
        let count = i32::try_from(limit).unwrap_or(i32::MAX);
        feed.shard(shard)?;
        let place = Place::of(feed)?;
        let Some(from) = begin_ulid(feed, after)? else {
            let incarnation = self.incarnation().await?;
            let next = self.newest_ulid(feed, shard).await?;
            return Ok(Page::empty(Cursor::Ulid(next), incarnation));
        };
        let connection = &mut *self.connection;
        let table = Table::find(connection, place.table).await?;
        let sql = page_sql(&table, place.shard_column, place.ulid_column)?;
        let mut results = connection
            .results(
                &sql,
                &[
                    &place.ulids,
                    &i32::from(shard.0),
                    &from.to_bytes().as_slice(),
                    &count,
                    &PAGE_BYTES,
                ],
            )
            .await
            .map_err(db)?;
        let life = results.pop().unwrap_or_default();
        let incarnation: &str = only(&life)?.take(0)?;
        let rows = results.pop().unwrap_or_default();
        let found = first::<i32>(&rows, 2)?;
        let changes: Result<Vec<Change>> = rows
            .iter()
            .take(limit)
            .map(|row| {
                let cursor = Cursor::Ulid(ulid_of_row(feed, row.take(0)?)?);
                Ok(Change::published(
                    cursor,
                    None,
                    read::content(row.maybe(1)?)?,
                ))
            })
            .collect();
        let changes = changes?;
        let next = changes
            .last()
            .map_or(Cursor::Ulid(from), |change| change.cursor);
        let more = found
            .and_then(|found| usize::try_from(found).ok())
            .is_some_and(|found| changes.len() < found);
        Ok(Page {
            changes,
            next,
            more,
            incarnation: incarnation.parse()?,
            closed: false,
        })
    }

    /// The newest ULID that is committed in a shard.
    async fn newest_ulid(&mut self, feed: &Feed, shard: ShardId) -> Result<Ulid> {
        let place = Place::of(feed)?;
        let connection = &mut *self.connection;
        let table = Table::find(connection, place.table).await?;
        let sql = newest_sql(&table, place.shard_column, place.ulid_column)?;
        let rows = connection.query(&sql, &[&i32::from(shard.0)]).await?;
        rows.first()
            .map_or(Ok(Ulid::MIN), |row| ulid_of_row(feed, row.take(0)?))
    }

    pub(crate) async fn ulid_states(&mut self, feed: &Feed) -> Result<Vec<ShardState>> {
        let now: i64 = self
            .connection
            .one(
                "select datediff_big(millisecond, '1970-01-01', sysutcdatetime())",
                &[],
            )
            .await?
            .take(0)?;
        let mut states = Vec::new();
        for shard in &feed.shards {
            let newest = self.newest_ulid(feed, shard.shard).await?;
            let since_ms = match newest {
                Ulid::MIN => 0,
                newest => now.saturating_sub_unsigned(newest.time()).max(0),
            };
            states.push(ShardState {
                shard: shard.shard,
                sweep_group: SweepGroup(shard.sweep_group.0),
                last: Cursor::Ulid(newest),
                pending: 0,
                since_ms,
            });
        }
        Ok(states)
    }
}

impl Session {
    pub(crate) async fn incidents(&mut self) -> Result<Vec<Incident>> {
        let connection = &mut *self.connection;
        let rows = connection
            .query(
                "select feed_id, shard_id, [count], \
                 isnull(datediff_big(millisecond, reported_at, sysutcdatetime()), 0) \
                 from changefeed.incident where [count] > 0 order by feed_id, shard_id",
                &[],
            )
            .await?;
        rows.iter()
            .map(|row| {
                Ok(Incident {
                    feed: row.take(0)?,
                    shard: row.take(1)?,
                    count: row.take(2)?,
                    since_ms: row.take(3)?,
                })
            })
            .collect()
    }

    /// Shards whose ULIDs are in the future.
    pub(crate) async fn ulid_findings(&mut self) -> Result<Vec<Finding>> {
        let sql = include_str!("sql/ulids_ahead.sql");
        let rows = match self.connection.query(sql, &[]).await {
            // Who does not write ULIDs need not see them.
            Err(error) if error.kind() == Kind::Permission => return Ok(Vec::new()),
            rows => rows?,
        };
        rows.iter()
            .map(|row| {
                let (feed, shard, ahead) = (row.take(0)?, row.take(1)?, row.take(2)?);
                Ok(Finding::of_ulids_ahead(feed, shard, ahead))
            })
            .collect()
    }
}
