//! Lives of a database. Numbers alone cannot tell a database that was restored from a backup from the original:
//! both give the same numbers, to other changes.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::{Error, Kind, Result};

/// One life of a database: it began when our tables were installed, or with its last recovery from a backup.
/// Cursors belong to it. Milliseconds since 1970 and 80 bits of chance, written as 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Incarnation(u128);

impl Incarnation {
    /// When it began.
    pub fn began_at(self) -> SystemTime {
        let milliseconds = u64::try_from(self.0 >> 80).unwrap_or(u64::MAX);
        SystemTime::UNIX_EPOCH + Duration::from_millis(milliseconds)
    }

    /// Refuses a reader whose cursor belongs to another one.
    pub fn check(self, expected: Option<Incarnation>) -> Result<()> {
        if expected.is_none_or(|expected| expected == self) {
            return Ok(());
        }
        let at = humantime::format_rfc3339_seconds(self.began_at());
        Err(Error::new(
            Kind::Recovered,
            format!("this database was recovered at {at}: the cursor belongs to another life of it"),
        )
        .advise(format!(
            "compare the current state of the data with yours, then go on from 'first' or 'last' with incarnation {self}"
        )))
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for Incarnation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_hex = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let number = is_hex
            .then(|| u128::from_str_radix(text, 16).ok())
            .flatten();
        number.map(Incarnation).ok_or_else(|| {
            Error::invalid(format!("'{text}' is no incarnation"))
                .advise("send it as a page or `changefeed status` gave it: 32 hexadecimal digits")
        })
    }
}

impl Serialize for Incarnation {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Incarnation {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_is_written_and_tells_when_it_began() {
        let text = "01892f3c4d5e0123456789abcdef0123";
        let life: Incarnation = text.parse().unwrap();
        assert_eq!(life.to_string(), text);
        let began = life.began_at().duration_since(SystemTime::UNIX_EPOCH);
        assert_eq!(began.unwrap().as_millis(), 0x0189_2f3c_4d5e);
        for bad in ["", "x", "+1892f3c4d5e0123456789abcdef0123"] {
            assert!(bad.parse::<Incarnation>().is_err());
        }
    }

    #[test]
    fn a_cursor_of_another_life_is_refused() {
        let now: Incarnation = "01892f3c4d5e0123456789abcdef0123".parse().unwrap();
        let then: Incarnation = "01892f3c4d5e0123456789abcdef0124".parse().unwrap();
        assert!(now.check(None).is_ok() && now.check(Some(now)).is_ok());
        let error = now.check(Some(then)).unwrap_err();
        assert_eq!(error.kind(), Kind::Recovered);
        assert!(
            error.message().contains("recovered at 2023-07-07T"),
            "{error}"
        );
    }
}
