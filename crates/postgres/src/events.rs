//! Keeping events, and writing down what became of them.

use std::borrow::Cow;
use std::time::Duration;

use changefeed_core::{EventClaim, Finished, Redelivery, Result, Uuid, Verdict};
use serde_json::value::RawValue;

use crate::encoding::{ascii_json, ascii_text};
use crate::error::db;
use crate::event_log::number;
use crate::row::Cells;
use crate::session::Session;

impl Session {
    pub(crate) async fn held_events(
        &self,
        owner: &str,
        within: Duration,
    ) -> Result<Vec<EventClaim>> {
        let rows = self
            .query(
                include_str!("sql/event_held.sql"),
                &[&owner, &milliseconds(within)],
            )
            .await
            .map_err(db)?;
        rows.iter().map(claim_of).collect()
    }

    pub(crate) async fn renew_events(
        &self,
        held: &[EventClaim],
        lease: Duration,
    ) -> Result<Vec<EventClaim>> {
        let client = &**self;
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
        rows.iter().map(claim_of).collect()
    }

    pub(crate) async fn finish_events(&self, finished: &[Finished]) -> Result<Vec<EventClaim>> {
        let client = &**self;
        // In one order for everybody, so that nobody waits for each other.
        let mut finished: Vec<&Finished> = finished.iter().collect();
        finished.sort_by_key(|f| f.claim.change_id);
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
        // A character that the database cannot hold must not keep all outcomes from being written.
        let utf8 = self.known.encoding.is_utf8(&**client).await?;
        let requests: Vec<Option<Cow<'_, str>>> = finished
            .iter()
            .map(|f| spelt(&f.attempt.request, utf8))
            .collect();
        let responses: Vec<Option<Cow<'_, str>>> = finished
            .iter()
            .map(|f| spelt(&f.attempt.response, utf8))
            .collect();
        // A text of the server's cannot hold it.
        let errors: Vec<Option<String>> = finished
            .iter()
            .map(|f| {
                f.attempt
                    .error
                    .as_ref()
                    .map(|e| e.replace('\0', "?"))
                    .map(|e| if utf8 { e } else { ascii_text(&e) })
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
        rows.iter().map(claim_of).collect()
    }

    pub(crate) async fn release_events(&self, held: &[EventClaim]) -> Result<()> {
        let client = &**self;
        let (ids, generations) = columns(held.iter().copied());
        client
            .execute(include_str!("sql/event_release.sql"), &[&ids, &generations])
            .await
            .map_err(db)?;
        Ok(())
    }

    pub(crate) async fn redeliver(&self, which: &Redelivery, key: Uuid) -> Result<u64> {
        match which {
            Redelivery::Event(id) => self.redeliver_one(*id, key).await,
            Redelivery::Matching(filter) => self.redeliver_matching(filter, key).await,
        }
    }
}

/// JSON in characters that the database can hold.
fn spelt(json: &Option<Box<RawValue>>, utf8: bool) -> Option<Cow<'_, str>> {
    json.as_deref().map(|json| match utf8 {
        true => Cow::Borrowed(json.get()),
        false => Cow::Owned(ascii_json(json.get())),
    })
}

fn claim_of(row: &tokio_postgres::Row) -> Result<EventClaim> {
    Ok(EventClaim {
        change_id: row.take(0)?,
        generation: row.take(1)?,
    })
}

pub(crate) fn columns(claims: impl Iterator<Item = EventClaim>) -> (Vec<i64>, Vec<i32>) {
    claims
        .map(|c| {
            let generation = i32::try_from(c.generation).unwrap_or(-1);
            (c.change_id, generation)
        })
        .unzip()
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
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
