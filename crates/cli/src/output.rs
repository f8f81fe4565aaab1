//! What a person or a program gets to see.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use changefeed::{Backend, Change, Content, Error, FeedName, Finding, Kind, Op, Result, ShardId};
use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::value::RawValue;

/// Text that others may have written, names of tables among it, without what a terminal would obey.
fn visible(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(obeyed) {
        return Cow::Borrowed(text);
    }
    let shown = text.chars().map(|c| match obeyed(c) {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    });
    Cow::Owned(shown.collect())
}

/// Where a database is, for people, without anything secret.
pub(crate) fn place(database: &str) -> String {
    Backend::parse(database)
        .map_or_else(|_| "no database".to_owned(), |backend| backend.to_string())
}

/// Standard output, for a person or, with `--json`, for a program.
pub(crate) struct Out {
    json: bool,
    stdout: io::Stdout,
}

impl Out {
    pub(crate) fn new(json: bool) -> Self {
        Out {
            json,
            stdout: io::stdout(),
        }
    }

    /// Whether a program reads.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Whether a person looks at a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        !self.json && self.stdout.is_terminal()
    }

    /// A line of text.
    pub(crate) fn line(&mut self, text: impl AsRef<str>) -> Result<()> {
        writeln!(self.stdout, "{}", visible(text.as_ref())).map_err(lost)
    }

    /// Text as it is.
    pub(crate) fn text(&mut self, text: impl AsRef<str>) -> Result<()> {
        self.stdout
            .write_all(text.as_ref().as_bytes())
            .map_err(lost)
    }

    /// A sentence for a person; nothing for a program.
    pub(crate) fn say(&mut self, text: impl AsRef<str>) -> Result<()> {
        if self.json { Ok(()) } else { self.line(text) }
    }

    /// One JSON object on a line of its own.
    pub(crate) fn object(&mut self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(value).map_err(|e| {
            Error::new(Kind::Database, "this cannot be written as JSON").caused_by(e)
        })?;
        self.line(text)
    }

    /// A table for a person.
    pub(crate) fn table(&mut self, head: &[&str], rows: Vec<Vec<String>>) -> Result<()> {
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(if self.is_terminal() {
                ContentArrangement::Dynamic
            } else {
                ContentArrangement::Disabled
            });
        table.set_header(head.to_vec());
        table.add_rows(rows);
        for line in table.to_string().lines() {
            self.line(line.trim_end())?;
        }
        Ok(())
    }

    /// One change.
    pub(crate) fn change(
        &mut self,
        feed: &FeedName,
        shard: ShardId,
        change: &Change,
    ) -> Result<()> {
        if self.json {
            let mut text = format!("{{\"feed\":\"{feed}\",\"shard\":{shard},");
            change.write_json(&mut text);
            text.push('}');
            return self.line(text);
        }
        let row = match &change.content {
            Content::Unknown => String::new(),
            // It is what a delete says itself.
            Content::Gone if change.op.is_some_and(|op| !op.leaves_row()) => String::new(),
            Content::Gone => "(row gone)".to_owned(),
            Content::Row(row) => row.get().to_owned(),
            Content::Images { old, new } => {
                let text = |row: &Option<Box<RawValue>>| {
                    row.as_ref()
                        .map_or_else(|| "-".to_owned(), |r| r.get().to_owned())
                };
                format!("{} → {}", text(old), text(new))
            }
        };
        let op = change.op.map_or("", Op::as_str);
        // A row has its key in it.
        let row = match (&change.key, &change.content) {
            (Some(key), Content::Gone | Content::Unknown) => format!("{op:<8}  {key}  {row}"),
            _ if !op.is_empty() => format!("{op:<8}  {row}"),
            _ => row,
        };
        let id = change
            .change_id
            .map_or_else(String::new, |id| format!("{id}  "));
        self.line(format!("{feed}/{shard}  {}  {id}{row}", change.cursor).trim_end())
    }

    /// Makes sure that a reader of a pipe sees what was printed so far.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.stdout.flush().map_err(lost)
    }
}

/// The reader of our output has gone away, as `head` does: not an error worth a word.
fn lost(error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    Error::new(Kind::Unavailable, "standard output cannot be written").caused_by(error)
}

/// An error for a program: the same words as over HTTP.
#[derive(Serialize)]
struct Failure<'a> {
    kind: &'static str,
    detail: &'a str,
    causes: Vec<String>,
    advice: Option<&'a str>,
}

/// Prints an error with its causes and the next step, and chooses the exit code: 2 for what the
/// caller typed wrong, 1 for what failed.
pub(crate) fn report(error: &Error, json: bool) -> ExitCode {
    let causes = causes(error);
    let text = if json {
        let failure = Failure {
            kind: error.kind().as_str(),
            detail: error.message(),
            causes,
            advice: error.advice(),
        };
        serde_json::to_string(&failure).unwrap_or_default() + "\n"
    } else {
        let mut text = format!("error: {error}\n");
        for cause in causes {
            text.push_str(&format!("  cause: {cause}\n"));
        }
        if let Some(advice) = error.advice() {
            text.push_str(&format!("  hint: {advice}\n"));
        }
        text
    };
    // Nothing is left to do when standard error is gone as well.
    let _ = io::stderr().write_all(visible(&text).as_bytes());
    match error.kind() {
        Kind::Invalid => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}

/// Says on standard error what should be looked at, in the form of an error.
pub(crate) fn warn(finding: &Finding, json: bool) {
    let text = match (json, &finding.advice) {
        (true, _) => serde_json::to_string(finding).unwrap_or_default() + "\n",
        (false, advice) => {
            let mut text = format!("warning: {}: {}\n", finding.subject, finding.message);
            if let Some(advice) = advice {
                text.push_str(&format!("  hint: {advice}\n"));
            }
            text
        }
    };
    let _ = io::stderr().write_all(visible(&text).as_bytes());
}

/// What led to an error, without repetitions, which drivers like.
fn causes(error: &Error) -> Vec<String> {
    let mut causes = Vec::new();
    let mut cause = std::error::Error::source(error);
    let mut said = error.to_string();
    while let Some(inner) = cause {
        let text = inner.to_string();
        if !said.contains(&text) {
            causes.push(text.clone());
            said = text;
        }
        cause = inner.source();
    }
    causes
}

/// Asks a question on the terminal; without a terminal it says which flag answers it.
pub(crate) fn confirm(question: &str, yes: bool) -> Result<()> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(
            crate::usage(format!("{question} There is no terminal to ask on"))
                .advise("add --yes to go ahead without asking"),
        );
    }
    let mut stderr = io::stderr();
    let _ = write!(stderr, "{question} Type 'yes' to go ahead: ");
    let _ = stderr.flush();
    let mut answer = String::new();
    io::stdin()
        .read_line(&mut answer)
        .map_err(|e| Error::new(Kind::Unavailable, "standard input cannot be read").caused_by(e))?;
    if answer.trim() == "yes" {
        return Ok(());
    }
    Err(crate::usage("not confirmed; nothing was changed"))
}

/// A bar for long work over rows, where somebody watches.
pub(crate) fn progress_bar(out: &Out) -> ProgressBar {
    if !out.is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(
        "{bar:40} {human_pos}/{human_len} rows  {per_sec}  {eta} left",
    )
    .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}

/// A span of time as a person says it.
pub(crate) fn human_ms(ms: i64) -> String {
    match ms {
        ..=0 => "0".to_owned(),
        1..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        60_000..3_600_000 => format!("{} min {} s", ms / 60_000, ms % 60_000 / 1000),
        3_600_000..86_400_000 => format!("{} h {} min", ms / 3_600_000, ms % 3_600_000 / 60_000),
        _ => format!("{} d {} h", ms / 86_400_000, ms % 86_400_000 / 3_600_000),
    }
}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn a_terminal_is_shown_and_not_told() {
        assert_eq!(visible("a\u{1b}[31mb\u{9b}c\r"), "a\\u{1b}[31mb\\u{9b}c\\r");
        assert_eq!(visible("täble\tx\n"), "täble\tx\n");
    }
}
