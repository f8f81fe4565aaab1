//! Changes that were given up.

use changefeed_core::{Parked, Result, RowOperation, Watch};

use super::{missing_state, raw};
use crate::error::db;
use crate::quote;
use crate::session::Session;
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
            .get(0);
        let key: Vec<String> = key
            .iter()
            .map(|name| format!("q.{0} as {0}", quote::identifier(name)))
            .collect();
        let sql = format!(
            "select textsend((select row_to_json(changefeed_key.*)::text from (select {}) changefeed_key)), \
               least(q._changefeed_operation, 2)::bigint, q._changefeed_change_version, \
               q._changefeed_attempt_count::bigint, q._changefeed_last_error, \
               (extract(epoch from clock_timestamp() - q._changefeed_parked_time) * 1000)::bigint \
             from {} q where q._changefeed_parked_time is not null \
             order by q._changefeed_change_version limit {limit}",
            key.join(", "),
            watch.leases_table
        );
        let rows = client
            .query(&sql, &[])
            .await
            .map_err(|e| missing_state(e, watch))?;
        rows.iter()
            .map(|row| {
                Ok(Parked {
                    key: raw(&row.get::<_, Vec<u8>>(0))?,
                    operation: RowOperation::from_number(row.get(1))?,
                    version: row.get(2),
                    attempts: row.get(3),
                    error: row.get(4),
                    since_ms: row.get(5),
                })
            })
            .collect()
    }
}
