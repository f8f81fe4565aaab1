//! A section as the options of a command.
//!
//! Keys are the long names of the options with `_` for `-`. A flag is `true` or `false`, an option
//! that can be repeated is a list, `header` is a table, and what an option that ends in `-env` names is
//! written as `{ env = "NAME" }` under the key without that ending.

use std::collections::BTreeMap;

use changefeed::{Error, Result};
use clap::builder::{Arg, ArgAction};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Command};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::file::{File, Place};
use super::value::{Plain, Source};

/// An option that is given, and its values; a flag has none.
#[derive(Debug, Clone)]
pub(super) struct Given {
    pub(super) id: String,
    pub(super) values: Vec<String>,
    place: Place,
}

/// A section that is being read.
pub(super) struct Section<'a> {
    file: &'a File<'a>,
    name: String,
    place: Place,
    table: &'a DeTable<'a>,
    read: Vec<&'static str>,
}

/// The options of a command, alone.
pub(super) fn command<T: Args>() -> Command {
    T::augment_args(
        Command::new("section")
            .no_binary_name(true)
            .disable_help_flag(true),
    )
}

/// What identifies them.
pub(super) fn ids(command: &Command) -> Vec<String> {
    let ids = command.get_arguments().map(|arg| arg.get_id().to_string());
    ids.collect()
}

/// The keys under which a command's options are written.
pub(super) fn keys(command: &Command, without: &[&str]) -> Vec<String> {
    let mut keys = Vec::new();
    for id in ids(command) {
        let key = without_env(&id).to_owned();
        if !without.contains(&id.as_str()) && !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

impl<'a> Section<'a> {
    pub(super) fn of(
        file: &'a File<'a>,
        name: impl Into<String>,
        value: &'a Spanned<DeValue<'a>>,
    ) -> Result<Self> {
        let (name, place) = (name.into(), file.place(value.span().start));
        match value.get_ref() {
            DeValue::Table(table) => Ok(Section {
                file,
                name,
                place,
                table,
                read: Vec::new(),
            }),
            _ => Err(place.error(format!("'{name}' is a section: write [{name}]"))),
        }
    }

    /// The sections below this one, by name.
    pub(super) fn named(
        file: &'a File<'a>,
        kind: &'a str,
        value: &'a Spanned<DeValue<'a>>,
    ) -> Result<Vec<(&'a str, Section<'a>)>> {
        let outer = Section::of(file, kind, value)?;
        outer
            .table
            .iter()
            .map(|(name, value)| {
                let place = file.place(name.span().start);
                let name: &str = name.get_ref();
                if !matches!(value.get_ref(), DeValue::Table(_)) {
                    return Err(place.error(format!(
                        "'{name}' has no name above it: write [{kind}.NAME] and its keys below"
                    )));
                }
                let mut section = Section::of(file, format!("{kind}.{name}"), value)?;
                section.place = place;
                Ok((name, section))
            })
            .collect()
    }

    pub(super) fn place(&self) -> Place {
        self.place.clone()
    }

    /// A key that is true or false, where it is there.
    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        self.table.get(key)?.get_ref().as_bool()
    }

    /// A value that may come from elsewhere.
    pub(super) fn source(&mut self, key: &'static str, plain: Plain) -> Result<Option<Source>> {
        self.read.push(key);
        let Some(value) = self.table.get(key) else {
            return Ok(None);
        };
        let place = self.file.place(value.span().start);
        Source::of(key, value.get_ref(), plain, &place).map(Some)
    }

    /// Every key of a section whose keys are names: none of them may be written plainly.
    pub(super) fn sources(&mut self) -> Result<BTreeMap<String, Source>> {
        self.table
            .iter()
            .map(|(key, value)| {
                let place = self.file.place(value.span().start);
                let source = Source::of(key.get_ref(), value.get_ref(), Plain::Refused, &place)?;
                Ok((key.get_ref().to_string(), source))
            })
            .collect()
    }

    /// Refuses what was not asked for.
    pub(super) fn finish(self) -> Result<()> {
        match self
            .table
            .keys()
            .find(|k| !self.read.contains(&&**k.get_ref()))
        {
            None => Ok(()),
            Some(key) => Err(self.unknown(key, &self.read)),
        }
    }

    fn unknown<S: AsRef<str>>(
        &self,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        known: &[S],
    ) -> Error {
        let what = format!("there is no key '{}' in [{}]", key.get_ref(), self.name);
        let known: Vec<&str> = known.iter().map(AsRef::as_ref).collect();
        let place = self.file.place(key.span().start);
        place.error(unknown(&what, key.get_ref(), &known, "keys"))
    }

    /// Reads the whole section as the options of a command, but for some, whose name is that of the
    /// section.
    pub(super) fn read<T: Args>(
        self,
        name: Option<&str>,
        without: &[&str],
    ) -> Result<(T, Vec<Given>)> {
        let command = command::<T>();
        let known = keys(&command, without);
        let mut options = Vec::new();
        for (key, value) in self.table.iter() {
            if !known.iter().any(|k| k == key.get_ref()) {
                return Err(self.unknown(key, &known));
            }
            let place = self.file.place(value.span().start);
            Reader {
                command: &command,
                key: key.get_ref(),
                place: &place,
            }
            .read(value.get_ref(), &mut options)?;
        }
        let mut line: Vec<String> = options.iter().flat_map(Given::words).collect();
        if let Some(name) = name {
            line.extend(["--".to_owned(), name.to_owned()]);
        }
        let parsed = command
            .try_get_matches_from(line)
            .and_then(|matches| T::from_arg_matches(&matches));
        match parsed {
            Ok(parsed) => Ok((parsed, options)),
            Err(error) => Err(self.refused(&error, &options)),
        }
    }

    /// What the command line says, in the words of the file.
    fn refused(&self, error: &clap::Error, options: &[Given]) -> Error {
        let texts = |kind: ContextKind| -> Vec<String> {
            match error.get(kind) {
                Some(ContextValue::String(text)) => vec![text.clone()],
                Some(ContextValue::Strings(texts)) => texts.clone(),
                _ => Vec::new(),
            }
        };
        let names = |kind| -> Vec<String> { texts(kind).iter().map(|t| keys_of(t)).collect() };
        let about = names(ContextKind::InvalidArg);
        let place = options
            .iter()
            .find(|o| about.iter().any(|key| *key == key_of(&o.id)))
            .map_or(&self.place, |o| &o.place);
        let key = about.first().map_or("", String::as_str);
        let said = match error.kind() {
            ErrorKind::MissingRequiredArgument => {
                let lacking = about.join(" and ");
                format!("[{}] lacks {lacking}", self.name)
            }
            ErrorKind::ArgumentConflict => {
                let others = names(ContextKind::PriorArg).join(", ");
                format!("'{key}' and '{others}' do not go together")
            }
            ErrorKind::InvalidValue => {
                let value = texts(ContextKind::InvalidValue).concat();
                let valid = texts(ContextKind::ValidValue).join(", ");
                format!("'{value}' does not fit '{key}': it is one of {valid}")
            }
            _ => match std::error::Error::source(error) {
                Some(source) if key == "NAME" => source.to_string(),
                Some(source) => format!("'{key}' does not fit: {source}"),
                None => error
                    .to_string()
                    .lines()
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            },
        };
        place.error(said)
    }
}

impl Given {
    /// As it is typed.
    fn words(&self) -> Vec<String> {
        let long = self.id.replace('_', "-");
        match self.values.as_slice() {
            [] => vec![format!("--{long}")],
            values => values.iter().map(|v| format!("--{long}={v}")).collect(),
        }
    }
}

/// Reads one key.
struct Reader<'a> {
    command: &'a Command,
    key: &'a str,
    place: &'a Place,
}

impl Reader<'_> {
    fn arg(&self, id: &str) -> Option<&Arg> {
        self.command.get_arguments().find(|arg| arg.get_id() == id)
    }

    fn read(&self, value: &DeValue<'_>, options: &mut Vec<Given>) -> Result<()> {
        let mut add = |id: &str, values: Vec<String>| {
            options.push(Given {
                id: id.to_owned(),
                values,
                place: self.place.clone(),
            });
        };
        let from_env = format!("{}_env", self.key);
        let Some(arg) = self.arg(self.key) else {
            // It can be named, but not written.
            let items = match value {
                DeValue::Array(items) => items.iter().map(Spanned::get_ref).collect(),
                one => vec![one],
            };
            let names: Result<Vec<String>> = items.into_iter().map(|v| self.variable(v)).collect();
            add(&from_env, names?);
            return Ok(());
        };
        let is_flag = matches!(arg.get_action(), ArgAction::SetTrue);
        let may_be_bare = arg.get_num_args().is_some_and(|n| n.min_values() == 0);
        match value {
            DeValue::Boolean(false) if is_flag || may_be_bare => {}
            DeValue::Boolean(true) if is_flag || may_be_bare => add(self.key, Vec::new()),
            _ if is_flag => return Err(self.error("is true or false")),
            DeValue::Table(table) if is_map(arg) => {
                for (name, value) in table.iter() {
                    let name: &str = name.get_ref();
                    match value.get_ref() {
                        DeValue::Table(_) => {
                            let variable = self.variable(value.get_ref())?;
                            add(&from_env, vec![format!("{name}={variable}")]);
                        }
                        plain => add(self.key, vec![format!("{name}={}", self.text(plain)?)]),
                    }
                }
            }
            _ if is_map(arg) => return Err(self.error("is a table, like { X-Team = \"shop\" }")),
            DeValue::Table(_) if self.arg(&from_env).is_some() => {
                add(&from_env, vec![self.variable(value)?]);
            }
            DeValue::Array(items) => {
                let texts: Result<Vec<String>> =
                    items.iter().map(|item| self.text(item.get_ref())).collect();
                match (arg.get_action(), texts?) {
                    // An empty list is what there is without the key.
                    (ArgAction::Append, texts) if texts.is_empty() => {}
                    (ArgAction::Append, texts) => add(self.key, texts),
                    (_, texts) => add(self.key, vec![texts.join(",")]),
                }
            }
            one => add(self.key, vec![self.text(one)?]),
        }
        Ok(())
    }

    fn text(&self, value: &DeValue<'_>) -> Result<String> {
        match value {
            DeValue::String(text) => Ok(text.to_string()),
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                .map(|n| n.to_string())
                .map_err(|_| self.error("is too large a number")),
            DeValue::Float(number) => Ok(number.as_str().to_owned()),
            _ => Err(self.error("is a text or a number")),
        }
    }

    /// The name of a variable.
    fn variable(&self, value: &DeValue<'_>) -> Result<String> {
        match Source::of(self.key, value, Plain::Refused, self.place) {
            Ok(Source::Env(name)) => Ok(name),
            // Otherwise everybody who may write to the database could have any file sent anywhere.
            Ok(_) => Err(self.error(
                "is kept in the database by the name of a variable: write { env = \"NAME\" }, and \
                 NAME = { file = \"PATH\" } in [secrets]",
            )),
            Err(_) => {
                Err(self.error("is a secret, or comes from elsewhere: write { env = \"NAME\" }"))
            }
        }
    }

    fn error(&self, what: &str) -> Error {
        self.place.error(format!("'{}' {what}", self.key))
    }
}

/// Whether an option's values are pairs.
fn is_map(arg: &Arg) -> bool {
    arg.get_value_names()
        .is_some_and(|names| names.iter().any(|name| name.as_str().contains('=')))
}

/// The key of an option, from how it is shown or identified.
fn key_of(option: &str) -> String {
    let word = option.trim_start_matches(['-', '<', '[']);
    let end = word.find([' ', '=', '>', '[', '<']).unwrap_or(word.len());
    let key = word[..end].replace('-', "_");
    without_env(&key).to_owned()
}

/// The key of an option that names a variable. The one that allows names is itself.
fn without_env(id: &str) -> &str {
    match id {
        "allow_env" => id,
        _ => id.strip_suffix("_env").unwrap_or(id),
    }
}

/// The keys of options of which one is enough.
fn keys_of(options: &str) -> String {
    let mut keys: Vec<String> = options.split("|--").map(key_of).collect();
    keys.dedup();
    keys.join(" or ")
}

/// Says that something is not there, and what was probably meant.
pub(super) fn unknown(what: &str, given: &str, known: &[&str], kind: &str) -> String {
    let nearest = known
        .iter()
        .map(|name| (strsim::jaro_winkler(given, name), name))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b));
    match nearest {
        Some((_, name)) => format!("{what}: did you mean '{name}'?"),
        None => format!("{what}: the {kind} are {}", known.join(", ")),
    }
}
