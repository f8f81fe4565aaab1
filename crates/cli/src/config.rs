//! `changefeed.toml`: the database, how it is served, and definitions for `apply`.
//!
//! A section of the file is the options of a command, written otherwise (`section.rs`): what can be
//! typed can be written, with the same defaults and the same checks.

mod file;
mod section;
mod value;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use changefeed::{AllowedVariables, Error, Result, Variables};
use clap::Command;

use crate::args::{
    CreateFeed, CreateTrigger, Deliver, Http, Serve, SubscriptionCreate, WatchCreate,
};
use file::File;
pub(crate) use file::Place;
use section::{Given, Section};
use value::Source;

/// The file that is looked for where the program is started.
pub(crate) const DEFAULT_PATH: &str = "changefeed.toml";

/// The file with every key and its default, which is also the reference.
pub(crate) const EXAMPLE: &str = include_str!("config/changefeed.toml");

/// Options of `serve` that only the command line has.
const NOT_OF_SERVE: &[&str] = &["demo", "duration"];
/// What `apply` decides.
const NOT_OF_DEFINITIONS: &[&str] = &["name", "replace"];

/// A definition, and where in the file it is.
#[derive(Debug)]
pub(crate) struct Written<T> {
    pub(crate) value: T,
    pub(crate) place: Place,
}

/// What a file says.
#[derive(Debug, Default)]
pub(crate) struct Config {
    /// The file, as it was named.
    pub(crate) path: String,
    database: Option<Source>,
    secrets: BTreeMap<String, Source>,
    /// Options of `serve` and `deliver`, by their ids.
    serving: Vec<Given>,
    delivering: Vec<Given>,
    pub(crate) feeds: Vec<Written<CreateFeed>>,
    pub(crate) triggers: Vec<Written<CreateTrigger>>,
    /// Whether a trigger is paused, for each that has the key.
    pub(crate) paused: BTreeMap<String, bool>,
    pub(crate) watches: Vec<Written<WatchCreate>>,
    pub(crate) subscriptions: Vec<Written<SubscriptionCreate>>,
    /// Whether a subscription is paused, for each that has the key.
    pub(crate) paused_subscriptions: BTreeMap<String, bool>,
}

impl Config {
    /// Reads the named file, or the default one if it exists.
    pub(crate) fn load(named: Option<&Path>) -> Result<Option<Config>> {
        let path = match named {
            Some(path) => path.to_owned(),
            None if Path::new(DEFAULT_PATH).exists() => PathBuf::from(DEFAULT_PATH),
            None => return Ok(None),
        };
        let text = std::fs::read_to_string(&path).map_err(|e| {
            Error::invalid(format!("'{}' cannot be read", path.display()))
                .caused_by(e)
                .advise("name a file with --config; `changefeed init` writes one to begin with")
        })?;
        Config::parse(&path.display().to_string(), &text).map(Some)
    }

    /// Reads a file's text.
    pub(crate) fn parse(path: &str, text: &str) -> Result<Config> {
        let file = File::new(path, text);
        let document = file.document()?;
        let mut config = Config {
            path: path.to_owned(),
            ..Config::default()
        };
        for (name, section) in file.sections(&document)? {
            match name {
                "database" => {
                    let mut section = Section::of(&file, name, section)?;
                    config.database = section.source("url", value::Plain::Allowed)?;
                    section.finish()?;
                }
                "secrets" => {
                    let mut section = Section::of(&file, name, section)?;
                    config.secrets = section.sources()?;
                }
                "serve" => {
                    let section = Section::of(&file, name, section)?;
                    let nested = ["http", "deliver"].map(ids_of_section).concat();
                    let without: Vec<&str> = nested
                        .iter()
                        .map(String::as_str)
                        .chain(NOT_OF_SERVE.iter().copied())
                        .collect();
                    let (_, options) = section.read::<Serve>(None, &without)?;
                    config.serving.extend(options);
                }
                "http" => {
                    let section = Section::of(&file, name, section)?;
                    let (_, options) = section.read::<Http>(None, &[])?;
                    config.serving.extend(options);
                }
                "deliver" => {
                    let section = Section::of(&file, name, section)?;
                    let (_, options) = section.read::<Deliver>(None, &[])?;
                    config.serving.extend(options.clone());
                    config.delivering = options;
                }
                "feeds" => {
                    for (name, section) in Section::named(&file, name, section)? {
                        let place = section.place();
                        let (value, _) = section.read(Some(name), NOT_OF_DEFINITIONS)?;
                        config.feeds.push(Written { value, place });
                    }
                }
                "triggers" => {
                    for (name, section) in Section::named(&file, name, section)? {
                        let place = section.place();
                        if let Some(paused) = section.flag("paused") {
                            config.paused.insert(name.to_owned(), paused);
                        }
                        let (value, _) =
                            section.read::<CreateTrigger>(Some(name), NOT_OF_DEFINITIONS)?;
                        config.triggers.push(Written { value, place });
                    }
                }
                "watches" => {
                    for (name, section) in Section::named(&file, name, section)? {
                        let place = section.place();
                        let (value, _) = section.read(Some(name), NOT_OF_DEFINITIONS)?;
                        config.watches.push(Written { value, place });
                    }
                }
                "subscriptions" => {
                    for (name, section) in Section::named(&file, name, section)? {
                        let place = section.place();
                        if let Some(paused) = section.flag("paused") {
                            config.paused_subscriptions.insert(name.to_owned(), paused);
                        }
                        let (value, _) =
                            section.read::<SubscriptionCreate>(Some(name), NOT_OF_DEFINITIONS)?;
                        config.subscriptions.push(Written { value, place });
                    }
                }
                // `sections` lets no other pass.
                _ => {}
            }
        }
        Ok(config)
    }

    /// The command line with the file's values as defaults: typed values win.
    pub(crate) fn below(&self, command: Command) -> Command {
        let given = |command: Command, options: &[Given]| {
            options.iter().fold(command, |command, option| {
                let values = option.values.clone();
                command.mut_arg(&option.id, |arg| match values.is_empty() {
                    true => arg.default_value("true"),
                    false => arg.default_values(values),
                })
            })
        };
        command
            .mut_subcommand("serve", |serve| given(serve, &self.serving))
            .mut_subcommand("deliver", |deliver| given(deliver, &self.delivering))
    }

    /// The database that the file names.
    pub(crate) fn database(&self) -> Result<Option<String>> {
        self.database
            .as_ref()
            .map(|source| source.read("the database"))
            .transpose()
    }

    /// What stands behind the variables that definitions name: what `[secrets]` says, and the
    /// environment.
    pub(crate) fn variables(&self) -> Variables {
        let secrets = self.secrets.clone();
        let allowed = self.delivering.iter().find(|o| o.id == "allow_env");
        // The values were checked when they were read.
        let allowed = allowed.and_then(|o| AllowedVariables::new(o.values.clone()).ok());
        let variables = Variables::new(move |name| match secrets.get(name) {
            None => std::env::var(name).ok(),
            Some(source) => match source.read(name) {
                Ok(value) => Some(value),
                Err(error) => {
                    tracing::warn!(%error, "a secret is missing");
                    None
                }
            },
        });
        variables.allowing(allowed.unwrap_or_default())
    }
}

/// The keys of a section with options of its own.
fn ids_of_section(name: &str) -> Vec<String> {
    let command = match name {
        "http" => section::command::<Http>(),
        _ => section::command::<Deliver>(),
    };
    section::ids(&command)
}

#[cfg(test)]
mod tests;
