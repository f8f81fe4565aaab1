//! Change feeds from SQL databases that lose, repeat and reorder nothing.
//!
//! Four capabilities, on SQLite, PostgreSQL and SQL Server alike. [`connect`] opens a database,
//! [`Changefeed::migrate`] installs our tables in it.
//!
//! # Feeds
//!
//! Changes of a table in the order of their numbers, which a sweeper gives after commit. A reader keeps a
//! cursor and never misses a change.
//!
//! ```
//! use changefeed::{After, NewFeed, ShardId};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> changefeed::Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! # let file = directory.path().join("shop.db");
//! # let app = changefeed::sqlite::rusqlite::Connection::open(&file).unwrap();
//! # app.execute_batch("create table orders (id integer primary key, status text)").unwrap();
//! # let url = format!("sqlite:{}", file.display());
//! #[derive(serde::Deserialize)]
//! struct Order {
//!     id: i64,
//!     status: String,
//! }
//!
//! let db = changefeed::connect(&url).await?;
//! db.migrate().await?;
//! let orders = db.create_feed(&NewFeed::captured("orders")?).await?;
//! # app.execute_batch("insert into orders values (1, 'new')").unwrap();
//!
//! let page = orders.read(ShardId(0), After::First, 100).await?;
//! for change in &page.changes {
//!     if let Some(order) = change.row::<Order>()? {
//!         assert_eq!((order.id, &*order.status), (1, "new"));
//!     }
//! }
//! // Next time: orders.read(ShardId(0), After::Cursor(page.next), 100)
//! # assert_eq!(page.changes.len(), 1);
//! # Ok(()) }
//! ```
//!
//! [`FeedHandle::follow`] and [`FeedHandle::follow_all`] are streams that never end (but that of a shard which is closed); [`ConsumerHandle`]
//! stores cursors in the database.
//!
//! # ULID transactions
//!
//! Writers of a shard one after the other, each with ULIDs that are greater than all before: see
//! `begin_ulid_transaction` in [`sqlite`], [`postgres`] and [`sqlserver`], and the example `ulid_writer`.
//!
//! # Event triggers
//!
//! Every insert, update and delete with the old and the new row, delivered with retries to a webhook or to
//! a function.
//!
//! ```no_run
//! use changefeed::{CancellationToken, DispatchOptions};
//!
//! # async fn example(db: changefeed::Changefeed) -> changefeed::Result<()> {
//! let orders = db.trigger("orders").await?;
//! let mail = orders.handler(DispatchOptions::new("mailer-1"), |event| async move {
//!     println!("{} {:?}", event.op.as_str(), event.new);
//!     Ok::<(), String>(())
//! });
//! mail.run(|_| {}, CancellationToken::new()).await?;
//! # Ok(()) }
//! ```
//!
//! # Watches
//!
//! The rows of a table that have changed, net and in leased batches, for a function that any number of
//! instances run.
//!
//! ```no_run
//! use changefeed::{CancellationToken, RowChange};
//! use serde::Deserialize;
//!
//! #[derive(Deserialize)]
//! struct Order {
//!     id: i64,
//!     // A deleted row has only its key.
//!     note: Option<String>,
//! }
//!
//! # async fn example(db: changefeed::Changefeed) -> changefeed::Result<()> {
//! db.watch("orders")
//!     .name("mail")
//!     .batch(100)
//!     .run(
//!         |changes: Vec<RowChange<Order>>| async move {
//!             for change in changes {
//!                 println!("{} of order {}", change.operation, change.item.id);
//!             }
//!             Ok::<(), std::io::Error>(())
//!         },
//!         CancellationToken::new(),
//!     )
//!     .await?;
//! # Ok(()) }
//! ```
//!
//! # Serving
//!
//! [`serve`] does within your program what `changefeed serve` does: it sweeps, delivers events and runs
//! watches; with the feature `server` it also answers HTTP.
//!
//! ```no_run
//! use changefeed::{CancellationToken, ServeOptions};
//!
//! # async fn example(db: changefeed::Changefeed) -> changefeed::Result<()> {
//! changefeed::serve(ServeOptions::new(&db), CancellationToken::new()).await?;
//! # Ok(()) }
//! ```
//!
//! # Features
//!
//! | feature | brings |
//! |---|---|
//! | `sqlite`, `postgres`, `sqlserver` | the databases; all of them unless you choose |
//! | `server` | HTTP interface, dashboard and metrics |
//! | `otel` | webhooks join the trace of the change |

mod backend;
mod serve;

pub use backend::{Backend, connect, migration_script};
pub use serve::{ServeOptions, Service, serve};

pub use changefeed_core::{format_span, parse_span};
// Names, errors, and how things are compared.
pub use changefeed_core::{Error, Kind, Remedy, Result, Uuid};
pub use changefeed_core::{FeedId, FeedName, Fold, ShardId, SweepGroup, TableName};
// Feeds and reading.
pub use changefeed_core::{
    After, Backfill, Change, Consumer, ConsumerName, Content, Cursor, DEFAULT_START, Erased, Feed,
    Incarnation, MAX_PAGE, MAX_START, NewFeed, Op, Page, Retention, Shard, ShardState, Source,
    Taken, Trimmed,
};
pub use changefeed_core::{SweepReport, SweptShard};
// ULID transactions.
pub use changefeed_core::{Incident, Ulid, UlidOptions, UlidShard};
// Event triggers and events.
pub use changefeed_core::{
    AllowedVariables, Capture, CleanUp, Cleaned, Condition, Delivery, EVENT_VALUES, EventTrigger,
    FeedBinding, Format, Growth, Header, OrderBy, Rate, Retry, Setting, Sink, TriggerDefinition,
    TriggerId, TriggerName, TriggerState, Updates, Webhook,
};
pub use changefeed_core::{
    Attempt, Event, EventBits, EventFilter, EventId, EventStatus, LeasedEvent, LoggedAttempt,
    LoggedEvent, Operation, Outcome, Redelivery, raw_json,
};
// Watches.
pub use changefeed_core::{
    Batch, BatchFormat, CHANGES_PER_WORKER, Images, MAX_WATCH_BATCH, NewWatch, Parked, ParkedRows,
    RowChange, RowFilter, RowOperation, Watch, WatchDefinition, WatchFrom, WatchName,
    WatchSettings, WatchSpec, WatchStatus, batch_json,
};
// Subscriptions.
pub use changefeed_core::{
    Broker, Container, Lane, LaneState, OnRefusal, ParkedChange, Subscription,
    SubscriptionDefinition, SubscriptionFormat, subscription_start,
};
// Operating.
pub use changefeed_core::{
    AccessToken, Announcement, Connections, Finding, Instance, LeaseHolder, Migration,
    MigrationStep, NewToken, SCHEMA_VERSION, SchemaState, Scope, Severity, Step, Store, Tallies,
    TokenDigest, TokenId, require_current, view,
};

pub use changefeed_engine::listening::{listen, remove_dead as remove_dead_listeners};
pub use changefeed_engine::observe::{Diagnosis, Looks, unswept};
pub use changefeed_engine::sinks::destination;
pub use changefeed_engine::sinks::webhook::{
    Reach as WebhookReach, Target as WebhookTarget, Variables, WebhookClient, WebhookOptions,
    keep_secrets, without_secrets,
};
pub use changefeed_engine::sinks::{Exec, PostBatches, PushOptions, PushTo, batch_sink, place_of};
pub use changefeed_engine::supervisor::{InstanceOptions, Role, deliver, unique_name};
pub use changefeed_engine::{
    CancellationToken, Changefeed, Closure, ConsumerHandle, DispatchOptions, DispatchTotals,
    Dispatcher, FeedHandle, Generation, Handled, Leases, Sinks, Subscriber, SweepTotals, Sweeper,
    TRACES, TriggerHandle, WatchBuilder, WatchFunction, WatchTotals, Watcher,
};

/// The PostgreSQL store: `tokio_postgres` and what works inside the application's own transaction.
#[cfg(feature = "postgres")]
pub use changefeed_postgres as postgres;
/// The HTTP server: its options, certificates and tokens.
#[cfg(feature = "server")]
pub use changefeed_server as server;
/// The SQLite store: `rusqlite` and what works inside the application's own transaction.
#[cfg(feature = "sqlite")]
pub use changefeed_sqlite as sqlite;
/// The SQL Server store: `tiberius` and what works inside the application's own transaction.
#[cfg(feature = "sqlserver")]
pub use changefeed_sqlserver as sqlserver;
/// The combinators that go with [`FeedHandle::follow`].
pub use futures_util as futures;
