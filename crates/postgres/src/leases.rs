//! Leases: a row with owner, generation and expiry, judged by the server's clock, and by ours where
//! that one was set back.

use std::time::{Duration, Instant};

use changefeed_core::{Lease, LeaseHolder, Result};

use crate::error::db;
use crate::row::Cells;
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
        let milliseconds = i32::try_from(ttl.as_millis()).unwrap_or(i32::MAX);
        // A user that may only sweep may call this function; the other needs rights on the table.
        let take = if name.starts_with("sweep/") && milliseconds <= 60_000 {
            "select generation, renewal, held_for from changefeed.take_lease($1, $2, $3, $4)"
        } else {
            "select generation, renewal, held_for from changefeed.hold_lease($1, $2, $3, $4)"
        };
        let statement = client.prepare_cached(take).await.map_err(db)?;
        let sightings = &self.known.sightings;
        let stale = sightings.stale(name, asked);
        let row = client
            .query_one(&statement, &[&name, &owner, &milliseconds, &stale])
            .await
            .map_err(db)?;
        if let (Some(renewal), Some(held_for)) = (row.take(1)?, row.take::<Option<i32>>(2)?) {
            let held_for = Duration::from_millis(u64::try_from(held_for).unwrap_or_default());
            sightings.held(name, renewal, held_for, Instant::now());
        }
        let Some(generation) = row.take::<Option<i64>>(0)? else {
            return Ok(None);
        };
        sightings.granted(name);
        let (name, owner) = (name.to_owned(), owner.to_owned());
        Ok(Some(Lease::granted(name, owner, generation, asked, ttl)))
    }

    pub(crate) async fn leases(
        &self,
        names: &[String],
        owner: &str,
        ttl: Duration,
        more: usize,
    ) -> Result<Vec<Lease>> {
        let asked = Instant::now();
        let client = &**self;
        let milliseconds = i32::try_from(ttl.as_millis()).unwrap_or(i32::MAX);
        let more = i64::try_from(more).unwrap_or(i64::MAX / 2);
        let sightings = &self.known.sightings;
        let stale: Vec<Option<i64>> = names
            .iter()
            .map(|name| sightings.stale(name, asked))
            .collect();
        let statement = client
            .prepare_cached(include_str!("sql/leases.sql"))
            .await
            .map_err(db)?;
        let rows = client
            .query(&statement, &[&names, &stale, &owner, &milliseconds, &more])
            .await
            .map_err(db)?;
        let mut granted = Vec::new();
        for row in &rows {
            let name: String = row.take(0)?;
            if let Some(generation) = row.take::<Option<i64>>(1)? {
                sightings.granted(&name);
                let owner = owner.to_owned();
                granted.push(Lease::granted(name, owner, generation, asked, ttl));
            } else if let (Some(renewal), Some(held_for)) =
                (row.take(2)?, row.take::<Option<i32>>(3)?)
            {
                let held_for = Duration::from_millis(u64::try_from(held_for).unwrap_or_default());
                sightings.held(&name, renewal, held_for, Instant::now());
            }
        }
        Ok(granted)
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

    pub(crate) async fn keep_time(&self) -> Result<Option<Duration>> {
        let client = &**self;
        let statement = client
            .prepare_cached("select changefeed.keep_time()")
            .await
            .map_err(db)?;
        let row = client.query_one(&statement, &[]).await.map_err(db)?;
        let stepped: Option<i64> = row.take(0)?;
        Ok(stepped.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or_default())))
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
        rows.iter()
            .map(|row| {
                Ok(LeaseHolder {
                    name: row.take(0)?,
                    owner: row.take(1)?,
                    generation: row.take(2)?,
                    expires_in_ms: row.take(3)?,
                })
            })
            .collect()
    }
}
