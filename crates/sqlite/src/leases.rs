//! Leases, judged by the clock of the machine: all processes of an SQLite file share it.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use changefeed_core::{Lease, LeaseHolder, LeaseStore, Result};
use rusqlite::{OptionalExtension, params};

use crate::SqliteStore;
use crate::error::Explain;

#[async_trait]
impl LeaseStore for SqliteStore {
    async fn lease(&self, name: &str, owner: &str, ttl: Duration) -> Result<Option<Lease>> {
        // Before anything is sent: waiting for the write lock counts against the holder.
        let asked = Instant::now();
        let (name, owner) = (name.to_owned(), owner.to_owned());
        let millis = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX / 2);
        self.writing(move |tx| {
            let generation: Option<i64> = tx
                .prepare_cached(include_str!("../sql/lease.sql"))
                .and_then(|mut s| {
                    s.query_row(params![name, owner, millis], |row| row.get(0))
                        .optional()
                })
                .explained()?;
            Ok(generation.map(|generation| Lease::granted(name, owner, generation, asked, ttl)))
        })
        .await
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        let lease = lease.clone();
        self.writing(move |tx| {
            // The row stays, so that the generation goes on from here.
            tx.execute(
                "update changefeed_lease set owner = null, expires_at = 0 \
                 where name = ?1 and owner = ?2 and generation = ?3",
                params![lease.name, lease.owner, lease.generation],
            )
            .explained()?;
            Ok(())
        })
        .await
    }

    async fn lease_holders(&self) -> Result<Vec<LeaseHolder>> {
        self.reading(|tx| {
            let mut statement = tx
                .prepare_cached(include_str!("../sql/lease_holders.sql"))
                .explained()?;
            let holders = statement
                .query_map([], |row| {
                    Ok(LeaseHolder {
                        name: row.get(0)?,
                        owner: row.get(1)?,
                        generation: row.get(2)?,
                        expires_in_ms: row.get(3)?,
                    })
                })
                .explained()?;
            holders.collect::<rusqlite::Result<_>>().explained()
        })
        .await
    }
}
