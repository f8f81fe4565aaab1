//! What works on a database without knowing which it is: the loops, where what they find goes to, what a
//! library user holds, and what an instance knows about itself.
//!
//! A loop takes its resources and a shutdown token, owns its state, and ends cleanly when told. The
//! [supervisor] says which of them an instance runs.

mod dispatcher;
mod follower;
mod handle;
mod janitor;
pub mod listening;
pub mod observe;
pub mod sinks;
mod subscriber;
pub mod supervisor;
mod sweeper;
mod timekeeper;
mod traces;
mod watcher;

use changefeed_core::Error;
pub use dispatcher::{Deliverer, DispatchOptions, DispatchTotals, Dispatcher};
pub use follower::{Follower, Next, Pages, ShardPages, follow};
pub use handle::{Changefeed, ConsumerHandle, FeedHandle, Generation, TriggerHandle, WatchBuilder};
pub use janitor::{run_janitor, run_trimmer};
pub use subscriber::{Leases, Sinks, Subscriber};
pub use sweeper::{SweepTotals, Sweeper};
pub use tokio_util::sync::CancellationToken;
pub use traces::TARGET as TRACES;
pub use watcher::{Closure, Handled, WatchFunction, WatchTotals, Watcher};

/// An error with what caused it, on one line of a log.
pub(crate) fn describe(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error} ({source})"),
        None => error.to_string(),
    }
}
