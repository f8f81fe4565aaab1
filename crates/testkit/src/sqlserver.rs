//! A server that speaks T-SQL, and databases on it.

use std::sync::atomic::{AtomicU32, Ordering};

use changefeed_certify::with_database;
use changefeed_sqlserver::Connection;

/// A fresh database, dropped when it is no longer needed.
#[derive(Debug)]
pub struct SqlServerDatabase {
    url: String,
    server: String,
    name: String,
}

impl SqlServerDatabase {
    /// On the server of this test run.
    pub async fn fresh() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let server = server_url();
        let name = format!(
            "cf_{}_{}_{:08x}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed),
            fastrand::u32(..)
        );
        let create = format!("create database {name}");
        // Babelfish refuses to make two at the same moment.
        let mut created = execute(&server, &create).await;
        for _ in 0..50 {
            if created.is_ok() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(fastrand::u64(5..100))).await;
            created = execute(&server, &create).await;
        }
        created.unwrap_or_else(|error| panic!("create database: {error:?}"));
        SqlServerDatabase {
            url: with_database(&server, &name),
            server,
            name,
        }
    }

    /// Its address.
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// The server of this test run.
pub fn server_url() -> String {
    given_server().unwrap_or_else(|| {
        panic!(
            "these tests need CHANGEFEED_TEST_SQLSERVER_URL=sqlserver://user:password@host/master \
             of a login that may create databases"
        )
    })
}

/// The same, if there is one.
pub fn given_server() -> Option<String> {
    let url = std::env::var("CHANGEFEED_TEST_SQLSERVER_URL").ok()?;
    (!url.is_empty()).then_some(url)
}

impl Drop for SqlServerDatabase {
    fn drop(&mut self) {
        let server = self.server.clone();
        let name = self.name.clone();
        let drop = format!("drop database {name}");
        // Dropping happens inside and outside of runtimes, also while one is shutting down.
        let cleaner = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                // Connections that were just closed may still be in it for a moment.
                for _ in 0..20 {
                    let _ = cut_off(&server, &name).await;
                    if execute(&server, &drop).await.is_ok() {
                        break;
                    }
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            });
            std::io::Result::Ok(())
        });
        let _ = cleaner.join();
    }
}

/// Ends whoever is still in a database: a session whose client is gone may be in the middle of a
/// statement, and databases that stay behind make every look into the catalogue slower.
async fn cut_off(url: &str, name: &str) -> changefeed_core::Result<()> {
    let target = changefeed_sqlserver::Target::parse(url)?;
    let mut connection = Connection::open(&target).await?;
    let sessions = connection
        .query(
            &format!(
                "select convert(int, session_id) from sys.dm_exec_sessions \
                 where database_id = db_id(N'{name}')"
            ),
            &[],
        )
        .await?;
    for session in sessions.iter().filter_map(|row| row.get::<i32, _>(0)) {
        // It may have ended by itself.
        let _ = connection.batch(&format!("kill {session}")).await;
    }
    Ok(())
}

async fn execute(url: &str, sql: &str) -> changefeed_core::Result<()> {
    let target = changefeed_sqlserver::Target::parse(url)?;
    Connection::open(&target).await?.batch(sql).await
}
