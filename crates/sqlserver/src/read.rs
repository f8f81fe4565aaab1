//! Reading pages.

use changefeed_core::{
    After, Bounds, Change, Content, Cursor, Feed, Incarnation, Op, PAGE_BYTES, Page, PageRows,
    Result, ShardId, raw_json,
};
use serde_json::value::RawValue;
use tiberius::Row;

use crate::error::{db, is_undefined};
use crate::row::Cells;
use crate::session::Session;
use crate::source::join;

/// The ends of a shard, the number before its first live one, and whether a backfill has begun since the
/// page was asked for.
struct Ends {
    bounds: Bounds,
    start: i64,
    backfill_began: bool,
    incarnation: Incarnation,
    /// Whether nothing comes after the last number any more.
    closed: bool,
}

const INCARNATION: &str =
    "select top (1) i.incarnation from changefeed.incarnation i order by i.number desc";

impl Session {
    pub(crate) async fn read_page(
        &mut self,
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
            After::First => 0,
            // What is asked for lies in the future; only the end is needed.
            After::Last | After::Time(_) => i64::MAX,
            // A cursor of another kind is refused below, together with those out of bounds.
            After::Cursor(cursor) => cursor.number().unwrap_or(i64::MAX),
        };
        let (mut changes, found, ends) = match self.fetch(feed, shard, from, limit).await? {
            Ok(found) => found,
            Err(_) => {
                // The table behind the feed was altered since we looked at it: look again, once.
                self.known.joins.forget(feed.id);
                self.fetch(feed, shard, from, limit).await?.map_err(db)?
            }
        };
        let ends = ends.ok_or_else(|| feed.unknown_shard(shard))?;
        let start = ends.bounds.begin(feed, shard, after)?;
        changes.truncate(limit);
        let mut more = changes.len() < found;
        if ends.backfill_began && start < ends.start {
            more |= stop_at_start(&mut changes, ends.start);
        }
        let whole = keep_contiguous(&mut changes, start.max(ends.start));
        let next = changes
            .last()
            .map_or(Cursor::Number(start), |change| change.cursor);
        // A shard that never had a live change ends at its start, which is no cursor of a change.
        let last = ends.bounds.last;
        let none = changes.is_empty() && last == ends.start;
        let closed = ends.closed && (none || next.number() == Some(last));
        Ok(Page {
            changes,
            next,
            // What comes after a gap is not to be had yet.
            more: more && whole,
            incarnation: ends.incarnation,
            closed,
        })
    }

    pub(crate) async fn incarnation(&mut self) -> Result<Incarnation> {
        let row = self.connection.one(INCARNATION, &[]).await?;
        row.take::<&str>(0)?.parse()
    }

    pub(crate) async fn recover(&mut self) -> Result<Incarnation> {
        let row = self.connection.one("exec changefeed.recover", &[]).await?;
        row.take::<&str>(0)?.parse()
    }

    /// Where a reader of a time begins.
    async fn place_at(&mut self, feed: &Feed, shard: ShardId, ms: u64) -> Result<After> {
        // Up to the year 9999, which is as far as the server's times go.
        let ms = i64::try_from(ms)
            .unwrap_or(i64::MAX)
            .min(253_402_300_799_000);
        let part = |value: i64| i32::try_from(value).unwrap_or(i32::MAX);
        let (days, seconds) = (part(ms / 86_400_000), part(ms / 1000 % 86_400));
        let rest = part(ms % 1000);
        let rows = self
            .connection
            .query(
                include_str!("sql/place_at.sql"),
                &[&feed.id.0, &shard.0, &days, &seconds, &rest],
            )
            .await?;
        let row = rows.first().ok_or_else(|| feed.unknown_shard(shard))?;
        Ok(After::at(row.maybe(0)?, row.take(1)?))
    }

    /// Reads a page, how many changes it would have if it were not cut by its bytes, and then the ends
    /// of the shard, in one round trip. The inner result is an error if the table behind the feed is not as we knew it.
    async fn fetch(
        &mut self,
        feed: &Feed,
        shard: ShardId,
        from: i64,
        limit: usize,
    ) -> Result<Result<(Vec<Change>, usize, Option<Ends>), tiberius::error::Error>> {
        let connection = &mut *self.connection;
        let join = join(&self.known.joins, connection, feed).await?;
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let answer = connection
            .results(
                &join.sql,
                &[&feed.id.0, &shard.0, &from, &limit, &PAGE_BYTES],
            )
            .await;
        let mut results = match answer {
            Ok(results) => results,
            Err(error) if is_undefined(&error) => return Ok(Err(error)),
            Err(error) => return Err(db(error)),
        };
        let ends = results.pop().unwrap_or_default();
        let ends = ends.first().map_or(Ok(None), ends_of)?;
        let first = results.iter().flatten().next();
        let found = first.map_or(Ok(0), |row| row.take::<i32>(2))?;
        let found = usize::try_from(found).unwrap_or_default();
        let changes: Result<Vec<Change>> = results
            .iter()
            .flatten()
            .map(|row| change(row, join.rows))
            .collect();
        Ok(Ok((changes?, found, ends)))
    }
}

/// A backfill has begun since the page was asked for: some of its numbers may be here already, the others are
/// still to come, so that a reader must not go on behind the start yet. Returns whether there was more.
fn stop_at_start(page: &mut Vec<Change>, start: i64) -> bool {
    let before = page.len();
    page.retain(|change| change.cursor.number().is_some_and(|number| number <= start));
    page.len() < before
}

/// Live numbers have no gaps. Where the database does not version rows, a scan that waited for a
/// lock of the sweep may have passed rows that got their numbers meanwhile: what comes after such
/// a gap is left for the next look. Returns whether there was none.
fn keep_contiguous(page: &mut Vec<Change>, before_live: i64) -> bool {
    let mut expected = before_live + 1;
    let whole = page
        .iter()
        .position(|change| match change.cursor.number() {
            Some(number) if number >= expected => {
                let gap = number > expected;
                expected = number + 1;
                gap
            }
            _ => false,
        })
        .unwrap_or(page.len());
    let all = whole == page.len();
    page.truncate(whole);
    all
}

/// The ends of a shard, which are null if there is no such shard.
fn ends_of(row: &Row) -> Result<Option<Ends>> {
    let Some(last) = row.maybe(0)? else {
        return Ok(None);
    };
    Ok(Some(Ends {
        bounds: Bounds {
            last,
            trimmed_to: row.take(1)?,
        },
        start: row.take(2)?,
        backfill_began: row.take::<i32>(3)? > 0,
        incarnation: row.take::<&str>(4)?.parse()?,
        closed: row.says(5)?,
    }))
}

fn change(row: &Row, rows: PageRows) -> Result<Change> {
    let json = |place: usize| row.maybe::<&str>(place)?.map(raw).transpose();
    let op = match rows {
        PageRows::None | PageRows::Current => None,
        PageRows::Captured | PageRows::Events => row.maybe::<&str>(3)?,
    };
    let content = match (rows, op) {
        (PageRows::None, _) | (PageRows::Captured, None) => Content::Unknown,
        (PageRows::Current, _) => content(row.maybe(3)?)?,
        (PageRows::Captured, Some(_)) if row.take::<i32>(5)? > 0 => Content::Images {
            old: json(6)?,
            new: json(7)?,
        },
        (PageRows::Captured, Some(_)) => content(row.maybe(7)?)?,
        // It was cleaned up.
        (PageRows::Events, None) => Content::Gone,
        (PageRows::Events, Some(_)) => Content::Images {
            old: json(4)?,
            new: json(5)?,
        },
    };
    Ok(Change {
        cursor: Cursor::Number(row.take(0)?),
        change_id: row.maybe(1)?,
        op: op.map(Op::from_letter).transpose()?,
        key: match (rows, op) {
            (PageRows::Captured, Some(_)) => json(4)?,
            _ => None,
        },
        content,
    })
}

/// A row as the database wrote it, or none.
pub(crate) fn content(json: Option<&str>) -> Result<Content> {
    match json {
        Some(json) => raw(json).map(Content::Row),
        None => Ok(Content::Gone),
    }
}

pub(crate) fn raw(json: &str) -> Result<Box<RawValue>> {
    raw_json(json.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(numbers: &[i64]) -> Vec<Change> {
        let change = |n: &i64| Change::published(Cursor::Number(*n), Some(*n), Content::Unknown);
        numbers.iter().map(change).collect()
    }

    fn numbers(page: &[Change]) -> Vec<i64> {
        page.iter().filter_map(|c| c.cursor.number()).collect()
    }

    fn kept(from: &[i64], before_live: i64) -> Vec<i64> {
        let mut page = page(from);
        keep_contiguous(&mut page, before_live);
        numbers(&page)
    }

    #[test]
    fn a_page_ends_at_the_start_if_a_backfill_has_begun_meanwhile() {
        let mut some = page(&[3, 4, 11, 12]);
        assert!(stop_at_start(&mut some, 10));
        assert_eq!(numbers(&some), [3, 4]);
        assert!(!stop_at_start(&mut some, 10));
        assert_eq!(numbers(&some), [3, 4]);
    }

    #[test]
    fn a_page_ends_where_a_live_number_is_missing() {
        assert_eq!(kept(&[11, 12, 13], 10), [11, 12, 13]);
        assert_eq!(kept(&[11, 13], 10), [11]);
        assert_eq!(kept(&[12], 10), [0i64; 0]);
        // Numbers of old data may have gaps, and live ones begin after the start.
        assert_eq!(kept(&[3, 7, 11, 12], 10), [3, 7, 11, 12]);
        assert_eq!(kept(&[3, 7, 12], 10), [3, 7]);
    }
}
