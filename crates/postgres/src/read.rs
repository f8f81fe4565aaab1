//! Reading pages.

use changefeed_core::{
    After, Bounds, Change, Content, Cursor, Error, Feed, Kind, Operation, Page, PageRows, Result,
    ShardId,
};
use serde_json::value::RawValue;
use tokio_postgres::Row;

use crate::encoding::Lossy;
use crate::error::{db, is_undefined};
use crate::session::Session;

impl Session {
    pub(crate) async fn read_page(
        &self,
        feed: &Feed,
        shard: ShardId,
        after: After,
        limit: usize,
    ) -> Result<Page> {
        let limit = Page::check_limit(limit)?;
        let from = match after {
            After::First => 0,
            // What is asked for lies in the future; only the end is needed.
            After::Last | After::Time(_) => i64::MAX,
            // A cursor of another kind is refused below, together with those out of bounds.
            After::Cursor(cursor) => cursor.number().unwrap_or(i64::MAX),
        };
        let (page, bounds) = match self.fetch(feed, shard, from, limit).await? {
            Ok(found) => found,
            Err(_) => {
                // The table behind the feed was altered since we looked at it: look again, once.
                self.known.joins.forget(feed.id);
                self.fetch(feed, shard, from, limit).await?.map_err(db)?
            }
        };
        let bounds = bounds.ok_or_else(|| feed.unknown_shard(shard))?;
        let start = bounds.begin(feed, shard, after)?;
        let next = page
            .last()
            .map_or(Cursor::Number(start), |change| change.cursor);
        Ok(Page {
            changes: page,
            next,
        })
    }

    /// Reads a page and then the ends of the shard, in one round trip. In this order, because a
    /// trim in between then shows as an expired cursor and never as a silent jump. The inner
    /// result is an error if the table behind the feed is not as we knew it.
    pub(crate) async fn fetch(
        &self,
        feed: &Feed,
        shard: ShardId,
        from: i64,
        limit: usize,
    ) -> Result<Result<(Vec<Change>, Option<Bounds>), tokio_postgres::Error>> {
        let client = &**self;
        let join = self.join(&**client, feed).await?;
        let (page, bounds) = match tokio::try_join!(
            client.prepare_cached(&join.sql),
            client.prepare_cached(include_str!("sql/bounds.sql")),
        ) {
            Ok(statements) => statements,
            Err(error) if is_undefined(&error) => return Ok(Err(error)),
            Err(error) => return Err(db(error)),
        };
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let page_parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [&feed.id.0, &shard.0, &from, &limit];
        let bounds_parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 2] =
            [&feed.id.0, &shard.0];
        // Polled together, the driver sends both before it waits for the first.
        let answers = tokio::try_join!(
            client.query(&page, &page_parameters),
            client.query_opt(&bounds, &bounds_parameters),
        );
        let (rows, bounds) = match answers {
            Ok(answers) => answers,
            Err(error) if is_undefined(&error) => return Ok(Err(error)),
            Err(error) => return Err(db(error)),
        };
        let bounds = bounds.map(|row| Bounds {
            last: row.get(0),
            trimmed_to: row.get(1),
        });
        let changes: Result<Vec<Change>> = rows.iter().map(|row| change(row, join.rows)).collect();
        Ok(Ok((changes?, bounds)))
    }
}

fn change(row: &Row, rows: PageRows) -> Result<Change> {
    let content = match rows {
        PageRows::None => Content::Unknown,
        PageRows::Current => content(row.get(2))?,
        PageRows::Events => event(row)?,
    };
    Ok(Change {
        cursor: Cursor::Number(row.get(0)),
        change_id: Some(row.get(1)),
        content,
    })
}

/// An event, or none if it was cleaned up.
fn event(row: &Row) -> Result<Content> {
    let Some(op) = row.get::<_, Option<&str>>(2) else {
        return Ok(Content::Gone);
    };
    Ok(Content::Event {
        op: Operation::from_letter(op)?,
        old: row.get::<_, Option<Lossy>>(3).map(raw).transpose()?,
        new: row.get::<_, Option<Lossy>>(4).map(raw).transpose()?,
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
    RawValue::from_string(json).map_err(|e| {
        Error::new(
            Kind::Database,
            "the database returned a row that is not JSON",
        )
        .caused_by(e)
    })
}
