//! Pages as they are sent: each change is written once, whoever and however many get it, and the
//! row of a change passes through as the database wrote it.

use std::fmt::Write;
use std::sync::OnceLock;

use bytes::Bytes;
use changefeed_core::{After, Cursor, Incarnation, Page};

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
    /// The life of the database; none if nothing was read.
    incarnation: Option<Incarnation>,
    /// Whether nothing will ever come after it.
    closed: bool,
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
            text.push('{');
            change.write_json(&mut text);
            text.push('}');
            changes.push((text.len(), change.cursor));
        }
        Encoded {
            text,
            changes,
            next: page.go_on(after),
            more: page.more,
            incarnation: Some(page.incarnation),
            closed: page.closed,
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
            incarnation: None,
            closed: false,
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

    /// The life of the database that it was read in.
    pub(crate) fn incarnation(&self) -> Option<Incarnation> {
        self.incarnation
    }

    /// Whether nothing will ever come after it.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
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
            text.push_str("],");
            self.write_end(&mut text);
            text.push('}');
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
            text.push('{');
            self.write_end(&mut text);
            text.push_str("}\n");
            Bytes::from(text)
        });
        form.clone()
    }

    fn write_end(&self, text: &mut String) {
        let _ = write!(text, "\"next\":\"{}\",\"more\":{}", self.next, self.more);
        if let Some(incarnation) = self.incarnation {
            let _ = write!(text, ",\"incarnation\":\"{incarnation}\"");
        }
        if self.closed {
            text.push_str(",\"closed\":true");
        }
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

#[cfg(test)]
mod tests {
    use changefeed_core::{Change, Content};
    use serde_json::value::RawValue;

    use super::*;

    fn page(rows: &[&str]) -> Page {
        let changes: Vec<Change> = rows
            .iter()
            .enumerate()
            .map(|(n, row)| Change {
                cursor: Cursor::Number(n as i64 + 1),
                change_id: Some(n as i64 + 100),
                op: None,
                key: None,
                content: Content::Row(RawValue::from_string((*row).to_owned()).unwrap()),
            })
            .collect();
        Page {
            next: changes.last().map_or(Cursor::Number(0), |c| c.cursor),
            changes,
            more: false,
            incarnation: LIFE.parse().unwrap(),
            closed: false,
        }
    }

    const LIFE: &str = "01892f3c4d5e0123456789abcdef0123";

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
             \"more\":false,\"incarnation\":\"01892f3c4d5e0123456789abcdef0123\"}"
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
