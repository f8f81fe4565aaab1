//! What instances know of each other.

use std::time::Duration;

use async_trait::async_trait;
use changefeed_core::{Announcement, Connections, Instance, InstanceStore, Result};
use rusqlite::params;

use crate::SqliteStore;
use crate::error::Explain;

#[async_trait]
impl InstanceStore for SqliteStore {
    async fn announce(&self, announcement: &Announcement, forget: Duration) -> Result<()> {
        let (new, forget) = (announcement.clone(), forget.as_millis());
        self.writing(move |tx| {
            let tallies = serde_json::to_string(&new.tallies).unwrap_or_default();
            tx.execute(
                include_str!("sql/announce.sql"),
                params![
                    new.name,
                    new.roles.join(" "),
                    new.address,
                    new.version,
                    tallies
                ],
            )
            .explained()?;
            tx.execute(
                "delete from changefeed_instance where name <> ?1 and seen_at < \
                 cast((julianday('now') - 2440587.5) * 86400000.0 as integer) - ?2",
                params![new.name, i64::try_from(forget).unwrap_or(i64::MAX / 2)],
            )
            .explained()?;
            Ok(())
        })
        .await
    }

    async fn withdraw(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.writing(move |tx| {
            tx.execute("delete from changefeed_instance where name = ?1", [name])
                .explained()?;
            Ok(())
        })
        .await
    }

    async fn instances(&self) -> Result<Vec<Instance>> {
        self.reading(|tx| {
            let mut statement = tx
                .prepare_cached(include_str!("sql/instances.sql"))
                .explained()?;
            let instances = statement
                .query_map([], |row| {
                    let (roles, tallies): (String, String) =
                        (row.get("roles")?, row.get("tallies")?);
                    Ok(Instance {
                        name: row.get("name")?,
                        roles: roles.split_whitespace().map(str::to_owned).collect(),
                        address: row.get("address")?,
                        version: row.get("version")?,
                        up_ms: row.get("up_ms")?,
                        seen_ms: row.get("seen_ms")?,
                        // Whatever another version wrote must not hide the instance.
                        tallies: serde_json::from_str(&tallies).unwrap_or_default(),
                    })
                })
                .explained()?;
            instances.collect::<rusqlite::Result<_>>().explained()
        })
        .await
    }

    fn connections(&self) -> Connections {
        self.pool().connections()
    }
}
