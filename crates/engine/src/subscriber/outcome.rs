//! What became of a batch, and what it counts as.

use changefeed_core::{Cursor, Page};

use super::Ended;

/// What became of pushing.
pub(super) enum Pushed {
    Ended(Ended),
    /// Nobody knows how much arrived.
    AskSink(String),
}

pub(super) enum Batched {
    /// All of it, and the page behind it, if that was read.
    Taken(Option<Page>),
    Not(Pushed),
}

/// What a step counts as.
#[derive(Default)]
pub(super) struct Counted {
    pub(super) sent: i64,
    pub(super) lost: i64,
    pub(super) parked: Option<String>,
}

impl Counted {
    pub(super) fn sent(count: usize) -> Self {
        Counted {
            sent: i64::try_from(count).unwrap_or(i64::MAX),
            ..Counted::default()
        }
    }
}

/// How many changes lie between two cursors. Numbers have no gaps; of ULIDs nobody knows, so one is counted.
pub(super) fn between(from: Cursor, to: Cursor) -> i64 {
    match (from.number(), to.number()) {
        (Some(from), Some(to)) => to.saturating_sub(from),
        _ => 1,
    }
}
