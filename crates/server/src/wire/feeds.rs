//! Feeds, shards, consumers and pages.

use changefeed::{Feed, ShardState, Source};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// All feeds.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FeedList {
    pub(crate) feeds: Vec<FeedOut>,
}

/// A feed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FeedOut {
    /// The application's constant for this feed.
    pub(crate) id: i16,
    pub(crate) name: String,
    pub(crate) comment: Option<String>,
    /// Where the rows behind its changes are, if it was told.
    pub(crate) source: Option<SourceOut>,
    pub(crate) shards: Vec<ShardOut>,
}

/// A shard of a feed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShardOut {
    pub(crate) shard: i16,
    /// Which sweeper numbers its changes.
    pub(crate) sweep_group: i16,
    /// Whether waiting readers are woken.
    pub(crate) longpoll: bool,
}

/// Where the rows behind a feed's changes are.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum SourceOut {
    /// A trigger on the table publishes every insert, update and delete.
    Captured {
        /// The table, as in SQL.
        #[schema(min_length = 1)]
        table: String,
        /// The column that decides the shard.
        #[serde(default)]
        #[schema(min_length = 1)]
        shard_by: Option<String>,
    },
    /// The application publishes by itself and keeps the `change_id` in a column of its table.
    Joined {
        /// The table, as in SQL.
        #[schema(min_length = 1)]
        table: String,
        /// The column with the `change_id`.
        #[serde(default = "change_id")]
        #[schema(min_length = 1)]
        change_id_column: String,
        /// The column that decides the shard of a backfilled row.
        #[serde(default)]
        #[schema(min_length = 1)]
        shard_by: Option<String>,
    },
    /// The application writes its rows in ULID transactions; the rows are the feed.
    Ulid {
        /// The feed of those transactions.
        #[schema(format = Uuid)]
        feed: String,
        /// The table, as in SQL.
        #[schema(min_length = 1)]
        table: String,
        /// The column with the shard.
        #[schema(min_length = 1)]
        shard_column: String,
        /// The column with the ULID, 16 bytes.
        #[schema(min_length = 1)]
        ulid_column: String,
    },
    /// Event triggers write to it. Such feeds are made by event triggers.
    Events,
}

fn change_id() -> String {
    "change_id".to_owned()
}

impl From<&Source> for SourceOut {
    fn from(source: &Source) -> Self {
        match source.clone() {
            Source::Captured { table, shard_by } => SourceOut::Captured {
                table: table.to_string(),
                shard_by,
            },
            Source::Joined {
                table,
                change_id_column,
                shard_by,
            } => SourceOut::Joined {
                table: table.to_string(),
                change_id_column,
                shard_by,
            },
            Source::Ulid {
                feed,
                table,
                shard_column,
                ulid_column,
            } => SourceOut::Ulid {
                feed: feed.to_string(),
                table: table.to_string(),
                shard_column,
                ulid_column,
            },
            Source::Events => SourceOut::Events,
        }
    }
}

impl From<&Feed> for FeedOut {
    fn from(feed: &Feed) -> Self {
        FeedOut {
            id: feed.id.0,
            name: feed.name.to_string(),
            comment: feed.comment.clone(),
            source: feed.source.as_ref().map(SourceOut::from),
            shards: feed
                .shards
                .iter()
                .map(|s| ShardOut {
                    shard: s.shard.0,
                    sweep_group: s.sweep_group.0,
                    longpoll: s.longpoll,
                })
                .collect(),
        }
    }
}

/// A feed to be created.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewFeedIn {
    #[schema(pattern = "^[a-zA-Z0-9_-]+$", min_length = 1, max_length = 100)]
    pub(crate) name: String,
    /// The feed's number, a constant of the application; the next free one unless given.
    #[serde(default)]
    #[schema(minimum = -32768, maximum = 32767)]
    pub(crate) id: Option<i16>,
    /// How many shards, numbered from 0.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 32767)]
    pub(crate) shards: i16,
    #[serde(default)]
    pub(crate) comment: Option<String>,
    /// The group whose sweeper numbers its changes.
    #[serde(default)]
    #[schema(minimum = -32768, maximum = 32767)]
    pub(crate) sweep_group: i16,
    /// The number before the first.
    #[serde(default)]
    #[schema(pattern = "^[0-9]{1,17}$")]
    pub(crate) start: Option<String>,
    #[serde(default)]
    pub(crate) source: Option<SourceOut>,
}

fn one() -> i16 {
    1
}

/// A feed, the traffic of its shards, and its consumers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FeedDetail {
    pub(crate) id: i16,
    pub(crate) name: String,
    pub(crate) comment: Option<String>,
    pub(crate) source: Option<SourceOut>,
    pub(crate) shards: Vec<ShardDetail>,
    pub(crate) consumers: Vec<ConsumerOut>,
}

/// A shard and its traffic.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShardDetail {
    pub(crate) shard: i16,
    pub(crate) sweep_group: i16,
    pub(crate) longpoll: bool,
    /// The newest number given, or the newest ULID written.
    pub(crate) last: String,
    /// Changes that are committed and wait for their number. Counting stops at 100,000.
    pub(crate) pending: i64,
    /// Milliseconds since that number or ULID was given, or since the shard was created.
    pub(crate) since_ms: i64,
}

impl ShardDetail {
    pub(crate) fn new(state: &ShardState, longpoll: bool) -> Self {
        ShardDetail {
            shard: state.shard.0,
            sweep_group: state.sweep_group.0,
            longpoll,
            last: state.last.to_string(),
            pending: state.pending,
            since_ms: state.since_ms,
        }
    }
}

/// All consumers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ConsumerList {
    pub(crate) consumers: Vec<ConsumerOut>,
}

/// A consumer's place in one shard, and how far behind it is.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ConsumerOut {
    /// Its name.
    pub name: String,
    /// The feed.
    pub feed: String,
    /// The shard.
    pub shard: i16,
    /// The cursor of the last change it has read.
    pub cursor: String,
    /// Numbered changes that it has not read yet.
    pub lag_changes: i64,
    /// Milliseconds since the oldest of these got its number.
    pub lag_ms: i64,
    /// Whether what comes after the cursor was trimmed already.
    pub expired: bool,
    /// Milliseconds since the cursor was last stored.
    pub idle_ms: i64,
}

impl From<changefeed::Consumer> for ConsumerOut {
    fn from(c: changefeed::Consumer) -> Self {
        ConsumerOut {
            name: c.name.to_string(),
            feed: c.feed.to_string(),
            shard: c.shard.0,
            cursor: c.cursor.to_string(),
            lag_changes: c.lag_changes,
            lag_ms: c.lag_ms,
            expired: c.expired,
            idle_ms: c.idle_ms,
        }
    }
}

/// Where a consumer stands.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CursorIn {
    /// The cursor of the last change it has read.
    #[schema(min_length = 1)]
    pub(crate) cursor: String,
    /// The cursor that it stored before, or nothing if it stores one for the first time. When
    /// another is stored, nothing is changed and the answer is 409.
    #[serde(default)]
    pub(crate) from: Option<String>,
    /// Moves the consumer wherever it stands; for people, not for the consumer itself.
    #[serde(default)]
    pub(crate) seek: bool,
}

/// How much to do at a time.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchIn {
    /// Rows in this step.
    #[serde(default = "thousand")]
    #[schema(minimum = 1, maximum = 10000)]
    pub(crate) batch: usize,
}

fn thousand() -> usize {
    1000
}

/// How far a backfill has come.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BackfillOut {
    /// Rows done in this step.
    pub(crate) added: u64,
    /// Rows done since the backfill began.
    pub(crate) done: u64,
    /// Rows in the table when it began.
    pub(crate) total: u64,
    /// Whether nothing is left.
    pub(crate) finished: bool,
}

impl From<changefeed::Backfill> for BackfillOut {
    fn from(b: changefeed::Backfill) -> Self {
        BackfillOut {
            added: b.added,
            done: b.done,
            total: b.total,
            finished: b.finished,
        }
    }
}

/// What to trim.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TrimIn {
    /// Changes that got their number longer ago than this.
    #[schema(maximum = 3_155_760_000_000_u64)]
    pub(crate) older_than_ms: u64,
    /// Changes in this step.
    #[serde(default = "ten_thousand")]
    #[schema(minimum = 1, maximum = 10000)]
    pub(crate) batch: usize,
}

fn ten_thousand() -> usize {
    10_000
}

/// What a trim removed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TrimmedOut {
    pub(crate) removed: u64,
    /// Consumers (with their shard) that have not read yet and kept changes from being removed.
    pub(crate) held_back_by: Vec<String>,
}

/// Which changes.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ChangesQuery {
    /// `first`, `last`, a cursor, or in a feed of ULIDs a time.
    pub(crate) after: Option<String>,
    /// Changes at most.
    #[param(minimum = 1, maximum = 10000)]
    pub(crate) limit: Option<usize>,
    /// Milliseconds to wait if there is nothing yet.
    #[param(maximum = 60000)]
    pub(crate) wait: Option<u64>,
}

/// A page of a shard.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PageOut {
    pub(crate) feed: String,
    pub(crate) shard: i16,
    /// The changes, oldest first.
    pub(crate) changes: Vec<ChangeOut>,
    /// Where to go on: the `after` of the next page.
    pub(crate) next: String,
    /// Whether there was more when this was read: the page was full, by number or by size.
    pub(crate) more: bool,
}

/// One change.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChangeOut {
    /// Its place in the shard.
    pub(crate) cursor: String,
    /// The application's key to whatever changed; none in a feed of ULIDs.
    pub(crate) change_id: Option<String>,
    /// What happened to the row; only in feeds that event triggers write to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub(crate) op: Option<String>,
    /// The row before.
    #[schema(required = false, value_type = Option<Object>)]
    pub(crate) old: Option<()>,
    /// The row after.
    #[schema(required = false, value_type = Option<Object>)]
    pub(crate) new: Option<()>,
    /// The newest state of the row.
    #[schema(value_type = Option<Object>)]
    pub(crate) row: Option<()>,
}
