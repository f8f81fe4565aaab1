//! What a database user must be allowed to do to work on a watch.

use changefeed_core::{Error, Kind, Result};
use tokio_postgres::GenericClient;

use crate::error::db;

/// Refuses what would fail later, where it would fail the application's writes, and names what is
/// missing.
pub(crate) async fn check(client: &impl GenericClient, table_id: i64) -> Result<()> {
    let missing: Vec<String> = client
        .query(
            include_str!("sql/watch_rights.sql"),
            &[&table_id.to_string()],
        )
        .await
        .map_err(db)?
        .iter()
        .map(|row| row.get(0))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        Kind::Permission,
        "the database user lacks rights that a watch needs",
    )
    .advise(missing.join("; ")))
}
