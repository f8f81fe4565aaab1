//! Changes that were given up.

use changefeed_core::{Parked, Result, RowOperation, Watch};

use super::{missing_state, raw};
use crate::error::db;
use crate::quote;
use crate::row::Cells;
use crate::session::Session;
use crate::template::fill;
use crate::tracking::begin;

impl Session {
    /// The changes that a watch has given up, oldest first.
    pub(super) async fn parked(&mut self, watch: &Watch, limit: usize) -> Result<Vec<Parked>> {
        let client = &mut **self;
        let client = begin(client).await?;
        // As our tables have it, whatever became of the table since.
        let key: Vec<String> = client
            .query_opt(
                "select key from changefeed.watched_table where table_id = $1",
                &[&watch.table_id],
            )
            .await
            .map_err(db)?
            .ok_or_else(|| watch.name.unknown())?
            .take(0)?;
        let key: Vec<String> = key
            .iter()
            .map(|name| format!("q.{0} as {0}", quote::identifier(name)))
            .collect();
        let sql = fill(
            include_str!("../sql/watch_parked.sql"),
            &[
                ("key", &key.join(", ")),
                ("leases", &watch.leases_table),
                ("limit", &limit.to_string()),
            ],
        )?;
        let rows = client
            .query(&sql, &[])
            .await
            .map_err(|e| missing_state(e, watch))?;
        rows.iter()
            .map(|row| {
                Ok(Parked {
                    key: raw(&row.take::<Vec<u8>>(0)?)?,
                    operation: RowOperation::from_number(row.take(1)?)?,
                    version: row.take(2)?,
                    attempts: row.take(3)?,
                    error: row.take(4)?,
                    since_ms: row.take(5)?,
                })
            })
            .collect()
    }
}
