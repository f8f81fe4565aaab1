//! Pages as they are sent: each change is written once, whoever and however many get it, and the
//! row of a change passes through as the database wrote it.

use std::fmt::Write;
use std::sync::OnceLock;

use bytes::Bytes;
use changefeed_core::{After, Change, Content, Cursor, Page};
use serde_json::value::RawValue;

/// A page, and its forms as far as somebody has asked for them.
#[derive(Debug)]
pub(crate) struct Encoded {
    /// The changes as JSON objects without line breaks, with commas in between.
    text: String,
    /// Where each of them ends, and its cursor.
    changes: Vec<(usize, Cursor)>,
    /// Where to go on.
    next: After,
    /// Whether there was more.
    more: bool,
    json: OnceLock<Bytes>,
    ndjson: OnceLock<Bytes>,
    events: OnceLock<Bytes>,
}

impl Encoded {
    /// Writes a page that was read after this point.
    pub(crate) fn new(page: &Page, after: After) -> Self {
        let mut text = String::with_capacity(page.changes.len() * 160);
        let mut changes = Vec::with_capacity(page.changes.len());
        for change in &page.changes {
            if !text.is_empty() {
                text.push(',');
            }
            write_change(&mut text, change);
            changes.push((text.len(), change.cursor));
        }
        Encoded {
            text,
            changes,
            next: page.go_on(after),
            more: page.more,
            json: OnceLock::new(),
            ndjson: OnceLock::new(),
            events: OnceLock::new(),
        }
    }

    /// A page that was not read.
    pub(crate) fn nothing(after: After) -> Self {
        Encoded {
            text: String::new(),
            changes: Vec::new(),
            next: after,
            more: true,
            json: OnceLock::new(),
            ndjson: OnceLock::new(),
            events: OnceLock::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// How large its changes are.
    pub(crate) fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Where to go on.
    pub(crate) fn next(&self) -> After {
        self.next
    }

    /// Each change with its cursor.
    pub(crate) fn changes(&self) -> impl Iterator<Item = (Cursor, &str)> {
        let mut begin = 0;
        self.changes.iter().map(move |(end, cursor)| {
            let text = &self.text[begin..*end];
            // Behind the comma.
            begin = *end + 1;
            (*cursor, text)
        })
    }

    /// The changes and where to go on, as one JSON object.
    pub(crate) fn json(&self, feed: &str, shard: i16) -> Bytes {
        let form = self.json.get_or_init(|| {
            let mut text = String::with_capacity(self.text.len() + feed.len() + 136);
            let _ = write!(
                text,
                "{{\"feed\":\"{feed}\",\"shard\":{shard},\"changes\":["
            );
            text.push_str(&self.text);
            let _ = write!(
                text,
                "],\"next\":\"{}\",\"more\":{}}}",
                self.next, self.more
            );
            Bytes::from(text)
        });
        form.clone()
    }

    /// One change per line, and where to go on.
    pub(crate) fn ndjson(&self) -> Bytes {
        let form = self.ndjson.get_or_init(|| {
            let mut text = String::with_capacity(self.text.len() + self.changes.len() + 56);
            for (_, change) in self.changes() {
                text.push_str(change);
                text.push('\n');
            }
            let _ = writeln!(
                text,
                "{{\"next\":\"{}\",\"more\":{}}}",
                self.next, self.more
            );
            Bytes::from(text)
        });
        form.clone()
    }

    /// Server-sent events.
    pub(crate) fn events(&self) -> Bytes {
        let form = self.events.get_or_init(|| {
            let mut text = String::with_capacity(self.text.len() + self.changes.len() * 40);
            for (cursor, change) in self.changes() {
                let _ = write!(text, "id: {cursor}\ndata: {change}\n\n");
            }
            Bytes::from(text)
        });
        form.clone()
    }
}

fn write_change(text: &mut String, change: &Change) {
    // Formatting is most of what a page costs here, so numbers take the short way.
    let mut digits = itoa::Buffer::new();
    text.push_str("{\"cursor\":\"");
    match change.cursor {
        Cursor::Number(number) => text.push_str(digits.format(number)),
        other => {
            let _ = write!(text, "{other}");
        }
    }
    text.push_str("\",\"change_id\":");
    match change.change_id {
        Some(id) => {
            text.push('"');
            text.push_str(digits.format(id));
            text.push('"');
        }
        None => text.push_str("null"),
    }
    if let Content::Event { op, old, new } = &change.content {
        let _ = write!(text, ",\"op\":\"{}\",\"old\":", op.as_str());
        write_row(text, old.as_deref());
        text.push_str(",\"new\":");
        write_row(text, new.as_deref());
    }
    text.push_str(",\"row\":");
    write_row(text, change.content.row());
    text.push('}');
}

/// A row as it is. Line breaks can only be between its parts, never within a string, and would end a
/// line of NDJSON or an event.
fn write_row(text: &mut String, row: Option<&RawValue>) {
    match row.map(RawValue::get) {
        None => text.push_str("null"),
        Some(row) if row.contains(['\n', '\r']) => {
            text.extend(row.chars().filter(|c| !matches!(c, '\n' | '\r')));
        }
        Some(row) => text.push_str(row),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(rows: &[&str]) -> Page {
        let changes: Vec<Change> = rows
            .iter()
            .enumerate()
            .map(|(n, row)| Change {
                cursor: Cursor::Number(n as i64 + 1),
                change_id: Some(n as i64 + 100),
                content: Content::Row(RawValue::from_string((*row).to_owned()).unwrap()),
            })
            .collect();
        Page {
            next: changes.last().map_or(Cursor::Number(0), |c| c.cursor),
            changes,
            more: false,
        }
    }

    #[test]
    fn numbers_of_any_length_pass_through_and_line_breaks_do_not() {
        let page = page(&[
            "{\"n\":12345678901234567890.10}",
            "{\n \"a\": \"x\\ny\"\r\n}",
        ]);
        let encoded = Encoded::new(&page, After::First);
        assert_eq!(
            encoded.json("f", 3),
            "{\"feed\":\"f\",\"shard\":3,\"changes\":[\
             {\"cursor\":\"1\",\"change_id\":\"100\",\"row\":{\"n\":12345678901234567890.10}},\
             {\"cursor\":\"2\",\"change_id\":\"101\",\"row\":{ \"a\": \"x\\ny\"}}],\"next\":\"2\",\
             \"more\":false}"
        );
        assert_eq!(encoded.ndjson().iter().filter(|b| **b == b'\n').count(), 3);
        let events = String::from_utf8(encoded.events().to_vec()).unwrap();
        assert!(events.starts_with("id: 1\ndata: {\"cursor\":\"1\""));
        assert_eq!(events.matches("\n\n").count(), 2);
    }

    #[test]
    fn whoever_reads_an_empty_shard_from_first_goes_on_from_first() {
        let empty = page(&[]);
        assert_eq!(Encoded::new(&empty, After::First).next(), After::First);
        let last = Encoded::new(&empty, After::Last).next();
        assert_eq!(last, After::Cursor(Cursor::Number(0)));
    }
}
