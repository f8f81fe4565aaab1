//! Templates of requests: text with blanks like `{{ new.id }}`, for URLs, headers and bodies of webhooks.
//!
//! A template is given values and returns text. It reads no file, no variable and no other template, and it is
//! bounded: in its own length, in steps, and in what it writes. Statements and operators that copy a value
//! (`set`, `~`, `+`, `*`) are refused, because a few of them could fill the memory; text is composed by writing
//! blanks beside each other.
//!
//! What a value looks like depends on the place:
//!
//! | place | a value |
//! |---|---|
//! | body | JSON; within a JSON string, its text, escaped |
//! | URL | its text, percent-encoded; the server cannot be chosen by a blank |
//! | header | its text; a control character is an error |
//!
//! Rows keep all digits of their numbers.

mod value;

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use minijinja::value::{Object, Value};
use minijinja::{AutoEscape, Environment, Output, State, UndefinedBehavior};

use crate::{Error, Kind, Result};
pub use value::TemplateValues;

/// The values of templates of event triggers: the members of the default body, and shorter names for some of them.
pub const EVENT_VALUES: [&str; 11] = [
    "id",
    "created_at",
    "trigger",
    "table",
    "event",
    "delivery_info",
    "op",
    "old",
    "new",
    "session_variables",
    "attempt",
];
/// The values of templates of watches: `changes` is the default body.
pub const BATCH_VALUES: [&str; 3] = ["watch", "changes", "attempt"];

/// Where a template stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplatePlace {
    /// The URL, behind its server.
    Url,
    /// The value of a header.
    Header,
    /// The body of a request, which is JSON.
    Body,
}

/// A text with blanks, ready to be filled in.
#[derive(Clone)]
pub struct Template {
    environment: Arc<Environment<'static>>,
    place: TemplatePlace,
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

/// The longest template.
const LONGEST: usize = 16 * 1024;
/// Steps that filling one in may take.
const STEPS: u64 = 200_000;
const NAME: &str = "template";
/// What formatters find the writer's state by; no template can name it.
const WRITER: &str = "\0writer";

/// The statements that a template may have.
const STATEMENTS: [&str; 6] = ["if", "elif", "else", "endif", "for", "endfor"];

impl TemplatePlace {
    /// The most that is written.
    fn limit(self) -> usize {
        match self {
            TemplatePlace::Url | TemplatePlace::Header => 8 * 1024,
            TemplatePlace::Body => 1024 * 1024,
        }
    }
}

impl Template {
    /// Whether a text has blanks at all.
    pub fn is_one(text: &str) -> bool {
        text.contains("{{") || text.contains("{%") || text.contains("{#")
    }

    /// Reads a template that is given these values.
    pub fn new(text: &str, place: TemplatePlace, values: &[&str]) -> Result<Self> {
        if text.len() > LONGEST {
            return Err(refused(format!("it has more than {LONGEST} bytes")));
        }
        for piece in pieces(text) {
            match piece {
                Piece::Code(code) => judge(code)?,
                Piece::Text(text) if place == TemplatePlace::Header => {
                    if text.chars().any(|c| c.is_control() && c != '\t') {
                        return Err(refused("a header cannot contain control characters".into()));
                    }
                }
                Piece::Text(_) => {}
            }
        }
        let mut environment = environment(place);
        environment
            .add_template_owned(NAME, text.to_owned())
            .map_err(|e| refused(sentence(&e)))?;
        let template = environment
            .get_template(NAME)
            .map_err(|e| refused(sentence(&e)))?;
        let mut names: Vec<String> = template.undeclared_variables(false).into_iter().collect();
        names.sort_unstable();
        for name in names {
            if !values.contains(&name.as_str()) {
                return Err(refused(format!("there is no value '{name}'"))
                    .advise(format!("there are {}", values.join(", "))));
            }
        }
        Ok(Template {
            environment: Arc::new(environment),
            place,
        })
    }

    /// A URL with its blanks percent-encoded, so that it can be read as a URL.
    pub fn stand_in(url: &str) -> String {
        pieces(url)
            .map(|piece| match piece {
                Piece::Text(text) => text.to_owned(),
                Piece::Code(code) => value::percent_encoded(code),
            })
            .collect()
    }

    /// Puts the blanks of a URL back where their stand-ins are.
    pub fn put_back(url: &str, stand_in: String) -> String {
        pieces(url).fold(stand_in, |text, piece| match piece {
            Piece::Text(_) => text,
            Piece::Code(code) => text.replace(&value::percent_encoded(code), code),
        })
    }

    /// Fills the blanks.
    pub fn fill(&self, values: &TemplateValues) -> Result<String> {
        let writer = Arc::new(WriterState::default());
        let mut written = Bounded {
            text: Vec::new(),
            most: self.place.limit(),
            escaped: false,
            state: writer.clone(),
        };
        let context = values.with(WRITER, Value::from_dyn_object(writer));
        let template = self
            .environment
            .get_template(NAME)
            .map_err(|e| failed(sentence(&e)))?;
        template
            .render_captured_to(context, &mut written)
            .map_err(|e| failed(sentence(&e)))?;
        String::from_utf8(written.text).map_err(|e| failed(e.to_string()))
    }
}

/// A piece of a template.
pub(super) enum Piece<'a> {
    Text(&'a str),
    /// With its delimiters.
    Code(&'a str),
}

/// The pieces of a template: what is written as it is, and what is filled in. A delimiter that is not closed
/// begins the last piece.
pub(super) fn pieces(text: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let open = ["{{", "{%", "{#"]
            .into_iter()
            .filter_map(|open| rest.find(open))
            .min()
            .unwrap_or(rest.len());
        if open > 0 {
            let (before, after) = rest.split_at(open);
            rest = after;
            return Some(Piece::Text(before));
        }
        let (code, after) = rest.split_at(length(rest));
        rest = after;
        Some(Piece::Code(code))
    })
}

/// How long the code is that a text begins with. A delimiter within a string literal closes nothing.
fn length(code: &str) -> usize {
    let close = match &code[..2] {
        "{{" => "}}",
        "{%" => "%}",
        _ => return code.find("#}").map_or(code.len(), |at| at + 2),
    };
    let mut quote = None;
    let mut skip = false;
    for (at, c) in code.char_indices().skip(2) {
        match quote {
            _ if skip => skip = false,
            Some(_) if c == '\\' => skip = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if code[at..].starts_with(close) => return at + 2,
            None => {}
        }
    }
    code.len()
}

/// Refuses what could fill the memory.
fn judge(code: &str) -> Result<()> {
    if code.starts_with("{#") {
        return Ok(());
    }
    let inner = code
        .get(2..code.len().saturating_sub(2))
        .unwrap_or_default();
    if code.starts_with("{%") {
        let word = inner.trim_start_matches('-').trim_start();
        let end = word
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(word.len());
        let word = &word[..end];
        if !STATEMENTS.contains(&word) {
            return Err(refused(format!(
                "it has the statement '{word}', and only 'if' and 'for' are allowed"
            )));
        }
    }
    let mut quote = None;
    let mut skip = false;
    for c in inner.chars() {
        match quote {
            _ if skip => skip = false,
            Some(_) if c == '\\' => skip = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if matches!(c, '~' | '+' | '*') => {
                return Err(refused(format!(
                    "it has the operator '{c}'; write values beside each other instead, like \
                     {{{{ a }}}} {{{{ b }}}}"
                )));
            }
            None => {}
        }
    }
    Ok(())
}

fn environment(place: TemplatePlace) -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    environment.set_fuel(Some(STEPS));
    environment.set_recursion_limit(50);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(move |output, state, value| write_value(place, output, state, value));
    environment.add_filter("default", minijinja::filters::default);
    environment.add_filter("first", minijinja::filters::first);
    environment.add_filter("last", minijinja::filters::last);
    environment.add_filter("length", minijinja::filters::length);
    environment.add_filter("lower", minijinja::filters::lower);
    environment.add_filter("upper", minijinja::filters::upper);
    environment.add_filter("trim", minijinja::filters::trim);
    environment.add_filter("join", value::join);
    environment.add_filter("truncate", value::truncate);
    environment.add_filter("tojson", value::to_json);
    environment.add_filter("urlencode", value::url_encode);
    environment.add_test("defined", minijinja::tests::is_defined);
    environment.add_test("none", minijinja::tests::is_none);
    environment
}

fn write_value(
    place: TemplatePlace,
    output: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), minijinja::Error> {
    if value.is_undefined() {
        return Err(minijinja::Error::from(minijinja::ErrorKind::UndefinedError));
    }
    let text = match place {
        TemplatePlace::Body => {
            let writer = state.lookup(WRITER);
            let writer = writer
                .as_ref()
                .and_then(|w| w.downcast_object_ref::<WriterState>());
            if writer.is_some_and(|w| w.in_string.load(Ordering::Relaxed)) {
                let quoted = serde_json::Value::from(value::text(value)?).to_string();
                quoted[1..quoted.len() - 1].to_owned()
            } else {
                value::json(value)?
            }
        }
        TemplatePlace::Url => {
            let text = value::text(value)?;
            if text == "." || text == ".." {
                return Err(unfit("'.' and '..' cannot be parts of a path"));
            }
            value::percent_encoded(&text)
        }
        TemplatePlace::Header => {
            let text = value::text(value)?;
            if text.chars().any(|c| c.is_control() && c != '\t') {
                return Err(unfit("a header cannot contain control characters"));
            }
            text
        }
    };
    output.write_str(&text)?;
    Ok(())
}

fn unfit(why: &'static str) -> minijinja::Error {
    minijinja::Error::new(minijinja::ErrorKind::InvalidOperation, why)
}

/// What formatters have to know of what was written so far.
#[derive(Debug, Default)]
struct WriterState {
    /// Whether a JSON string is open.
    in_string: AtomicBool,
}

impl Object for WriterState {}

/// Writes so much and no more, and follows the strings of what it writes.
struct Bounded {
    text: Vec<u8>,
    most: usize,
    escaped: bool,
    state: Arc<WriterState>,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > self.most {
            let message = format!("it would write more than {} bytes", self.most);
            return Err(io::Error::other(message));
        }
        let mut in_string = self.state.in_string.load(Ordering::Relaxed);
        for byte in bytes {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if in_string => self.escaped = true,
                b'"' => in_string = !in_string,
                _ => {}
            }
        }
        self.state.in_string.store(in_string, Ordering::Relaxed);
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What went wrong, in one sentence: with the place, but without the frames of the engine.
fn sentence(error: &minijinja::Error) -> String {
    use std::error::Error as _;
    if error.kind() == minijinja::ErrorKind::OutOfFuel {
        return format!("it takes more than {STEPS} steps");
    }
    let mut text = match error.detail() {
        Some(detail) => detail.to_owned(),
        None if error.kind() == minijinja::ErrorKind::UndefinedError => {
            "a value is missing; write {{ value | default(\"\") }} where it may be".to_owned()
        }
        None => error.kind().to_string(),
    };
    if let Some(source) = error.source() {
        text = source.to_string();
    }
    match error.line() {
        Some(line) => format!("line {line}: {text}"),
        None => text,
    }
}

fn refused(why: String) -> Error {
    Error::invalid(format!("the template cannot be used: {why}"))
}

fn failed(why: String) -> Error {
    Error::new(
        Kind::Invalid,
        format!("the template cannot be filled in: {why}"),
    )
}

#[cfg(test)]
mod tests;
