//! Event triggers, events, and their delivery.

use std::time::{Duration, SystemTime};

use changefeed::{
    AllowedVariables, DispatchOptions, EventId, FeedName, Format, Rate, TriggerName, Variables,
    WebhookOptions, WebhookReach,
};
use clap::{Subcommand, ValueEnum};

use super::{WebhookArgs, batch_size, duration, interval, page_size};

#[derive(Debug, Subcommand)]
pub(crate) enum Trigger {
    /// Create an event trigger
    #[command(after_help = super::examples::TRIGGER_CREATE)]
    Create(Box<CreateTrigger>),
    /// List the event triggers
    List,
    /// Show an event trigger
    Show {
        /// The trigger
        name: TriggerName,
    },
    /// Stop deliveries; changes are captured all the same
    Pause {
        /// The trigger
        name: TriggerName,
        /// Reason, shown by `trigger list` and `trigger show`
        #[arg(long, default_value = "by hand")]
        reason: String,
    },
    /// Go on with deliveries
    Resume {
        /// The trigger
        name: TriggerName,
    },
    /// Send an event by hand
    Invoke {
        /// The trigger; it must have been created with --manual
        name: TriggerName,
        /// What the event carries as 'new', as JSON
        #[arg(long, default_value = "{}")]
        payload: String,
    },
    /// Show what a receiver would get, for the newest event or a payload; nothing enters the event log
    Sample {
        /// The trigger
        name: TriggerName,
        /// What the event carries as 'new', as JSON
        #[arg(long)]
        payload: Option<String>,
        /// Send it, once
        #[arg(long)]
        send: bool,
    },
    /// Send the rows that are there already, as events
    Backfill {
        /// The trigger
        name: TriggerName,
        /// Rows per transaction
        #[arg(long, default_value_t = 1000, value_parser = batch_size)]
        batch: usize,
    },
    /// Remove an event trigger; its events stay in the log
    Drop {
        /// The trigger
        name: TriggerName,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("target").required(true).args(["webhook", "webhook_env", "in_process"]))]
pub(crate) struct CreateTrigger {
    /// The trigger's name: a letter, then letters, digits, '_' and '-'
    pub(crate) name: TriggerName,
    /// The table whose changes become events
    #[arg(long)]
    pub(crate) table: String,
    /// Inserted rows [all three operations unless one is named, or --manual alone]
    #[arg(long)]
    pub(crate) insert: bool,
    /// Updated rows; with columns, only updates that change one of them
    #[arg(long, value_name = "COLUMNS", num_args = 0..=1)]
    pub(crate) update: Option<Option<String>>,
    /// Deleted rows
    #[arg(long)]
    pub(crate) delete: bool,
    /// Allow events sent by hand with `trigger invoke`; given alone, it captures no changes
    #[arg(long)]
    pub(crate) manual: bool,
    /// SQL Server: changes that replication applies make no events
    #[arg(long)]
    pub(crate) not_for_replication: bool,
    /// The columns that an event carries [default: all]
    #[arg(long, value_name = "COLUMNS")]
    pub(crate) payload: Option<String>,
    /// A SQL condition over old and new, for example "new.status = 'paid'"
    #[arg(long, value_name = "SQL")]
    pub(crate) when: Option<String>,
    #[command(flatten)]
    pub(crate) webhook: WebhookArgs,
    /// No webhook: a program that uses the library handles the events
    #[arg(long)]
    pub(crate) in_process: bool,
    /// How requests are written
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: FormatArg,
    /// How many more attempts after a first one that failed
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) retries: u32,
    /// The wait before the next attempt
    #[arg(long, value_name = "S", default_value = "10s", value_parser = duration)]
    pub(crate) interval: Duration,
    /// How long an attempt may take
    #[arg(long, value_name = "S", default_value = "60s", value_parser = duration)]
    pub(crate) timeout: Duration,
    /// Double the wait after every attempt up to this, with jitter
    #[arg(long, value_name = "CAP", value_parser = duration)]
    pub(crate) backoff: Option<Duration>,
    /// HTTP statuses after which no further attempt is made
    #[arg(long, value_name = "STATUSES", value_delimiter = ',')]
    pub(crate) final_status: Vec<u16>,
    /// The longest wait that a receiver may ask for
    #[arg(long, value_name = "S", default_value = "1h", value_parser = duration)]
    pub(crate) max_retry_after: Duration,
    /// Concurrent requests of one instance [default: 100]
    #[arg(long, value_name = "N")]
    pub(crate) concurrency: Option<u32>,
    /// Concurrent requests of all instances together
    #[arg(long, value_name = "N")]
    pub(crate) concurrency_overall: Option<u32>,
    /// Requests of all instances together in a time, like 100/s, 30/m or 500/h
    #[arg(long, value_name = "RATE")]
    pub(crate) rate: Option<Rate>,
    /// How long an event waits before its first attempt
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) delay: Option<Duration>,
    /// For so long after an event, collect those of its key (--in-order), and deliver the last one for all
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "delay")]
    pub(crate) debounce: Option<Duration>,
    /// Remove the attempts of finished events after this time, and keep the events
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) clean_up_logs_after: Option<Duration>,
    /// Deliver events of one key one after the other: the primary key, or this column
    #[arg(long, value_name = "COLUMN", num_args = 0..=1)]
    pub(crate) in_order: Option<Option<String>>,
    /// A feed that every event also enters; created if there is none
    #[arg(long)]
    pub(crate) feed: Option<FeedName>,
    /// The column that decides the shard of that feed
    #[arg(long, value_name = "COLUMN", requires = "feed")]
    pub(crate) shard_by: Option<String>,
    /// Remove delivered events after this time
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) clean_up_after: Option<Duration>,
    /// Remove dead letters too
    #[arg(long, requires = "clean_up_after")]
    pub(crate) clean_up_dead_letters: bool,
    /// Change the trigger if there is one of this name
    #[arg(long)]
    pub(crate) replace: bool,
    /// Create it paused
    #[arg(long)]
    pub(crate) paused: bool,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(crate) enum FormatArg {
    /// The body of Hasura's event triggers
    #[default]
    Hasura,
    /// CloudEvents 1.0, everything in the body
    Cloudevents,
    /// CloudEvents 1.0, attributes in headers
    CloudeventsBinary,
}

impl From<FormatArg> for Format {
    fn from(format: FormatArg) -> Self {
        match format {
            FormatArg::Hasura => Format::Hasura,
            FormatArg::Cloudevents => Format::Cloudevents,
            FormatArg::CloudeventsBinary => Format::CloudeventsBinary,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Event {
    /// List events, newest first
    List(ListEvents),
    /// Show an event with every attempt
    Show {
        /// The event
        id: EventId,
    },
    /// Deliver events again, from the first attempt on
    #[command(after_help = super::examples::EVENT_REDELIVER)]
    Redeliver(Redeliver),
    /// Remove old events that were delivered
    Cleanup(Cleanup),
}

/// Which events.
#[derive(Debug, clap::Args)]
pub(crate) struct Which {
    /// Of this trigger
    #[arg(long, value_name = "NAME")]
    pub(crate) trigger: Option<TriggerName>,
    /// In this state
    #[arg(long, value_enum)]
    pub(crate) status: Option<StatusArg>,
    /// Captured since: a time, or how long ago
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) since: Option<SystemTime>,
    /// Captured before: a time, or how long ago
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(crate) until: Option<SystemTime>,
    /// Whose last attempt was answered with this status
    #[arg(long, value_name = "STATUS")]
    pub(crate) http_status: Option<u16>,
    /// Whose last attempt failed with an error that contains this
    #[arg(long, value_name = "TEXT")]
    pub(crate) error: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListEvents {
    #[command(flatten)]
    pub(crate) which: Which,
    /// How many at most
    #[arg(long, default_value_t = 100, value_parser = page_size)]
    pub(crate) limit: usize,
    /// Older than this event
    #[arg(long, value_name = "CHANGE_ID")]
    pub(crate) before: Option<i64>,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true)
          .args(["id", "trigger", "status", "since", "until", "http_status", "error"]))]
pub(crate) struct Redeliver {
    /// The event
    #[arg(conflicts_with_all = ["trigger", "status", "since", "until", "http_status", "error"])]
    pub(crate) id: Option<EventId>,
    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Cleanup {
    /// Remove events that are older than this
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) older_than: Duration,
    /// Only those of this trigger
    #[arg(long, value_name = "NAME")]
    pub(crate) trigger: Option<TriggerName>,
    /// Also dead letters
    #[arg(long)]
    pub(crate) dead_letters: bool,
    /// Remove only the attempts of finished events, and keep the events
    #[arg(long, conflicts_with = "dead_letters")]
    pub(crate) logs: bool,
    /// Events per transaction
    #[arg(long, default_value_t = 1000, value_parser = batch_size)]
    pub(crate) batch: usize,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum StatusArg {
    /// Waiting, or being delivered
    Pending,
    /// Arrived
    Delivered,
    /// Its retries are used up
    #[value(name = "dead_letter", alias = "error")]
    DeadLetter,
    /// Its trigger was dropped before it was delivered
    Archived,
    /// A later event of its key was delivered for it
    Collapsed,
}

impl From<StatusArg> for changefeed::EventStatus {
    fn from(status: StatusArg) -> Self {
        match status {
            StatusArg::Pending => changefeed::EventStatus::Pending,
            StatusArg::Delivered => changefeed::EventStatus::Delivered,
            StatusArg::DeadLetter => changefeed::EventStatus::DeadLetter,
            StatusArg::Archived => changefeed::EventStatus::Archived,
            StatusArg::Collapsed => changefeed::EventStatus::Collapsed,
        }
    }
}

impl Deliver {
    /// How events are delivered by the instance of this name.
    pub(crate) fn dispatch(&self, owner: &str) -> DispatchOptions {
        DispatchOptions {
            batch: self.event_batch,
            fetch_interval: self.fetch_interval,
            lease: self.lease,
            concurrency: self.concurrency as usize,
            grace: self.grace,
            ..DispatchOptions::new(owner)
        }
    }

    /// How webhooks are spoken to.
    pub(crate) fn webhooks(&self) -> changefeed::Result<WebhookOptions> {
        Ok(WebhookOptions {
            reach: match (
                self.refuse_private_addresses,
                self.allow_link_local_addresses,
            ) {
                (true, _) => WebhookReach::Public,
                (false, false) => WebhookReach::Private,
                (false, true) => WebhookReach::Everything,
            },
            variables: self.variables.clone().allowing(self.allowed()?),
            ..WebhookOptions::default()
        })
    }

    /// The variables that any definition may name.
    pub(crate) fn allowed(&self) -> changefeed::Result<AllowedVariables> {
        AllowedVariables::new(self.allow_env.clone())
    }
}

/// How events are delivered.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Delivery")]
pub(crate) struct Deliver {
    /// Concurrent requests
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) concurrency: u32,
    /// Most events of one trigger that are claimed at a time; twice as many while deliveries are
    /// fast
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) event_batch: u32,
    /// Longest wait between two polls for events
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    pub(crate) fetch_interval: Duration,
    /// How long events stay leased to an instance that dies
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = lease)]
    pub(crate) lease: Duration,
    /// How long deliveries in progress may take after a stop was requested
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    pub(crate) grace: Duration,
    /// Refuse webhooks at private, loopback and link-local addresses; for production
    #[arg(long)]
    pub(crate) refuse_private_addresses: bool,
    /// Allow webhooks at link-local addresses and at those of cloud metadata services, which hand out
    /// credentials of the machine
    #[arg(long, conflicts_with = "refuse_private_addresses")]
    pub(crate) allow_link_local_addresses: bool,
    /// An environment variable that definitions made over HTTP may name too, or a prefix of such
    /// variables, which ends in '_'; can be repeated
    #[arg(long, value_name = "NAME", default_value = AllowedVariables::DEFAULT, value_parser = variable)]
    pub(crate) allow_env: Vec<String>,
    /// What stands behind the variables that definitions name; the file says it.
    #[arg(skip)]
    pub(crate) variables: Variables,
}

/// The name of a variable, or its beginning.
fn variable(text: &str) -> Result<String, String> {
    match AllowedVariables::new([text.to_owned()]) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn lease(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        short if short < Duration::from_millis(500) => {
            Err("a lease of less than 500ms could not be renewed in time".to_owned())
        }
        long => Ok(long),
    }
}

/// A time in RFC 3339, or how long ago.
fn moment(text: &str) -> Result<SystemTime, String> {
    if let Ok(ago) = humantime::parse_duration(text) {
        return SystemTime::now()
            .checked_sub(ago)
            .ok_or_else(|| format!("'{text}' ago is before all times"));
    }
    humantime::parse_rfc3339_weak(text).map_err(|_| {
        format!("'{text}' is not a time: write 2026-01-31T12:00:00Z, or how long ago, like 2h")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_time_or_how_long_ago() {
        let then = moment("1h").unwrap();
        let hour = SystemTime::now().duration_since(then).unwrap();
        assert!(hour >= Duration::from_secs(3600) && hour < Duration::from_secs(3700));
        assert!(moment("2026-01-31T12:00:00Z").is_ok() && moment("2026-01-31 12:00:00").is_ok());
        assert!(moment("yesterday").is_err());
    }
}
