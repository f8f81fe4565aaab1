//! Emptying what was kept of a row.

use changefeed_core::{Erased, Result, TableName, key_values};

use crate::error::db;
use crate::row::Cells;
use crate::session::Session;
use crate::source::Table;

impl Session {
    pub(crate) async fn erase(
        &self,
        table: &TableName,
        key: &[(String, String)],
    ) -> Result<Erased> {
        let table = Table::find(&***self, table).await?;
        let names: Vec<&str> = table.key.iter().map(|c| c.name.as_str()).collect();
        let values = key_values(&table.name, &names, key)?;
        let row = self
            .query_one(
                include_str!("sql/erase.sql"),
                &[&table.oid, &names, &values],
            )
            .await
            .map_err(db)?;
        Ok(Erased {
            changes: row.count::<i64, _>(0)?,
            events: row.count::<i64, _>(1)?,
            pending: row.count::<i64, _>(2)?,
        })
    }
}
