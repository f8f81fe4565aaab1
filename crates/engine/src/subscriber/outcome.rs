//! What became of a batch, and what it counts as.

use changefeed_core::Cursor;

use super::Ended;
use crate::sinks::destination::{Held, Message};

/// What became of pushing.
pub(super) enum Pushed {
    Ended(Ended),
    /// Nobody knows how much arrived.
    AskSink(String),
}

/// A page that was read, dressed for the sink.
pub(super) struct Ready {
    pub(super) messages: Vec<Message>,
    /// How many changes it had before some were left out.
    pub(super) count: usize,
    pub(super) next: Cursor,
    pub(super) more: bool,
}

/// A step of the position that is not stored yet.
pub(super) struct Pending {
    pub(super) to: Cursor,
    pub(super) held: Held,
    pub(super) counted: Counted,
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
