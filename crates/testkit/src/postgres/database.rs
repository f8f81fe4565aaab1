//! A database for one test case.

use changefeed_certify::with_database;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio_postgres::{Client, NoTls};

use crate::postgres::{Cluster, audit};

/// A fresh database, dropped when it is no longer needed.
#[derive(Debug)]
pub struct Database {
    url: String,
    server: String,
    name: String,
}

impl Database {
    /// Its address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The address of its server's maintenance database.
    pub fn server_url(&self) -> &str {
        &self.server
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A fresh database on the server at this address.
    pub async fn on(server: &str) -> Database {
        let how = match audit::wanted(server) {
            true => audit::TEMPLATE,
            false => "",
        };
        Self::create(server, how).await
    }

    /// A fresh database whose texts are in this encoding.
    pub async fn encoded(server: &str, encoding: &str) -> Database {
        let how = format!("encoding '{encoding}' template template0 lc_collate 'C' lc_ctype 'C'");
        Self::create(server, &how).await
    }

    async fn create(server: &str, how: &str) -> Database {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "cf_{}_{}_{:08x}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed),
            fastrand::u32(..)
        );
        execute(server, &format!("create database {name} {how}"))
            .await
            .unwrap_or_else(|e| panic!("create database on {server}: {e}"));
        Database {
            url: with_database(server, &name),
            server: server.to_owned(),
            name,
        }
    }
}

/// A fresh database on the server of `CHANGEFEED_TEST_POSTGRES_URL`, or else on a server that
/// this process starts once and that ends with it.
pub async fn fresh_database() -> Database {
    Database::on(&server_url().await).await
}

/// A database with nothing in it, to restore a dump into.
pub async fn empty_database() -> Database {
    Database::create(&server_url().await, "").await
}

/// The address of that server.
pub async fn server_url() -> String {
    static CLUSTER: LazyLock<Cluster> = LazyLock::new(Cluster::start_new);
    match std::env::var("CHANGEFEED_TEST_POSTGRES_URL") {
        Ok(url) if !url.is_empty() => url,
        _ => tokio::task::spawn_blocking(|| CLUSTER.url()).await.unwrap(),
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let server = self.server.clone();
        let url = self.url.clone();
        let sql = format!("drop database if exists {} with (force)", self.name);
        // Dropping happens inside and outside of runtimes, also while one is shutting down.
        let cleaner = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            // Best effort: a server that was stopped on purpose is removed as a whole.
            let _ = runtime.block_on(async {
                let seen = match audit::wanted(&server) {
                    true => audit::look(&url).await.ok(),
                    false => None,
                };
                execute(&server, &sql).await?;
                match seen {
                    Some(seen) => seen.keep(&server).await,
                    None => Ok(()),
                }
            });
            std::io::Result::Ok(())
        });
        let _ = cleaner.join();
    }
}

async fn execute(url: &str, sql: &str) -> Result<(), tokio_postgres::Error> {
    with_client(url, async |client| client.batch_execute(sql).await).await
}

/// Lends a connection that is closed afterwards.
pub(super) async fn with_client<T>(
    url: &str,
    act: impl AsyncFnOnce(&Client) -> Result<T, tokio_postgres::Error>,
) -> Result<T, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let connection = tokio::spawn(connection);
    let outcome = act(&client).await;
    drop(client);
    let _ = connection.await;
    outcome
}

/// The same database, as another role.
pub fn as_role(url: &str, role: &str, password: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let host = rest.split_once('@').map_or(rest, |(_, host)| host);
    format!("{scheme}://{role}:{password}@{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_of_a_url_is_replaced() {
        assert_eq!(
            with_database("postgres://u@h:1/a", "b"),
            "postgres://u@h:1/b"
        );
        assert_eq!(with_database("postgres://u@h:1", "b"), "postgres://u@h:1/b");
        assert_eq!(
            with_database("postgres://u:p@h/a?sslmode=disable", "b"),
            "postgres://u:p@h/b?sslmode=disable"
        );
        assert_eq!(
            as_role("postgres://u:p@h/b", "r", "s"),
            "postgres://r:s@h/b"
        );
        assert_eq!(as_role("postgres://h/b", "r", "s"), "postgres://r:s@h/b");
    }
}
