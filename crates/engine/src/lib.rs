//! The loops: each takes its resources and a shutdown token, owns its state, and ends cleanly
//! when told. Nothing here knows which database it works on.

mod follower;
mod sinks;
mod sweeper;
mod watcher;

pub use follower::{Follow, follow, long_poll};
pub use sinks::Exec;
pub use sweeper::{SweepTotals, Sweeper};
pub use tokio_util::sync::CancellationToken;
pub use watcher::{Closure, WatchFunction, WatchTotals, Watcher};
