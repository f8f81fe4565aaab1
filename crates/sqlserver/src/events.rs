//! Keeping events, and writing down what became of them.

use std::collections::HashSet;
use std::time::Duration;

use changefeed_core::{EventClaim, Finished, Kind, Redelivery, Result, Uuid, Verdict};
use serde_json::{Value, json};
use tiberius::Row;

use crate::connection::Parameter;
use crate::row::Cells;
use crate::session::Session;

/// How often something is tried that fell victim to a deadlock. Each is one transaction that is
/// undone as a whole, so it can be said again.
const TRIES: u32 = 5;

impl Session {
    pub(crate) async fn held_events(
        &mut self,
        owner: &str,
        within: Duration,
    ) -> Result<Vec<EventClaim>> {
        let seconds = i32::try_from(within.as_secs() + 1).unwrap_or(i32::MAX / 2);
        let rows = self
            .patiently(include_str!("sql/event_held.sql"), &[&owner, &seconds])
            .await?;
        rows.iter().map(claim_of).collect()
    }

    pub(crate) async fn renew_events(
        &mut self,
        held: &[EventClaim],
        lease: Duration,
    ) -> Result<Vec<EventClaim>> {
        if held.is_empty() {
            return Ok(Vec::new());
        }
        let (document, lease) = (claims_json(held), Span::of(lease));
        let rows = self
            .patiently(
                include_str!("sql/event_renew.sql"),
                &[&document, &lease.seconds, &lease.milliseconds],
            )
            .await?;
        rows.iter().map(claim_of).collect()
    }

    pub(crate) async fn finish_events(&mut self, finished: &[Finished]) -> Result<Vec<EventClaim>> {
        if finished.is_empty() {
            return Ok(Vec::new());
        }
        let mut said = HashSet::new();
        let document: Vec<Value> = finished
            .iter()
            .filter(|f| said.insert(f.claim))
            .map(outcome)
            .collect();
        let document = Value::from(document).to_string();
        let rows = self
            .patiently(include_str!("sql/event_finish.sql"), &[&document])
            .await?;
        rows.iter().map(claim_of).collect()
    }

    pub(crate) async fn release_events(&mut self, held: &[EventClaim]) -> Result<()> {
        if held.is_empty() {
            return Ok(());
        }
        let document = claims_json(held);
        self.patiently(include_str!("sql/event_release.sql"), &[&document])
            .await?;
        Ok(())
    }

    pub(crate) async fn redeliver(&mut self, which: &Redelivery, key: Uuid) -> Result<u64> {
        match which {
            Redelivery::Event(id) => self.redeliver_one(*id, key).await,
            Redelivery::Matching(filter) => self.redeliver_matching(filter, key).await,
        }
    }
}

impl Session {
    /// Runs a batch that is one transaction, again if it fell victim to a deadlock.
    pub(crate) async fn patiently(
        &mut self,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>> {
        let mut tried = 1;
        loop {
            match self.connection.query(sql, parameters).await {
                Err(error) if error.kind() == Kind::Busy && tried < TRIES => tried += 1,
                done => return done,
            }
        }
    }
}

/// An attempt and what follows from it, for `event_finish.sql`.
fn outcome(finished: &Finished) -> Value {
    let attempt = &finished.attempt;
    let (verdict, after) = match finished.verdict {
        Verdict::Delivered => ("d", Duration::ZERO),
        Verdict::Retry { after } => ("r", after),
        Verdict::GiveUp => ("e", Duration::ZERO),
        Verdict::Pause => ("g", Duration::ZERO),
    };
    let wait = Span::of(after);
    // Babelfish has no place for some of them in a text.
    let printable = |text: &str| {
        text.replace(
            |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t'),
            "?",
        )
    };
    json!({
        "change_id": finished.claim.change_id,
        "generation": finished.claim.generation,
        "verdict": verdict,
        "seconds": wait.seconds,
        "milliseconds": wait.milliseconds,
        "attempt": attempt.number,
        "outcome": attempt.outcome.as_str(),
        "status": attempt.status.and_then(|s| i16::try_from(s).ok()),
        "request": attempt.request.as_deref().map(|json| json.get()),
        "response": attempt.response.as_deref().map(|json| json.get()),
        "error": attempt.error.as_deref().map(printable),
        "duration_ms": attempt.duration_ms,
    })
}

fn claim_of(row: &Row) -> Result<EventClaim> {
    Ok(EventClaim {
        change_id: row.take(0)?,
        generation: row.take(1)?,
    })
}

/// Claims as a JSON array of objects.
pub(crate) fn claims_json(claims: &[EventClaim]) -> String {
    let all: Vec<Value> = claims
        .iter()
        .map(|c| json!({"change_id": c.change_id, "generation": c.generation}))
        .collect();
    Value::from(all).to_string()
}

/// A time span as the server adds it: in two steps, because it counts in 32 bits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) seconds: i32,
    pub(crate) milliseconds: i32,
}

impl Span {
    pub(crate) fn of(span: Duration) -> Self {
        Span {
            seconds: i32::try_from(span.as_secs()).unwrap_or(i32::MAX),
            milliseconds: i32::try_from(span.subsec_millis()).unwrap_or(0),
        }
    }
}
