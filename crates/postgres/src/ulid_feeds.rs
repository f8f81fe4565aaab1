//! Reading feeds that are ordered by ULIDs: the application's rows are the feed.

use changefeed_core::{
    After, Change, Cursor, Error, Feed, Incident, Page, Result, ShardId, ShardState, Source,
    SweepGroup, Ulid, begin_ulid, ulid_of_row,
};

use crate::error::db;
use crate::session::Session;
use crate::source::Table;
use crate::{quote, read};

/// Checks that a table can be read as a ULID feed, and says why not.
pub(crate) fn check(table: &Table, shard_column: &str, ulid_column: &str) -> Result<()> {
    if !matches!(
        table.column(shard_column)?.base_type.as_str(),
        "smallint" | "integer" | "bigint"
    ) {
        return Err(Error::invalid(format!(
            "column '{shard_column}' of {} does not hold integers, so it cannot be the shard",
            table.name
        )));
    }
    ulid_form(table, ulid_column).map(drop)
}

/// How 16 bytes are written to and read from the ULID column, as SQL.
fn ulid_form(table: &Table, column: &str) -> Result<(&'static str, String)> {
    let name = format!("changefeed_row.{}", quote::identifier(column));
    match table.column(column)?.base_type.as_str() {
        "bytea" => Ok(("$2::bytea", name)),
        "uuid" => Ok((
            "encode($2::bytea, 'hex')::uuid",
            format!("uuid_send({name})"),
        )),
        other => Err(Error::invalid(format!(
            "column '{column}' of {} is {other}; a ULID needs 16 bytes: bytea or uuid",
            table.name
        ))),
    }
}

impl Session {
    pub(crate) async fn read_ulids(
        &self,
        feed: &Feed,
        shard: ShardId,
        after: After,
        limit: usize,
    ) -> Result<Page> {
        let limit = i64::try_from(Page::check_limit(limit)?).unwrap_or(i64::MAX);
        feed.shard(shard)?;
        let Some(Source::Ulid {
            table,
            shard_column,
            ulid_column,
            ..
        }) = &feed.source
        else {
            return Err(Error::invalid(format!("feed '{}' has no ULIDs", feed.name)));
        };
        let Some(from) = begin_ulid(feed, after)? else {
            let next = self.newest_ulid(feed, shard).await?;
            return Ok(Page {
                changes: Vec::new(),
                next: Cursor::Ulid(next),
            });
        };
        let client = &**self;
        let table = Table::find(&**client, table).await?;
        let (parameter, bytes) = ulid_form(&table, ulid_column)?;
        let order = quote::identifier(ulid_column);
        let sql = format!(
            "select {bytes}, row_to_json(changefeed_row)::text from {} changefeed_row \
             where changefeed_row.{} = $1::integer and changefeed_row.{order} > {parameter} \
             order by changefeed_row.{order} limit $3",
            table.sql,
            quote::identifier(shard_column),
        );
        let statement = client.prepare_cached(&sql).await.map_err(db)?;
        let rows = client
            .query(
                &statement,
                &[&i32::from(shard.0), &from.to_bytes().as_slice(), &limit],
            )
            .await
            .map_err(db)?;
        let changes: Result<Vec<Change>> = rows
            .iter()
            .map(|row| {
                Ok(Change {
                    cursor: Cursor::Ulid(ulid_of_row(feed, row.get(0))?),
                    change_id: None,
                    content: read::content(row.get(1))?,
                })
            })
            .collect();
        let changes = changes?;
        let next = changes
            .last()
            .map_or(Cursor::Ulid(from), |change| change.cursor);
        Ok(Page { changes, next })
    }

    /// The newest ULID that is committed in a shard.
    pub(crate) async fn newest_ulid(&self, feed: &Feed, shard: ShardId) -> Result<Ulid> {
        let Some(Source::Ulid {
            table,
            shard_column,
            ulid_column,
            ..
        }) = &feed.source
        else {
            return Ok(Ulid::MIN);
        };
        let client = &**self;
        let table = Table::find(&**client, table).await?;
        let (_, bytes) = ulid_form(&table, ulid_column)?;
        let sql = format!(
            "select {bytes} from {} changefeed_row where changefeed_row.{} = $1::integer \
             order by changefeed_row.{} desc limit 1",
            table.sql,
            quote::identifier(shard_column),
            quote::identifier(ulid_column),
        );
        let statement = client.prepare_cached(&sql).await.map_err(db)?;
        let row = client
            .query_opt(&statement, &[&i32::from(shard.0)])
            .await
            .map_err(db)?;
        row.map_or(Ok(Ulid::MIN), |row| ulid_of_row(feed, row.get(0)))
    }

    pub(crate) async fn ulid_states(&self, feed: &Feed) -> Result<Vec<ShardState>> {
        let mut states = Vec::new();
        let now: f64 = self
            .query_one(
                "select extract(epoch from clock_timestamp())::float8 * 1000",
                &[],
            )
            .await
            .map_err(db)?
            .get(0);
        for shard in &feed.shards {
            let newest = self.newest_ulid(feed, shard.shard).await?;
            #[expect(
                clippy::cast_possible_truncation,
                reason = "milliseconds of this century"
            )]
            let since_ms = match newest {
                Ulid::MIN => 0,
                newest => (now as i64).saturating_sub_unsigned(newest.time()).max(0),
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
    pub(crate) async fn incidents(&self) -> Result<Vec<Incident>> {
        let client = &**self;
        let rows = client
            .query(
                "select feed_id, shard_id, count, \
                 coalesce((extract(epoch from clock_timestamp() - reported_at) * 1000)::bigint, 0) \
                 from changefeed.incident where count > 0 order by feed_id, shard_id",
                &[],
            )
            .await
            .map_err(db)?;
        Ok(rows
            .iter()
            .map(|row| Incident {
                feed: row.get(0),
                shard: row.get(1),
                count: row.get(2),
                since_ms: row.get(3),
            })
            .collect())
    }
}
