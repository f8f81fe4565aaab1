//! What instances know of each other.

use std::time::Duration;

use changefeed_core::{Announcement, Instance, Result};

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
        Ok(rows
            .iter()
            .map(|row| {
                let text = |at: usize| row.get::<&str, _>(at).map(str::to_owned);
                Instance {
                    name: text(0).unwrap_or_default(),
                    roles: words(row.get(1).unwrap_or_default()),
                    address: text(2),
                    version: text(3).unwrap_or_default(),
                    up_ms: row.get(4).unwrap_or_default(),
                    seen_ms: row.get(5).unwrap_or_default(),
                    // Whatever another version wrote must not hide the instance.
                    tallies: serde_json::from_str(row.get(6).unwrap_or_default())
                        .unwrap_or_default(),
                }
            })
            .collect())
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
