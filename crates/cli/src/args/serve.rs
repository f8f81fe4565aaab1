//! `changefeed serve`, as written.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use changefeed::Role;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use super::{Deliver, duration};

#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    /// Run a live example: an SQLite database and an application that writes to it
    #[arg(long)]
    pub(crate) demo: bool,
    /// How long the demo runs; until stopped unless given
    #[arg(long, requires = "demo", value_parser = duration, value_name = "DURATION")]
    pub(crate) duration: Option<Duration>,
    /// Do only this, to split the work over instances
    #[arg(long, value_parser = role(), value_delimiter = ',', value_name = "ROLES")]
    pub(crate) only: Vec<Role>,
    /// Let watches and subscriptions act on this machine: run the commands that were defined
    #[arg(long)]
    pub(crate) allow_exec: bool,
    /// Let subscriptions write files in this directory
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) allow_files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) http: Http,
    #[command(flatten)]
    pub(crate) deliver: Deliver,
}

impl Serve {
    /// What this instance does.
    pub(crate) fn roles(&self) -> Vec<Role> {
        Role::ALL
            .into_iter()
            .filter(|role| self.only.is_empty() || self.only.contains(role))
            .collect()
    }
}

/// The roles as they are typed.
fn role() -> impl TypedValueParser<Value = Role> {
    let described = Role::ALL.map(|role| {
        PossibleValue::new(role.as_str()).help(match role {
            Role::Sweep => "Give numbers to committed changes",
            Role::Deliver => "Deliver events, and clean up after them",
            Role::Watch => "Hand changed rows to functions",
            Role::Push => "Push the changes of feeds to the sinks of subscriptions",
            Role::Http => "Answer requests",
        })
    });
    let known = |text: String| Role::ALL.into_iter().find(|role| role.as_str() == text);
    PossibleValuesParser::new(described)
        .try_map(move |text| known(text).ok_or("there is no such role"))
}

/// The HTTP server.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "HTTP")]
pub(crate) struct Http {
    /// Where the HTTP server listens; other than loopback only if there are tokens
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8787", value_parser = address)]
    pub(crate) listen: SocketAddr,
    /// The certificate of HTTPS with its chain, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The key of that certificate, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Let pages of this origin read, and write with a token; '*' lets all pages read
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) cors_origin: Vec<String>,
    /// A name of this machine that requests may use, besides localhost
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,
    /// The largest body of a request
    #[arg(long, value_name = "BYTES", default_value_t = 1024 * 1024)]
    pub(crate) max_body: usize,
    /// Concurrent requests
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) max_requests: u32,
    /// Long polls and streams at the same time
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) max_waiting: u32,
    /// How long a request may take, not counting long polling
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub(crate) request_timeout: Duration,
    /// How often an idle stream sends a keep-alive
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    pub(crate) keep_alive: Duration,
}

/// An address with its port, or a port alone.
fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Some(port) = text.strip_prefix("localhost:")
        && let Ok(port) = port.parse::<u16>()
    {
        return Ok(([127, 0, 0, 1], port).into());
    }
    Err(format!(
        "'{text}' is not an address: write an IP address and a port, like 127.0.0.1:8787"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port() {
        assert!(address("127.0.0.1:0").is_ok() && address("[::1]:80").is_ok());
        assert_eq!(address("localhost:81"), address("127.0.0.1:81"));
        for bad in ["8787", "127.0.0.1", "example.com:80", ""] {
            assert!(address(bad).unwrap_err().contains("like 127.0.0.1:8787"));
        }
    }
}
