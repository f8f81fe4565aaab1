//! Names and numbers that identify things, each its own type so that they cannot be confused.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

macro_rules! small_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize,
            Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub i16);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                text.parse().map($name).map_err(|_| {
                    Error::invalid(format!(
                        concat!("'{}' is not a ", $what, ": it must be a whole number from -32768 to 32767"),
                        text
                    ))
                })
            }
        }
    };
}

small_id!(
    /// The number of a feed, allocated by the application as a constant of its own.
    FeedId,
    "feed id"
);
small_id!(
    /// The number of a shard within its feed; not necessarily dense.
    ShardId,
    "shard"
);
small_id!(
    /// The number of a group of shards that share one sweeper.
    SweepGroup,
    "sweep group"
);

/// A feed's name: `[a-zA-Z0-9_-]+`, at most 100 characters, so that it fits a URL as it is.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FeedName(String);

impl FeedName {
    /// The longest allowed name.
    pub const MAX: usize = 100;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Wraps a name that the database returned, without checking it.
    pub fn trusted(name: String) -> Self {
        FeedName(name)
    }
}

impl fmt::Display for FeedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for FeedName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        check_name("feed name", text, FeedName::MAX).map(FeedName)
    }
}

/// Checks a name that may appear in URLs, file names and SQL alike.
pub(crate) fn check_name(what: &str, text: &str, max: usize) -> Result<String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if text.is_empty() || text.len() > max || !text.chars().all(fine) {
        return Err(Error::invalid(format!(
            "'{text}' is not a {what}: use 1 to {max} letters, digits, '_' and '-'"
        )));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feed_names_are_url_safe() {
        for good in ["orders", "my-event_2", "A", &"x".repeat(100)] {
            assert_eq!(good.parse::<FeedName>().unwrap().as_str(), good);
        }
        for bad in ["", "a b", "é", "a/b", "a.b", &"x".repeat(101)] {
            let error = bad.parse::<FeedName>().unwrap_err();
            assert!(
                error
                    .message()
                    .ends_with("use 1 to 100 letters, digits, '_' and '-'")
            );
        }
    }

    #[test]
    fn ids_are_small_integers() {
        assert_eq!("37".parse::<FeedId>().unwrap(), FeedId(37));
        assert_eq!("-1".parse::<ShardId>().unwrap(), ShardId(-1));
        assert_eq!(
            "40000".parse::<FeedId>().unwrap_err().message(),
            "'40000' is not a feed id: it must be a whole number from -32768 to 32767"
        );
    }
}
