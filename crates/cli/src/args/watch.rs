//! `changefeed watch`, as written.

use std::time::Duration;

use changefeed::{
    BatchFormat, MAX_WATCH_BATCH, RowFilter, RowOperation, Variables, WatchFrom, WatchName,
    WatchSettings,
};
use clap::Subcommand;

use super::{BatchSinkArgs, duration};

/// Hands the changed rows of TABLE to a function until stopped; or one of the commands.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct WatchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<Watch>,
    #[command(flatten)]
    pub(crate) run: WatchRun,
}

#[derive(Debug, clap::Args)]
pub(crate) struct WatchRun {
    /// The table, as in SQL
    pub(crate) table: Option<String>,
    /// The function's name; a function that is restarted under the same name continues where it stopped. Without a
    /// name nothing is left behind when it ends
    #[arg(long, value_name = "FUNCTION")]
    pub(crate) name: Option<WatchName>,
    /// Keep the function and its backlog when it ends, under a name that is made up and printed
    #[arg(long, conflicts_with = "name")]
    pub(crate) keep: bool,
    #[command(flatten)]
    pub(crate) target: WatchTarget,
    #[command(flatten)]
    pub(crate) settings: WatchSettingsArgs,
    /// Where a new function begins: 'now', or 'beginning' for all rows that are there already
    #[arg(long, default_value = "now", value_name = "now|beginning")]
    pub(crate) from: WatchFrom,
    /// What stands behind the variable with the secret; the file says it.
    #[arg(skip)]
    pub(crate) variables: Variables,
}

/// Where batches go; they are printed if nothing is given.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct WatchTarget {
    #[command(flatten)]
    pub(crate) sink: BatchSinkArgs,
    /// How long the webhook or the command may take for a batch
    #[arg(long, value_parser = duration, value_name = "DURATION", default_value = "60s")]
    pub(crate) timeout: Duration,
    /// Backlog per worker, from which the number of workers is suggested [default: 1000]
    #[arg(long, value_name = "CHANGES", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_changes_per_worker: Option<u32>,
    /// Add its version to each change
    #[arg(long)]
    pub(crate) with_version: bool,
    /// Add the columns that were changed to each update
    #[arg(long)]
    pub(crate) with_columns: bool,
    /// Add the row as it was before to each update and delete
    #[arg(long, alias = "before")]
    pub(crate) with_before: bool,
    #[command(flatten)]
    pub(crate) filter: RowFilterArgs,
}

/// What is handed over.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct RowFilterArgs {
    /// Hand over only these operations, as in insert,delete
    #[arg(long, value_name = "OPERATIONS", value_delimiter = ',')]
    on: Vec<RowOperation>,
    /// Hand over only rows for which this is true, as in "status = 'paid'"; a row for which it is not true any more
    /// is a delete
    #[arg(long, value_name = "CONDITION")]
    when: Option<String>,
    /// Hand over only these columns and the key, and no update of other columns
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    columns: Vec<String>,
}

impl WatchTarget {
    /// What is handed over.
    pub(crate) fn filter(&self) -> RowFilter {
        let filter = self.filter.clone();
        RowFilter {
            on: filter.on,
            when: filter.when,
            columns: filter.columns,
        }
    }

    /// What each change tells.
    pub(crate) fn format(&self) -> BatchFormat {
        BatchFormat {
            version: self.with_version,
            columns: self.with_columns,
            before: self.with_before,
        }
    }
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct WatchSettingsArgs {
    /// Rows in a batch at most [default: 100]
    #[arg(long, value_parser = batch, value_name = "ROWS")]
    pub(crate) batch: Option<usize>,
    /// How long an instance that has found nothing more to do waits before it looks again [default: until there is
    /// something]
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) polling_interval: Option<Duration>,
    /// How long a failed batch waits for its next attempt, and twice as long each time after that [default: 1s]
    #[arg(long, value_parser = duration, value_name = "DURATION", alias = "interval")]
    pub(crate) retry_interval: Option<Duration>,
    /// How long rows stay leased to an instance that does not renew its lease [default: 60s]
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) lease: Option<Duration>,
    /// How often a lease is renewed [default: a quarter of the lease]
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) renewal: Option<Duration>,
    /// How often a change is tried before it is parked [default: 5]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
    pub(crate) attempts: Option<u32>,
}

impl WatchSettingsArgs {
    /// What was given, over the defaults.
    pub(crate) fn settings(&self) -> WatchSettings {
        let default = WatchSettings::default();
        let lease = self.lease.unwrap_or(default.lease);
        WatchSettings {
            batch: self.batch.unwrap_or(default.batch),
            polling_interval: self.polling_interval.unwrap_or(default.polling_interval),
            retry_interval: self.retry_interval.unwrap_or(default.retry_interval),
            lease,
            renewal: self.renewal.unwrap_or(lease / 4),
            attempts: self.attempts.unwrap_or(default.attempts),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Watch {
    /// Define a watch that `changefeed serve` runs
    Create(Box<WatchCreate>),
    /// List the watches and their backlogs
    List,
    /// Show a watch and its parked changes
    Show {
        /// The watch
        name: WatchName,
        /// How many parked changes at most
        #[arg(long, default_value_t = 100, value_name = "ROWS")]
        limit: usize,
    },
    /// Give parked changes another round of attempts
    Retry {
        /// The watch
        name: WatchName,
        /// Only the one that `watch show` lists with this version
        #[arg(long)]
        version: Option<i64>,
    },
    /// Forget what a function was handed and start it over
    Reset {
        /// The watch
        name: WatchName,
        /// Where it begins: 'now', or 'beginning' for all rows that are there
        #[arg(long, default_value = "now", value_name = "now|beginning")]
        from: WatchFrom,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Remove a watch, its backlog, and its trigger if no other watch needs it
    Drop {
        /// The watch
        name: WatchName,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct WatchCreate {
    /// The watch's name: letters, digits, '_' and '-'
    pub(crate) name: WatchName,
    /// The table, as in SQL
    #[arg(long)]
    pub(crate) table: String,
    #[command(flatten)]
    pub(crate) target: WatchTarget,
    #[command(flatten)]
    pub(crate) settings: WatchSettingsArgs,
    /// Where it begins: 'now', or 'beginning' for all rows that are there already
    #[arg(long, default_value = "now", value_name = "now|beginning")]
    pub(crate) from: WatchFrom,
    /// Replace the definition that the watch has
    #[arg(long)]
    pub(crate) replace: bool,
}

fn batch(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n @ 1..=MAX_WATCH_BATCH) => Ok(n),
        _ => Err(format!(
            "a batch of {text} rows is not possible: use 1 to {MAX_WATCH_BATCH}"
        )),
    }
}
