//! What instances know of each other.

use std::time::Duration;

use changefeed_core::{Announcement, Instance, Result};

use crate::error::db;
use crate::row::Cells;
use crate::session::Session;

impl Session {
    pub(crate) async fn announce(
        &self,
        announcement: &Announcement,
        forget: Duration,
    ) -> Result<()> {
        let client = &**self;
        let statement = client
            .prepare_cached(include_str!("sql/announce.sql"))
            .await
            .map_err(db)?;
        let tallies = serde_json::to_string(&announcement.tallies).unwrap_or_default();
        client
            .execute(
                &statement,
                &[
                    &announcement.name,
                    &announcement.roles.join(" "),
                    &announcement.address,
                    &announcement.version,
                    &tallies,
                    &forget.as_secs_f64(),
                ],
            )
            .await
            .map_err(db)?;
        Ok(())
    }

    pub(crate) async fn withdraw(&self, name: &str) -> Result<()> {
        let client = &**self;
        client
            .execute("delete from changefeed.instance where name = $1", &[&name])
            .await
            .map_err(db)?;
        Ok(())
    }

    pub(crate) async fn instances(&self) -> Result<Vec<Instance>> {
        let client = &**self;
        let rows = client
            .query(include_str!("sql/instances.sql"), &[])
            .await
            .map_err(db)?;
        rows.iter()
            .map(|row| {
                Ok(Instance {
                    name: row.take("name")?,
                    roles: words(row.take("roles")?),
                    address: row.take("address")?,
                    version: row.take("version")?,
                    up_ms: row.take("up_ms")?,
                    seen_ms: row.take("seen_ms")?,
                    // Whatever another version wrote must not hide the instance.
                    tallies: serde_json::from_str(row.take("tallies")?).unwrap_or_default(),
                })
            })
            .collect()
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
