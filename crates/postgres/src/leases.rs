//! Leases: a row with owner, generation and expiry, judged by the server's clock.

use std::time::{Duration, Instant};

use changefeed_core::{Lease, LeaseHolder, Result};

use crate::error::db;
use crate::session::Session;

impl Session {
    pub(crate) async fn lease(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<Option<Lease>> {
        let asked = Instant::now();
        let client = &**self;
        let statement = client
            .prepare_cached("select changefeed.take_lease($1, $2, $3)")
            .await
            .map_err(db)?;
        let milliseconds = i32::try_from(ttl.as_millis()).unwrap_or(i32::MAX);
        let row = client
            .query_one(&statement, &[&name, &owner, &milliseconds])
            .await
            .map_err(db)?;
        let generation: Option<i64> = row.get(0);
        Ok(generation.map(|g| Lease::granted(name.to_owned(), owner.to_owned(), g, asked, ttl)))
    }

    pub(crate) async fn release(&self, lease: &Lease) -> Result<()> {
        let client = &**self;
        // The row stays: its generation must go on growing.
        client
            .execute(
                "update changefeed.lease set expires_at = clock_timestamp() \
                 where name = $1 and owner = $2 and generation = $3",
                &[&lease.name, &lease.owner, &lease.generation],
            )
            .await
            .map_err(db)?;
        Ok(())
    }

    pub(crate) async fn lease_holders(&self) -> Result<Vec<LeaseHolder>> {
        let client = &**self;
        let rows = client
            .query(
                "select name, owner, generation, \
                 (extract(epoch from expires_at - clock_timestamp()) * 1000)::bigint \
                 from changefeed.lease order by name",
                &[],
            )
            .await
            .map_err(db)?;
        Ok(rows
            .iter()
            .map(|row| LeaseHolder {
                name: row.get(0),
                owner: row.get(1),
                generation: row.get(2),
                expires_in_ms: row.get(3),
            })
            .collect())
    }
}
