//! The types of the interface. They are described by what they are: the OpenAPI document comes from
//! here.

pub(crate) mod events;
pub(crate) mod feeds;
pub(crate) mod status;
pub(crate) mod subscriptions;
pub(crate) mod tokens;
pub(crate) mod triggers;
pub(crate) mod watches;

use std::time::Duration;

/// Milliseconds as HTTP has them.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
