//! The text of a file, and where in it something is.

use std::fmt;
use std::ops::Range;

use changefeed::{Error, Result};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::section::unknown;

/// The sections that a file may have.
pub(super) const SECTIONS: &[&str] = &[
    "database",
    "secrets",
    "serve",
    "http",
    "deliver",
    "feeds",
    "triggers",
    "watches",
    "subscriptions",
];

/// A place in a file, as editors and compilers write it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Place(String);

impl Place {
    /// An error of this place.
    pub(crate) fn error(&self, message: impl fmt::Display) -> Error {
        Error::invalid(format!("{self}: {message}"))
    }

    /// Says of an error that it belongs to this place.
    pub(crate) fn of(&self, error: Error) -> Error {
        let placed = Error::new(error.kind(), format!("{self}: {error}"));
        match error.advice() {
            Some(advice) => placed.advise(advice.to_owned()),
            None => placed,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A file that is being read.
pub(super) struct File<'a> {
    path: &'a str,
    text: &'a str,
}

impl<'a> File<'a> {
    pub(super) fn new(path: &'a str, text: &'a str) -> Self {
        File { path, text }
    }

    /// File, line and column, both counted from 1.
    pub(super) fn place(&self, at: usize) -> Place {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before
            .rsplit('\n')
            .next()
            .map_or(0, |last| last.chars().count())
            + 1;
        Place(format!("{}:{line}:{column}", self.path))
    }

    pub(super) fn document(&self) -> Result<DeTable<'a>> {
        DeTable::parse(self.text)
            .map(Spanned::into_inner)
            .map_err(|e| {
                let at = e.span().map_or(0, |span: Range<usize>| span.start);
                // What the parser quotes may go over several lines.
                let said = e.message().replace('\n', ", ");
                self.place(at).error(format!("this is not TOML: {said}"))
            })
    }

    /// The sections by name; there are no others than those we know.
    pub(super) fn sections<'d>(
        &self,
        document: &'d DeTable<'a>,
    ) -> Result<Vec<(&'d str, &'d Spanned<DeValue<'a>>)>> {
        document
            .iter()
            .map(|(name, section)| {
                let known: &str = name.get_ref();
                if SECTIONS.contains(&known) {
                    return Ok((known, section));
                }
                let what = match section.get_ref() {
                    DeValue::Table(_) => format!("there is no section [{known}]"),
                    _ => format!("'{known}' stands in no section"),
                };
                let place = self.place(name.span().start);
                Err(place.error(unknown(&what, known, SECTIONS, "sections")))
            })
            .collect()
    }
}
