//! The loops: each takes its resources and a shutdown token, owns its state, and ends cleanly
//! when told. Nothing here knows which database it works on.

mod dispatcher;
mod follower;
mod janitor;
pub mod sinks;
mod sweeper;
mod timekeeper;
mod traces;
mod watcher;

use changefeed_core::Error;
pub use dispatcher::{Deliverer, DispatchOptions, DispatchTotals, Dispatcher};
pub use follower::{Follow, follow, long_poll};
pub use janitor::run_janitor;
pub use sweeper::{SweepTotals, Sweeper};
pub use tokio_util::sync::CancellationToken;
pub use traces::TARGET as TRACES;
pub use watcher::{Closure, WatchFunction, WatchTotals, Watcher};

/// An error with what caused it, on one line of a log.
pub(crate) fn describe(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error} ({source})"),
        None => error.to_string(),
    }
}
