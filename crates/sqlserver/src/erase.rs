//! Emptying what was kept of a row.

use changefeed_core::{Erased, Result, TableName, key_values};

use crate::row::Cells;
use crate::session::Session;
use crate::source::Table;

impl Session {
    pub(crate) async fn erase(
        &mut self,
        table: &TableName,
        key: &[(String, String)],
    ) -> Result<Erased> {
        let connection = &mut *self.connection;
        let table = Table::find(connection, table).await?;
        let names: Vec<&str> = table.key.iter().map(|c| c.name.as_str()).collect();
        let values = key_values(&table.name, &names, key)?;
        let named: Vec<serde_json::Value> = names
            .iter()
            .zip(&values)
            .map(|(name, value)| serde_json::json!({"name": name, "value": value}))
            .collect();
        let (values, named) = (
            serde_json::Value::from(values).to_string(),
            serde_json::Value::from(named).to_string(),
        );
        let row = connection
            .one(
                include_str!("sql/erase.sql"),
                &[&table.id, &values.as_str(), &named.as_str()],
            )
            .await?;
        Ok(Erased {
            changes: row.count::<i32, _>(0)?,
            events: row.count::<i32, _>(1)?,
            pending: row.count::<i32, _>(2)?,
        })
    }
}
