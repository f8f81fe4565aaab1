//! Bringing our tables of a watched table to the key that it has now.

use changefeed_core::{Error, Result};
use tokio_postgres::GenericClient;

use super::{Tracked, exists};
use crate::error::db;
use crate::quote;
use crate::watch_key::KeyColumn;

/// The key that our tables were made for.
pub(super) struct Known {
    pub(super) names: Vec<String>,
    pub(super) types: Vec<String>,
    pub(super) places: Vec<i16>,
}

impl Tracked {
    /// Brings our tables of this table to the names and types that its key has now.
    pub(super) async fn adapt(&self, client: &impl GenericClient, known: &Known) -> Result<()> {
        let same_places = known.places == self.places();
        if known.names == self.names() && known.types == self.types() && same_places {
            return Ok(());
        }
        // Columns that were renamed keep their numbers; those of a restored table keep their names.
        if known.names.len() != self.key.len() || !same_places && known.names != self.names() {
            return Err(Error::invalid(format!(
                "the primary key of {} is another than when it was first watched",
                self.table.name
            ))
            .advise("drop its watches (`changefeed watch drop`) and create them again"));
        }
        let mut ours = self.backlogs(client).await?;
        if exists(client, &self.log()).await? {
            ours.push(self.log());
        }
        for table in ours {
            for (old, column) in known.names.iter().zip(&self.key) {
                if *old == column.name {
                    continue;
                }
                let rename = format!(
                    "alter table changefeed.{} rename column {} to {}",
                    quote::identifier(&table),
                    quote::identifier(old),
                    column.sql()
                );
                client.batch_execute(&rename).await.map_err(db)?;
            }
            let types = known.types.iter().zip(&self.key);
            let altered: Vec<&KeyColumn> = types
                .filter(|(old, column)| **old != column.our_type())
                .map(|(_, column)| column)
                .collect();
            if !altered.is_empty() {
                self.convert(client, &table, &altered).await?;
            }
        }
        // The position of a load of existing rows is a key of the old form.
        client
            .execute(
                "update changefeed.watch set loaded_to = null where table_id = $1 and loading",
                &[&self.table_id],
            )
            .await
            .map_err(db)?;
        client
            .execute(
                "update changefeed.watched_table \
                 set key = $2, key_types = $3, key_places = $4, generation = generation + 1 \
                 where table_id = $1",
                &[&self.table_id, &self.names(), &self.types(), &self.places()],
            )
            .await
            .map_err(db)?;
        Ok(())
    }

    /// Gives key columns of a table of ours their new types, by way of texts. A key that cannot be
    /// read under its new type is of no row that can be there any more.
    async fn convert(
        &self,
        client: &impl GenericClient,
        table: &str,
        altered: &[&KeyColumn],
    ) -> Result<()> {
        let ours = quote::identifier(table);
        let each = |make: &dyn Fn(&KeyColumn) -> String, between: &str| {
            let parts: Vec<String> = altered.iter().map(|c| make(c)).collect();
            parts.join(between)
        };
        let unreadable = each(
            &|c| {
                format!(
                    "{0} is not null and not changefeed.readable({0}::text, '{1}'::regtype)",
                    c.sql(),
                    c.type_sql
                )
            },
            " or ",
        );
        let forget = format!("delete from changefeed.{ours} where {unreadable}");
        let gone = client.execute(&forget, &[]).await.map_err(db)?;
        if gone > 0 {
            tracing::error!(
                table = %self.table.name, changes = gone, of = table,
                "changes were given up: their keys cannot be read as the type that the key has now"
            );
        }
        if table != self.log() {
            // Keys that were different may be the same now; the newest change stays.
            let keys: Vec<String> = self
                .key
                .iter()
                .map(|c| format!("{}::text::{}", c.sql(), c.our_type()))
                .collect();
            let unite = format!(
                "delete from changefeed.{ours} where ctid = any(array( \
                   select d.ctid from (select ctid, row_number() over (partition by {} \
                     order by _changefeed_change_version desc) as place \
                     from changefeed.{ours}) d where d.place > 1))",
                keys.join(", ")
            );
            client.execute(&unite, &[]).await.map_err(db)?;
        }
        let convert = each(
            &|c| {
                format!(
                    "alter column {0} type {1} using {0}::text::{2}",
                    c.sql(),
                    c.our_type(),
                    c.type_sql
                )
            },
            ", ",
        );
        client
            .batch_execute(&format!("alter table changefeed.{ours} {convert}"))
            .await
            .map_err(db)
    }
}
