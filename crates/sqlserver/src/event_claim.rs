//! Claiming events: which are due, and of those the ones whose turn it is.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use changefeed_core::{EventClaim, LeasedEvent, Result, TriggerId, Wanted};

use crate::connection::Connection;
use crate::event_log::captured;
use crate::events::{Span, claims_json};
use crate::row::Cells;
use crate::session::Session;

/// How many due events, and then how many keys, one claim of ordered events looks at.
const LOOKED_AT: i32 = 1000;
const KEYS_PER_CLAIM: i32 = 1000;
/// How much one claim brings at most, in bytes as they are stored; what is more is given back.
const BYTES_AT_ONCE: i64 = 32 * 1024 * 1024;

/// How far the keys of ordered triggers were looked at.
#[derive(Debug, Default)]
pub(crate) struct Walks(Mutex<HashMap<TriggerId, i64>>);

impl Walks {
    fn at(&self, trigger: TriggerId) -> Option<i64> {
        let walks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        walks.get(&trigger).copied()
    }

    fn set(&self, trigger: TriggerId, key: Option<i64>) {
        let mut walks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match key {
            Some(key) => walks.insert(trigger, key),
            None => walks.remove(&trigger),
        };
    }
}

impl Session {
    pub(crate) async fn claim_events(
        &mut self,
        wanted: &[Wanted],
        owner: &str,
        lease: Duration,
    ) -> Result<Vec<LeasedEvent>> {
        let wanted: Vec<&Wanted> = wanted.iter().filter(|w| w.limit > 0).collect();
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let claims = self.take_due(&wanted, owner, lease).await?;
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        let connection = &mut *self.connection;
        let events = read(connection, &claims).await?;
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

    async fn take_due(
        &mut self,
        wanted: &[&Wanted],
        owner: &str,
        lease: Duration,
    ) -> Result<Vec<EventClaim>> {
        let known = self.known.clone();
        let walks = &known.walks;
        let document: Vec<serde_json::Value> = wanted
            .iter()
            .map(|w| {
                serde_json::json!({
                    "trigger_id": w.trigger.0,
                    "room": i32::try_from(w.limit).unwrap_or(i32::MAX),
                    "overall": w.overall.map(|n| i32::try_from(n).unwrap_or(i32::MAX)),
                    "ordered": w.ordered,
                    "debounced": w.debounced,
                    "paced": w.paced,
                    "walk": walks.at(w.trigger),
                })
            })
            .collect();
        let lease = Span::of(lease);
        let rows = self
            .patiently(
                include_str!("sql/event_claim.sql"),
                &[
                    &serde_json::Value::from(document).to_string(),
                    &owner,
                    &lease.seconds,
                    &lease.milliseconds,
                    &LOOKED_AT,
                    &KEYS_PER_CLAIM,
                ],
            )
            .await?;
        let mut claims = Vec::new();
        for row in &rows {
            if row.says(3)? {
                let trigger = TriggerId(row.take(2)?);
                let next = row.maybe::<i64>(4)?.map(|key| key.saturating_add(1));
                walks.set(trigger, next);
                continue;
            }
            claims.push(EventClaim {
                change_id: row.take(0)?,
                generation: row.take(1)?,
            });
        }
        Ok(claims)
    }
}

/// Reads events that were taken, as many as fit.
async fn read(connection: &mut Connection, claims: &[EventClaim]) -> Result<Vec<LeasedEvent>> {
    let rows = connection
        .query(
            include_str!("sql/event_taken.sql"),
            &[&claims_json(claims), &BYTES_AT_ONCE],
        )
        .await?;
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
