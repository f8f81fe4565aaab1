//! The command line, as written.

mod events;
mod examples;
mod feed;

use std::path::{Path, PathBuf};
use std::time::Duration;

use changefeed::{ConsumerName, Cursor, FeedName, MAX_PAGE, Result, ShardId, SweepGroup};
use clap::{Parser, Subcommand};

use crate::config::Config;

mod serve;
mod sink;
mod subscription;
mod token;
mod watch;

pub(crate) use events::{
    Cleanup, CreateTrigger, Deliver, Event, ListEvents, Redeliver, Trigger, Which,
};
pub(crate) use feed::{
    BackfillFeed, CreateFeed, DropFeed, Feed, FeedImages, FeedRetention, ReadFeed, ReshardFeed,
    Switch, TailFeed, TrimFeed,
};
pub(crate) use serve::{Http, Serve};
pub(crate) use sink::{BatchSinkArgs, WebhookArgs};
pub(crate) use subscription::{SubscriptionCreate, Subscriptions};
pub(crate) use token::Token;
pub(crate) use watch::{Watch, WatchArgs, WatchCreate, WatchRun, WatchSettingsArgs, WatchTarget};

/// The database, where none is named.
pub(crate) const DEFAULT_DATABASE: &str = "sqlite:changefeed.db";

/// Options of every command; they come last in its help.
const GLOBAL: &str = "Global options";

/// Change feeds from SQL databases that lose, repeat and reorder nothing.
#[derive(Debug, Parser)]
#[command(name = "changefeed", version, max_term_width = 100)]
pub(crate) struct Args {
    /// The database: sqlite:PATH, postgres://user:password@host/database or
    /// sqlserver://user:password@host/database [default: DATABASE_URL, or sqlite:changefeed.db]
    #[arg(
        long,
        global = true,
        help_heading = GLOBAL,
        env = "CHANGEFEED_DB",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub(crate) db: Option<String>,

    /// The file with the settings and definitions [default: changefeed.toml, where there is one]
    #[arg(long, global = true, help_heading = GLOBAL, env = "CHANGEFEED_CONFIG", hide_env_values = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Print data as JSON, one object per line
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) json: bool,

    /// Log more: -v for what is done, -vv for everything; RUST_LOG chooses exactly
    #[arg(short, long, global = true, help_heading = GLOBAL, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    /// How the log on standard error is written
    #[arg(
        long,
        global = true,
        help_heading = GLOBAL,
        env = "CHANGEFEED_LOG_FORMAT",
        hide_env_values = true,
        value_enum,
        default_value_t = LogFormat::Text,
        value_name = "FORMAT"
    )]
    pub(crate) log_format: LogFormat,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How the log is written.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

impl Args {
    /// Whether the command line names a database; one from the environment is not meant for the
    /// demo.
    pub(crate) fn names_database(&self) -> bool {
        self.db.is_some() && self.db != std::env::var("CHANGEFEED_DB").ok()
    }

    /// The file that is named.
    pub(crate) fn config_file(&self) -> Option<&Path> {
        match &self.command {
            Command::Apply(Apply {
                file: Some(file), ..
            }) => Some(file),
            _ => self.config.as_deref(),
        }
    }

    /// The database's URL: from the command line, `CHANGEFEED_DB`, the file or `DATABASE_URL`, in this order.
    pub(crate) fn database(&self, config: &Config) -> Result<String> {
        if let Some(url) = &self.db {
            return Ok(url.clone());
        }
        Ok(match config.database()? {
            Some(url) => url,
            None => given(std::env::var("DATABASE_URL").ok()),
        })
    }
}

/// What other programs call the database, if it is one of ours; the variable may be about something else.
fn given(url: Option<String>) -> String {
    let schemes = ["postgres:", "postgresql:", "sqlserver:", "sqlite:"];
    url.filter(|url| schemes.iter().any(|scheme| url.starts_with(scheme)))
        .unwrap_or_else(|| DEFAULT_DATABASE.to_owned())
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Sweep, deliver events, run watches and answer HTTP, until stopped
    #[command(after_help = examples::SERVE)]
    Serve(Box<Serve>),
    /// Create, change and drop definitions so that the database matches a file; shows the plan first
    #[command(after_help = examples::APPLY)]
    Apply(Apply),
    /// Write a changefeed.toml that has every key with its default
    Init(Init),
    /// Install changefeed's tables, or bring them up to date
    Migrate(Migrate),
    /// Erase what feeds and events have stored of a row
    #[command(after_help = examples::ERASE)]
    Erase(Erase),
    /// Tell readers that the database was restored from a backup: older cursors are refused
    #[command(after_help = examples::RECOVER)]
    Recover(Recover),
    /// Remove everything that changefeed installed in the database
    Uninstall(Uninstall),
    /// Create, read, follow and maintain feeds
    #[command(subcommand)]
    Feed(Feed),
    /// List, move and drop the cursors of named consumers
    #[command(subcommand)]
    Consumer(Consumer),
    /// Give numbers to committed changes, until stopped
    Sweep(Sweep),
    /// Hand the changed rows of a table to a function, and maintain watches
    #[command(after_help = examples::WATCH)]
    Watch(Box<WatchArgs>),
    /// Deliver events to webhooks, until stopped
    Deliver(Deliver),
    /// Show the changes of a table, or forward them to a URL, until stopped; leaves nothing behind
    #[command(after_help = examples::LISTEN)]
    Listen(Listen),
    /// Create and maintain event triggers
    #[command(subcommand)]
    Trigger(Trigger),
    /// List captured events and their attempts, and redeliver them
    #[command(subcommand)]
    Event(Event),
    /// Push the changes of feeds to other systems, in order
    #[command(subcommand)]
    Subscription(Subscriptions),
    /// Create, list and revoke tokens of the HTTP interface
    #[command(subcommand)]
    Token(Token),
    /// Make secrets that sign webhooks
    #[command(subcommand)]
    Secret(Secret),
    /// Show feeds, consumers, sweepers, event triggers and watches
    Status,
    /// Show feeds, deliveries, watches and instances live
    Top(Top),
    /// Find what keeps changes from being captured or delivered
    Doctor(Doctor),
    /// Measure changefeed against the bare database
    #[command(subcommand)]
    Bench(Bench),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write the pages of all commands
    Man {
        /// The directory that gets a page for each command
        #[arg(long, value_name = "DIR")]
        directory: Option<std::path::PathBuf>,
    },
}

impl Command {
    /// Whether it runs with settings and secrets that a file may have.
    pub(crate) fn takes_settings(&self) -> bool {
        match self {
            Command::Serve(_) | Command::Deliver(_) => true,
            Command::Watch(watch) => watch.command.is_none(),
            _ => false,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Apply {
    /// The file [default: that of --config, or changefeed.toml]
    pub(crate) file: Option<PathBuf>,
    /// Print what the database has as a file, and change nothing
    #[arg(long, conflicts_with_all = ["file", "check", "prune", "yes"])]
    pub(crate) export: bool,
    /// Change nothing; exit with 0 when there is nothing to do and with 3 when there is
    #[arg(long)]
    pub(crate) check: bool,
    /// Drop also what is in the database and not in the file
    #[arg(long)]
    pub(crate) prune: bool,
    /// Do not ask before something is dropped
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Listen {
    /// The table
    pub(crate) table: String,
    /// Post each change to this URL, and show the answer
    #[arg(long, value_name = "URL")]
    pub(crate) forward: Option<String>,
    /// Only these changes
    #[arg(long, value_enum, value_delimiter = ',', value_name = "CHANGES")]
    pub(crate) on: Vec<ListenTo>,
    /// A SQL condition over old and new
    #[arg(long, value_name = "SQL")]
    pub(crate) when: Option<String>,
    /// Say nothing but changes
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// A kind of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ListenTo {
    Insert,
    Update,
    Delete,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Init {
    /// Print it instead of writing it
    #[arg(long)]
    pub(crate) print: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Top {
    /// Refresh interval
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    pub(crate) interval: Duration,
    /// Print one snapshot as text and exit; --json prints it as JSON
    #[arg(long)]
    pub(crate) once: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Migrate {
    /// Print the SQL instead of running it; needs no connection
    #[arg(long)]
    pub(crate) print: bool,

    /// Show what would be done, and change nothing
    #[arg(long, conflicts_with = "print")]
    pub(crate) dry_run: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Erase {
    /// The table
    pub(crate) table: String,
    /// A column of its primary key and the row's value, as changes write it
    #[arg(long, value_name = "COLUMN=VALUE", required = true)]
    pub(crate) key: Vec<String>,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Recover {
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Uninstall {
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Secret {
    /// Print a new random secret, for the variable that `--secret-env` names and for the receiver
    Generate,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// Fail for warnings too, not only for problems
    #[arg(long, conflicts_with = "certify")]
    pub(crate) strict: bool,
    /// Test the promises on this server, in a scratch database that is created and dropped
    #[arg(long)]
    pub(crate) certify: bool,
    /// How long --certify runs concurrent writers and readers
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = duration, requires = "certify")]
    pub(crate) duration: Duration,
    /// The file that --certify writes its report to
    #[arg(
        long,
        value_name = "FILE",
        default_value = "changefeed-report.json",
        requires = "certify"
    )]
    pub(crate) report: std::path::PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Consumer {
    /// List consumers and how far behind they are
    List,
    /// Store a consumer's cursor
    Set {
        /// The consumer
        name: ConsumerName,
        /// The feed
        #[arg(long)]
        feed: FeedName,
        /// The shard
        #[arg(long, default_value_t, allow_negative_numbers = true)]
        shard: ShardId,
        /// The cursor of the last change it has read
        #[arg(long, allow_negative_numbers = true)]
        cursor: Cursor,
    },
    /// Remove a consumer, so that it no longer holds back trimming
    Drop {
        /// The consumer
        name: ConsumerName,
        /// The feed
        #[arg(long)]
        feed: FeedName,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Sweep {
    /// The group of shards to sweep
    #[arg(long, default_value_t, allow_negative_numbers = true)]
    pub(crate) group: SweepGroup,
    /// One sweep only
    #[arg(long)]
    pub(crate) once: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Publishing, sweeping, reading, latency and idling of feeds
    Feeds {
        /// Smaller numbers, in less than a minute
        #[arg(long)]
        quick: bool,
    },
    /// Capture, fetching, delivery and idling of event triggers
    Events {
        /// Smaller numbers, in less than a minute
        #[arg(long)]
        quick: bool,
    },
    /// Pages, streams and waiting clients over HTTP
    Http {
        /// Smaller numbers, in less than a minute
        #[arg(long)]
        quick: bool,
    },
    /// ULID transactions: one shard, many shards, many ULIDs at once
    Ulids {
        /// Smaller numbers, in less than a minute
        #[arg(long)]
        quick: bool,
    },
    /// Pushing to NATS and Redis, against the bare client on the same broker; latency
    Subscriptions {
        /// Smaller numbers, in about a minute
        #[arg(long)]
        quick: bool,
        /// This NATS cluster instead of one that is started (nats-server in PATH): nats://host:4222[,host…]
        #[arg(long, value_name = "URL")]
        nats: Option<String>,
        /// This Redis instead of one that is started (redis-server in PATH): redis://host:6379
        #[arg(long, value_name = "URL")]
        redis: Option<String>,
    },
    /// Watches: tracked writes, one worker, polls after a long history, latency
    Watches {
        /// Smaller numbers, in about a minute
        #[arg(long)]
        quick: bool,
    },
}

/// A duration, as it is read everywhere.
fn duration(text: &str) -> Result<Duration, String> {
    changefeed::parse_span(text)
}

/// A duration that something can be repeated after.
fn interval(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("looking all the time is not possible: use more than 0".to_owned()),
        some => Ok(some),
    }
}

fn page_size(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n @ 1..=MAX_PAGE) => Ok(n),
        _ => Err(format!(
            "a page of {text} changes is not possible: ask for 1 to {MAX_PAGE}"
        )),
    }
}

fn batch_size(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n @ 1..=1_000_000) => Ok(n),
        _ => Err(format!(
            "a batch of {text} is not possible: use 1 to 1000000"
        )),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn durations_have_units_or_are_seconds() {
        assert_eq!(duration("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(duration("7d").unwrap(), Duration::from_secs(7 * 86400));
        assert_eq!(duration("0.5").unwrap(), Duration::from_millis(500));
        for bad in ["-1", "soon", "", "5 parsecs", "inf", "NaN"] {
            assert!(duration(bad).unwrap_err().contains("unit"), "{bad}");
        }
    }
}
