//! Reading feeds that are ordered by ULIDs: the application's rows are the feed.

use changefeed_core::{
    After, Change, Cursor, Error, Feed, Incident, PAGE_BYTES, Page, Result, ShardId, ShardState,
    Source, SweepGroup, TableName, Ulid, Uuid, begin_ulid, fill, ulid_of_row,
};

use crate::session::Session;
use crate::source::Table;
use crate::{quote, read};

/// Checks that a table can be read as a ULID feed, and says why not.
pub(crate) fn check(table: &Table, shard_column: &str, ulid_column: &str) -> Result<()> {
    if !table.column(shard_column)?.is_integer() {
        return Err(Error::invalid(format!(
            "column '{shard_column}' of {} does not hold integers, so it cannot be the shard",
            table.name
        )));
    }
    let column = table.column(ulid_column)?;
    match column.type_sql.as_str() {
        "binary(16)" | "varbinary(16)" => Ok(()),
        // A uniqueidentifier is ordered by its last bytes first.
        other => Err(Error::invalid(format!(
            "column '{ulid_column}' of {} is {other}; a ULID needs 16 bytes: binary(16)",
            table.name
        ))),
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

    /// A statement of ours for this place.
    fn sql(&self, statement: &str, table: &Table) -> String {
        fill(
            statement,
            &[
                ("row", &table.row_json("t")),
                ("table", &table.sql),
                ("shard", &quote::identifier(self.shard_column)),
                ("ulid", &quote::identifier(self.ulid_column)),
            ],
        )
    }
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
            let next = self.newest_ulid(feed, shard).await?;
            return Ok(Page::empty(Cursor::Ulid(next)));
        };
        let connection = &mut *self.connection;
        let table = Table::find(connection, place.table).await?;
        let sql = place.sql(include_str!("sql/ulid_page.sql"), &table);
        let rows = connection
            .query(
                &sql,
                &[
                    &place.ulids,
                    &i32::from(shard.0),
                    &from.to_bytes().as_slice(),
                    &count,
                    &PAGE_BYTES,
                ],
            )
            .await?;
        let found = rows.first().and_then(|row| row.get::<i32, _>(2));
        let changes: Result<Vec<Change>> = rows
            .iter()
            .take(limit)
            .map(|row| {
                Ok(Change {
                    cursor: Cursor::Ulid(ulid_of_row(feed, row.get(0).unwrap_or_default())?),
                    change_id: None,
                    content: read::content(row.get(1))?,
                })
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
        })
    }

    /// The newest ULID that is committed in a shard.
    async fn newest_ulid(&mut self, feed: &Feed, shard: ShardId) -> Result<Ulid> {
        let place = Place::of(feed)?;
        let connection = &mut *self.connection;
        let table = Table::find(connection, place.table).await?;
        let sql = place.sql(
            "select top (1) t.{ulid} from {table} t where t.{shard} = @P1 order by t.{ulid} desc",
            &table,
        );
        let rows = connection.query(&sql, &[&i32::from(shard.0)]).await?;
        rows.first().map_or(Ok(Ulid::MIN), |row| {
            ulid_of_row(feed, row.get(0).unwrap_or_default())
        })
    }

    pub(crate) async fn ulid_states(&mut self, feed: &Feed) -> Result<Vec<ShardState>> {
        let now: i64 = self
            .connection
            .one(
                "select datediff_big(millisecond, '1970-01-01', sysutcdatetime())",
                &[],
            )
            .await?
            .get(0)
            .unwrap_or_default();
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
        Ok(rows
            .iter()
            .map(|row| Incident {
                feed: row.get(0).unwrap_or_default(),
                shard: row.get(1).unwrap_or_default(),
                count: row.get(2).unwrap_or_default(),
                since_ms: row.get(3).unwrap_or_default(),
            })
            .collect())
    }
}
