//! Taking, keeping and finishing events.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use changefeed_core::{
    EventFilter, EventStatus, EventStore, EventTrigger, OrderBy, Outcome, TriggerStore, Verdict,
    Wanted,
};

use crate::event_support::{LEASE, claim, everything, finished, key, wanted};
use crate::support::Lab;

const NOW: Verdict = Verdict::Retry {
    after: Duration::ZERO,
};
const LATER: Verdict = Verdict::Retry {
    after: Duration::from_secs(600),
};

/// A table `t (id, k)` with a trigger, and rows in it.
async fn lab(rows: u32, ordered: bool) -> (Lab, EventTrigger) {
    let lab = Lab::new().await;
    let app = lab.app();
    app.execute_batch("create table t (id integer primary key, k)")
        .unwrap();
    let mut definition = everything("t");
    if ordered {
        definition.capture.order_by = Some(OrderBy::Column("k".into()));
    }
    let trigger = lab.trigger(&definition).await;
    insert(&lab, rows, "n % 3");
    (lab, trigger)
}

fn insert(lab: &Lab, rows: u32, key: &str) {
    if rows > 0 {
        lab.app()
            .execute_batch(&format!(
                "insert into t (k) with recursive n (n) as \
                 (values (1) union all select n + 1 from n where n < {rows}) select {key} from n"
            ))
            .unwrap();
    }
}

#[tokio::test]
async fn an_event_is_held_by_one_and_delivered_once() {
    let (lab, trigger) = lab(3, false).await;
    let other = lab.other().await;
    let held = lab.claim(&trigger, 2).await;
    assert_eq!(held.len(), 2);
    assert_eq!(
        (held[0].attempt, held[0].cut_off, held[0].generation),
        (1, 0, 1)
    );
    assert_eq!(
        held[0].event.new.as_ref().unwrap().get(),
        r#"{"id":1,"k":1}"#
    );
    let rest = claim(&other, &wanted(&trigger, 10), LEASE).await;
    assert_eq!(rest.len(), 1);
    assert!(lab.claim(&trigger, 10).await.is_empty());
    let log = lab.log().await;
    assert_eq!(log[0].locked_by.as_deref(), Some("me"));

    let done: Vec<_> = held
        .iter()
        .chain(&rest)
        .map(|e| finished(e, Verdict::Delivered))
        .collect();
    assert!(lab.store.finish_events(&done).await.unwrap().is_empty());
    for event in lab.log().await {
        assert_eq!(event.status, EventStatus::Delivered);
        assert_eq!((event.tries, event.next_retry_at), (1, None));
    }
    // A second time changes nothing: an attempt is one row.
    let late = lab.store.finish_events(&done[..1]).await.unwrap();
    assert_eq!(late, [held[0].claim()]);
    let (event, attempts) = lab.store.event(held[0].event.id).await.unwrap().unwrap();
    assert_eq!(event.status, EventStatus::Delivered);
    let late: Vec<bool> = attempts.iter().map(|a| a.late).collect();
    assert_eq!(late, [false]);
    assert_eq!(
        lab.shell(
            "select attempt, outcome, status, late, trigger_name
               from changefeed_event_invocation_logs order by id limit 1;"
        )
        .unwrap(),
        "1|success|200|0|all\n"
    );
}

#[tokio::test]
async fn failures_are_tried_again_or_given_up() {
    let (lab, trigger) = lab(1, false).await;
    let first = lab.claim(&trigger, 1).await.remove(0);
    lab.store
        .finish_events(&[finished(&first, NOW)])
        .await
        .unwrap();
    let second = lab.claim(&trigger, 1).await.remove(0);
    assert_eq!((second.attempt, second.failed_before()), (2, 1));
    lab.store
        .finish_events(&[finished(&second, LATER)])
        .await
        .unwrap();
    assert!(lab.claim(&trigger, 1).await.is_empty());
    let waiting = lab.log().await.remove(0);
    assert_eq!(
        (waiting.status, waiting.locked_by),
        (EventStatus::Pending, None)
    );
    assert!(waiting.next_retry_at.unwrap() > waiting.event.created_at);

    // By hand, from the first attempt on.
    let id = waiting.event.id;
    lab.store
        .redeliver(&changefeed_core::Redelivery::Event(id), key())
        .await
        .unwrap();
    let again = lab.claim(&trigger, 1).await.remove(0);
    assert_eq!((again.attempt, again.cut_off), (1, 0));
    lab.store
        .finish_events(&[finished(&again, Verdict::GiveUp)])
        .await
        .unwrap();
    let dead = lab.log().await.remove(0);
    assert_eq!(
        (dead.status, dead.next_retry_at),
        (EventStatus::DeadLetter, None)
    );
    assert!(lab.claim(&trigger, 1).await.is_empty());
}

#[tokio::test]
async fn an_attempt_that_was_cut_off_is_written_down_and_its_zombie_decides_nothing() {
    let (lab, trigger) = lab(1, false).await;
    let zombie = claim(&lab.store, &wanted(&trigger, 1), Duration::ZERO)
        .await
        .remove(0);
    let heir = lab.claim(&trigger, 1).await.remove(0);
    assert_eq!(
        (heir.attempt, heir.cut_off, heir.failed_before()),
        (2, 1, 0)
    );
    assert!(heir.generation > zombie.generation);
    let (_, attempts) = lab.store.event(heir.event.id).await.unwrap().unwrap();
    let cut_off = &attempts[0].attempt;
    assert_eq!((attempts.len(), cut_off.outcome), (1, Outcome::Unknown));
    assert!(
        cut_off
            .error
            .as_ref()
            .unwrap()
            .contains("me stopped before")
    );
    let kept = lab
        .store
        .renew_events(&[zombie.claim(), heir.claim()], LEASE)
        .await
        .unwrap();
    assert_eq!(kept, [heir.claim()]);
    let late = lab
        .store
        .finish_events(&[finished(&zombie, Verdict::GiveUp)])
        .await
        .unwrap();
    assert_eq!(late, [zombie.claim()]);
    assert!(
        lab.store
            .finish_events(&[finished(&heir, Verdict::Delivered)])
            .await
            .unwrap()
            .is_empty()
    );
    let (event, attempts) = lab.store.event(heir.event.id).await.unwrap().unwrap();
    assert_eq!(event.status, EventStatus::Delivered);
    let told: Vec<_> = attempts
        .iter()
        .map(|a| (a.attempt.number, a.attempt.outcome, a.late))
        .collect();
    assert_eq!(
        told,
        [
            // Thought cut off, until it told how it had ended.
            (1, Outcome::Failure, true),
            (2, Outcome::Success, false)
        ]
    );
}

#[tokio::test]
async fn a_lease_that_is_renewed_lasts() {
    let (lab, trigger) = lab(1, false).await;
    let held = claim(&lab.store, &wanted(&trigger, 1), Duration::from_millis(1))
        .await
        .remove(0);
    let kept = lab
        .store
        .renew_events(&[held.claim()], LEASE)
        .await
        .unwrap();
    assert_eq!(kept, [held.claim()]);
    assert!(lab.claim(&trigger, 1).await.is_empty());
}

#[tokio::test]
async fn gone_for_good_pauses_the_trigger() {
    let (lab, trigger) = lab(2, false).await;
    let held = lab.claim(&trigger, 1).await.remove(0);
    lab.store
        .finish_events(&[finished(&held, Verdict::Pause)])
        .await
        .unwrap();
    let paused = lab.store.triggers().await.unwrap().remove(0);
    assert_eq!(
        paused.paused.as_deref(),
        Some("the webhook answered 410 Gone")
    );
    assert!(lab.claim(&trigger, 10).await.is_empty());
    let states = lab.store.trigger_states().await.unwrap();
    assert_eq!(
        (
            states[0].pending,
            states[0].in_flight,
            states[0].dead_letters
        ),
        (2, 0, 0)
    );
    assert!(states[0].overdue_ms.is_some());
    // Capture goes on; so do deliveries once a person says so.
    insert(&lab, 1, "0");
    lab.store.pause_trigger(&trigger, None).await.unwrap();
    assert_eq!(lab.claim(&trigger, 10).await.len(), 3);
}

#[tokio::test]
async fn all_instances_together_hold_no_more_than_allowed() {
    let (lab, trigger) = lab(10, false).await;
    let other = lab.other().await;
    let few = Wanted {
        overall: Some(3),
        ..wanted(&trigger, 2)
    };
    let held = claim(&lab.store, &few, LEASE).await;
    assert_eq!(held.len(), 2);
    assert_eq!(claim(&other, &few, LEASE).await.len(), 1);
    assert!(claim(&other, &few, LEASE).await.is_empty());
    lab.store
        .finish_events(&[finished(&held[0], LATER)])
        .await
        .unwrap();
    assert_eq!(claim(&other, &few, LEASE).await.len(), 1);
}

#[tokio::test]
async fn events_of_one_key_come_one_after_the_other() {
    let (lab, trigger) = lab(9, true).await;
    let keys = |held: &[changefeed_core::LeasedEvent]| -> BTreeSet<String> {
        held.iter()
            .map(|e| e.event.new.as_ref().unwrap().get().to_owned())
            .collect()
    };
    let first = lab.claim(&trigger, 10).await;
    assert_eq!(
        keys(&first),
        [
            r#"{"id":1,"k":1}"#,
            r#"{"id":2,"k":2}"#,
            r#"{"id":3,"k":0}"#
        ]
        .map(str::to_owned)
        .into()
    );
    assert!(lab.claim(&trigger, 10).await.is_empty());
    // One waits for its next attempt and blocks its key; one is dead and does not; one is done.
    let verdicts = [LATER, Verdict::GiveUp, Verdict::Delivered];
    let done: Vec<_> = first
        .iter()
        .zip(verdicts)
        .map(|(e, v)| finished(e, v))
        .collect();
    lab.store.finish_events(&done).await.unwrap();
    let second = lab.claim(&trigger, 10).await;
    assert_eq!(
        keys(&second),
        [r#"{"id":5,"k":2}"#, r#"{"id":6,"k":0}"#]
            .map(str::to_owned)
            .into()
    );
    // A dead one that is delivered again comes first.
    let dead = EventFilter {
        status: Some(EventStatus::DeadLetter),
        ..EventFilter::default()
    };
    let redelivered = lab
        .store
        .redeliver(&changefeed_core::Redelivery::Matching(dead), key())
        .await
        .unwrap();
    assert_eq!(redelivered, 1);
    let done: Vec<_> = second
        .iter()
        .map(|e| finished(e, Verdict::Delivered))
        .collect();
    lab.store.finish_events(&done).await.unwrap();
    let third = lab.claim(&trigger, 10).await;
    assert_eq!(
        keys(&third),
        [r#"{"id":2,"k":2}"#, r#"{"id":9,"k":0}"#]
            .map(str::to_owned)
            .into()
    );
}

#[tokio::test]
async fn a_hot_key_and_keys_that_wait_hold_nobody_up() {
    let (lab, trigger) = lab(0, true).await;
    insert(&lab, 100_000, "'hot'");
    insert(&lab, 5_000, "'waits' || n");
    insert(&lab, 5_000, "'waits' || n");
    insert(&lab, 50, "'fresh' || n");
    // The first of 5,000 keys wait for their next attempt, and everything else of them behind.
    lab.app()
        .execute_batch(
            "update changefeed_event set due_at = due_at + 600000, tries = 1 \
             where change_id in (select min(change_id) from changefeed_event \
             where order_key glob '\"waits*' group by order_key)",
        )
        .unwrap();
    let mut taken = BTreeSet::new();
    let mut calls = 0;
    let began = Instant::now();
    while taken.len() < 51 {
        calls += 1;
        assert!(calls < 20, "{} after {calls} calls", taken.len());
        for held in lab.claim(&trigger, 10).await {
            assert!(taken.insert(held.event.change_id));
            assert_eq!(held.attempt, 1);
        }
    }
    let per_call = began.elapsed() / calls;
    assert!(per_call < Duration::from_millis(400), "{per_call:?}");
    assert!(lab.claim(&trigger, 10).await.is_empty());
}

#[tokio::test]
async fn ten_instances_share_the_work() {
    let (lab, trigger) = lab(2000, false).await;
    let mut instances = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let (store, trigger) = (lab.other().await, trigger.clone());
        instances.spawn(async move {
            let mut taken = Vec::new();
            loop {
                let held = claim(&store, &wanted(&trigger, 37), LEASE).await;
                if held.is_empty() {
                    return taken;
                }
                let done: Vec<_> = held
                    .iter()
                    .map(|e| finished(e, Verdict::Delivered))
                    .collect();
                assert!(store.finish_events(&done).await.unwrap().is_empty());
                taken.extend(held.iter().map(|e| e.event.change_id));
            }
        });
    }
    let mut all: Vec<i64> = instances.join_all().await.concat();
    all.sort_unstable();
    assert_eq!(all.len(), 2000);
    all.dedup();
    assert_eq!(all.len(), 2000);
}

/// The log is full of delivered events, and many wait; a few are taken.
#[tokio::test]
async fn a_long_log_makes_taking_no_slower() {
    let (lab, trigger) = lab(200_000, false).await;
    let time = |lab: &Lab| {
        let (store, wanted) = (lab.store.clone(), wanted(&trigger, 100));
        async move {
            let mut best = Duration::MAX;
            for _ in 0..5 {
                let began = Instant::now();
                assert_eq!(claim(&store, &wanted, LEASE).await.len(), 100);
                best = best.min(began.elapsed());
            }
            best
        }
    };
    let short = time(&lab).await;
    lab.app()
        .execute_batch(
            "insert into changefeed_event (change_id, trigger_id, op, state, tries, created_at, new) \
             with recursive n (n) as (values (1) union all select n + 1 from n where n < 1000000) \
             select n, 1, 'I', 'd', 1, 0, '{\"id\":1}' from n",
        )
        .unwrap();
    let long = time(&lab).await;
    let idle = Wanted {
        trigger: changefeed_core::TriggerId(99),
        ..wanted(&trigger, 100)
    };
    for _ in 0..100 {
        assert!(claim(&lab.store, &idle, LEASE).await.is_empty());
    }
    assert!(
        long < short.mul_f64(3.0) + Duration::from_millis(20),
        "{short:?} {long:?}"
    );
}
