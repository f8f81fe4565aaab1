//! `changefeed subscription`, as written.

use std::time::Duration;

use changefeed::{
    After, Changefeed, ConsumerName, Container, FeedName, MAX_PAGE, OnRefusal, Result, ShardId,
    Sink, SubscriptionDefinition, SubscriptionFormat, subscription_start,
};
use clap::Subcommand;

use super::{WebhookArgs, duration};
use crate::commands::columns;

#[derive(Debug, Subcommand)]
pub(crate) enum Subscriptions {
    /// Define a subscription that `changefeed serve` runs
    #[command(after_help = super::examples::SUBSCRIPTION_CREATE)]
    Create(Box<SubscriptionCreate>),
    /// List the subscriptions and how far they are behind
    List,
    /// Show a subscription, its shards and its parked changes
    Show {
        /// The subscription
        name: ConsumerName,
        /// How many parked changes at most
        #[arg(long, default_value_t = 100, value_name = "CHANGES")]
        limit: usize,
    },
    /// Stop pushing; retention waits, unless --max-backlog says otherwise
    Pause {
        /// The subscription
        name: ConsumerName,
        /// Why, for others to read
        #[arg(long, default_value = "by hand")]
        reason: String,
    },
    /// Go on pushing, also in shards that were stopped: a refused change is tried again
    Resume {
        /// The subscription
        name: ConsumerName,
    },
    /// Go on elsewhere, in a new epoch
    Seek {
        /// The subscription
        name: ConsumerName,
        /// Where it goes on: 'beginning', 'now', behind a cursor, or at a time
        #[arg(long, value_parser = subscription_start, value_name = "PLACE")]
        to: After,
        /// Only in this shard
        #[arg(long)]
        shard: Option<ShardId>,
    },
    /// Push everything that is kept again, in a new epoch
    Replay {
        /// The subscription
        name: ConsumerName,
        /// Where it begins: 'beginning', behind a cursor, or at a time
        #[arg(long, value_parser = subscription_start, default_value = "beginning", value_name = "PLACE")]
        from: After,
        /// Only this shard
        #[arg(long)]
        shard: Option<ShardId>,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Accept that the sink does not hold what was pushed before, and go on behind it
    Reset {
        /// The subscription
        name: ConsumerName,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Remove a subscription and its position; the sink keeps what it has
    Drop {
        /// The subscription
        name: ConsumerName,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct SubscriptionCreate {
    /// The subscription's name: letters, digits, '_' and '-'
    pub(crate) name: ConsumerName,
    /// The feed
    #[arg(long)]
    pub(crate) feed: FeedName,
    /// The sink: nats://HOST/SUBJECT, redis://HOST/STREAM, amqp://HOST/?queue=QUEUE, s3://BUCKET/PREFIX, https://…, file:PATH, dir:PATH, exec:COMMAND or stdout:
    #[arg(long, value_name = "URL", required_unless_present = "to_env")]
    pub(crate) to: Option<String>,
    /// The environment variable that holds the URL of the sink now, for one with a password
    #[arg(long, value_name = "VAR", conflicts_with = "to")]
    pub(crate) to_env: Option<String>,
    /// What the objects of s3: and dir: hold a batch as: ndjson, ndjson.gz or parquet; the same as ?as= in the URL
    #[arg(id = "as", long = "as", value_name = "FORM")]
    pub(crate) container: Option<Container>,
    /// A header of every request to a webhook
    #[arg(long, value_name = "K=V")]
    pub(crate) header: Vec<String>,
    /// A header whose value is in an environment variable
    #[arg(long, value_name = "K=VAR")]
    pub(crate) header_env: Vec<String>,
    /// The environment variable with the secret that signs requests to a webhook (whsec_…)
    #[arg(long, value_name = "VAR")]
    pub(crate) secret_env: Vec<String>,
    /// What a message looks like: json, cloudevents, cloudevents-binary or debezium
    #[arg(long, default_value = "json")]
    pub(crate) format: SubscriptionFormat,
    /// A template for the subject, with {feed}, {shard}, {op}, {key}, {table} and {subscription}
    #[arg(long, value_name = "TEMPLATE")]
    pub(crate) subject: Option<String>,
    /// A template for the key of a message [default: the key of the row]
    #[arg(long, value_name = "TEMPLATE")]
    pub(crate) key: Option<String>,
    /// Only rows for which this is true, as in --when of a feed; the feed must keep images
    #[arg(long, value_name = "CONDITION")]
    pub(crate) when: Option<String>,
    /// Only these columns of the rows, separated by commas; the feed must keep images [default: all]
    #[arg(long, value_name = "COLUMNS")]
    pub(crate) columns: Option<String>,
    /// Messages in a batch at most
    #[arg(long, default_value_t = SubscriptionDefinition::BATCH, value_parser = batch, value_name = "N")]
    pub(crate) batch: usize,
    /// How long changes are collected for a batch
    #[arg(long, default_value = "0s", value_parser = duration, value_name = "DURATION")]
    pub(crate) every: Duration,
    /// Where it begins: 'beginning' with what was backfilled, 'now', behind a cursor, or at a time
    #[arg(long, default_value = "beginning", value_parser = subscription_start, value_name = "PLACE")]
    pub(crate) from: After,
    /// What happens to a message that the sink will never take: stop, park, or the URL of a sink for these
    #[arg(long, default_value = "stop", value_name = "stop|park|URL")]
    pub(crate) on_refusal: OnRefusal,
    /// Give up the position of a paused or stopped subscription that is further behind, so that retention goes on
    #[arg(long, value_name = "CHANGES")]
    pub(crate) max_backlog: Option<u64>,
    /// How long the sink may take for a batch
    #[arg(long, default_value = "30s", value_parser = duration, value_name = "DURATION")]
    pub(crate) timeout: Duration,
    /// Create it paused
    #[arg(long)]
    pub(crate) paused: bool,
    /// Change the subscription of this name; it goes on where it is
    #[arg(long)]
    pub(crate) replace: bool,
}

impl SubscriptionCreate {
    /// The definition that was typed, or written in a file.
    pub(crate) fn definition(self, db: &Changefeed) -> Result<SubscriptionDefinition> {
        let to = match (self.to, self.to_env) {
            (Some(to), _) => to,
            (None, Some(variable)) => std::env::var(&variable).map_err(|_| {
                crate::usage(format!("the environment variable {variable} is not set"))
                    .advise("put the URL of the sink into it")
            })?,
            (None, None) => return Err(crate::usage("the URL of the sink is missing")),
        };
        let mut sink: Sink = to.parse()?;
        if let Some(container) = self.container {
            sink = sink.holding(container)?;
        }
        let webhook = WebhookArgs {
            webhook: sink.as_webhook().map(|_| to),
            header: self.header,
            header_env: self.header_env,
            secret_env: self.secret_env,
            ..WebhookArgs::default()
        };
        let definition = SubscriptionDefinition {
            format: self.format,
            subject: self.subject,
            key: self.key,
            when: self.when,
            columns: match &self.columns {
                Some(names) => Some(columns::parse(db, names)?),
                None => None,
            },
            batch: self.batch,
            every: self.every,
            from: self.from,
            on_refusal: self.on_refusal,
            max_backlog: self.max_backlog,
            timeout: self.timeout,
            ..SubscriptionDefinition::new(self.name, self.feed, webhook.sink()?.unwrap_or(sink))
        };
        definition.validate()?;
        Ok(definition)
    }
}

fn batch(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n @ 1..=MAX_PAGE) => Ok(n),
        _ => Err(format!(
            "a batch of {text} messages is not possible: use 1 to {MAX_PAGE}"
        )),
    }
}
