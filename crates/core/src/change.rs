//! What a reader gets.

use serde_json::value::RawValue;

use crate::{After, Cursor, Error, Operation, Result};

/// The largest page a reader may ask for.
pub const MAX_PAGE: usize = 10_000;

/// How many bytes of rows a page has at most, as text, unless a single change has more. A store cuts its
/// pages by this while it reads, so that neither it nor a reader ever holds much more.
pub const PAGE_BYTES: i32 = 8 * 1024 * 1024;

/// One change in a shard.
#[derive(Debug, Clone)]
pub struct Change {
    /// Its place in the shard; the cursor of a reader who has read up to here.
    pub cursor: Cursor,
    /// The application's key to whatever changed; none in a feed that is ordered by ULIDs, where
    /// the cursor itself is that key.
    pub change_id: Option<i64>,
    /// What changed, as far as the feed knows where to find it.
    pub content: Content,
}

impl Change {
    /// The row, read into a type of yours; none if there is no row, or if the feed does not know it.
    pub fn row<T: serde::de::DeserializeOwned>(&self) -> Result<Option<T>> {
        let Some(row) = self.content.row() else {
            return Ok(None);
        };
        serde_json::from_str(row.get()).map(Some).map_err(|error| {
            Error::invalid(format!(
                "the row of change {} is not as expected",
                self.cursor
            ))
            .caused_by(error)
        })
    }
}

/// The row behind a change, read when the page is read: its newest state, not a copy of what it
/// was when the change was made.
#[derive(Debug, Clone)]
pub enum Content {
    /// The feed was not told where its rows are.
    Unknown,
    /// The row as a JSON object, exactly as the database wrote it.
    Row(Box<RawValue>),
    /// What an event trigger captured: here the row is a copy of what it was.
    Event {
        /// What happened to the row.
        op: Operation,
        /// The row before.
        old: Option<Box<RawValue>>,
        /// The row after.
        new: Option<Box<RawValue>>,
    },
    /// The row no longer exists, or the event was cleaned up.
    Gone,
}

impl Content {
    /// The row as JSON text, if there is one.
    pub fn row(&self) -> Option<&RawValue> {
        match self {
            Content::Row(row) => Some(row),
            Content::Event { new, .. } => new.as_deref(),
            Content::Unknown | Content::Gone => None,
        }
    }
}

impl Content {
    /// How long it is as text.
    fn bytes(&self) -> usize {
        let length = |row: &Option<Box<RawValue>>| row.as_deref().map_or(0, |r| r.get().len());
        match self {
            Content::Unknown | Content::Gone => 0,
            Content::Row(row) => row.get().len(),
            Content::Event { old, new, .. } => length(old) + length(new),
        }
    }
}

impl PartialEq for Content {
    fn eq(&self, other: &Self) -> bool {
        let text = |row: &Option<Box<RawValue>>| row.as_deref().map(|r| r.get().to_owned());
        match (self, other) {
            (Content::Unknown, Content::Unknown) | (Content::Gone, Content::Gone) => true,
            (Content::Row(a), Content::Row(b)) => a.get() == b.get(),
            (
                Content::Event { op, old, new },
                Content::Event {
                    op: op2,
                    old: old2,
                    new: new2,
                },
            ) => op == op2 && text(old) == text(old2) && text(new) == text(new2),
            _ => false,
        }
    }
}

/// The room of a page, for a store that fills it change by change.
#[derive(Debug, Default)]
pub struct PageRoom(Option<usize>);

impl PageRoom {
    /// Whether one more change fits, and takes its room. The first one always does.
    pub fn takes(&mut self, content: &Content) -> bool {
        let bytes = self.0.unwrap_or(0).saturating_add(content.bytes());
        let fits = self.0.is_none() || i32::try_from(bytes).is_ok_and(|b| b <= PAGE_BYTES);
        if fits {
            self.0 = Some(bytes);
        }
        fits
    }
}

/// Changes in order, and where to go on.
#[derive(Debug, Clone)]
pub struct Page {
    /// The changes, oldest first.
    pub changes: Vec<Change>,
    /// The cursor for the next page; equal to the one given when there was nothing new.
    pub next: Cursor,
    /// Whether there was more when this was read: the page ended because it was full, by the number of its
    /// changes or by [`PAGE_BYTES`]. Who follows reads on at once and waits only when it is false.
    pub more: bool,
}

impl Page {
    /// Where somebody goes on who has read this page after that point.
    pub fn go_on(&self, after: After) -> After {
        match after {
            // Old data may still come below where an empty shard ends.
            After::First if self.changes.is_empty() => After::First,
            _ => After::Cursor(self.next),
        }
    }

    /// One without changes.
    pub fn empty(next: Cursor) -> Self {
        Page {
            changes: Vec::new(),
            next,
            more: false,
        }
    }

    /// Checks a page size given by a caller.
    pub fn check_limit(limit: usize) -> Result<usize> {
        match limit {
            1..=MAX_PAGE => Ok(limit),
            _ => Err(Error::invalid(format!(
                "a page of {limit} changes is not possible: ask for 1 to {MAX_PAGE}"
            ))),
        }
    }
}
