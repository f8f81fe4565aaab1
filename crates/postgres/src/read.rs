//! Reading pages.

use changefeed_core::{
    After, Bounds, Change, Content, Cursor, Error, Feed, Incarnation, Kind, Op, PAGE_BYTES, Page,
    Result, ShardId, raw_json,
};
use serde_json::value::RawValue;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::encoding::Lossy;
use crate::error::{db, is_replaced, is_unknown};
use crate::row::Cells;
use crate::session::Session;
use crate::typed::NoValue;

/// One call does all of it: see `changefeed.page` in `migrations/0001/reading.sql`.
const PAGE: &str = "select change_sequence_number, change_id, kind, op, key, old, new \
                    from changefeed.page($1, $2, $3, $4, $5, $6)";

impl Session {
    pub(crate) async fn read_page(
        &self,
        feed: &Feed,
        shard: ShardId,
        after: After,
        limit: usize,
    ) -> Result<Page> {
        let limit = Page::check_limit(limit)?;
        let after = match after {
            After::Time(ms) => self.place_at(feed, shard, ms).await?,
            known => known,
        };
        let from = match after {
            After::First => None,
            After::Cursor(Cursor::Number(number)) => Some(number),
            // What is asked for lies in the future, or does not belong here.
            After::Last | After::Time(_) | After::Cursor(_) => {
                let (bounds, incarnation, closed) = self.bounds(feed, shard).await?;
                let start = bounds.begin(feed, shard, after)?;
                let mut page = Page::empty(Cursor::Number(start), incarnation);
                page.closed = closed;
                return Ok(page);
            }
        };
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let rows = self
            .call_page(
                feed,
                shard,
                PAGE,
                [
                    (&feed.id.0, Type::INT2),
                    (&shard.0, Type::INT2),
                    (&from, Type::INT8),
                    (&limit, Type::INT4),
                    (&PAGE_BYTES, Type::INT4),
                ],
            )
            .await?;
        let Some((end, changes)) = rows.split_last() else {
            return Err(without_end());
        };
        let kind: &str = end.take(2)?;
        Ok(Page {
            changes: changes.iter().map(change).collect::<Result<_>>()?,
            next: Cursor::Number(end.take(0)?),
            more: kind == "more",
            incarnation: end.take::<&str>(3)?.parse()?,
            closed: kind == "closed",
        })
    }

    /// Calls a function that reads a page, whose last parameter is of the row type of the feed's table.
    /// That is known by its number, and looked up again, once, when the server says that another table
    /// has taken its place.
    pub(crate) async fn call_page(
        &self,
        feed: &Feed,
        shard: ShardId,
        sql: &str,
        parameters: [(&(dyn ToSql + Sync), Type); 5],
    ) -> Result<Vec<Row>> {
        let mut again = true;
        loop {
            let row_type = self.row_type(feed).await?;
            let mut parameters = parameters.to_vec();
            parameters.push((&NoValue, row_type));
            match self.query_typed(sql, &parameters).await {
                Err(error) if again && is_replaced(&error) => {
                    self.known.row_types.forget(feed.id);
                    again = false;
                }
                Err(error) if is_unknown(&error) => return Err(feed.unknown_shard(shard)),
                answer => return answer.map_err(db),
            }
        }
    }

    pub(crate) async fn incarnation(&self) -> Result<Incarnation> {
        self.incarnation_by("select changefeed.incarnation()").await
    }

    pub(crate) async fn recover(&self) -> Result<Incarnation> {
        self.incarnation_by("select changefeed.recover()").await
    }

    async fn incarnation_by(&self, sql: &str) -> Result<Incarnation> {
        let row = self.query_one(sql, &[]).await.map_err(db)?;
        row.take::<&str>(0)?.parse()
    }

    /// Where a reader of a time begins.
    async fn place_at(&self, feed: &Feed, shard: ShardId, ms: u64) -> Result<After> {
        let sql = include_str!("sql/place_at.sql");
        let found = self
            .query_opt(sql, &[&feed.id.0, &shard.0, &(ms as f64)])
            .await
            .map_err(db)?
            .ok_or_else(|| feed.unknown_shard(shard))?;
        Ok(After::at(found.take(0)?, found.take(1)?))
    }

    async fn bounds(&self, feed: &Feed, shard: ShardId) -> Result<(Bounds, Incarnation, bool)> {
        let row = self
            .query_opt(include_str!("sql/bounds.sql"), &[&feed.id.0, &shard.0])
            .await
            .map_err(db)?
            .ok_or_else(|| feed.unknown_shard(shard))?;
        let bounds = Bounds {
            last: row.take(0)?,
            trimmed_to: row.take(1)?,
        };
        Ok((bounds, row.take::<&str>(2)?.parse()?, row.take(3)?))
    }
}

/// A page whose last row is missing, which says where to go on.
pub(crate) fn without_end() -> Error {
    Error::new(Kind::Database, "the server sent a page without its end")
}

fn change(row: &Row) -> Result<Change> {
    let json = |place: usize| row.take::<Option<Lossy>>(place)?.map(raw).transpose();
    let content = match row.take(2)? {
        "u" => Content::Unknown,
        "g" => Content::Gone,
        "i" => Content::Images {
            old: json(5)?,
            new: json(6)?,
        },
        _ => content(row.take(6)?)?,
    };
    Ok(Change {
        cursor: Cursor::Number(row.take(0)?),
        change_id: Some(row.take(1)?),
        op: row
            .take::<Option<&str>>(3)?
            .map(Op::from_letter)
            .transpose()?,
        key: json(4)?,
        content,
    })
}

/// A row as the database wrote it, or none.
pub(crate) fn content(json: Option<Lossy>) -> Result<Content> {
    match json {
        Some(json) => raw(json).map(Content::Row),
        None => Ok(Content::Gone),
    }
}

fn raw(Lossy(json): Lossy) -> Result<Box<RawValue>> {
    raw_json(json)
}
