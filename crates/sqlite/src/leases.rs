//! Leases, judged by the clock of the machine, which all processes of an SQLite file share, and by
//! the time that has passed where that clock was set back.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use changefeed_core::{Lease, LeaseHolder, LeaseStore, Result, Sightings};
use rusqlite::{Connection, OptionalExtension, Transaction, params};

use crate::error::Explain;
use crate::{SqliteStore, quote};

/// Stores the time if it is far ahead of the last one stored. Called by everything that puts something
/// off or holds it: should that be a step of the clock which is taken back before anybody looks, the
/// next look finds it all the same.
pub(crate) fn note_time(tx: &Connection) -> Result<()> {
    tx.prepare_cached(include_str!("sql/note_time.sql"))
        .and_then(|mut s| s.execute([]))
        .explained()?;
    Ok(())
}

/// Asking for leases.
struct Call<'a> {
    owner: &'a str,
    ttl: Duration,
    asked: Instant,
    sightings: &'a Sightings,
}

impl Call<'_> {
    fn holds(&self, tx: &Connection, name: &str) -> Result<bool> {
        tx.prepare_cached("select 1 from changefeed_lease where name = ?1 and owner = ?2")
            .and_then(|mut s| s.exists([name, self.owner]))
            .explained()
    }

    fn take(&self, tx: &Connection, name: String) -> Result<Option<Lease>> {
        let millis = i64::try_from(self.ttl.as_millis()).unwrap_or(i64::MAX / 2);
        let stale = self.sightings.stale(&name, self.asked);
        let generation: Option<i64> = tx
            .prepare_cached(include_str!("sql/lease.sql"))
            .and_then(|mut s| {
                s.query_row(params![name, self.owner, millis, stale], |row| row.get(0))
                    .optional()
            })
            .explained()?;
        let Some(generation) = generation else {
            let (renewal, held_for): (i64, i64) = tx
                .prepare_cached("select renewal, ttl from changefeed_lease where name = ?1")
                .and_then(|mut s| s.query_row([&name], |row| Ok((row.get(0)?, row.get(1)?))))
                .explained()?;
            let held_for = Duration::from_millis(u64::try_from(held_for).unwrap_or_default());
            let now = Instant::now();
            self.sightings.held(&name, renewal, held_for, now);
            return Ok(None);
        };
        self.sightings.granted(&name);
        let owner = self.owner.to_owned();
        let (asked, ttl) = (self.asked, self.ttl);
        Ok(Some(Lease::granted(name, owner, generation, asked, ttl)))
    }
}

#[async_trait]
impl LeaseStore for SqliteStore {
    async fn lease(&self, name: &str, owner: &str, ttl: Duration) -> Result<Option<Lease>> {
        let granted = self.leases(&[name.to_owned()], owner, ttl, 1).await?;
        Ok(granted.into_iter().next())
    }

    async fn leases(
        &self,
        names: &[String],
        owner: &str,
        ttl: Duration,
        more: usize,
    ) -> Result<Vec<Lease>> {
        // Before anything is sent: waiting for the write lock counts against the holder.
        let asked = Instant::now();
        let (names, owner) = (names.to_vec(), owner.to_owned());
        let inner = self.inner.clone();
        self.writing(move |tx| {
            let call = Call {
                owner: &owner,
                ttl,
                asked,
                sightings: &inner.sightings,
            };
            // What the owner has comes first.
            let (mut granted, mut others) = (Vec::new(), Vec::new());
            for name in names {
                match call.holds(tx, &name)? {
                    true => granted.extend(call.take(tx, name)?),
                    false => others.push(name),
                }
            }
            let own = granted.len();
            for name in others {
                if granted.len() - own < more {
                    granted.extend(call.take(tx, name)?);
                }
            }
            Ok(granted)
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

    async fn keep_time(&self) -> Result<Option<Duration>> {
        let known = |tx: &Transaction<'_>| -> Result<(i64, i64)> {
            tx.query_row(
                "select latest, cast((julianday('now') - 2440587.5) * 86400000.0 as integer) \
                 from changefeed_clock",
                [],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .explained()
        };
        let (latest, now) = self.reading(known).await?;
        if (latest - 5_000..latest + 10_000).contains(&now) {
            return Ok(None);
        }
        // Looked for by a reader: there may be a great many that are to come, and few are.
        let astray: Vec<i64> = self
            .reading(move |tx| {
                tx.prepare_cached(include_str!("sql/keep_time_astray.sql"))
                    .and_then(|mut s| s.query_map([now], |row| row.get(0))?.collect())
                    .explained()
            })
            .await?;
        self.writing(move |tx| {
            let (latest, now) = known(tx)?;
            tx.execute("update changefeed_clock set latest = ?1", [now])
                .explained()?;
            for change_id in astray {
                tx.prepare_cached(
                    "update changefeed_event set due_at = ?2 \
                     where change_id = ?1 and generation = 0 and due_at > ?2",
                )
                .and_then(|mut s| s.execute([change_id, now]))
                .explained()?;
            }
            let step = latest - now;
            if step <= 5_000 {
                return Ok(None);
            }
            tx.execute(
                "update changefeed_lease set expires_at = expires_at - ?2 \
                 where expires_at > ?1 + ?2 / 2",
                [now, step],
            )
            .explained()?;
            tx.execute(include_str!("sql/keep_time.sql"), [now, step])
                .explained()?;
            let tables: Vec<String> = tx
                .prepare(
                    "select name from sqlite_master where type = 'table' \
                     and name glob 'changefeed_leases_[0-9a-f]*_[0-9]*'",
                )
                .and_then(|mut s| s.query_map([], |row| row.get(0))?.collect())
                .explained()?;
            for table in tables {
                let places = [("leases", quote::identifier(&table))];
                let places = places
                    .each_ref()
                    .map(|(place, name)| (*place, name.as_str()));
                let sql = quote::fill(include_str!("sql/keep_time_rows.sql"), &places)?;
                tx.execute(&sql, [now, step]).explained()?;
            }
            Ok(Some(Duration::from_millis(
                u64::try_from(step).unwrap_or_default(),
            )))
        })
        .await
    }

    async fn lease_holders(&self) -> Result<Vec<LeaseHolder>> {
        self.reading(|tx| {
            let mut statement = tx
                .prepare_cached(include_str!("sql/lease_holders.sql"))
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
