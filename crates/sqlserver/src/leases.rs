//! Leases: a row with owner, generation and expiry, judged by the server's clock, and by ours where
//! that one was set back.

use std::time::{Duration, Instant};

use changefeed_core::{Lease, LeaseHolder, Result};

use crate::quote;
use crate::row::{Cells, first};
use crate::session::Session;

impl Session {
    pub(crate) async fn lease(
        &mut self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<Option<Lease>> {
        let asked = Instant::now();
        let connection = &mut *self.connection;
        let milliseconds = i32::try_from(ttl.as_millis()).unwrap_or(i32::MAX);
        let sightings = &self.known.sightings;
        let stale = sightings.stale(name, asked);
        let call = format!(
            "declare @generation bigint, @renewal bigint, @held_for int; \
             exec changefeed.take_lease {}, {}, {milliseconds}, {}, @generation output, \
             @renewal output, @held_for output; \
             select @generation, @renewal, @held_for",
            quote::literal(name),
            quote::literal(owner),
            stale.map_or_else(|| "null".to_owned(), |renewal| renewal.to_string()),
        );
        let rows = connection.call(&call).await?;
        if let (Some(renewal), Some(held_for)) = (first(&rows, 1)?, first::<i32>(&rows, 2)?) {
            let held_for = Duration::from_millis(u64::try_from(held_for).unwrap_or_default());
            sightings.held(name, renewal, held_for, Instant::now());
        }
        let Some(generation) = first(&rows, 0)? else {
            return Ok(None);
        };
        sightings.granted(name);
        let (name, owner) = (name.to_owned(), owner.to_owned());
        Ok(Some(Lease::granted(name, owner, generation, asked, ttl)))
    }

    pub(crate) async fn leases(
        &mut self,
        names: &[String],
        owner: &str,
        ttl: Duration,
        more: usize,
    ) -> Result<Vec<Lease>> {
        let asked = Instant::now();
        let milliseconds = i32::try_from(ttl.as_millis()).unwrap_or(i32::MAX);
        let more = i32::try_from(more).unwrap_or(i32::MAX);
        let sightings = &self.known.sightings;
        let wanted: Vec<serde_json::Value> = names
            .iter()
            .map(|name| serde_json::json!({"name": name, "stale": sightings.stale(name, asked)}))
            .collect();
        let wanted = serde_json::Value::from(wanted).to_string();
        let rows = self
            .connection
            .query(
                include_str!("sql/leases.sql"),
                &[&wanted.as_str(), &owner, &milliseconds, &more],
            )
            .await?;
        let mut granted = Vec::new();
        for row in &rows {
            let name = row.text(0)?;
            if let Some(generation) = row.maybe(1)? {
                sightings.granted(&name);
                let owner = owner.to_owned();
                granted.push(Lease::granted(name, owner, generation, asked, ttl));
            } else if let (Some(renewal), Some(held_for)) = (row.maybe(2)?, row.maybe::<i32>(3)?) {
                let held_for = Duration::from_millis(u64::try_from(held_for).unwrap_or_default());
                sightings.held(&name, renewal, held_for, Instant::now());
            }
        }
        Ok(granted)
    }

    pub(crate) async fn release(&mut self, lease: &Lease) -> Result<()> {
        let connection = &mut *self.connection;
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

    pub(crate) async fn keep_time(&mut self) -> Result<Option<Duration>> {
        let call =
            "declare @seconds int; exec changefeed.keep_time @seconds output; select @seconds";
        let rows = self.connection.call(call).await?;
        let stepped: Option<i32> = first(&rows, 0)?;
        Ok(stepped.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or_default())))
    }

    pub(crate) async fn lease_holders(&mut self) -> Result<Vec<LeaseHolder>> {
        let connection = &mut *self.connection;
        let rows = connection
            .query(
                "select name, owner, generation, \
                 datediff_big(millisecond, sysutcdatetime(), expires_at) \
                 from changefeed.lease order by name",
                &[],
            )
            .await?;
        rows.iter()
            .map(|row| {
                Ok(LeaseHolder {
                    name: row.text(0)?,
                    owner: row.text(1)?,
                    generation: row.take(2)?,
                    expires_in_ms: row.take(3)?,
                })
            })
            .collect()
    }
}
