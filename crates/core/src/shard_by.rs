//! Which shard a column value belongs to, the same on every database and in every version.
//!
//! - NULL belongs to shard 0;
//! - an integer to `value mod shards`, never negative;
//! - anything else by its text: with `b(i)` the i-th of the first 255 UTF-8 bytes, counted from
//!   1, `sum = Σ b(i) · (i·i·7919 mod 65521)` and `hash = (sum · 40503 mod 2^32) div 4096`, to
//!   `hash mod shards`.
//!
//! The formula is built so that a plain SQL expression can compute it: a stock `sqlite3` shell
//! has no hash function, and must be able to write to a table that feeds a sharded feed.

use crate::{Error, FeedName, Result};

/// A column value, as far as choosing a shard is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardValue<'a> {
    /// NULL.
    Null,
    /// Any integer type.
    Integer(i64),
    /// Everything else, as text.
    Text(&'a str),
}

/// The shards that the rows of a table are spread over: those of one generation, whose numbers are dense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardRange {
    /// The first of them.
    pub first: i16,
    /// How many there are.
    pub count: i16,
}

impl ShardRange {
    /// So many shards from this number on, or an error if there are no such numbers.
    pub fn checked(feed: &FeedName, first: i32, count: i16) -> Result<Self> {
        let range = i16::try_from(first.max(0))
            .map(|first| ShardRange { first, count })
            .ok();
        range
            .filter(|range| count > 0 && range.first.checked_add(count - 1).is_some())
            .ok_or_else(|| {
                Error::invalid(format!(
                    "feed '{feed}' cannot have {count} more shards: their numbers go up to {}",
                    i16::MAX
                ))
                .advise("create another feed")
            })
    }

    /// The last of them.
    pub fn last(self) -> i16 {
        self.first + (self.count - 1)
    }

    /// The numbers of all of them.
    pub fn numbers(self) -> impl Iterator<Item = i16> {
        self.first..=self.last()
    }
}

/// The shard of a value, among `shards` shards numbered from 0.
pub fn shard_of(value: ShardValue<'_>, shards: i16) -> i16 {
    let shards = i64::from(shards.max(1));
    let shard = match value {
        ShardValue::Null => 0,
        ShardValue::Integer(n) => n.rem_euclid(shards),
        ShardValue::Text(text) => hash(text) % shards,
    };
    i16::try_from(shard).unwrap_or(0)
}

fn hash(text: &str) -> i64 {
    let sum: i64 = (1i64..)
        .zip(text.bytes().take(255))
        .map(|(i, byte)| i64::from(byte) * (i * i * 7919 % 65521))
        .sum();
    (sum * 40503 % (1 << 32)) >> 12
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_formula_is_pinned() {
        // A change here moves rows between shards of running systems.
        assert_eq!(hash(""), 0);
        assert_eq!(hash("a"), (97 * 7919 * 40503 % (1 << 32)) >> 12);
        let shards: Vec<i16> = ["alice", "bob", "ç", "customer-1", "customer-2"]
            .iter()
            .map(|t| shard_of(ShardValue::Text(t), 16))
            .collect();
        assert_eq!(shards, PINNED);
        assert_eq!(shard_of(ShardValue::Integer(-1), 4), 3);
        assert_eq!(shard_of(ShardValue::Integer(i64::MIN), 4), 0);
        assert_eq!(shard_of(ShardValue::Null, 4), 0);
    }

    const PINNED: [i16; 5] = [3, 5, 10, 13, 7];

    #[test]
    fn keys_that_look_alike_are_spread() {
        for make in [
            (|n| format!("customer-{n:06}")) as fn(u32) -> String,
            |n| format!("{n}@example.org"),
            |n| format!("{:08x}-{:04x}", n.wrapping_mul(2_654_435_761), n),
        ] {
            for shards in [2i16, 3, 8, 16] {
                let mut counts = vec![0u32; shards as usize];
                for n in 0..16_000 {
                    counts[shard_of(ShardValue::Text(&make(n)), shards) as usize] += 1;
                }
                let fair = 16_000 / shards as u32;
                for count in &counts {
                    assert!(
                        (fair / 2..fair * 2).contains(count),
                        "{} into {shards}: {counts:?}",
                        make(1)
                    );
                }
            }
        }
    }

    proptest! {
        #[test]
        fn a_shard_is_always_one_of_the_shards(text in ".{0,300}", n: i64, shards in 1i16..) {
            for value in [ShardValue::Null, ShardValue::Integer(n), ShardValue::Text(&text)] {
                prop_assert!((0..shards).contains(&shard_of(value, shards)));
            }
        }
    }
}
