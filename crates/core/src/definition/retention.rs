//! How long the changes of a feed are kept.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::text;
use crate::{Error, Result};

/// How long the changes of a feed are kept after they got their numbers.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retention {
    /// Those that every consumer has read.
    #[serde(with = "text::span")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub trim_after: Duration,
    /// Those that some consumer has not read: one that is gone holds nothing back for longer than this. For ever
    /// unless given.
    #[serde(default, with = "text::optional_span")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub trim_unread_after: Option<Duration>,
}

impl Retention {
    /// What a database keeps: two numbers of milliseconds, the second of which may be missing.
    pub fn of_milliseconds(after: Option<i64>, unread: Option<i64>) -> Option<Self> {
        let span = |ms: i64| Duration::from_millis(ms.max(0).unsigned_abs());
        Some(Retention {
            trim_after: span(after?),
            trim_unread_after: unread.map(span),
        })
    }

    /// The same, the other way round.
    pub fn milliseconds(of: Option<&Self>) -> (Option<i64>, Option<i64>) {
        let ms = |span: Duration| i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
        let after = of.map(|r| ms(r.trim_after));
        let unread = of.and_then(|r| r.trim_unread_after.map(ms));
        (after, unread)
    }

    /// Checks that what somebody has not read stays at least as long as what everybody has read.
    pub fn validate(&self) -> Result<()> {
        match self.trim_unread_after {
            Some(unread) if unread < self.trim_after => Err(Error::invalid(
                "changes that a consumer has not read cannot be removed before those that all have read",
            )
            .advise("give a longer time for what is unread, or none to keep it")),
            _ => Ok(()),
        }
    }
}

impl From<Duration> for Retention {
    fn from(trim_after: Duration) -> Self {
        Retention {
            trim_after,
            trim_unread_after: None,
        }
    }
}
