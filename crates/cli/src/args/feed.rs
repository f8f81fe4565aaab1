//! `changefeed feed`, as written.

use std::time::Duration;

use changefeed::{After, ConsumerName, FeedId, FeedName, Incarnation, ShardId, SweepGroup, Uuid};
use clap::Subcommand;

use super::{batch_size, duration, examples, page_size};

#[derive(Debug, Subcommand)]
pub(crate) enum Feed {
    /// Create a feed
    #[command(after_help = examples::FEED_CREATE)]
    Create(Box<CreateFeed>),
    /// List the feeds
    List,
    /// Read one page of a shard
    #[command(after_help = examples::FEED_READ)]
    Read(ReadFeed),
    /// Follow a feed as changes arrive
    Tail(TailFeed),
    /// Start or stop keeping the row before and after every change of a feed's table
    Images(FeedImages),
    /// Go on with another number of shards; those that there are get closed
    Reshard(ReshardFeed),
    /// Give numbers below the start to rows that are older than the feed
    Backfill(BackfillFeed),
    /// Remove old changes that every consumer has read
    Trim(TrimFeed),
    /// Say how long changes are kept; a running `changefeed serve` removes older ones
    Retention(FeedRetention),
    /// Remove a feed and everything in it
    Drop(DropFeed),
}

#[derive(Debug, clap::Args)]
pub(crate) struct CreateFeed {
    /// The feed's name: letters, digits, '_' and '-'
    pub(crate) name: FeedName,
    /// The feed's number, a constant of your application [default: the next free one]
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) id: Option<FeedId>,
    /// How many shards, numbered from 0
    #[arg(long, default_value_t = 1, allow_negative_numbers = true,
          value_parser = clap::value_parser!(i16).range(1..))]
    pub(crate) shards: i16,
    /// Publish every insert, update and delete of this table, by a trigger
    #[arg(long, value_name = "TABLE", conflicts_with = "rows")]
    pub(crate) from: Option<String>,
    /// Find the rows of changes that the application publishes itself in this table
    #[arg(long, value_name = "TABLE")]
    pub(crate) rows: Option<String>,
    /// The column of --rows that holds the change_id
    #[arg(
        long,
        value_name = "COLUMN",
        default_value = "change_id",
        requires = "rows"
    )]
    pub(crate) change_id_column: String,
    /// The feed of ULID transactions whose rows are this feed
    #[arg(long, value_name = "UUID", conflicts_with_all = ["from", "rows", "shard_by"],
          requires_all = ["ulid_table", "shard_column", "ulid_column"])]
    pub(crate) ulid_feed: Option<Uuid>,
    /// The table that those transactions write to
    #[arg(long, value_name = "TABLE", requires = "ulid_feed")]
    pub(crate) ulid_table: Option<String>,
    /// Its column with the shard
    #[arg(long, value_name = "COLUMN", requires = "ulid_feed")]
    pub(crate) shard_column: Option<String>,
    /// Its column with the ULID, 16 bytes
    #[arg(long, value_name = "COLUMN", requires = "ulid_feed")]
    pub(crate) ulid_column: Option<String>,
    /// The column whose value decides the shard
    #[arg(long, value_name = "COLUMN")]
    pub(crate) shard_by: Option<String>,
    /// Keep the row before and after every change of --from; every reader of the feed can see them
    #[arg(long, requires = "from")]
    pub(crate) images: bool,
    /// Only rows for which this is true, as in "status = 'paid' and total > 100"; keeps images
    #[arg(long, value_name = "CONDITION", requires = "from")]
    pub(crate) when: Option<String>,
    /// Only these columns of the rows; keeps images [default: all]
    #[arg(long, value_name = "COLUMNS", requires = "from")]
    pub(crate) columns: Option<String>,
    /// Remove changes this long after they got their number, once every consumer has read them
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) trim_after: Option<Duration>,
    /// Remove them after this time even if a consumer has not read them: it gets the error "cursor expired"
    #[arg(long, value_parser = duration, value_name = "DURATION", requires = "trim_after")]
    pub(crate) trim_unread_after: Option<Duration>,
    /// The group whose sweeper numbers this feed
    #[arg(
        long,
        default_value_t,
        value_name = "GROUP",
        allow_negative_numbers = true
    )]
    pub(crate) sweep_group: SweepGroup,
    /// The number before the first
    #[arg(long, default_value_t = changefeed::DEFAULT_START, value_name = "NUMBER",
          allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(0..=changefeed::MAX_START))]
    pub(crate) start: i64,
    /// A comment
    #[arg(long)]
    pub(crate) comment: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReadFeed {
    /// The feed
    pub(crate) name: FeedName,
    /// The shard
    #[arg(long, default_value_t, allow_negative_numbers = true)]
    pub(crate) shard: ShardId,
    /// Where to begin: 'first', 'last', a cursor, or a time like 2026-01-31T12:00:00Z
    #[arg(long, default_value = "first", allow_negative_numbers = true)]
    pub(crate) after: After,
    /// How many changes at most
    #[arg(long, default_value_t = 100, value_parser = page_size, allow_negative_numbers = true)]
    pub(crate) limit: usize,
    /// Wait this long for something to come
    #[arg(long, value_parser = duration, value_name = "DURATION", default_value = "0s")]
    pub(crate) wait: Duration,
    /// The incarnation of the database that the cursor belongs to; fails if the database has another one
    #[arg(long, value_name = "ID")]
    pub(crate) incarnation: Option<Incarnation>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TailFeed {
    /// The feed
    pub(crate) name: FeedName,
    /// The shard [default: all]
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) shard: Option<ShardId>,
    /// Where to begin: 'first', 'last', a cursor, or a time like 2026-01-31T12:00:00Z
    #[arg(long, default_value = "last", allow_negative_numbers = true)]
    pub(crate) after: After,
    /// Go on where this named consumer stopped, and keep its cursor
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<ConsumerName>,
    /// The incarnation of the database that the cursor belongs to; fails if the database has another one
    #[arg(long, value_name = "ID")]
    pub(crate) incarnation: Option<Incarnation>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BackfillFeed {
    /// The feed
    pub(crate) name: FeedName,
    /// Rows per transaction
    #[arg(long, default_value_t = 1000, value_parser = batch_size)]
    pub(crate) batch: usize,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TrimFeed {
    /// The feed
    pub(crate) name: FeedName,
    /// Remove changes that got their number longer ago than this
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) older_than: Duration,
    /// Also those that a consumer has not read, if they got their number longer ago than this
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) unread_older_than: Option<Duration>,
    /// Changes per transaction
    #[arg(long, default_value_t = 10_000, value_parser = batch_size)]
    pub(crate) batch: usize,
}

#[derive(Debug, clap::Args)]
pub(crate) struct FeedRetention {
    /// The feed
    pub(crate) name: FeedName,
    /// Remove changes this long after they got their number, once every consumer has read them
    #[arg(long, value_parser = duration, value_name = "DURATION", required_unless_present = "off")]
    pub(crate) trim_after: Option<Duration>,
    /// Remove them after this time even if a consumer has not read them: it gets the error "cursor expired"
    #[arg(long, value_parser = duration, value_name = "DURATION", requires = "trim_after")]
    pub(crate) trim_unread_after: Option<Duration>,
    /// Keep all changes
    #[arg(long, conflicts_with = "trim_after")]
    pub(crate) off: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReshardFeed {
    /// The feed
    pub(crate) name: FeedName,
    /// How many shards it is to have from now on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i16).range(1..))]
    pub(crate) shards: i16,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct FeedImages {
    /// The feed
    pub(crate) name: FeedName,
    /// Whether they are kept
    pub(crate) keep: Switch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DropFeed {
    /// The feed
    pub(crate) name: FeedName,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}
