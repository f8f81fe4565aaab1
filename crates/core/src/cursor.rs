//! Where a reader stands in a shard.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::{Error, Result};

/// A reader's position: everything up to and including it has been read.
///
/// To users a cursor is text that they store and give back. Other kinds of feeds will bring
/// other kinds of cursors; whoever matches on this must expect that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Cursor {
    /// The `change_sequence_number` of the last change read.
    Number(i64),
}

impl Cursor {
    /// The number, for feeds that are ordered by numbers.
    pub fn number(self) -> Option<i64> {
        match self {
            Cursor::Number(n) => Some(n),
        }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cursor::Number(n) => n.fmt(f),
        }
    }
}

impl FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.parse::<i64>() {
            Ok(n) if n >= 0 => Ok(Cursor::Number(n)),
            _ => Err(Error::invalid(format!(
                "'{text}' is not a cursor: it is a number from an earlier page"
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
        }
    }
}

impl FromStr for After {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "first" => Ok(After::First),
            "last" => Ok(After::Last),
            other => other.parse().map(After::Cursor).map_err(|_| {
                Error::invalid(format!(
                    "'{text}' is not a cursor: use 'first', 'last' or a number from an earlier page"
                ))
            }),
        }
    }
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
        for bad in ["", "FIRST", "-1", "1.5", "9223372036854775808", " 1"] {
            assert!(bad.parse::<After>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_can_be_read_back(n in 0..i64::MAX) {
            let after = After::Cursor(Cursor::Number(n));
            prop_assert_eq!(after.to_string().parse::<After>().unwrap(), after);
        }
    }
}
