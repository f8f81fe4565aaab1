//! `changefeed apply --export`: what the database has, as a file that `apply` would find nothing to do for.

use changefeed::{Changefeed, NewFeed, Result};

use super::keys::{self, Keys};
use crate::output::Out;

pub(super) async fn run(db: &Changefeed, out: &mut Out) -> Result<()> {
    let mut text = String::new();
    for feed in db.feeds().await? {
        let definition = feed.definition();
        let wanted = NewFeed {
            id: Some(definition.id),
            ..NewFeed::new(definition.name.clone())
        };
        section(
            &mut text,
            "feeds",
            definition.name.as_str(),
            &keys::feed(definition, &wanted),
        );
    }
    for trigger in db.store().triggers().await? {
        let mut written = keys::trigger(&trigger.definition);
        if trigger.paused.is_some() {
            written.push(("paused".to_owned(), true.into()));
        }
        section(
            &mut text,
            "triggers",
            trigger.definition.name.as_str(),
            &written,
        );
    }
    for watch in db.store().watches().await? {
        // One that a program of its own runs is not for `serve`.
        if watch.definition.is_some() {
            let keys = keys::watch(&watch.table, watch.definition.as_ref());
            section(&mut text, "watches", watch.name.as_str(), &keys);
        }
    }
    if text.is_empty() {
        text.push_str("# Nothing is defined in this database.\n");
    }
    out.line(text.trim_end())
}

fn section(text: &mut String, kind: &str, name: &str, keys: &Keys) {
    use std::fmt::Write;
    if !text.is_empty() {
        text.push('\n');
    }
    // Writing to a string does not fail.
    let _ = writeln!(text, "[{kind}.{name}]");
    for (key, value) in keys {
        let written = value.to_string();
        let hidden = written.contains("***");
        if hidden {
            let _ = writeln!(
                text,
                "# The secret is not shown: name the environment variable that holds it, {{ env = \"NAME\" }}."
            );
        }
        let _ = writeln!(text, "{}{key} = {written}", if hidden { "#" } else { "" });
    }
}
