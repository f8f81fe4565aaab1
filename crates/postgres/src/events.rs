//! Claiming events, and writing down what became of them.

use std::time::Duration;

use async_trait::async_trait;
use changefeed_core::{
    CleanUp, Cleaned, EventClaim, EventFilter, EventId, EventStore, EventTrigger, Finished,
    LeasedEvent, LoggedAttempt, LoggedEvent, Redelivery, Result, TriggerId, TriggerState, Verdict,
    Wanted,
};
use deadpool_postgres::GenericClient;
use tokio_postgres::types::ToSql;

use crate::PostgresStore;
use crate::error::db;
use crate::event_log::{captured, number};
use crate::template::fill;

/// How many keys one claim of ordered events looks at.
const KEYS_PER_CLAIM: i32 = 1000;

#[async_trait]
impl EventStore for PostgresStore {
    async fn claim_events(
        &self,
        wanted: &[Wanted],
        owner: &str,
        lease: Duration,
    ) -> Result<Vec<LeasedEvent>> {
        let client = self.client().await?;
        let claim = Claim { owner, lease };
        let mut taken = Vec::new();
        // All triggers without special wishes in one round trip.
        let plain: Vec<&Wanted> = wanted
            .iter()
            .filter(|w| w.overall.is_none() && !w.ordered)
            .collect();
        if !plain.is_empty() {
            claim.plain(&client, &plain, &mut taken).await?;
        }
        for one in wanted.iter().filter(|w| w.overall.is_none() && w.ordered) {
            claim.ordered(&client, one, &mut taken).await?;
        }
        drop(client);
        for one in wanted.iter().filter(|w| w.overall.is_some()) {
            self.claim_capped(&claim, one, &mut taken).await?;
        }
        Ok(taken)
    }

    async fn renew_events(&self, held: &[EventClaim], lease: Duration) -> Result<Vec<EventClaim>> {
        let client = self.client().await?;
        let (ids, generations) = columns(held.iter().copied());
        let rows = client
            .query(
                &client
                    .prepare_cached(include_str!("sql/event_renew.sql"))
                    .await
                    .map_err(db)?,
                &[&ids, &generations, &milliseconds(lease)],
            )
            .await
            .map_err(db)?;
        Ok(rows.iter().map(claim_of).collect())
    }

    async fn finish_events(&self, finished: &[Finished]) -> Result<Vec<EventClaim>> {
        let client = self.client().await?;
        let (ids, generations) = columns(finished.iter().map(|f| f.claim));
        let verdicts: Vec<i8> = finished.iter().map(|f| letter(f.verdict)).collect();
        let waits: Vec<f64> = finished
            .iter()
            .map(|f| match f.verdict {
                Verdict::Retry { after } => milliseconds(after),
                _ => 0.0,
            })
            .collect();
        let attempts: Vec<i32> = finished.iter().map(|f| number(f.attempt.number)).collect();
        let outcomes: Vec<&str> = finished
            .iter()
            .map(|f| f.attempt.outcome.as_str())
            .collect();
        let statuses: Vec<Option<i16>> = finished
            .iter()
            .map(|f| f.attempt.status.and_then(|s| i16::try_from(s).ok()))
            .collect();
        let requests: Vec<Option<&str>> = finished
            .iter()
            .map(|f| f.attempt.request.as_deref().map(|r| r.get()))
            .collect();
        let responses: Vec<Option<&str>> = finished
            .iter()
            .map(|f| f.attempt.response.as_deref().map(|r| r.get()))
            .collect();
        // A text of the server's cannot hold it.
        let errors: Vec<Option<String>> = finished
            .iter()
            .map(|f| {
                f.attempt
                    .error
                    .as_ref()
                    .map(|e| e.replace('\0', "\u{fffd}"))
            })
            .collect();
        let durations: Vec<i64> = finished.iter().map(|f| f.attempt.duration_ms).collect();
        let rows = client
            .query(
                &client
                    .prepare_cached(include_str!("sql/event_finish.sql"))
                    .await
                    .map_err(db)?,
                &[
                    &ids,
                    &generations,
                    &verdicts,
                    &waits,
                    &attempts,
                    &outcomes,
                    &statuses,
                    &requests,
                    &responses,
                    &errors,
                    &durations,
                ],
            )
            .await
            .map_err(db)?;
        Ok(rows.iter().map(claim_of).collect())
    }

    async fn release_events(&self, held: &[EventClaim]) -> Result<()> {
        let client = self.client().await?;
        let (ids, generations) = columns(held.iter().copied());
        client
            .execute(include_str!("sql/event_release.sql"), &[&ids, &generations])
            .await
            .map_err(db)?;
        Ok(())
    }

    async fn events(&self, filter: &EventFilter, limit: usize) -> Result<Vec<LoggedEvent>> {
        self.list_events(filter, limit).await
    }

    async fn event(&self, id: EventId) -> Result<Option<(LoggedEvent, Vec<LoggedAttempt>)>> {
        self.show_event(id).await
    }

    async fn redeliver(&self, which: &Redelivery) -> Result<u64> {
        match which {
            Redelivery::Event(id) => self.redeliver_one(*id).await,
            Redelivery::Matching(filter) => self.redeliver_matching(filter).await,
        }
    }

    async fn clean_up_events(
        &self,
        trigger: Option<&EventTrigger>,
        what: CleanUp,
        batch: usize,
    ) -> Result<Cleaned> {
        self.clean_up_batch(trigger, what, batch).await
    }

    async fn trigger_states(&self) -> Result<Vec<TriggerState>> {
        self.states_of_triggers().await
    }
}

impl PostgresStore {
    /// Claims events of a trigger that has a limit over all instances. Its row is locked, so that
    /// two instances cannot both take the last place; whoever finds it locked comes back later.
    async fn claim_capped(
        &self,
        claim: &Claim<'_>,
        wanted: &Wanted,
        taken: &mut Vec<LeasedEvent>,
    ) -> Result<()> {
        let mut client = self.client().await?;
        let transaction = client.transaction().await.map_err(db)?;
        let locked = transaction
            .query_opt(
                "select from changefeed.event_trigger where trigger_id = $1 \
                 for no key update skip locked",
                &[&wanted.trigger.0],
            )
            .await
            .map_err(db)?;
        if locked.is_none() {
            return Ok(());
        }
        // In a statement of its own, so that it sees what was taken before the lock was free.
        let held: i64 = transaction
            .query_one(
                "select count(*) from changefeed.event \
                 where trigger_id = $1 and locked_by is not null \
                   and due_at > (select clock_timestamp())",
                &[&wanted.trigger.0],
            )
            .await
            .map_err(db)?
            .get(0);
        let free = i64::from(wanted.overall.unwrap_or(u32::MAX)) - held;
        let limit = u32::try_from(free).unwrap_or(0).min(wanted.limit);
        if limit > 0 {
            let room = Wanted { limit, ..*wanted };
            if wanted.ordered {
                claim.ordered(&transaction, &room, taken).await?;
            } else {
                claim.plain(&transaction, &[&room], taken).await?;
            }
        }
        transaction.commit().await.map_err(db)
    }
}

/// Who claims, and for how long.
struct Claim<'a> {
    owner: &'a str,
    lease: Duration,
}

impl Claim<'_> {
    async fn plain(
        &self,
        client: &impl GenericClient,
        wanted: &[&Wanted],
        taken: &mut Vec<LeasedEvent>,
    ) -> Result<()> {
        let triggers: Vec<i32> = wanted.iter().map(|w| w.trigger.0).collect();
        let rooms: Vec<i32> = wanted.iter().map(|w| number(w.limit)).collect();
        let sql = fill(
            include_str!("sql/event_claim.sql"),
            &[("take", include_str!("sql/event_take.sql"))],
        );
        let parameters: [&(dyn ToSql + Sync); 4] =
            [&triggers, &rooms, &self.owner, &milliseconds(self.lease)];
        run(client, &sql, &parameters, taken).await
    }

    async fn ordered(
        &self,
        client: &impl GenericClient,
        wanted: &Wanted,
        taken: &mut Vec<LeasedEvent>,
    ) -> Result<()> {
        let sql = fill(
            include_str!("sql/event_claim_ordered.sql"),
            &[("take", include_str!("sql/event_take.sql"))],
        );
        let start = random_key();
        let before = taken.len();
        // From the random key to the end, and then from the beginning to it.
        for (from, upto) in [(start, i64::MAX), (i64::MIN, start.saturating_sub(1))] {
            let found = u32::try_from(taken.len() - before).unwrap_or(u32::MAX);
            let room = number(wanted.limit.saturating_sub(found));
            if room == 0 {
                break;
            }
            let (triggers, rooms) = ([wanted.trigger.0], [room]);
            let parameters: [&(dyn ToSql + Sync); 7] = [
                &triggers.as_slice(),
                &rooms.as_slice(),
                &self.owner,
                &milliseconds(self.lease),
                &KEYS_PER_CLAIM,
                &from,
                &upto,
            ];
            run(client, &sql, &parameters, taken).await?;
        }
        Ok(())
    }
}

async fn run(
    client: &impl GenericClient,
    sql: &str,
    parameters: &[&(dyn ToSql + Sync)],
    taken: &mut Vec<LeasedEvent>,
) -> Result<()> {
    let statement = client.prepare_cached(sql).await.map_err(db)?;
    let rows = client.query(&statement, parameters).await.map_err(db)?;
    for row in &rows {
        let count = |place: usize| u32::try_from(row.get::<_, i32>(place)).unwrap_or(0);
        taken.push(LeasedEvent {
            trigger: TriggerId(row.get(1)),
            generation: row.get(2),
            attempt: count(3),
            cut_off: count(4),
            event: captured(row, 5)?,
        });
    }
    Ok(())
}

/// Keys are hashes, so any number is as good a beginning as another.
fn random_key() -> i64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0).cast_signed()
}

fn claim_of(row: &tokio_postgres::Row) -> EventClaim {
    EventClaim {
        change_id: row.get(0),
        generation: row.get(1),
    }
}

fn columns(claims: impl Iterator<Item = EventClaim>) -> (Vec<i64>, Vec<i32>) {
    claims
        .map(|c| {
            let generation = i32::try_from(c.generation).unwrap_or(-1);
            (c.change_id, generation)
        })
        .unzip()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The letter of a verdict in `event_finish.sql`.
fn letter(verdict: Verdict) -> i8 {
    let letter = match verdict {
        Verdict::Delivered => b'd',
        Verdict::Retry { .. } => b'r',
        Verdict::GiveUp => b'e',
        Verdict::Pause => b'g',
    };
    letter.cast_signed()
}
