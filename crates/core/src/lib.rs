//! The words and the laws of changefeed.
//!
//! Everything here is a value or a trait: feeds, shards, cursors, pages, leases, the pace of a
//! loop, and the seams ([`Store`]) behind which each database lives. Nothing in this crate knows
//! a driver, opens a file or a socket, or decides by the name of a database.

mod access;
mod bounds;
mod change;
pub mod condition;
mod consumer;
mod crash;
mod cursor;
mod definition;
mod definitions;
mod delivery;
mod environment;
mod error;
mod event;
mod feed;
mod finding;
mod incarnation;
mod instance;
mod lease;
mod name;
mod pace;
mod page_join;
mod position;
mod row_change;
mod row_filter;
mod schema;
mod shard_by;
mod store;
mod subscription;
mod table;
mod template;
mod ulid;
mod ulid_transaction;
pub mod view;
mod wake;
mod watch;
pub mod words;

pub use access::{AccessToken, NewToken, Scope, TokenDigest, TokenId};
pub use bounds::{Bounds, begin_ulid, ulid_of_row};
pub use change::{Change, Content, MAX_PAGE, Op, PAGE_BYTES, Page, PageRoom, changed, raw_json};
pub use condition::{Condition, Dialect, JsonRow};
pub use consumer::{Consumer, ConsumerName, Taken, seek_consumer};
pub use crash::crash_point;
pub use cursor::{After, Cursor};
pub use definition::{
    BATCH_VALUES, Broker, Capture, CleanUp, Container, Delivery, EVENT_VALUES, EventTrigger,
    FeedBinding, Format, Header, NewWatch, OnRefusal, OrderBy, Rate, Retention, Setting, Sink,
    SubscriptionDefinition, SubscriptionFormat, Template, TemplatePlace, TemplateValues,
    TriggerDefinition, TriggerId, TriggerName, Updates, WatchDefinition, Webhook, format_span,
    parse_span, subscription_start,
};
pub use definitions::Step;
pub use delivery::{Answer, Growth, MAX_CUT_OFF, Retry, Verdict};
pub use environment::AllowedVariables;
pub use error::{Error, Kind, Remedy, Result};
pub use event::{
    Attempt, Cleaned, Event, EventBits, EventClaim, EventFilter, EventId, EventStatus, Finished,
    LeasedEvent, LoggedAttempt, LoggedEvent, Operation, Outcome, Redelivery, TriggerState, Wanted,
    cut_off_by, session_json, trace_json,
};
pub use feed::{
    Backfill, DEFAULT_START, Erased, FIRST_CHANGE_ID, Feed, MAX_START, NewFeed, Shard, ShardState,
    Source, Trimmed, key_values,
};
pub use finding::{Finding, Severity};
pub use incarnation::Incarnation;
pub use instance::{Announcement, Connections, Instance, Tallies, Tally};
pub use lease::{Lease, LeaseHolder, Sightings};
pub use name::{FeedId, FeedName, ShardId, SweepGroup};
pub use pace::{Backoff, Pace};
pub use page_join::{PageJoin, PageJoins, PageRows};
pub use row_change::{BatchFormat, Images, RowChange, RowOperation, batch_json};
pub use row_filter::{RowFilter, RowSieve};
pub use schema::{Migration, MigrationStep, SCHEMA_VERSION, SchemaState, require_current};
pub use shard_by::{ShardRange, ShardValue, shard_of};
pub use store::{
    AccessStore, ConsumerStore, DefinitionStore, EventStore, FeedStore, InstanceStore, LeaseStore,
    SchemaStore, Store, SubscriptionStore, SweepReport, SweepStore, SweptShard, TriggerStore,
    UlidStore, WakeStore, WatchStore,
};
pub use subscription::{
    Advance, Found, Lane, LaneFailure, LaneState, ParkedChange, Subscription, reconcile,
    subscription_starts,
};
pub use table::{Fold, TableName};
pub use template::fill;
pub use ulid::{Ulid, UlidState};
pub use ulid_transaction::{Incident, UlidCounter, UlidCounters, UlidOptions, UlidShard};
pub use uuid::Uuid;
pub use wake::{Listener, ShardPlace, WakeHub, WatchPlace};
pub use watch::{
    Batch, BatchOutcome, CHANGES_PER_WORKER, MAX_WATCH_BATCH, Parked, ParkedRows, Part, Settled,
    Take, Watch, WatchFrom, WatchName, WatchSettings, WatchSpec, WatchStatus, suggested_workers,
};
