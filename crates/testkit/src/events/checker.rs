//! An independent judge of deliveries: it knows what the log says and what a receiver saw, and
//! nothing of how it came about.

use std::collections::HashMap;

use changefeed_core::{
    EventId, EventStatus, LoggedAttempt, LoggedEvent, MAX_CUT_OFF, Outcome, Retry, Store,
};
use changefeed_receiver::{Receiver, Reply};
use serde_json::Value;

use crate::backend::{Backend, Session};
use crate::events::{log, shown};

/// What a receiver saw of one event.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// Requests that were read to their end.
    pub arrived: usize,
    /// Those that were answered with success at once.
    pub accepted: usize,
}

/// What a receiver saw, by event.
pub fn seen_by(receivers: &[&Receiver]) -> HashMap<EventId, Seen> {
    let mut seen: HashMap<EventId, Seen> = HashMap::new();
    for request in receivers.iter().flat_map(|r| r.requests()) {
        if !request.complete {
            continue;
        }
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let id = body["id"].as_str().unwrap().parse().unwrap();
        let entry = seen.entry(id).or_default();
        entry.arrived += 1;
        entry.accepted += usize::from(request.reply == Reply::Accept);
    }
    seen
}

/// What the judge counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Account {
    /// Events that arrived.
    pub delivered: usize,
    /// Events that were given up.
    pub dead: usize,
    /// Requests beyond the first of their event.
    pub repeated: usize,
    /// Attempts that were cut off.
    pub unknown: usize,
    /// Attempts that were over too late.
    pub late: usize,
}

/// Checks promises 8 and 9 over every event of the log, none of which may be pending any more.
/// Nothing may have been redelivered by hand.
pub async fn audit(store: &dyn Store, retry: &Retry, seen: &HashMap<EventId, Seen>) -> Account {
    let mut account = Account::default();
    for logged in log(store).await {
        let (event, attempts) = shown(store, logged.event.id).await;
        let at = seen.get(&logged.event.id).copied().unwrap_or_default();
        judge(&event, &attempts, retry, at, &mut account);
    }
    account
}

fn judge(
    event: &LoggedEvent,
    attempts: &[LoggedAttempt],
    retry: &Retry,
    seen: Seen,
    account: &mut Account,
) {
    let id = event.event.id;
    let told = || format!("event {id}: {event:?}\n{attempts:#?}\n{seen:?}");
    let tries = event.tries as usize;
    let mut numbers: Vec<usize> = attempts.iter().map(|a| a.attempt.number as usize).collect();
    numbers.sort_unstable();
    assert_eq!(
        numbers,
        (1..=tries).collect::<Vec<_>>(),
        "every attempt is logged once: {}",
        told()
    );
    let is = |a: &LoggedAttempt, outcome| a.attempt.outcome == outcome;
    let decided: Vec<&LoggedAttempt> = attempts.iter().filter(|a| !a.late).collect();
    let failures = decided.iter().filter(|a| is(a, Outcome::Failure)).count();
    let successes = decided.iter().filter(|a| is(a, Outcome::Success)).count();
    let cut_off = attempts
        .iter()
        .filter(|a| a.late || is(a, Outcome::Unknown))
        .count();
    let last = decided.iter().max_by_key(|a| a.attempt.number);
    match event.status {
        EventStatus::Delivered => {
            assert_eq!(successes, 1, "{}", told());
            assert!(last.is_some_and(|a| is(a, Outcome::Success)), "{}", told());
            assert!(seen.arrived > 0, "delivered, but never arrived: {}", told());
            account.delivered += 1;
        }
        EventStatus::DeadLetter => {
            let status = last.and_then(|a| a.attempt.status);
            let is_final = status.is_some_and(|s| retry.final_statuses.contains(&s));
            assert_eq!(successes, 0, "{}", told());
            assert!(
                failures == retry.num_retries as usize + 1
                    || is_final
                    || cut_off > MAX_CUT_OFF as usize,
                "given up before its retries were used up: {}",
                told()
            );
            account.dead += 1;
        }
        EventStatus::Pending | EventStatus::Archived | EventStatus::Collapsed => {
            panic!("not finished: {}", told())
        }
    }
    assert!(
        attempts.len() <= retry.num_retries as usize + 1 + cut_off,
        "too many attempts: {}",
        told()
    );
    assert!(
        seen.arrived <= attempts.len(),
        "a request without an attempt: {}",
        told()
    );
    let excuses = failures + cut_off;
    assert!(
        seen.arrived.saturating_sub(1) <= excuses,
        "delivered twice without cause: {}",
        told()
    );
    account.repeated += seen.arrived.saturating_sub(1);
    // One that its sender has written down, because a kept connection ended without an answer, was not
    // cut off.
    account.unknown += attempts
        .iter()
        .filter(|a| is(a, Outcome::Unknown) && a.attempt.request.is_none())
        .count();
    account.late += attempts.iter().filter(|a| a.late).count();
}

/// Has the database itself note every event that changes hands before its lease is over.
pub async fn guard(backend: &dyn Backend) {
    backend.session().await.run(backend.words().guard).await;
}

/// Promise 9, by the database's own clock: nothing was ever taken from somebody who held it.
pub async fn nothing_was_stolen(session: &dyn Session) {
    let stolen = session
        .query("select change_id, from_whom, by_whom from stolen")
        .await
        .unwrap();
    assert!(
        stolen.is_empty(),
        "held by two at the same time: {stolen:?}"
    );
}

#[cfg(test)]
mod tests {
    use changefeed_core::{Attempt, Event, EventBits, Operation, TableName};

    use super::*;

    fn event(status: EventStatus, tries: u32) -> LoggedEvent {
        LoggedEvent {
            event: Event {
                id: EventId::new(1, EventBits::new(1)),
                change_id: 1,
                trigger: "t".parse().unwrap(),
                table: TableName::unqualified("orders"),
                op: Operation::Insert,
                old: None,
                new: None,
                session_variables: None,
                trace_context: None,
                created_at: String::new(),
            },
            status,
            tries,
            locked_by: None,
            next_retry_at: None,
            superseded_by: None,
            last_status: None,
            last_error: None,
        }
    }

    fn attempt(number: u32, outcome: Outcome, late: bool) -> LoggedAttempt {
        LoggedAttempt {
            attempt: Attempt {
                number,
                outcome,
                status: None,
                request: None,
                response: None,
                error: None,
                duration_ms: 0,
            },
            late,
            created_at: String::new(),
        }
    }

    /// Whether the judge has something to say, with one retry allowed.
    fn objects(status: EventStatus, attempts: &[(Outcome, bool)], arrived: usize) -> bool {
        let retry = Retry {
            num_retries: 1,
            ..Retry::default()
        };
        let attempts: Vec<LoggedAttempt> = attempts
            .iter()
            .zip(1..)
            .map(|((outcome, late), number)| attempt(number, *outcome, *late))
            .collect();
        let event = event(status, u32::try_from(attempts.len()).unwrap());
        let seen = Seen {
            arrived,
            accepted: 0,
        };
        std::panic::catch_unwind(|| {
            judge(&event, &attempts, &retry, seen, &mut Account::default());
        })
        .is_err()
    }

    #[test]
    fn the_judge_knows_right_from_wrong() {
        use EventStatus::{DeadLetter, Delivered, Pending};
        use Outcome::{Failure, Success, Unknown};
        let (fine, failed, lost) = ((Success, false), (Failure, false), (Unknown, false));
        for (status, attempts, arrived) in [
            (Delivered, vec![fine], 1),
            (Delivered, vec![failed, fine], 2),
            (Delivered, vec![failed, fine], 1),
            (Delivered, vec![lost, lost, failed, fine], 4),
            (Delivered, vec![(Failure, true), fine], 2),
            (DeadLetter, vec![failed, failed], 0),
            (DeadLetter, vec![lost, failed, failed], 3),
        ] {
            assert!(
                !objects(status, &attempts, arrived),
                "{status:?} {attempts:?}"
            );
        }
        for (status, attempts, arrived) in [
            // Not finished.
            (Pending, vec![failed], 1),
            // Never arrived; arrived without an attempt; twice without cause.
            (Delivered, vec![fine], 0),
            (Delivered, vec![fine], 2),
            (Delivered, vec![fine, fine], 2),
            // The success of one who had lost it decides nothing.
            (Delivered, vec![(Success, true)], 1),
            (Delivered, vec![fine, failed], 2),
            // Given up too early, too late, or in spite of a success.
            (DeadLetter, vec![failed], 1),
            (DeadLetter, vec![failed, failed, failed], 3),
            (DeadLetter, vec![fine, failed, failed], 3),
        ] {
            assert!(
                objects(status, &attempts, arrived),
                "{status:?} {attempts:?}"
            );
        }
    }
}
