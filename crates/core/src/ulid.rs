//! ULIDs: 16 bytes that sort by time, and the arithmetic that keeps a shard's ULIDs increasing.
//!
//! A ULID is two halves. `high` is 48 bits of milliseconds since 1970 and 16 random bits. `low`
//! is 64 random bits, of which the second-highest is cleared: a transaction counts upwards in
//! `low`, and from such a start 2^62 steps cannot overflow, be it read as signed or unsigned.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::{Error, Result};

/// The second-highest bit of `low`.
const ROOM: u64 = 1 << 62;
/// From here on (without the highest bit) less than 2^61 ULIDs are left before `low` would wrap around.
const SHORT: u64 = 3 << 61;
/// The largest time that fits 48 bits.
const MAX_TIME: u64 = (1 << 48) - 1;
/// Crockford's base32: no I, L, O, U.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// A ULID. Its order is that of its bytes and of its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ulid(u128);

impl Ulid {
    /// The smallest of all.
    pub const MIN: Ulid = Ulid(0);

    /// From the two halves.
    pub fn from_parts(high: u64, low: u64) -> Self {
        Ulid((u128::from(high) << 64) | u128::from(low))
    }

    /// From 16 bytes as a database stores them.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Ulid(u128::from_be_bytes(bytes))
    }

    /// The 16 bytes as a database stores them; they compare as the ULIDs do.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The upper half: time and 16 random bits.
    pub fn high(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// The lower half.
    pub fn low(self) -> u64 {
        self.0 as u64
    }

    /// Milliseconds since 1970.
    pub fn time(self) -> u64 {
        self.high() >> 16
    }

    /// The cursor before everything that was written at or after a time: "from this point in
    /// time" is "after this ULID".
    pub fn before(time: u64) -> Self {
        Ulid((u128::from(time.min(MAX_TIME)) << 80).saturating_sub(1))
    }
}

impl fmt::Display for Ulid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [b'0'; 26];
        for (place, character) in text.iter_mut().rev().enumerate() {
            *character = ALPHABET[(self.0 >> (5 * place) & 31) as usize];
        }
        f.pad(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for Ulid {
    type Err = Error;

    /// Reads the 26 characters of the public specification, in either case; I and L are read as
    /// 1 and O as 0, as Crockford has it.
    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::invalid(format!("'{text}' is not a ULID"));
        if text.len() != 26 {
            return Err(bad());
        }
        let mut value: u128 = 0;
        for (place, character) in text.bytes().enumerate() {
            let digit = match character.to_ascii_uppercase() {
                b'I' | b'L' => 1,
                b'O' => 0,
                c => ALPHABET.iter().position(|a| *a == c).ok_or_else(bad)? as u128,
            };
            // 26 characters hold 130 bits; the first may not use the two that are too many.
            if place == 0 && digit > 7 {
                return Err(bad());
            }
            value = (value << 5) | digit;
        }
        Ok(Ulid(value))
    }
}

impl Serialize for Ulid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Where the ULIDs of a shard stand between two transactions: the next one it may give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UlidState {
    /// Milliseconds since 1970.
    pub time: u64,
    /// The upper half of the next ULID.
    pub high: u64,
    /// The lower half of the next ULID.
    pub low: u64,
}

impl UlidState {
    /// Where a transaction begins that happens at `now`, after `self` (or as the first of its
    /// shard), with ten random bytes. A clock that stands still or goes back does not matter:
    /// the shard keeps its time and goes on counting, and moves to the next millisecond when there is
    /// little left to count. Fails rather than give a smaller ULID.
    pub fn begin(before: Option<UlidState>, now: u64, random: [u8; 10]) -> Result<UlidState> {
        let mut now = now.min(MAX_TIME);
        if let Some(before) = before
            && before.time >= now
        {
            if before.low & (u64::MAX >> 1) < SHORT {
                return Ok(before);
            }
            now = before.time + 1;
            if now > MAX_TIME {
                return Err(Error::invalid("the ULIDs of this shard are used up"));
            }
        }
        let [a, b, rest @ ..] = random;
        Ok(UlidState {
            time: now,
            high: (now << 16) | u64::from(u16::from_be_bytes([a, b])),
            low: u64::from_be_bytes(rest) & !ROOM,
        })
    }

    /// Where this ULID is the next.
    pub fn at(ulid: Ulid) -> Self {
        UlidState {
            time: ulid.time(),
            high: ulid.high(),
            low: ulid.low(),
        }
    }

    /// The n-th ULID from here, counted from 0.
    pub fn nth(&self, n: u64) -> Ulid {
        Ulid::from_parts(self.high, self.low.wrapping_add(n))
    }

    /// Where the next transaction stands after `count` ULIDs were given.
    pub fn after(&self, count: u64) -> UlidState {
        UlidState {
            low: self.low.wrapping_add(count),
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_text_is_that_of_the_specification() {
        // The example of the public specification's README.
        let ulid: Ulid = "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap();
        assert_eq!(ulid.time(), 1_469_922_850_259);
        assert_eq!(ulid.to_string(), "01ARZ3NDEKTSV4RRFFQ69G5FAV");
        let largest = "7ZZZZZZZZZZZZZZZZZZZZZZZZZ";
        assert_eq!(largest.parse::<Ulid>().unwrap(), Ulid(u128::MAX));
        for bad in [
            "8ZZZZZZZZZZZZZZZZZZZZZZZZZ",
            "",
            "01ARZ3NDEKTSV4RRFFQ69G5FA",
            "U1ARZ3NDEKTSV4RRFFQ69G5FAV",
        ] {
            assert!(bad.parse::<Ulid>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_point_in_time_lies_before_everything_of_that_time() {
        let state = UlidState::begin(None, 1000, [0; 10]).unwrap();
        assert!(Ulid::before(1000) < state.nth(0));
        let earlier = UlidState::begin(None, 999, [0xff; 10]).unwrap();
        assert!(Ulid::before(1000) >= earlier.nth(0));
        assert_eq!(Ulid::before(0), Ulid::MIN);
    }

    #[test]
    fn a_shard_that_runs_short_moves_to_the_next_millisecond_and_never_wraps() {
        for low in [u64::MAX - 1, u64::MAX >> 1, SHORT, SHORT | 1 << 63] {
            let before = UlidState {
                time: 5000,
                high: 5000 << 16 | 0xffff,
                low,
            };
            let begin = UlidState::begin(Some(before), 4000, [0; 10]).unwrap();
            assert_eq!(begin.time, 5001);
            assert!(begin.nth(0) > before.nth(0));
            let last = UlidState {
                time: MAX_TIME,
                high: u64::MAX,
                low,
            };
            assert!(UlidState::begin(Some(last), 4000, [0; 10]).is_err());
        }
        let enough = UlidState {
            time: 5000,
            high: 5000 << 16,
            low: SHORT - 1,
        };
        assert_eq!(
            UlidState::begin(Some(enough), 4000, [0; 10]).unwrap(),
            enough
        );
    }

    proptest! {
        #[test]
        fn another_library_reads_and_writes_the_same_text(value: u128) {
            let ours = Ulid(value);
            let theirs = ::ulid::Ulid::from_string(&ours.to_string()).unwrap();
            prop_assert_eq!(theirs.0, value);
            prop_assert_eq!(theirs.timestamp_ms(), ours.time());
            prop_assert_eq!(theirs.to_string().parse::<Ulid>().unwrap(), ours);
        }

        #[test]
        fn order_is_the_same_for_values_bytes_and_texts(a: u128, b: u128) {
            let (a, b) = (Ulid(a), Ulid(b));
            prop_assert_eq!(a.cmp(&b), a.to_bytes().cmp(&b.to_bytes()));
            prop_assert_eq!(a.cmp(&b), a.to_string().cmp(&b.to_string()));
            prop_assert_eq!(Ulid::from_bytes(a.to_bytes()), a);
            prop_assert_eq!(Ulid::from_parts(a.high(), a.low()), a);
        }

        #[test]
        fn transactions_follow_each_other_whatever_the_clock_does(
            clock in prop::collection::vec((0u64..1 << 49, 0u64..1 << 40, any::<[u8; 10]>()), 1..50)
        ) {
            let mut before: Option<UlidState> = None;
            let mut newest: Option<Ulid> = None;
            for (now, count, random) in clock {
                let begin = UlidState::begin(before, now, random).unwrap();
                prop_assert!(newest.is_none_or(|n| n < begin.nth(0)));
                if count > 0 {
                    newest = Some(begin.nth(count - 1));
                }
                before = Some(begin.after(count));
            }
        }

        #[test]
        fn two_to_the_62_steps_never_overflow(now: u64, random: [u8; 10]) {
            let begin = UlidState::begin(None, now, random).unwrap();
            let end = begin.nth(1 << 62);
            prop_assert_eq!(end.high(), begin.high);
            prop_assert!(end > begin.nth(0));
            // The same in the signed arithmetic of a database.
            let low = begin.low.cast_signed();
            prop_assert_eq!(low.checked_add(1 << 62).map(i64::cast_unsigned), Some(end.low()));
            prop_assert!((low < 0) == (end.low().cast_signed() < 0));
        }
    }
}
