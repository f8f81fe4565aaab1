//! Addresses of brokers and of object stores, which only subscriptions push to.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// A server that a subscription pushes to by a URL of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Broker {
    /// NATS JetStream.
    Nats,
    /// Redis or Valkey Streams.
    Redis,
    /// RabbitMQ.
    RabbitMq,
    /// S3 and whatever speaks its protocol.
    S3,
}

impl Broker {
    /// All of them.
    pub const ALL: [Broker; 4] = [Broker::Nats, Broker::Redis, Broker::RabbitMq, Broker::S3];

    /// What its URLs begin with.
    pub fn schemes(self) -> &'static [&'static str] {
        match self {
            Broker::Nats => &["nats://", "nats+tls://"],
            Broker::Redis => &["redis://", "rediss://", "valkey://", "valkeys://"],
            Broker::RabbitMq => &["amqp://", "amqps://"],
            Broker::S3 => &["s3://"],
        }
    }

    /// The feature that builds its sink.
    pub fn feature(self) -> &'static str {
        match self {
            Broker::Nats => "nats",
            Broker::Redis => "redis",
            Broker::RabbitMq => "rabbitmq",
            Broker::S3 => "s3",
        }
    }

    /// The broker of a URL.
    pub(super) fn of(url: &str) -> Option<Broker> {
        let begins = |broker: &Broker| broker.schemes().iter().any(|s| url.starts_with(s));
        Self::ALL.into_iter().find(begins)
    }

    /// Checks what can be checked of a URL without the broker.
    pub(super) fn validate(self, url: &str) -> Result<()> {
        if url.contains("***") {
            return Err(Error::invalid(
                "the password was replaced by *** when this definition was shown",
            )
            .advise("write the password again"));
        }
        if self == Broker::S3 {
            Container::of(url)?;
            // A secret key with a bare slash would end up in what is shown.
            let (_, rest) = url.split_once("://").unwrap_or(("", url));
            let rest = rest.split('?').next().unwrap_or_default();
            let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
            if path.contains('@') && (authority.contains(':') || !authority.contains('@')) {
                return Err(Error::invalid("the URL of the sink has an '@' in its path")
                    .advise("write / and + of a secret key as %2F and %2B, and an '@' of the path as %40"));
            }
        }
        Ok(())
    }
}

/// What an object of a store holds a batch as.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Container {
    /// One message per line.
    #[default]
    Ndjson,
    /// The same, compressed by gzip.
    NdjsonGzip,
    /// Columns, as Parquet has them.
    Parquet,
}

impl Container {
    /// All of them.
    pub const ALL: [Container; 3] = [Container::Ndjson, Container::NdjsonGzip, Container::Parquet];

    /// Its word, which is also how names of its objects end.
    pub fn as_str(self) -> &'static str {
        match self {
            Container::Ndjson => "ndjson",
            Container::NdjsonGzip => "ndjson.gz",
            Container::Parquet => "parquet",
        }
    }

    /// What an address says by `?as=`.
    pub fn of(address: &str) -> Result<Container> {
        let query = address.split_once('?').map_or("", |(_, query)| query);
        let mut options = query.split('&');
        match options.find_map(|option| option.strip_prefix("as=")) {
            Some(word) => word.parse(),
            None => Ok(Container::default()),
        }
    }
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Container {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|c| c.as_str() == text);
        found.ok_or_else(|| {
            Error::invalid(format!("objects cannot be written as '{text}'"))
                .advise("use ndjson, ndjson.gz or parquet")
        })
    }
}

/// Replaces the password of a URL.
pub(super) fn hide_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let end = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    match authority.rsplit_once('@') {
        Some((user, host)) => {
            // A token alone is a secret too.
            let user = user.split_once(':').map_or("", |(name, _)| name);
            format!("{scheme}://{user}:***@{host}{path}")
        }
        None => url.to_owned(),
    }
}
