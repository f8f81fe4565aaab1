//! The rows of a batch.

use changefeed_core::{
    Batch, BatchOutcome, Error, Images, Kind, Result, RowChange, RowOperation, WatchSettings, words,
};
use deadpool_postgres::ClientWrapper;
use serde_json::value::RawValue;

use super::message::read;
use super::{Backlog, Leased, PLANNER};
use crate::quote;
use crate::template::fill;
use crate::watch_key::join;

/// How much is read at once at most, as JSON; what is more is given back.
const BYTES_AT_ONCE: u32 = 16 * 1024 * 1024;

impl Backlog {
    /// The rows of a batch. Not under the lock: a process that is stopped while it reads would
    /// keep it.
    pub(super) async fn rows(
        &self,
        client: &ClientWrapper,
        leased: Leased,
        settings: &WatchSettings,
    ) -> Result<Batch> {
        let (generation, versions) = (leased.generation, leased.versions);
        let mut batch = Batch::leased(generation, versions, leased.attempt, leased.asked);
        batch.key = self.tracked.key.iter().map(|c| c.name.clone()).collect();
        let leased_rows = usize::try_from(leased.rows).unwrap_or(usize::MAX);
        match self.read(client, &leased).await {
            Ok(changes) => {
                if let Some(rest) = batch.fill(changes, leased_rows) {
                    self.settle(client, &rest, &BatchOutcome::Released, settings)
                        .await?;
                }
                Ok(batch)
            }
            Err(error) => {
                let outcome = BatchOutcome::unread(&error);
                let given_back = self.settle(client, &batch, &outcome, settings);
                if let Err(error) = given_back.await {
                    tracing::debug!(%error, "a batch that could not be read was not given back");
                }
                Err(error)
            }
        }
    }

    async fn read(&self, client: &ClientWrapper, leased: &Leased) -> Result<Vec<RowChange>> {
        let tracked = &self.tracked;
        let begin = format!(
            "begin isolation level read committed; select {PLANNER}; {}; {}",
            tracked.lock_sql(),
            tracked.hold_sql(&quote::literal(&self.signature))
        );
        let declare = fill(
            include_str!("../sql/watch_rows.sql"),
            &[
                ("leases", &self.leases),
                (
                    "key_item",
                    &join(&tracked.key, ", ", |_, c| format!("q.{0} as {0}", c.sql())),
                ),
                ("table", &tracked.rows_of()),
                ("row_columns", &self.row_columns),
                ("columns", &tracked.columns.named(&tracked.table)),
                ("bytes", &BYTES_AT_ONCE.to_string()),
                (
                    "row_key",
                    &join(&tracked.key, " and ", |_, c| {
                        c.is_equal("changefeed_row", &format!("q.{}", c.sql()))
                    }),
                ),
                ("from", &leased.versions.0.to_string()),
                ("to", &leased.versions.1.to_string()),
                ("generation", &leased.generation.to_string()),
            ],
        )?;
        let answer = read(client, &begin, &declare, tracked.row_type()).await?;
        if answer.garbled {
            return Err(Error::new(
                Kind::Database,
                "a row has bytes that are not UTF-8",
            ));
        }
        let rows = answer.rows;
        let mut changes = Vec::with_capacity(rows.len());
        for row in rows {
            let Ok([version, bits, operation, item, columns, before]) = <[_; 6]>::try_from(row)
            else {
                return Err(words::server_unexpected());
            };
            let (Some(version), Some(bits), Some(operation), Some(item)) =
                (version, bits, operation, item)
            else {
                return Err(words::server_unexpected());
            };
            let number = |text: String| text.parse::<i64>().map_err(|_| words::server_unexpected());
            let operation = RowOperation::from_number(number(operation)?)?;
            let changed = columns
                .filter(|_| operation == RowOperation::Update)
                .map(|names| serde_json::from_str(&names))
                .transpose()
                .map_err(|_| words::server_unexpected())?;
            changes.push(RowChange {
                operation,
                item: RawValue::from_string(item)
                    .map_err(|e| Error::new(Kind::Database, "a row is not JSON").caused_by(e))?,
                version: number(version)?,
                bits: number(bits)?,
                columns: changed,
                before: None,
                images: before.as_deref().and_then(Images::read),
            });
        }
        Ok(changes)
    }
}
