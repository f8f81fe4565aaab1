//! Reading feeds that are ordered by ULIDs: the application's rows are the feed.

use changefeed_core::{
    After, Change, Cursor, Feed, Finding, Incident, Kind, PAGE_BYTES, Page, Result, Severity,
    ShardId, ShardState, SweepGroup, Ulid, begin_ulid, ulid_of_row, words,
};
use tokio_postgres::types::Type;

use crate::error::db;
use crate::read;
use crate::row::Cells;
use crate::session::Session;
use crate::source::Table;

/// Checks that a table can be read as a ULID feed, and says why not.
pub(crate) fn check(table: &Table, shard_column: &str, ulid_column: &str) -> Result<()> {
    if !matches!(
        table.column(shard_column)?.base_type.as_str(),
        "smallint" | "integer" | "bigint"
    ) {
        return Err(words::shard_not_integer(&table.name, shard_column));
    }
    match table.column(ulid_column)?.base_type.as_str() {
        "bytea" | "uuid" => Ok(()),
        other => Err(words::not_a_ulid(
            &table.name,
            ulid_column,
            other,
            "bytea or uuid",
        )),
    }
}

/// One call does all of it: see `changefeed.ulid_page` in `migrations/0001/reading.sql`.
const PAGE: &str = "select ulid, kind, new from changefeed.ulid_page($1, $2, $3, $4, $5, $6)";

impl Session {
    pub(crate) async fn read_ulids(
        &self,
        feed: &Feed,
        shard: ShardId,
        after: After,
        limit: usize,
    ) -> Result<Page> {
        let limit = Page::check_limit(limit)?;
        feed.shard(shard)?;
        let from = begin_ulid(feed, after)?;
        self.ulid_page(feed, shard, from, limit).await
    }

    /// The rows behind a ULID; without one, only where the shard ends.
    async fn ulid_page(
        &self,
        feed: &Feed,
        shard: ShardId,
        from: Option<Ulid>,
        limit: usize,
    ) -> Result<Page> {
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let bytes = from.map(|ulid| ulid.to_bytes().to_vec());
        let rows = self
            .call_page(
                feed,
                shard,
                PAGE,
                [
                    (&feed.id.0, Type::INT2),
                    (&i32::from(shard.0), Type::INT4),
                    (&bytes, Type::BYTEA),
                    (&limit, Type::INT4),
                    (&PAGE_BYTES, Type::INT4),
                ],
            )
            .await?;
        let Some((end, changes)) = rows.split_last() else {
            return Err(read::without_end());
        };
        let next = end.take::<Option<&[u8]>>(0)?;
        Ok(Page {
            changes: changes
                .iter()
                .map(|row| {
                    let cursor = Cursor::Ulid(ulid_of_row(feed, row.take(0)?)?);
                    Ok(Change::published(
                        cursor,
                        None,
                        read::content(row.take(2)?)?,
                    ))
                })
                .collect::<Result<_>>()?,
            next: Cursor::Ulid(next.map_or(Ok(Ulid::MIN), |bytes| ulid_of_row(feed, bytes))?),
            more: end.take::<&str>(1)? == "more",
            incarnation: end.take::<&str>(2)?.parse()?,
            closed: false,
        })
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
            .take(0)?;
        for shard in &feed.shards {
            let end = self.ulid_page(feed, shard.shard, None, 1).await?.next;
            let Cursor::Ulid(newest) = end else { continue };
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

    /// Shards whose ULIDs are in the future, and writers whose silence nobody can see.
    pub(crate) async fn ulid_findings(&self) -> Result<Vec<Finding>> {
        let sql = include_str!("sql/ulids_ahead.sql");
        let rows = match self.query(sql, &[]).await.map_err(db) {
            // Who does not write ULIDs need not see them.
            Err(error) if error.kind() == Kind::Permission => return Ok(Vec::new()),
            rows => rows?,
        };
        let mut findings = Vec::new();
        for row in &rows {
            let (feed, shard, ahead) = (row.take(0)?, row.take(1)?, row.take(2)?);
            findings.push(Finding::of_ulids_ahead(feed, shard, ahead));
        }
        let sql = include_str!("sql/ulid_writers_unseen.sql");
        for row in &self.query(sql, &[]).await.map_err(db)? {
            let (owner, writers): (&str, &str) = (row.take(0)?, row.take(1)?);
            findings.push(Finding::new(
                Severity::Warning,
                "ULID transactions",
                format!(
                    "the owner of the schema, {owner}, cannot see the sessions of {writers}: a writer that disappears \
                     stops its shard for three timeouts instead of one, and no incident is counted"
                ),
                format!("grant pg_read_all_stats to {owner}"),
            ));
        }
        Ok(findings)
    }
}
