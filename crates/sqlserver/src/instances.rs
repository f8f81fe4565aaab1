//! What instances know of each other.

use std::time::Duration;

use changefeed_core::{Announcement, Instance, Result};

use crate::row::Cells;
use crate::session::Session;

impl Session {
    pub(crate) async fn announce(
        &mut self,
        announcement: &Announcement,
        forget: Duration,
    ) -> Result<()> {
        let connection = &mut *self.connection;
        let tallies = serde_json::to_string(&announcement.tallies).unwrap_or_default();
        let milliseconds = i32::try_from(forget.as_millis()).unwrap_or(i32::MAX);
        connection
            .execute(
                include_str!("sql/announce.sql"),
                &[
                    &announcement.name,
                    &announcement.roles.join(" "),
                    &announcement.address.as_deref().unwrap_or_default(),
                    &announcement.version,
                    &tallies,
                    &milliseconds,
                ],
            )
            .await?;
        Ok(())
    }

    pub(crate) async fn withdraw(&mut self, name: &str) -> Result<()> {
        let connection = &mut *self.connection;
        connection
            .execute("delete from changefeed.instance where name = @P1", &[&name])
            .await?;
        Ok(())
    }

    pub(crate) async fn instances(&mut self) -> Result<Vec<Instance>> {
        let connection = &mut *self.connection;
        let rows = connection
            .query(include_str!("sql/instances.sql"), &[])
            .await?;
        rows.iter()
            .map(|row| {
                Ok(Instance {
                    name: row.text("name")?,
                    roles: words(row.take("roles")?),
                    address: row.maybe_text("address")?,
                    version: row.text("version")?,
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
