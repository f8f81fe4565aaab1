//! What the audit of `./test` wants to know of a test's database before it is gone.
//!
//! The audit (`crates/testkit/python/audit`) proves that none of our statements runs somebody else's
//! code: the databases of the tests are copies of one whose `public` schema is full of traps, and when the
//! tests are over every statement of ours must have been executed in one of them.

use tokio_postgres::Error;

use super::database::with_client;

/// The database that those of the tests are copies of.
pub(super) const TEMPLATE: &str = "template cf_traps";

/// Whether this is the server that `./test` has prepared for the audit.
pub(super) fn wanted(server: &str) -> bool {
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|v| v == value);
    is("CHANGEFEED_TEST_AUDIT", "1") && is("CHANGEFEED_TEST_POSTGRES_URL", server)
}

/// What was seen in a database.
pub(super) struct Seen {
    database: u32,
    /// The functions in our schema and whether they were called.
    functions: String,
}

/// Looks at a database that is no longer needed. Its sessions are ended, because a session counts its calls
/// in the statistics now and then, and at its end.
pub(super) async fn look(url: &str) -> Result<Seen, Error> {
    with_client(url, async |client| {
        client
            .batch_execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity \
                 where datname = current_database() and pid <> pg_backend_pid()",
            )
            .await?;
        let row = client
            .query_one(include_str!("../../python/audit/functions.sql"), &[])
            .await?;
        Ok(Seen {
            database: row.get(0),
            functions: row.get(1),
        })
    })
    .await
}

impl Seen {
    /// Keeps it, together with the statements that were executed there.
    pub(super) async fn keep(self, server: &str) -> Result<(), Error> {
        with_client(server, async |client| {
            client
                .execute(
                    "call audit.keep($1, $2::text::jsonb)",
                    &[&self.database, &self.functions],
                )
                .await?;
            Ok(())
        })
        .await
    }
}
