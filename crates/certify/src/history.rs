//! Histories: what writers and readers saw, recorded while it happened, and a checker that
//! decides from the record alone whether the promises were kept.
//!
//! The checker knows nothing of any store. What it knows: which transactions were committed,
//! rolled back or left in doubt and when, which pages readers got, and in the end the numbers
//! that all changes have.

mod checker;
mod recorder;
pub mod ulids;

pub use checker::{Violation, check};
pub use recorder::{Following, Recorder, Writing, identity};

use std::collections::BTreeMap;

/// A feed and one of its shards.
pub type ShardKey = (i16, i16);

/// Nanoseconds since the history began.
pub type Moment = u64;

/// How a transaction ended, as its client knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The database confirmed the commit.
    Committed,
    /// The database confirmed the rollback, or the connection was cut before a commit was sent.
    RolledBack,
    /// A commit was sent and the answer never came.
    InDoubt,
}

/// One transaction of a writer.
#[derive(Debug, Clone)]
pub struct Transaction {
    /// Who wrote it.
    pub writer: String,
    /// The changes it published and did not take back (by a savepoint).
    pub changes: Vec<(ShardKey, i64)>,
    /// The changes it took back while it went on.
    pub taken_back: Vec<(ShardKey, i64)>,
    /// Before its BEGIN was sent.
    pub began: Moment,
    /// After the answer to its COMMIT or ROLLBACK came.
    pub ended: Moment,
    /// How it ended.
    pub outcome: Outcome,
}

/// One page that a reader got.
#[derive(Debug, Clone)]
pub struct PageRead {
    /// Who read it.
    pub reader: String,
    /// What was read.
    pub shard: ShardKey,
    /// The cursor that was given; `None` for `first`.
    pub after: Option<i64>,
    /// The page size that was asked for.
    pub limit: usize,
    /// The changes: number and change id.
    pub changes: Vec<(i64, i64)>,
    /// The cursor for the next page.
    pub next: i64,
}

/// Everything that was seen.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The number before the first, per shard. A shard that is not named here does not promise
    /// gapless numbers.
    pub start: BTreeMap<ShardKey, i64>,
    /// All transactions.
    pub transactions: Vec<Transaction>,
    /// All pages, each reader's in the order it read them.
    pub pages: Vec<PageRead>,
    /// When all was quiet: number and change id of everything, as the table has it.
    pub table: BTreeMap<ShardKey, Vec<(i64, i64)>>,
    /// Readers who, when all was quiet, read on until they got an empty page.
    pub finished_readers: Vec<(String, ShardKey)>,
}
