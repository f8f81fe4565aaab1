//! The ends of a shard, and which cursors lie between them.

use crate::{After, Cursor, Error, Feed, Kind, Result, ShardId, Ulid};

/// The ends of a shard that is ordered by numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The newest number given.
    pub last: i64,
    /// Everything up to here was trimmed.
    pub trimmed_to: i64,
}

impl Bounds {
    /// The number after which a reader begins, or why that is not possible. A cursor outside of
    /// the ends is an error, never a silent jump.
    pub fn begin(&self, feed: &Feed, shard: ShardId, after: After) -> Result<i64> {
        let cursor = match after {
            After::First => return Ok(self.trimmed_to),
            After::Last => return Ok(self.last),
            After::Cursor(cursor) => cursor.number().ok_or_else(|| foreign(feed, after))?,
            // Stores look up which number it stands for.
            After::Time(_) => return Err(foreign(feed, after)),
        };
        if cursor < self.trimmed_to {
            return Err(Error::new(
                Kind::CursorExpired,
                format!(
                    "cursor {cursor} of feed '{}' shard {shard} has expired: changes up to {} were \
                     trimmed",
                    feed.name, self.trimmed_to
                ),
            )
            .advise("read the current state of the data, then go on from 'first' or 'last'"));
        }
        if cursor > self.last {
            return Err(Error::new(
                Kind::CursorAhead,
                format!(
                    "cursor {cursor} is ahead of feed '{}' shard {shard}, whose last number is {}",
                    feed.name, self.last
                ),
            )
            .advise(
                "it comes from another feed or database, or this database was restored from a \
                 backup",
            ));
        }
        Ok(cursor)
    }
}

impl After {
    /// What a time in a feed of numbers stands for: the newest number that was given before it. Without one, the reader
    /// begins with the oldest change that is kept.
    pub fn at(number: Option<i64>, trimmed_to: i64) -> After {
        match number {
            Some(number) if number > trimmed_to => After::Cursor(Cursor::Number(number)),
            _ => After::First,
        }
    }
}

fn foreign(feed: &Feed, after: After) -> Error {
    Error::invalid(format!(
        "cursor {after} does not belong to feed '{}'",
        feed.name
    ))
    .advise("this feed is ordered by numbers, not by ULIDs")
}

/// The ULID that a row of a feed holds.
pub fn ulid_of_row(feed: &Feed, bytes: &[u8]) -> Result<Ulid> {
    bytes.try_into().map(Ulid::from_bytes).map_err(|_| {
        let table = feed
            .source
            .as_ref()
            .and_then(crate::Source::table)
            .map_or_else(String::new, ToString::to_string);
        Error::new(
            Kind::Unsupported,
            format!(
                "a row of {table} behind feed '{}' holds {} bytes where a ULID has 16",
                feed.name,
                bytes.len()
            ),
        )
        .advise("correct that row; a check on the column's length keeps such rows out")
    })
}

/// Where a reader of a feed that is ordered by ULIDs begins, unless it begins at the end.
pub fn begin_ulid(feed: &Feed, after: After) -> Result<Option<Ulid>> {
    Ok(match after {
        After::First => Some(Ulid::MIN),
        After::Last => None,
        After::Cursor(Cursor::Ulid(ulid)) => Some(ulid),
        After::Time(ms) => Some(Ulid::before(ms)),
        After::Cursor(cursor) => {
            return Err(Error::invalid(format!(
                "cursor {cursor} does not belong to feed '{}'",
                feed.name
            ))
            .advise("this feed is ordered by ULIDs"));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FeedId, FeedName};

    fn begin(after: After) -> Result<i64> {
        let feed = Feed {
            id: FeedId(1),
            name: FeedName::trusted("orders".into()),
            comment: None,
            shards: Vec::new(),
            source: None,
            retention: None,
        };
        Bounds {
            last: 20,
            trimmed_to: 10,
        }
        .begin(&feed, ShardId(0), after)
    }

    #[test]
    fn a_cursor_between_the_ends_is_where_reading_begins() {
        for (after, expected) in [
            (After::First, 10),
            (After::Last, 20),
            (After::Cursor(Cursor::Number(10)), 10),
            (After::Cursor(Cursor::Number(20)), 20),
        ] {
            assert_eq!(begin(after).unwrap(), expected);
        }
    }

    #[test]
    fn a_cursor_outside_of_them_is_an_error() {
        let kind = |n| begin(After::Cursor(Cursor::Number(n))).unwrap_err().kind();
        assert_eq!(kind(9), Kind::CursorExpired);
        assert_eq!(kind(21), Kind::CursorAhead);
    }
}
