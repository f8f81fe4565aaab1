//! The rows of a batch.

use changefeed_core::{
    Batch, BatchOutcome, Error, Kind, Result, RowChange, RowOperation, WatchSettings, fill,
};
use serde_json::value::RawValue;

use super::statements::HELD;
use super::{Backlog, Leased, altered, reads_in_snapshot, send_about};
use crate::connection::Connection;
use crate::json;
use crate::platform::Platform;
use crate::row::Cells;
use crate::watch_key::same;

/// How much is read at once at most, in bytes as the server has them; what is more is given back.
const BYTES_AT_ONCE: &str = "33554432";

impl Backlog {
    /// The rows of a batch. Not under the table's lock: a process that is stopped while it reads would
    /// keep it.
    pub(super) async fn rows(
        &self,
        connection: &mut Connection,
        leased: Leased,
        settings: &WatchSettings,
    ) -> Result<Batch> {
        let (generation, versions) = (leased.generation, leased.versions);
        let mut batch = Batch::leased(generation, versions, leased.attempt, leased.asked);
        let key = self.tracked.table.key.iter();
        batch.key = key.map(|column| column.name.clone()).collect();
        let leased_rows = usize::try_from(leased.rows).unwrap_or(usize::MAX);
        match self.read(connection, &batch).await {
            Ok(changes) => {
                if let Some(rest) = batch.fill(changes, leased_rows) {
                    self.settle(connection, &rest, &BatchOutcome::Released, settings)
                        .await?;
                }
                Ok(batch)
            }
            Err(error) => {
                let outcome = BatchOutcome::unread(&error);
                let given_back = self.settle(connection, &batch, &outcome, settings);
                if let Err(error) = given_back.await {
                    tracing::debug!(%error, "a batch that could not be read was not given back");
                }
                Err(error)
            }
        }
    }

    pub(crate) fn rows_sql(&self, platform: Platform) -> Result<String> {
        let table = &self.tracked.table;
        // Without waiting for writers of the rows.
        let (versioned, unversioned) = match reads_in_snapshot(platform, self.versioned) {
            true => (
                "set transaction isolation level snapshot;",
                "set transaction isolation level read committed;",
            ),
            false => ("", ""),
        };
        let signature = self.signature_sql()?;
        fill(
            include_str!("../sql/watch_rows.sql"),
            &[
                ("versioned", versioned),
                ("unversioned", unversioned),
                ("row", &table.row_json("t")),
                ("table", &table.sql),
                ("same_key", &same(&table.key, "t", "q")),
                ("key", &json::object(&table.key, "q")),
                ("leases", &self.leases),
                ("held", HELD),
                ("signature", &format!("({signature})")),
                ("bytes", BYTES_AT_ONCE),
            ],
        )
    }

    async fn read(&self, connection: &mut Connection, batch: &Batch) -> Result<Vec<RowChange>> {
        let sql = self.rows_sql(connection.platform());
        let rows = send_about(connection, &sql?, batch).await?;
        let mut changes = Vec::with_capacity(rows.len());
        for row in &rows {
            // Another table may be behind the name by now, or other columns in the table.
            if row.maybe::<&str>(4)? != Some(&self.signature) {
                return Err(altered());
            }
            let operation = RowOperation::from_number(i64::from(row.take::<i32>(1)?))?;
            let columns = row
                .maybe::<&str>(3)?
                .filter(|_| operation == RowOperation::Update && self.tracked.columns)
                .map(|list| self.names(list));
            changes.push(RowChange {
                operation,
                item: RawValue::from_string(row.text(2)?)
                    .map_err(|e| Error::new(Kind::Database, "a row is not JSON").caused_by(e))?,
                version: row.take(0)?,
                bits: row.take(5)?,
                columns,
                before: None,
                images: None,
            });
        }
        Ok(changes)
    }

    /// The names of columns that are told by their numbers, in the order of the table.
    fn names(&self, list: &str) -> Vec<String> {
        let places: Vec<i32> = list.split(',').filter_map(|n| n.parse().ok()).collect();
        let columns = self.tracked.table.columns.iter();
        columns
            .filter(|column| places.contains(&column.place))
            .map(|column| column.name.clone())
            .collect()
    }
}
