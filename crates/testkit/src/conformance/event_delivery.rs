//! Who holds an event, and what becomes of it: promises 8, 9, 11 and 12 of the stores.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use changefeed_core::{
    EventStatus, EventTrigger, LeasedEvent, Outcome, Store, TriggerDefinition, Verdict,
};

use crate::backend::{Backend, Session, eventually_true};
use crate::events::{LEASE, NO_LEASE, attempts, claim, everything, finish, finished, log, shown};

const ORDERS: &str = "create table orders (id integer primary key, customer text, total integer)";

async fn scene(
    backend: &Arc<dyn Backend>,
    events: usize,
    change: impl FnOnce(&mut TriggerDefinition),
) -> (Arc<dyn Store>, Box<dyn Session>, EventTrigger) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session.run(ORDERS).await;
    let mut definition = everything("t", "orders");
    change(&mut definition);
    let trigger = store.create_trigger(&definition, false).await.unwrap();
    if events > 0 {
        session
            .run(&format!(
                "with recursive n(i) as (select 1 union all select i + 1 from n where i < {events}) \
                 insert into orders select i, 'c' || (i % 7), i from n"
            ))
            .await;
    }
    (store, session, trigger)
}

fn ids(events: &[LeasedEvent]) -> Vec<i64> {
    events.iter().map(|e| e.event.change_id).collect()
}

/// Oldest first, as many as were asked for, and never one that somebody holds.
pub async fn promise_9_what_is_held_goes_to_nobody_else(backend: Arc<dyn Backend>) {
    let (store, _, trigger) = scene(&backend, 10, |_| {}).await;
    let other = backend.store().await;
    let first = claim(&*store, &trigger, 4, "a", LEASE).await;
    let second = claim(&*other, &trigger, 4, "b", LEASE).await;
    let third = claim(&*store, &trigger, 4, "a", LEASE).await;
    let all: Vec<i64> = log(&*store)
        .await
        .iter()
        .map(|e| e.event.change_id)
        .collect();
    assert_eq!(
        [ids(&first), ids(&second), ids(&third)].concat(),
        all,
        "oldest first, each once"
    );
    assert!(claim(&*other, &trigger, 4, "b", LEASE).await.is_empty());
    for event in first.iter().chain(&second).chain(&third) {
        assert_eq!((event.attempt, event.cut_off), (1, 0));
        let (logged, _) = shown(&*store, event.event.id).await;
        assert_eq!(logged.tries, 1, "counted when it was taken");
        assert!(logged.locked_by.is_some());
    }
    assert!(claim(&*store, &trigger, 0, "a", LEASE).await.is_empty());
    let nothing = store.claim_events(&[], "a", LEASE).await.unwrap();
    assert!(nothing.is_empty());
}

/// Many instances at once: every event to one of them.
pub async fn promise_12_many_instances_take_every_event_once(backend: Arc<dyn Backend>) {
    const EVENTS: usize = 600;
    let (_, _, trigger) = scene(&backend, EVENTS, |_| {}).await;
    let mut tasks = Vec::new();
    for n in 0..8 {
        let (store, trigger) = (backend.store().await, trigger.clone());
        tasks.push(tokio::spawn(async move {
            let owner = format!("instance-{n}");
            let mut mine = Vec::new();
            loop {
                let some = claim(&*store, &trigger, 7, &owner, LEASE).await;
                let outcomes: Vec<_> = some
                    .iter()
                    .map(|e| finished(e, Verdict::Delivered))
                    .collect();
                assert!(store.finish_events(&outcomes).await.unwrap().is_empty());
                mine.extend(ids(&some));
                // An empty hand may only mean that others were quicker just now.
                let pending = store.trigger_states().await.unwrap()[0].pending;
                if some.is_empty() && pending == 0 {
                    return mine;
                }
            }
        }));
    }
    let mut taken = Vec::new();
    for task in tasks {
        taken.extend(task.await.unwrap());
    }
    assert_eq!(taken.len(), EVENTS);
    assert_eq!(taken.iter().collect::<HashSet<_>>().len(), EVENTS);
    let store = backend.store().await;
    for logged in log(&*store).await {
        assert_eq!(logged.status, EventStatus::Delivered);
        assert_eq!(attempts(&*store, logged.event.id).await, ["1 success 200"]);
    }
}

/// The one whose lease has run out has made an attempt, and nobody knows how it ended.
pub async fn promise_9_a_lease_that_runs_out_frees_the_event(backend: Arc<dyn Backend>) {
    let (store, _, trigger) = scene(&backend, 1, |_| {}).await;
    let first = claim(&*store, &trigger, 1, "dead", NO_LEASE).await;
    let other = backend.store().await;
    let second = claim(&*other, &trigger, 1, "alive", LEASE).await;
    assert_eq!(ids(&first), ids(&second));
    assert!(second[0].generation > first[0].generation);
    assert_eq!((second[0].attempt, second[0].cut_off), (2, 1));
    assert_eq!(
        second[0].failed_before(),
        0,
        "a cut off attempt uses up no retry"
    );
    let id = first[0].event.id;
    assert_eq!(attempts(&*store, id).await, ["1 unknown"]);
    let (_, logged) = shown(&*store, id).await;
    let error = logged[0].attempt.error.as_deref().unwrap();
    assert!(error.contains("dead"), "it says who: {error}");
    finish(&*other, &second[0], Verdict::Delivered).await;
    assert_eq!(attempts(&*store, id).await, ["1 unknown", "2 success 200"]);
    assert_eq!(shown(&*store, id).await.0.status, EventStatus::Delivered);
}

/// Renewed in time, it stays; nobody can renew what went to somebody else.
pub async fn promise_9_a_renewed_lease_is_kept(backend: Arc<dyn Backend>) {
    let (store, _, trigger) = scene(&backend, 2, |_| {}).await;
    let held = claim(&*store, &trigger, 2, "a", NO_LEASE).await;
    // Nobody has taken them meanwhile, so they can still be prolonged.
    let kept = store.renew_events(&[held[0].claim()], LEASE).await.unwrap();
    assert_eq!(kept, [held[0].claim()]);
    let other = backend.store().await;
    let taken = claim(&*other, &trigger, 2, "b", LEASE).await;
    assert_eq!(ids(&taken), [held[1].event.change_id]);
    let both = [held[0].claim(), held[1].claim()];
    let kept = store.renew_events(&both, LEASE).await.unwrap();
    assert_eq!(kept, [held[0].claim()]);
    finish(&*store, &held[0], Verdict::Delivered).await;
    let kept = store.renew_events(&both, LEASE).await.unwrap();
    assert!(kept.is_empty(), "what is finished is held by nobody");
    assert!(store.renew_events(&[], LEASE).await.unwrap().is_empty());
}

/// A dead instance that wakes up cannot write over the new owner's result, whatever either says;
/// its attempt is in the log.
pub async fn promise_9_a_late_result_changes_nothing_and_is_logged(backend: Arc<dyn Backend>) {
    let retry = Verdict::Retry {
        after: Duration::from_secs(900),
    };
    for (zombie, owner, status) in [
        (Verdict::Delivered, Verdict::GiveUp, EventStatus::DeadLetter),
        (Verdict::GiveUp, Verdict::Delivered, EventStatus::Delivered),
        (retry, Verdict::Delivered, EventStatus::Delivered),
        (Verdict::Delivered, retry, EventStatus::Pending),
        (Verdict::Pause, Verdict::Delivered, EventStatus::Delivered),
    ] {
        for zombie_first in [true, false] {
            let name = format!("t-{}", fastrand::u32(..));
            let (store, trigger) = one_event(&backend, &name).await;
            let first = claim(&*store, &trigger, 1, "zombie", NO_LEASE).await;
            let second = claim(&*store, &trigger, 1, "owner", LEASE).await;
            let id = second[0].event.id;
            if zombie_first {
                is_late(&*store, &first[0], zombie).await;
                let (logged, _) = shown(&*store, id).await;
                assert_eq!(logged.status, EventStatus::Pending);
                assert!(logged.locked_by.is_some(), "the owner still holds it");
                finish(&*store, &second[0], owner).await;
            } else {
                finish(&*store, &second[0], owner).await;
                is_late(&*store, &first[0], zombie).await;
            }
            let (logged, attempts) = shown(&*store, id).await;
            assert_eq!(logged.status, status, "{zombie:?} {owner:?}");
            assert_eq!(logged.tries, 2);
            let late: Vec<bool> = attempts.iter().map(|a| a.late).collect();
            assert_eq!(late, [true, false], "{attempts:?}");
            // What was thought cut off is known now.
            let outcome = match zombie {
                Verdict::Delivered => Outcome::Success,
                _ => Outcome::Failure,
            };
            assert_eq!(attempts[0].attempt.outcome, outcome);
            let triggers = store.triggers().await.unwrap();
            let now = triggers.iter().find(|t| t.id == trigger.id).unwrap();
            assert_eq!(now.paused, None, "a late 410 pauses nothing");
            store.drop_trigger(now).await.unwrap();
        }
    }
}

async fn one_event(backend: &Arc<dyn Backend>, name: &str) -> (Arc<dyn Store>, EventTrigger) {
    let store = backend.installed().await;
    let session = backend.session().await;
    session
        .run(&ORDERS.replace("create table", "create table if not exists"))
        .await;
    let trigger = store
        .create_trigger(&everything(name, "orders"), false)
        .await
        .unwrap();
    let next = fastrand::i32(0..);
    session
        .run(&format!("insert into orders values ({next}, 'a', 1)"))
        .await;
    (store, trigger)
}

async fn is_late(store: &dyn Store, event: &LeasedEvent, verdict: Verdict) {
    let late = store
        .finish_events(&[finished(event, verdict)])
        .await
        .unwrap();
    assert_eq!(late, [event.claim()]);
}

/// Whoever does not know whether it was written may write it again.
pub async fn a_result_that_is_told_twice_is_one_result(backend: Arc<dyn Backend>) {
    let (store, session, trigger) = scene(&backend, 3, |_| {}).await;
    let held = claim(&*store, &trigger, 3, "a", LEASE).await;
    let now = Verdict::Retry {
        after: Duration::ZERO,
    };
    let mut cut_off = finished(&held[2], now);
    cut_off.attempt.outcome = Outcome::Unknown;
    cut_off.attempt.status = None;
    let outcomes = [
        finished(&held[0], Verdict::Delivered),
        finished(&held[1], now),
        cut_off,
    ];
    assert!(store.finish_events(&outcomes).await.unwrap().is_empty());
    store.finish_events(&outcomes).await.unwrap();
    let first = held[0].event.id;
    assert_eq!(attempts(&*store, first).await, ["1 success 200"]);
    assert_eq!(shown(&*store, first).await.0.status, EventStatus::Delivered);
    // Told once more after the next attempt has begun.
    let again = claim(&*store, &trigger, 3, "a", LEASE).await;
    assert_eq!(again.len(), 2);
    store.finish_events(&outcomes).await.unwrap();
    for (event, failed) in again.iter().zip([1, 0]) {
        assert_eq!(event.attempt, 2);
        assert_eq!(event.failed_before(), failed);
        finish(&*store, event, Verdict::Delivered).await;
    }
    assert_eq!(
        attempts(&*store, held[1].event.id).await,
        ["1 failure 503", "2 success 200"]
    );
    assert_eq!(
        attempts(&*store, held[2].event.id).await,
        ["1 unknown", "2 success 200"],
        "it was not late: its owner told it, twice"
    );
    let rows = session
        .number(&format!(
            "select count(*) from {}",
            backend.words().our("event_invocation_logs")
        ))
        .await;
    assert_eq!(rows, 5);
}

/// Nothing was sent, so nothing counts.
pub async fn what_is_given_back_counts_no_attempt(backend: Arc<dyn Backend>) {
    let (store, _, trigger) = scene(&backend, 2, |_| {}).await;
    let held = claim(&*store, &trigger, 2, "a", LEASE).await;
    store
        .release_events(&[held[0].claim(), held[1].claim()])
        .await
        .unwrap();
    // Twice does no harm.
    store.release_events(&[held[0].claim()]).await.unwrap();
    let again = claim(&*store, &trigger, 2, "b", LEASE).await;
    assert_eq!(ids(&again), ids(&held));
    for event in &again {
        assert_eq!((event.attempt, event.cut_off), (1, 0));
        assert!(attempts(&*store, event.event.id).await.is_empty());
    }
    // Nor can it be given back by who has lost it.
    store.release_events(&[held[0].claim()]).await.unwrap();
    assert!(claim(&*store, &trigger, 2, "c", LEASE).await.is_empty());
    store.release_events(&[]).await.unwrap();
}

/// Each verdict is what becomes of the event.
pub async fn promise_8_what_follows_from_an_attempt(backend: Arc<dyn Backend>) {
    let (store, _, trigger) = scene(&backend, 4, |_| {}).await;
    let held = claim(&*store, &trigger, 4, "a", LEASE).await;
    let later = Verdict::Retry {
        after: Duration::from_secs(900),
    };
    let soon = Verdict::Retry {
        after: Duration::ZERO,
    };
    let verdicts = [Verdict::Delivered, later, soon, Verdict::GiveUp];
    let outcomes: Vec<_> = held
        .iter()
        .zip(verdicts)
        .map(|(event, verdict)| finished(event, verdict))
        .collect();
    assert!(store.finish_events(&outcomes).await.unwrap().is_empty());
    let mut seen = Vec::new();
    for event in &held {
        let (logged, attempts) = shown(&*store, event.event.id).await;
        assert_eq!(logged.locked_by, None);
        assert_eq!(attempts.len(), 1);
        let attempt = &attempts[0].attempt;
        assert_eq!(attempt.request.as_ref().unwrap().get(), "{\"a\":1}");
        assert_eq!(attempt.response.as_ref().unwrap().get(), "{\"b\":2}");
        assert_eq!(attempt.duration_ms, 5);
        seen.push((logged.status, logged.next_retry_at.is_some()));
    }
    assert_eq!(
        seen,
        [
            (EventStatus::Delivered, false),
            (EventStatus::Pending, true),
            (EventStatus::Pending, true),
            (EventStatus::DeadLetter, false),
        ]
    );
    let again = claim(&*store, &trigger, 10, "a", LEASE).await;
    assert_eq!(ids(&again), [held[2].event.change_id], "only what is due");
    assert_eq!(again[0].failed_before(), 1);
    let state = &store.trigger_states().await.unwrap()[0];
    assert_eq!(
        (state.pending, state.in_flight, state.dead_letters),
        (2, 1, 1)
    );
}

/// 410: the trigger is paused and says why, and its event waits with it.
pub async fn a_receiver_that_is_gone_pauses_the_trigger(backend: Arc<dyn Backend>) {
    let (store, _, trigger) = scene(&backend, 2, |_| {}).await;
    let held = claim(&*store, &trigger, 1, "a", LEASE).await;
    finish(&*store, &held[0], Verdict::Pause).await;
    let now = &store.triggers().await.unwrap()[0];
    assert!(now.paused.as_deref().unwrap().contains("410"), "{now:?}");
    assert!(claim(&*store, &trigger, 10, "a", LEASE).await.is_empty());
    assert_eq!(
        shown(&*store, held[0].event.id).await.0.status,
        EventStatus::Pending
    );
    store.pause_trigger(&trigger, None).await.unwrap();
    let again = claim(&*store, &trigger, 10, "a", LEASE).await;
    assert_eq!(again.len(), 2, "nothing is lost");
    // A pause of a person's own keeps its words.
    store.pause_trigger(&trigger, Some("mine")).await.unwrap();
    finish(&*store, &again[0], Verdict::Pause).await;
    let now = &store.triggers().await.unwrap()[0];
    assert_eq!(now.paused.as_deref(), Some("mine"));
}

/// The wait is counted by the database, from when the result was written.
pub async fn a_retry_comes_after_its_wait(backend: Arc<dyn Backend>) {
    let (store, _, trigger) = scene(&backend, 1, |_| {}).await;
    let held = claim(&*store, &trigger, 1, "a", LEASE).await;
    let began = std::time::Instant::now();
    let wait = Duration::from_millis(300);
    finish(&*store, &held[0], Verdict::Retry { after: wait }).await;
    assert!(claim(&*store, &trigger, 1, "a", LEASE).await.is_empty());
    eventually_true("it is due again", async || {
        !claim(&*store, &trigger, 1, "a", LEASE).await.is_empty()
    })
    .await;
    // The database's clock has milliseconds on SQLite.
    assert!(began.elapsed() >= wait - Duration::from_millis(2));
}

/// Promise 11: a call that is cut off at any moment leaves each event held, or free, or done.
pub async fn promise_11_work_cut_off_at_any_moment_loses_nothing(backend: Arc<dyn Backend>) {
    const EVENTS: usize = 40;
    let (store, _, trigger) = scene(&backend, EVENTS, |_| {}).await;
    let short = Duration::from_millis(60);
    // Longer each time: on a slow machine, or where a new connection takes its time, nothing would
    // ever come to its end otherwise.
    let mut longest = 8000;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(100) * crate::patience();
    while store.trigger_states().await.unwrap()[0].pending > 0 {
        assert!(tokio::time::Instant::now() < deadline, "not delivered");
        longest = (longest + longest / 5).min(10_000_000);
        let patience = Duration::from_micros(fastrand::u64(0..longest));
        let work = async {
            let held = claim(&*store, &trigger, 5, "cut-off", short).await;
            let outcomes: Vec<_> = held
                .iter()
                .map(|e| finished(e, Verdict::Delivered))
                .collect();
            store.finish_events(&outcomes).await.unwrap();
        };
        // Dropped in the middle, as by a caller that gives up.
        let _ = tokio::time::timeout(patience, work).await;
    }
    for logged in log(&*store).await {
        assert_eq!(logged.status, EventStatus::Delivered);
        let attempts = attempts(&*store, logged.event.id).await;
        assert_eq!(attempts.len(), logged.tries as usize, "{attempts:?}");
        let (last, before) = attempts.split_last().unwrap();
        assert!(last.ends_with("success 200"), "{attempts:?}");
        assert!(
            before
                .iter()
                .all(|a| a.contains("unknown") || a.contains("late")),
            "{attempts:?}"
        );
    }
}
