//! How many requests a trigger makes in a time, over all instances.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// So many requests in a second, a minute, an hour or a day: `100/s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate {
    requests: u32,
    unit: Unit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Second,
    Minute,
    Hour,
    Day,
}

impl Unit {
    fn letter(self) -> char {
        match self {
            Unit::Second => 's',
            Unit::Minute => 'm',
            Unit::Hour => 'h',
            Unit::Day => 'd',
        }
    }

    fn seconds(self) -> u64 {
        match self {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 3600,
            Unit::Day => 86_400,
        }
    }
}

impl Rate {
    /// The most requests in a time: one in a microsecond would not be told from none.
    const MOST: u32 = 100_000;

    /// The time from one request to the next, in microseconds.
    pub fn pace_us(self) -> i64 {
        let all = self.unit.seconds() * 1_000_000;
        i64::try_from(all / u64::from(self.requests)).unwrap_or(i64::MAX)
    }

    /// How many requests may follow each other at once after a pause: those of a tenth of a second, and at
    /// least one.
    pub fn burst(self) -> i32 {
        let tenth = Duration::from_millis(100).as_micros();
        let pace = u128::try_from(self.pace_us()).unwrap_or(1).max(1);
        i32::try_from(tenth / pace).unwrap_or(1).max(1)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.requests, self.unit.letter())
    }
}

impl FromStr for Rate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(format!("'{text}' is not a rate"))
                .advise("write requests per time, like 100/s, 30/m or 500/h")
        };
        let (requests, unit) = text.split_once('/').ok_or_else(wrong)?;
        let requests = requests.trim().parse().map_err(|_| wrong())?;
        let unit = match unit.trim() {
            "s" | "sec" | "second" => Unit::Second,
            "m" | "min" | "minute" => Unit::Minute,
            "h" | "hour" => Unit::Hour,
            "d" | "day" => Unit::Day,
            _ => return Err(wrong()),
        };
        match requests {
            0 => Err(Error::invalid("a rate of 0 would deliver nothing")
                .advise("to stop the deliveries use `changefeed trigger pause`")),
            1..=Self::MOST => Ok(Rate { requests, unit }),
            _ => Err(Error::invalid(format!(
                "a rate has at most {} requests in a time",
                Self::MOST
            ))
            .advise("leave the rate out; --concurrency-overall limits requests too")),
        }
    }
}

impl TryFrom<String> for Rate {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        rate.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_in_a_time() {
        let read = |text: &str| text.parse::<Rate>();
        let fast = read("100/s").unwrap();
        assert_eq!((fast.pace_us(), fast.burst()), (10_000, 10));
        let slow = read("30 / minute").unwrap();
        assert_eq!((slow.pace_us(), slow.burst()), (2_000_000, 1));
        assert_eq!(slow.to_string(), "30/m");
        assert_eq!(read("1/d").unwrap().pace_us(), 86_400_000_000);
        for bad in [
            "",
            "100",
            "100/",
            "/s",
            "0/s",
            "-1/s",
            "1.5/s",
            "100/fortnight",
            "100001/s",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
