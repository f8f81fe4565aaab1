//! Change feeds from SQL databases that lose, repeat and reorder nothing.
//!
//! ```no_run
//! use changefeed::{After, ShardId, futures::StreamExt};
//!
//! # async fn example() -> changefeed::Result<()> {
//! let db = changefeed::connect("postgres://app@localhost/shop").await?;
//! let orders = db.feed("orders").await?;
//! let mut changes = std::pin::pin!(orders.follow(ShardId(0), After::First));
//! while let Some(change) = changes.next().await {
//!     let change = change?;
//!     println!("{} {:?}", change.cursor, change.content.row());
//! }
//! # Ok(()) }
//! ```

mod backend;
mod events;
mod handle;
mod watch;

pub use backend::{Backend, connect, migration_script};
pub use changefeed_core::*;
pub use changefeed_engine::sinks::webhook::{Reach as WebhookReach, Target as WebhookTarget};
pub use changefeed_engine::sinks::webhook::{
    Variables, WebhookClient, WebhookOptions, keep_secrets, without_secrets,
};
pub use changefeed_engine::sinks::{Exec, PostBatches};
pub use changefeed_engine::{
    CancellationToken, Closure, DispatchOptions, DispatchTotals, Dispatcher, SweepTotals, Sweeper,
    TRACES, WatchFunction, WatchTotals, Watcher,
};
/// The PostgreSQL store: `tokio_postgres` and what works inside the application's own transaction.
pub use changefeed_postgres as postgres;
/// The SQLite store: `rusqlite` and what works inside the application's own transaction.
pub use changefeed_sqlite as sqlite;
/// The SQL Server store: `tiberius` and what works inside the application's own transaction.
pub use changefeed_sqlserver as sqlserver;
pub use events::TriggerHandle;
/// The combinators that go with [`FeedHandle::follow`].
pub use futures_util as futures;
pub use handle::{Changefeed, FeedHandle};
pub use watch::WatchBuilder;
