//! Claiming events: which are due, and of those the ones whose turn it is.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use changefeed_core::{EventClaim, LeasedEvent, Result, TriggerId, Wanted};
use deadpool_postgres::ClientWrapper;
use tokio_postgres::types::ToSql;

use crate::error::db;
use crate::event_log::{captured, number};
use crate::events::{columns, milliseconds};
use crate::floors::{Floors, Look, Took};
use crate::row::Cells;
use crate::session::Session;
use crate::template::fill;

/// How many due events, and then how many keys, one claim of ordered events looks at.
const LOOKED_AT: i64 = 1000;
const KEYS_PER_CLAIM: i32 = 1000;
/// What one statement takes at most: its answer must fit into the buffers of a connection, see
/// `event_take.sql`.
const TAKEN_AT_ONCE: i64 = 500;
/// How much one claim brings at most, in bytes as they are stored; what is more is given back.
const BYTES_AT_ONCE: i64 = 16 * 1024 * 1024;

impl Session {
    pub(crate) async fn claim_events(
        &self,
        wanted: &[Wanted],
        owner: &str,
        lease: Duration,
    ) -> Result<Vec<LeasedEvent>> {
        let client = &**self;
        let claim = Claim {
            owner,
            lease,
            floors: &self.known.floors,
            walks: &self.known.walks,
        };
        let mut taken = Vec::new();
        // All triggers without an order in one round trip.
        let plain: Vec<&Wanted> = wanted.iter().filter(|w| !w.ordered).collect();
        if !plain.is_empty() {
            claim.plain(client, &plain, &mut taken).await?;
        }
        for one in wanted.iter().filter(|w| w.ordered) {
            if one.debounced {
                collapse(client, one.trigger).await?;
            }
            claim.ordered(client, one, &mut taken).await?;
        }
        let claims: Vec<EventClaim> = taken.iter().map(|t| t.claim).collect();
        let events = read(client, &claims).await?;
        if events.len() < claims.len() {
            let here: HashSet<i64> = events.iter().map(|e| e.event.change_id).collect();
            let rest: Vec<EventClaim> = claims
                .into_iter()
                .filter(|c| !here.contains(&c.change_id))
                .collect();
            self.release_events(&rest).await?;
        }
        Ok(events)
    }
}

/// Marks the events that a later one of their key is delivered for.
async fn collapse(client: &ClientWrapper, trigger: TriggerId) -> Result<()> {
    let statement = client
        .prepare_cached(include_str!("sql/event_collapse.sql"))
        .await
        .map_err(db)?;
    client
        .query(&statement, &[&trigger.0, &LOOKED_AT])
        .await
        .map_err(db)?;
    Ok(())
}

/// Reads events that were taken, as many as fit.
async fn read(client: &ClientWrapper, claims: &[EventClaim]) -> Result<Vec<LeasedEvent>> {
    if claims.is_empty() {
        return Ok(Vec::new());
    }
    let (ids, generations) = columns(claims.iter().copied());
    let statement = client
        .prepare_cached(include_str!("sql/event_taken.sql"))
        .await
        .map_err(db)?;
    let rows = client
        .query(&statement, &[&ids, &generations, &BYTES_AT_ONCE])
        .await
        .map_err(db)?;
    rows.iter()
        .map(|row| {
            Ok(LeasedEvent {
                trigger: TriggerId(row.take("trigger_id")?),
                generation: row.take("generation")?,
                attempt: row.count::<i32, _>("tries")?,
                cut_off: row.count::<i32, _>("cut_off")?,
                event: captured(row)?,
            })
        })
        .collect()
}

/// Who claims, and for how long.
struct Claim<'a> {
    owner: &'a str,
    lease: Duration,
    floors: &'a Floors,
    walks: &'a Walks,
}

/// An event that was taken.
#[derive(Debug, Clone, Copy)]
struct Taken {
    claim: EventClaim,
    trigger: TriggerId,
    /// When it was due, and when it was taken, in microseconds since 1970.
    due: i64,
    now: i64,
}

impl Claim<'_> {
    async fn plain(
        &self,
        client: &ClientWrapper,
        wanted: &[&Wanted],
        taken: &mut Vec<Taken>,
    ) -> Result<()> {
        let triggers: Vec<i32> = wanted.iter().map(|w| w.trigger.0).collect();
        let rooms: Vec<i32> = wanted.iter().map(|w| number(w.limit)).collect();
        let overall: Vec<Option<i32>> = wanted.iter().map(|w| w.overall.map(number)).collect();
        let looks: Vec<Look> = wanted
            .iter()
            .map(|w| self.floors.begin(w.trigger))
            .collect();
        let floors: Vec<Option<i64>> = looks.iter().map(|look| look.from).collect();
        let mut found = Vec::new();
        let parameters: [&(dyn ToSql + Sync); 7] = [
            &triggers,
            &rooms,
            &self.owner,
            &milliseconds(self.lease),
            &floors,
            &overall,
            &TAKEN_AT_ONCE,
        ];
        let empty = run(
            client,
            include_str!("sql/event_claim.sql"),
            &parameters,
            &mut found,
        )
        .await?;
        let cut = i64::try_from(found.len()).unwrap_or(i64::MAX) >= TAKEN_AT_ONCE;
        for (one, look) in wanted.iter().zip(looks) {
            let of_this = found.iter().filter(|t| t.trigger == one.trigger);
            let count = of_this.clone().count();
            let took = of_this.max_by_key(|t| t.due).map(|last| Took {
                last_due: last.due,
                now: last.now,
                full: cut || count >= one.limit as usize || one.overall.is_some() || one.paced,
            });
            let nothing = empty.iter().find(|e| e.trigger == one.trigger);
            let nothing = nothing.map(|e| Took::everything(e.now));
            self.floors.end(one.trigger, look, took.or(nothing));
        }
        taken.extend(found);
        Ok(())
    }

    async fn ordered(
        &self,
        client: &ClientWrapper,
        wanted: &Wanted,
        taken: &mut Vec<Taken>,
    ) -> Result<()> {
        let before = taken.len();
        let limit = wanted
            .limit
            .min(u32::try_from(TAKEN_AT_ONCE).unwrap_or(u32::MAX));
        let (room, overall) = (number(limit), wanted.overall.map(number));
        let parameters: [&(dyn ToSql + Sync); 6] = [
            &wanted.trigger.0,
            &room,
            &self.owner,
            &milliseconds(self.lease),
            &LOOKED_AT,
            &overall,
        ];
        run(
            client,
            include_str!("sql/event_claim_ordered.sql"),
            &parameters,
            taken,
        )
        .await?;
        let found = u32::try_from(taken.len() - before).unwrap_or(limit);
        if found >= limit || !self.has_more_due(client, wanted.trigger).await? {
            return Ok(());
        }
        let heads = self.walk(client, wanted.trigger).await?;
        let room = number(limit - found);
        let parameters: [&(dyn ToSql + Sync); 6] = [
            &wanted.trigger.0,
            &room,
            &self.owner,
            &milliseconds(self.lease),
            &heads,
            &overall,
        ];
        run(
            client,
            include_str!("sql/event_claim_heads.sql"),
            &parameters,
            taken,
        )
        .await?;
        Ok(())
    }

    /// Whether more is due than was looked at.
    async fn has_more_due(&self, client: &ClientWrapper, trigger: TriggerId) -> Result<bool> {
        let row = client
            .query_one(
                "select exists (select from changefeed.event \
                 where trigger_id = $1 and due_at <= (select clock_timestamp()) \
                 order by due_at, change_id offset $2)",
                &[&trigger.0, &LOOKED_AT],
            )
            .await
            .map_err(db)?;
        row.take(0)
    }

    /// The oldest events of the next keys, where they are due. Goes on where the last walk ended,
    /// so that every key has its turn.
    async fn walk(&self, client: &ClientWrapper, trigger: TriggerId) -> Result<Vec<i64>> {
        let from = self.walks.at(trigger);
        let statement = client
            .prepare_cached(include_str!("sql/event_walk.sql"))
            .await
            .map_err(db)?;
        let rows = client
            .query(&statement, &[&trigger.0, &from, &KEYS_PER_CLAIM])
            .await
            .map_err(db)?;
        let last: Option<i64> = rows.last().map(|row| row.take(0)).transpose()?;
        let complete = rows.len() < usize::try_from(KEYS_PER_CLAIM).unwrap_or(0);
        let next = last.filter(|_| !complete).map(|key| key.saturating_add(1));
        self.walks.set(trigger, next.unwrap_or(i64::MIN));
        let mut heads = Vec::new();
        for row in &rows {
            if row.take(2)? {
                heads.push(row.take(1)?);
            }
        }
        Ok(heads)
    }
}

/// How far the keys of ordered triggers were looked at.
#[derive(Debug, Default)]
pub(crate) struct Walks(Mutex<HashMap<TriggerId, i64>>);

impl Walks {
    fn at(&self, trigger: TriggerId) -> i64 {
        let walks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        walks.get(&trigger).copied().unwrap_or(i64::MIN)
    }

    fn set(&self, trigger: TriggerId, key: i64) {
        let mut walks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        walks.insert(trigger, key);
    }
}

/// A look that has found nothing of a trigger.
#[derive(Debug, Clone, Copy)]
struct Empty {
    trigger: TriggerId,
    now: i64,
}

/// Runs a claim, and adds what it took, oldest first. Returns where it is sure that there was nothing.
async fn run(
    client: &ClientWrapper,
    sql: &str,
    parameters: &[&(dyn ToSql + Sync)],
    taken: &mut Vec<Taken>,
) -> Result<Vec<Empty>> {
    let sql = fill(sql, &[("take", include_str!("sql/event_take.sql"))])?;
    let statement = client.prepare_cached(&sql).await.map_err(db)?;
    let rows = client.query(&statement, parameters).await.map_err(db)?;
    let before = taken.len();
    let mut empty = Vec::new();
    for row in &rows {
        let (now, trigger) = (row.take(3)?, TriggerId(row.take(4)?));
        match row.take(0)? {
            Some(change_id) => taken.push(Taken {
                claim: EventClaim {
                    change_id,
                    generation: row.take(1)?,
                },
                due: row.take(2)?,
                now,
                trigger,
            }),
            None => empty.push(Empty { trigger, now }),
        }
    }
    taken[before..].sort_by_key(|t| t.claim.change_id);
    Ok(empty)
}
