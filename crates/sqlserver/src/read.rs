//! Reading pages.

use changefeed_core::{
    After, Bounds, Change, Content, Cursor, Error, Feed, Kind, Operation, PAGE_BYTES, Page,
    PageRows, Result, ShardId,
};
use serde_json::value::RawValue;
use tiberius::Row;

use crate::error::{db, is_undefined};
use crate::session::Session;
use crate::source::join;

/// The ends of a shard, the number before its first live one, and whether a backfill has begun since the
/// page was asked for.
struct Ends {
    bounds: Bounds,
    start: i64,
    backfill_began: bool,
}

impl Session {
    pub(crate) async fn read_page(
        &mut self,
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
        Ok(Page {
            changes,
            next,
            // What comes after a gap is not to be had yet.
            more: more && whole,
        })
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
        let ends = results.pop().and_then(|rows| {
            let row = rows.first()?;
            Some(Ends {
                bounds: Bounds {
                    last: row.get(0)?,
                    trimmed_to: row.get(1)?,
                },
                start: row.get(2)?,
                backfill_began: row.get::<i32, _>(3).is_some_and(|begun| begun > 0),
            })
        });
        let found = results
            .iter()
            .flatten()
            .next()
            .and_then(|row| row.get::<i32, _>(2))
            .and_then(|found| usize::try_from(found).ok())
            .unwrap_or_default();
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

fn change(row: &Row, rows: PageRows) -> Result<Change> {
    let content = match rows {
        PageRows::None => Content::Unknown,
        PageRows::Current => content(row.get(3))?,
        PageRows::Events => event(row)?,
    };
    Ok(Change {
        cursor: Cursor::Number(row.get(0).unwrap_or_default()),
        change_id: row.get(1),
        content,
    })
}

/// An event, or none if it was cleaned up.
fn event(row: &Row) -> Result<Content> {
    let Some(op) = row.get::<&str, _>(3) else {
        return Ok(Content::Gone);
    };
    Ok(Content::Event {
        op: Operation::from_letter(op)?,
        old: row.get::<&str, _>(4).map(raw).transpose()?,
        new: row.get::<&str, _>(5).map(raw).transpose()?,
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
    RawValue::from_string(json.to_owned()).map_err(|e| {
        Error::new(
            Kind::Database,
            "the database returned a row that is not JSON",
        )
        .caused_by(e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(numbers: &[i64]) -> Vec<Change> {
        let change = |n: &i64| Change {
            cursor: Cursor::Number(*n),
            change_id: Some(*n),
            content: Content::Unknown,
        };
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
