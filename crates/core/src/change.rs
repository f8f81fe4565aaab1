//! What a reader gets.

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{After, Cursor, Error, Incarnation, Kind, Operation, Result};

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
    /// What happened; none if the application publishes the change itself.
    pub op: Option<Op>,
    /// The key of the row that it happened to, as a JSON object of the key columns, in feeds that are made
    /// from a table. None for a truncated table.
    pub key: Option<Box<RawValue>>,
    /// What changed, as far as the feed knows where to find it.
    pub content: Content,
}

/// What happened to a row, in the words that readers of a feed get.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Op {
    /// It was inserted, or got this key by an update.
    Insert,
    /// It was updated, and kept its key.
    Update,
    /// It was deleted, or got another key by an update.
    Delete,
    /// It was there before the feed.
    Backfill,
    /// All rows of the shard were removed at once.
    Truncate,
    /// Nothing: a person sent an event by hand.
    Manual,
}

impl Op {
    /// The word that readers get.
    pub fn as_str(self) -> &'static str {
        match self {
            Op::Insert => "insert",
            Op::Update => "update",
            Op::Delete => "delete",
            Op::Backfill => "backfill",
            Op::Truncate => "truncate",
            Op::Manual => "manual",
        }
    }

    /// Reads the letter that a database keeps.
    pub fn from_letter(letter: &str) -> Result<Self> {
        match letter {
            "B" => Ok(Op::Backfill),
            "T" => Ok(Op::Truncate),
            other => Operation::from_letter(other).map(Op::from),
        }
    }

    /// Whether a row may be there after it.
    pub fn leaves_row(self) -> bool {
        !matches!(self, Op::Delete | Op::Truncate)
    }
}

impl From<Operation> for Op {
    fn from(operation: Operation) -> Self {
        match operation {
            Operation::Insert => Op::Insert,
            Operation::Update => Op::Update,
            Operation::Delete => Op::Delete,
            Operation::Manual => Op::Manual,
        }
    }
}

impl Change {
    /// A change that the application has published itself.
    pub fn published(cursor: Cursor, change_id: Option<i64>, content: Content) -> Self {
        Change {
            cursor,
            change_id,
            op: None,
            key: None,
            content,
        }
    }

    /// Writes the members of the JSON object that `--json` and HTTP print, without its braces. The row passes
    /// through as the database wrote it.
    pub fn write_json(&self, text: &mut String) {
        // Formatting is most of what a page costs a server, so numbers take the short way.
        let mut digits = itoa::Buffer::new();
        text.push_str("\"cursor\":\"");
        match self.cursor {
            Cursor::Number(number) => text.push_str(digits.format(number)),
            other => {
                let _ = write!(text, "{other}");
            }
        }
        text.push_str("\",\"change_id\":");
        match self.change_id {
            Some(id) => {
                text.push('"');
                text.push_str(digits.format(id));
                text.push('"');
            }
            None => text.push_str("null"),
        }
        if let Some(op) = self.op {
            text.push_str(",\"op\":\"");
            text.push_str(op.as_str());
            text.push('"');
        }
        if let Some(key) = &self.key {
            text.push_str(",\"key\":");
            write_raw(text, Some(key));
        }
        if let Content::Images { old, new } = &self.content {
            text.push_str(",\"old\":");
            write_raw(text, old.as_deref());
            text.push_str(",\"new\":");
            write_raw(text, new.as_deref());
            if self.op == Some(Op::Update) {
                let changed = changed(old.as_deref(), new.as_deref());
                let _ = write!(text, ",\"changed\":{}", serde_json::Value::from(changed));
            }
        }
        text.push_str(",\"row\":");
        write_raw(text, self.content.row());
    }

    /// How long it is as text.
    fn bytes(&self) -> usize {
        let length = |row: &Option<Box<RawValue>>| row.as_deref().map_or(0, |r| r.get().len());
        let content = match &self.content {
            Content::Unknown | Content::Gone => 0,
            Content::Row(row) => row.get().len(),
            Content::Images { old, new } => length(old) + length(new),
        };
        content + length(&self.key)
    }

    /// The key, read into a type of yours, with a field for each of its columns; none where there is no key.
    pub fn key<T: serde::de::DeserializeOwned>(&self) -> Result<Option<T>> {
        self.typed("key", self.key.as_deref())
    }

    /// The row, read into a type of yours; none if there is no row, or if the feed does not know it.
    pub fn row<T: serde::de::DeserializeOwned>(&self) -> Result<Option<T>> {
        self.typed("row", self.content.row())
    }

    fn typed<T: serde::de::DeserializeOwned>(
        &self,
        what: &str,
        json: Option<&RawValue>,
    ) -> Result<Option<T>> {
        let read = json
            .map(|json| serde_json::from_str(json.get()))
            .transpose();
        read.map_err(|error| {
            let place = self.cursor;
            Error::invalid(format!("the {what} of change {place} is not as expected"))
                .caused_by(error)
        })
    }
}

/// The columns whose values differ between two rows. What is no row has none.
pub fn changed(old: Option<&RawValue>, new: Option<&RawValue>) -> Vec<String> {
    type Row<'a> = std::collections::BTreeMap<std::borrow::Cow<'a, str>, &'a RawValue>;
    fn row(json: Option<&RawValue>) -> Option<Row<'_>> {
        serde_json::from_str(json?.get()).ok()
    }
    let (Some(old), Some(mut new)) = (row(old), row(new)) else {
        return Vec::new();
    };
    let mut names = Vec::new();
    for (name, value) in old {
        if new.remove(&name).map(RawValue::get) != Some(value.get()) {
            names.push(name.into_owned());
        }
    }
    names.extend(new.into_keys().map(|name| name.into_owned()));
    names
}

/// JSON as it is. Line breaks can only be between its parts, never within a string, and would end a
/// line of NDJSON or an event.
fn write_raw(text: &mut String, json: Option<&RawValue>) {
    match json.map(RawValue::get) {
        None => text.push_str("null"),
        Some(json) if json.contains(['\n', '\r']) => {
            text.extend(json.chars().filter(|c| !matches!(c, '\n' | '\r')));
        }
        Some(json) => text.push_str(json),
    }
}

/// JSON that the database wrote.
pub fn raw_json(json: String) -> Result<Box<RawValue>> {
    RawValue::from_string(json).map_err(|error| {
        Error::new(
            Kind::Database,
            "the database returned a row that is not JSON",
        )
        .caused_by(error)
    })
}

/// The row behind a change, read when the page is read: its newest state, not a copy of what it
/// was when the change was made, unless the feed keeps images.
#[derive(Debug, Clone)]
pub enum Content {
    /// The feed was not told where its rows are.
    Unknown,
    /// The row as a JSON object, exactly as the database wrote it.
    Row(Box<RawValue>),
    /// Copies of what the row was.
    Images {
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
            Content::Images { new, .. } => new.as_deref(),
            Content::Unknown | Content::Gone => None,
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
                Content::Images { old, new },
                Content::Images {
                    old: old2,
                    new: new2,
                },
            ) => text(old) == text(old2) && text(new) == text(new2),
            _ => false,
        }
    }
}

/// The room of a page, for a store that fills it change by change.
#[derive(Debug, Default)]
pub struct PageRoom(Option<usize>);

impl PageRoom {
    /// Whether one more change fits, and takes its room. The first one always does.
    pub fn takes(&mut self, change: &Change) -> bool {
        let bytes = self.0.unwrap_or(0).saturating_add(change.bytes());
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
    /// The life of the database that its cursors belong to.
    pub incarnation: Incarnation,
    /// Whether nothing will ever come after this page, because the feed goes on in other
    /// [shards](crate::Shard::generation).
    pub closed: bool,
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
    pub fn empty(next: Cursor, incarnation: Incarnation) -> Self {
        Page {
            changes: Vec::new(),
            next,
            more: false,
            incarnation,
            closed: false,
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
