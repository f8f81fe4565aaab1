//! Feeds, shards, consumers and pages.

use changefeed_core::{Consumer, Feed, Op, Retention, Source};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// All feeds.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FeedList {
    pub(crate) feeds: Vec<Feed>,
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
    pub(crate) source: Option<Source>,
    /// How long its changes are kept; for ever unless given.
    #[serde(default)]
    pub(crate) retention: Option<Retention>,
}

/// What to change of a feed; what is not there stays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FeedChangeIn {
    /// Another comment; an empty one removes it.
    #[serde(default)]
    pub(crate) comment: Option<String>,
    /// The group whose sweeper numbers its changes.
    #[serde(default)]
    #[schema(minimum = -32768, maximum = 32767)]
    pub(crate) sweep_group: Option<i16>,
    /// Whether the row before and after each change of its table is kept.
    #[serde(default)]
    pub(crate) images: Option<bool>,
    /// How long its changes are kept; null for ever.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Retention>)]
    pub(crate) retention: Option<Option<Retention>>,
}

/// Tells null from what is not there.
fn given<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

fn one() -> i16 {
    1
}

/// All consumers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ConsumerList {
    pub(crate) consumers: Vec<Consumer>,
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

/// Another number of shards.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReshardIn {
    /// How many there are to be.
    #[schema(minimum = 1)]
    pub(crate) shards: i16,
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

/// What to trim.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TrimIn {
    /// Changes that got their number longer ago than this.
    #[schema(maximum = 3_155_760_000_000_u64)]
    pub(crate) older_than_ms: u64,
    /// Also those that a consumer has not read, if they got their number longer ago than this.
    #[serde(default)]
    #[schema(maximum = 3_155_760_000_000_u64)]
    pub(crate) unread_older_than_ms: Option<u64>,
    /// Changes in this step.
    #[serde(default = "ten_thousand")]
    #[schema(minimum = 1, maximum = 10000)]
    pub(crate) batch: usize,
}

fn ten_thousand() -> usize {
    10_000
}

/// Which changes.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ChangesQuery {
    /// `first`, `last`, a cursor, or a time: when a change got its number, or its ULID.
    pub(crate) after: Option<String>,
    /// Changes at most.
    #[param(minimum = 1, maximum = 10000)]
    pub(crate) limit: Option<usize>,
    /// Milliseconds to wait if there is nothing yet.
    #[param(maximum = 60000)]
    pub(crate) wait: Option<u64>,
    /// The incarnation of the page that the cursor is from. When the database was recovered from a backup since,
    /// the answer is 410. The header `Changefeed-Incarnation` says the same.
    #[param(pattern = "^[0-9a-f]{32}$")]
    pub(crate) incarnation: Option<String>,
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
    /// The life of the database that its cursors belong to; not when nothing was read.
    #[schema(required = false)]
    pub(crate) incarnation: String,
    /// Whether nothing will ever come after this page, because the feed goes on in shards of a later generation. Not
    /// there otherwise.
    #[schema(required = false)]
    pub(crate) closed: bool,
}

/// One change.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChangeOut {
    /// Its place in the shard.
    pub(crate) cursor: String,
    /// The application's key to whatever changed; none in a feed of ULIDs.
    pub(crate) change_id: Option<String>,
    /// What happened; not in feeds that the application publishes to by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub(crate) op: Option<Op>,
    /// The key of the row that it happened to; only in feeds made from a table.
    #[schema(required = false, value_type = Option<Object>)]
    pub(crate) key: Option<()>,
    /// The row before; only where images are kept.
    #[schema(required = false, value_type = Option<Object>)]
    pub(crate) old: Option<()>,
    /// The row after.
    #[schema(required = false, value_type = Option<Object>)]
    pub(crate) new: Option<()>,
    /// The columns of an update whose values differ; only with `old` and `new`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub(crate) changed: Option<Vec<String>>,
    /// The row as it is now; null when it is gone, and for a delete.
    #[schema(value_type = Option<Object>)]
    pub(crate) row: Option<()>,
}
