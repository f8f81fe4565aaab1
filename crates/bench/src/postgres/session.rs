//! Connections of the bare side: the same driver, nothing of ours.

use std::ops::Deref;

use changefeed::postgres::tokio_postgres::config::SslMode;
use changefeed::postgres::tokio_postgres::error::SqlState;
use changefeed::postgres::tokio_postgres::{self, Client, Config, NoTls};
use changefeed::{Error, Kind, Result};
use tokio::task::AbortHandle;

/// Where both sides connect, and by what name the server knows us.
pub(crate) struct Target {
    config: Config,
    pub(crate) url: String,
    pub(crate) application_name: String,
}

impl Target {
    /// Both sides connect without TLS, so that neither pays for it.
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let asked: Config = without_verify(url)
            .parse()
            .map_err(|e: tokio_postgres::Error| {
                Error::invalid("this is not a PostgreSQL URL")
                    .advise("use postgres://user:password@host:5432/database")
                    .caused_by(e)
            })?;
        if asked.get_ssl_mode() == SslMode::Require {
            return Err(Error::new(
                Kind::Unsupported,
                "the measures are made without TLS, but the URL asks for it",
            )
            .advise("measure on a server that can be reached without sslmode=require"));
        }
        let application_name = format!("changefeed-bench-{}", std::process::id());
        let url = with_parameter(url, "sslmode", "disable");
        let url = with_parameter(&url, "application_name", &application_name);
        let config = url.parse().map_err(|e: tokio_postgres::Error| {
            Error::invalid("this is not a PostgreSQL URL")
                .advise("use postgres://user:password@host:5432/database")
                .caused_by(e)
        })?;
        Ok(Target {
            config,
            url,
            application_name,
        })
    }

    /// A new connection.
    pub(crate) async fn session(&self) -> Result<Session> {
        let (client, connection) = self.config.connect(NoTls).await.map_err(db)?;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection of the measures ended");
            }
        });
        Ok(Session {
            client,
            driver: driver.abort_handle(),
        })
    }
}

/// A connection that ends when it is dropped.
pub(crate) struct Session {
    client: Client,
    driver: AbortHandle,
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// What the server says, as an error of ours.
pub(crate) fn db(error: tokio_postgres::Error) -> Error {
    let Some(said) = error.as_db_error() else {
        return Error::new(Kind::Unavailable, "the PostgreSQL server cannot be reached")
            .advise("check host and port, and that the server is running")
            .caused_by(error);
    };
    let message = said.message().to_owned();
    if *said.code() == SqlState::INSUFFICIENT_PRIVILEGE {
        return Error::new(Kind::Permission, message)
            .advise("the measures need a user who owns the schema changefeed and may create one")
            .caused_by(error);
    }
    Error::new(Kind::Database, message).caused_by(error)
}

/// The driver does not know these words of libpq.
fn without_verify(url: &str) -> String {
    url.replace("sslmode=verify-full", "sslmode=require")
        .replace("sslmode=verify-ca", "sslmode=require")
}

/// The URL with a parameter set to a value that needs no escaping.
pub(crate) fn with_parameter(url: &str, name: &str, value: &str) -> String {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let mut parameters: Vec<String> = query
        .split('&')
        .filter(|p| !p.is_empty() && p.split('=').next() != Some(name))
        .map(str::to_owned)
        .collect();
    parameters.push(format!("{name}={value}"));
    format!("{base}?{}", parameters.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_added_or_replaced() {
        assert_eq!(
            with_parameter("postgres://h/d", "sslmode", "disable"),
            "postgres://h/d?sslmode=disable"
        );
        assert_eq!(
            with_parameter("postgres://h/d?sslmode=prefer&a=b", "sslmode", "disable"),
            "postgres://h/d?a=b&sslmode=disable"
        );
    }

    #[test]
    fn a_url_that_insists_on_tls_is_refused() {
        for mode in ["require", "verify-full", "verify-ca"] {
            let refused = Target::parse(&format!("postgres://h/d?sslmode={mode}"));
            assert_eq!(refused.err().map(|e| e.kind()), Some(Kind::Unsupported));
        }
        assert!(Target::parse("postgres://u:p@h:1/d").is_ok());
    }
}
