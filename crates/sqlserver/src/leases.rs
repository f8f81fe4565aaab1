//! Leases: a row with owner, generation and expiry, judged by the server's clock.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use changefeed_core::{Lease, LeaseHolder, LeaseStore, Result};

use crate::{SqlServerStore, quote};

#[async_trait]
impl LeaseStore for SqlServerStore {
    async fn lease(&self, name: &str, owner: &str, ttl: Duration) -> Result<Option<Lease>> {
        let asked = Instant::now();
        let mut connection = self.connection().await?;
        let milliseconds = i32::try_from(ttl.as_millis()).unwrap_or(i32::MAX);
        let call = format!(
            "declare @generation bigint; \
             exec changefeed.take_lease {}, {}, {milliseconds}, @generation output; \
             select @generation",
            quote::literal(name),
            quote::literal(owner)
        );
        let rows = connection.call(&call).await?;
        let generation: Option<i64> = rows.first().and_then(|row| row.get(0));
        Ok(generation.map(|g| Lease::granted(name.to_owned(), owner.to_owned(), g, asked, ttl)))
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        let mut connection = self.connection().await?;
        // The row stays: its generation must go on growing.
        connection
            .execute(
                "update changefeed.lease set expires_at = sysutcdatetime() \
                 where name = @P1 and owner = @P2 and generation = @P3",
                &[&lease.name, &lease.owner, &lease.generation],
            )
            .await?;
        Ok(())
    }

    async fn lease_holders(&self) -> Result<Vec<LeaseHolder>> {
        let mut connection = self.connection().await?;
        let rows = connection
            .query(
                "select name, owner, generation, \
                 datediff_big(millisecond, sysutcdatetime(), expires_at) \
                 from changefeed.lease order by name",
                &[],
            )
            .await?;
        let text =
            |row: &tiberius::Row, at: usize| row.get::<&str, _>(at).unwrap_or_default().to_owned();
        Ok(rows
            .iter()
            .map(|row| LeaseHolder {
                name: text(row, 0),
                owner: text(row, 1),
                generation: row.get(2).unwrap_or_default(),
                expires_in_ms: row.get(3).unwrap_or_default(),
            })
            .collect())
    }
}
