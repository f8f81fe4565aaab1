//! Values that may come from elsewhere.

use std::path::PathBuf;

use changefeed::{Error, Kind, Result};
use toml::Spanned;
use toml::de::DeValue;

use super::file::Place;

/// Whether a value may be written in the file itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Plain {
    Allowed,
    Refused,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Source {
    Plain(String),
    Env(String),
    File(PathBuf),
}

impl Source {
    /// Reads `"text"`, `{ env = "NAME" }` or `{ file = "PATH" }`.
    pub(super) fn of(key: &str, value: &DeValue<'_>, plain: Plain, place: &Place) -> Result<Self> {
        match value {
            DeValue::String(text) if plain == Plain::Allowed => Ok(Source::Plain(text.to_string())),
            DeValue::Table(table) => {
                let mut entries = table.iter();
                match (entries.next(), entries.next()) {
                    (Some((from, value)), None) => elsewhere(from.get_ref(), value),
                    _ => None,
                }
                .ok_or_else(|| place.error(wanted(key, plain)))
            }
            _ => Err(place.error(wanted(key, plain))),
        }
    }

    /// The value.
    pub(super) fn read(&self, what: &str) -> Result<String> {
        match self {
            Source::Plain(text) => Ok(text.clone()),
            Source::Env(name) => std::env::var(name).map_err(|_| {
                Error::new(
                    Kind::NotFound,
                    format!("the environment variable {name}, which holds {what}, is not set"),
                )
            }),
            Source::File(path) => std::fs::read_to_string(path)
                .map(|text| text.trim_end_matches(['\r', '\n']).to_owned())
                .map_err(|e| {
                    let what = format!(
                        "the file '{}', which holds {what}, cannot be read",
                        path.display()
                    );
                    Error::new(Kind::NotFound, what).caused_by(e)
                }),
        }
    }
}

fn elsewhere(from: &str, value: &Spanned<DeValue<'_>>) -> Option<Source> {
    let text = value.get_ref().as_str()?;
    match from {
        "env" => Some(Source::Env(text.to_owned())),
        "file" => Some(Source::File(text.into())),
        _ => None,
    }
}

fn wanted(key: &str, plain: Plain) -> String {
    match plain {
        Plain::Allowed => format!(
            "'{key}' is a text, {{ env = \"NAME\" }} or {{ file = \"PATH\" }}, and nothing else"
        ),
        Plain::Refused => format!(
            "the secret '{key}' is not written in this file: write {{ env = \"NAME\" }} or \
             {{ file = \"PATH\" }}"
        ),
    }
}
