//! What a library user holds: the database, and what is defined in it.

mod consumer;
mod database;
mod feed;
mod subscription;
mod trigger;
mod watch;

pub use consumer::ConsumerHandle;
pub use database::Changefeed;
pub use feed::{FeedHandle, Generation};
pub use trigger::TriggerHandle;
pub use watch::WatchBuilder;
