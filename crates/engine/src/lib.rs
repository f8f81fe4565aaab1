//! The loops: each takes its resources and a shutdown token, owns its state, and ends cleanly
//! when told. Nothing here knows which database it works on.

mod follower;
pub mod sinks;
mod sweeper;

pub use follower::{Follow, follow, long_poll};
pub use sweeper::{SweepTotals, Sweeper};
pub use tokio_util::sync::CancellationToken;
