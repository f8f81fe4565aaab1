//! Where a reader stands in a shard.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};

use crate::{Error, Result, Ulid};

/// A reader's position: everything up to and including it has been read.
///
/// To users a cursor is text that they store and give back. Other kinds of feeds will bring
/// other kinds of cursors: expect more variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Cursor {
    /// The `change_sequence_number` of the last change read.
    Number(i64),
    /// The ULID of the last row read, for feeds that are ordered by ULIDs.
    Ulid(Ulid),
}

impl Cursor {
    /// The number, for feeds that are ordered by numbers.
    pub fn number(self) -> Option<i64> {
        match self {
            Cursor::Number(n) => Some(n),
            Cursor::Ulid(_) => None,
        }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cursor::Number(n) => n.fmt(f),
            Cursor::Ulid(ulid) => ulid.fmt(f),
        }
    }
}

impl FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // Their lengths tell them apart: no number that fits has 26 digits.
        if let Ok(ulid) = text.parse() {
            return Ok(Cursor::Ulid(ulid));
        }
        match text.parse::<i64>() {
            Ok(n) if n >= 0 => Ok(Cursor::Number(n)),
            _ => Err(Error::invalid(format!(
                "'{text}' is not a cursor: it is a number or a ULID from an earlier page"
            ))),
        }
    }
}

impl Serialize for Cursor {
    /// As text, because JSON readers in other languages round large numbers.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// After which point to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum After {
    /// From the oldest change that is kept, backfilled ones included.
    First,
    /// Only what comes after this moment.
    Last,
    /// What comes after this cursor.
    Cursor(Cursor),
    /// What was written, or in a feed of numbers got its number, at or after this time, in milliseconds since 1970. A
    /// reader may begin up to a second earlier, never later.
    Time(u64),
}

impl From<Cursor> for After {
    fn from(cursor: Cursor) -> Self {
        After::Cursor(cursor)
    }
}

impl fmt::Display for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            After::First => f.write_str("first"),
            After::Last => f.write_str("last"),
            After::Cursor(cursor) => cursor.fmt(f),
            After::Time(ms) => {
                let time = SystemTime::UNIX_EPOCH + Duration::from_millis(*ms);
                humantime::format_rfc3339_millis(time).fmt(f)
            }
        }
    }
}

impl FromStr for After {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "first" => Ok(After::First),
            "last" => Ok(After::Last),
            other => other.parse().map(After::Cursor).or_else(|_| {
                point_in_time(other).map(After::Time).ok_or_else(|| {
                    Error::invalid(format!(
                        "'{text}' is not a cursor: use 'first', 'last', a number or ULID from an \
                         earlier page, or a time like 2026-01-31T12:00:00Z"
                    ))
                })
            }),
        }
    }
}

fn point_in_time(text: &str) -> Option<u64> {
    let time = humantime::parse_rfc3339(text).ok()?;
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn after_accepts_first_last_and_numbers() {
        assert_eq!("first".parse::<After>().unwrap(), After::First);
        assert_eq!("last".parse::<After>().unwrap(), After::Last);
        assert_eq!(
            "0".parse::<After>().unwrap(),
            After::Cursor(Cursor::Number(0))
        );
        assert_eq!(
            "2026-11-15T04:00:00.123Z".parse::<After>().unwrap(),
            After::Time(1_794_715_200_123)
        );
        let ulid = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
        assert_eq!(
            ulid.parse::<After>().unwrap(),
            After::Cursor(Cursor::Ulid(ulid.parse().unwrap()))
        );
        for bad in ["", "FIRST", "-1", "1.5", "9223372036854775808", " 1"] {
            assert!(bad.parse::<After>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_can_be_read_back(n in 0..i64::MAX, ms in 0u64..253_402_300_800_000, high: u64) {
            for after in [
                After::Cursor(Cursor::Number(n)),
                After::Cursor(Cursor::Ulid(Ulid::from_parts(high, ms))),
                After::Time(ms),
            ] {
                prop_assert_eq!(after.to_string().parse::<After>().unwrap(), after);
            }
        }
    }
}
