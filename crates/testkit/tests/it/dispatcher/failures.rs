//! Receivers that fail, in every way they can.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use changefeed_core::{EventStatus, LoggedAttempt, Outcome, Sink};
use changefeed_receiver::{Keep, Receiver, Reply};
use changefeed_testkit::backend::{Backend, eventually_true};
use changefeed_testkit::events::{NO_LEASE, attempts, claim, key, shown};

use crate::dispatcher::stage::{Stage, faults, retry, row_id};

/// Attempts without those that met a kept connection which the receiver had closed: they use up no
/// retry.
fn answered(attempts: &[LoggedAttempt]) -> Vec<&LoggedAttempt> {
    let kept = attempts
        .iter()
        .filter(|a| a.attempt.outcome != Outcome::Unknown);
    kept.collect()
}

/// Two failures of some kind, then success: three attempts, each logged, and nothing else.
pub(crate) async fn promise_8_every_kind_of_failure_is_tried_again_until_it_works(
    backend: Arc<dyn Backend>,
) {
    let stage = Stage::new(backend, |d| {
        d.delivery.retry.num_retries = 2;
        d.delivery.retry.timeout = Duration::from_millis(700);
    })
    .await;
    let faults = faults();
    let kinds = faults.len();
    stage.receiver.rule(move |request| {
        let which = usize::try_from(row_id(request)).unwrap() % kinds;
        (retry(request) < 2).then(|| faults[which].clone())
    });
    stage.insert(0, 4 * kinds).await;
    let work = stage.dispatch(|_| {}).await;
    stage.is_settled().await;
    let totals = work.stop().await;
    assert_eq!(totals.delivered, 4 * kinds as u64);
    assert_eq!(totals.retried, 8 * kinds as u64);
    let account = stage.account().await;
    assert_eq!(account.delivered, 4 * kinds);
    assert_eq!((account.unknown, account.late), (0, 0));
    for event in stage.in_state(EventStatus::Delivered).await {
        let (_, attempts) = shown(&*stage.store, event.event.id).await;
        assert_eq!(attempts.len(), 3, "{attempts:?}");
        for attempt in &attempts[..2] {
            // Unknown where a kept connection ended without an answer.
            assert_ne!(attempt.attempt.outcome, Outcome::Success);
            assert!(attempt.attempt.error.is_some(), "it says why");
            assert!(attempt.attempt.request.is_some());
        }
        assert_eq!(attempts[2].attempt.status, Some(200));
    }
}

/// After `num_retries` more attempts it is given up, stays, and can be delivered again.
pub(crate) async fn promise_8_what_uses_up_its_retries_is_kept_as_a_dead_letter(
    backend: Arc<dyn Backend>,
) {
    let stage = Stage::new(backend, |d| {
        d.delivery.retry.num_retries = 3;
        d.delivery.retry.timeout = Duration::from_millis(500);
    })
    .await;
    let faults = faults();
    stage.receiver.rule(move |request| {
        faults
            .get(usize::try_from(row_id(request)).unwrap())
            .cloned()
    });
    let dead = crate::dispatcher::stage::faults().len();
    stage.insert(0, dead + 3).await;
    let work = stage.dispatch(|_| {}).await;
    stage.is_settled().await;
    let account = stage.account().await;
    assert_eq!((account.delivered, account.dead), (3, dead));
    let letters = stage.in_state(EventStatus::DeadLetter).await;
    for letter in &letters {
        let (_, attempts) = shown(&*stage.store, letter.event.id).await;
        assert_eq!(answered(&attempts).len(), 4, "{attempts:?}");
        assert_eq!(letter.next_retry_at, None);
    }
    let arrived: Vec<u64> = stage
        .receiver
        .requests()
        .iter()
        .filter(|r| r.complete && row_id(r) == 0)
        .map(retry)
        .collect();
    assert_eq!(arrived, [0, 1, 2, 3], "the receiver is told");
    // Mended, they are sent again.
    stage.receiver.rule(|_| None);
    let filter = changefeed_core::EventFilter {
        status: Some(EventStatus::DeadLetter),
        ..Default::default()
    };
    let again = changefeed_core::Redelivery::Matching(filter);
    assert_eq!(
        stage.store.redeliver(&again, key()).await.unwrap(),
        dead as u64
    );
    stage.is_settled().await;
    assert_eq!(stage.in_state(EventStatus::Delivered).await.len(), dead + 3);
    work.stop().await;
}

/// Nobody listens, then somebody does.
pub(crate) async fn promise_8_a_receiver_that_cannot_be_reached_loses_nothing(
    backend: Arc<dyn Backend>,
) {
    let mut stage = Stage::new(backend, |d| {
        d.delivery.retry.num_retries = 10_000;
        d.delivery.retry.interval = Duration::from_millis(30);
    })
    .await;
    let address = stage.receiver.address();
    drop(std::mem::replace(
        &mut stage.receiver,
        Receiver::start().await.unwrap(),
    ));
    stage.insert(0, 20).await;
    let work = stage.dispatch(|_| {}).await;
    eventually_true("each was tried twice in vain", async || {
        let pending = stage.in_state(EventStatus::Pending).await;
        pending.len() == 20 && pending.iter().all(|e| e.tries >= 2)
    })
    .await;
    stage.receiver = Receiver::start_at(address, Keep::Everything).await.unwrap();
    stage.is_settled().await;
    work.stop().await;
    let account = stage.account().await;
    assert_eq!((account.delivered, account.repeated), (20, 0));
}

/// Whatever retries are left.
pub(crate) async fn a_final_status_ends_it_at_once(backend: Arc<dyn Backend>) {
    let stage = Stage::new(backend, |d| {
        d.delivery.retry.num_retries = 50;
        d.delivery.retry.final_statuses = vec![400, 422];
    })
    .await;
    stage.receiver.rule(|request| match row_id(request) {
        0 => Some(Reply::Status(422)),
        1 => Some(Reply::Answer {
            status: 400,
            headers: vec![("retry-after".into(), "0".into())],
            body: Bytes::from_static(b"no"),
        }),
        _ if retry(request) == 0 => Some(Reply::Status(401)),
        _ => None,
    });
    stage.insert(0, 3).await;
    let work = stage.dispatch(|_| {}).await;
    stage.is_settled().await;
    let totals = work.stop().await;
    assert_eq!((totals.dead, totals.delivered, totals.retried), (2, 1, 1));
    let account = stage.account().await;
    assert_eq!((account.dead, account.delivered), (2, 1));
    for letter in stage.in_state(EventStatus::DeadLetter).await {
        assert_eq!(letter.tries, 1);
    }
}

/// 410: nothing more is sent until somebody lets it go on, and then nothing is missing.
pub(crate) async fn a_receiver_that_is_gone_pauses_the_trigger_and_loses_nothing(
    backend: Arc<dyn Backend>,
) {
    let stage = Stage::new(backend, |d| d.delivery.concurrency = Some(1)).await;
    stage.receiver.next([Reply::Status(410)]);
    stage.insert(0, 1).await;
    let work = stage.dispatch(|_| {}).await;
    eventually_true("the trigger is paused", async || {
        stage.store.triggers().await.unwrap()[0].paused.is_some()
    })
    .await;
    stage.insert(1, 5).await;
    // Another trigger's event passes, so the dispatcher has looked.
    let mut other = stage.trigger.definition.clone();
    other.name = "other".parse().unwrap();
    other.delivery.sink = Sink::webhook(stage.receiver.url("/other"));
    stage.store.create_trigger(&other, false).await.unwrap();
    stage.insert(6, 1).await;
    let requests = stage
        .receiver
        .wait_until(|requests, _| requests.iter().any(|r| r.path == "/other"))
        .await
        .unwrap();
    assert_eq!(requests.iter().filter(|r| r.path == "/t").count(), 1);
    let mut waiting = stage.in_state(EventStatus::Pending).await;
    waiting.retain(|e| e.event.trigger.as_str() == "t");
    assert_eq!(waiting.len(), 7);
    stage
        .store
        .pause_trigger(&stage.trigger, None)
        .await
        .unwrap();
    stage.is_settled().await;
    work.stop().await;
    assert_eq!(stage.in_state(EventStatus::Delivered).await.len(), 8);
    let first = &stage.in_state(EventStatus::Delivered).await[0];
    assert_eq!(
        attempts(&*stage.store, first.event.id).await,
        ["1 failure 410", "2 success 200"]
    );
}

/// Not one request at the other end.
pub(crate) async fn a_redirect_is_a_failure_and_is_not_followed(backend: Arc<dyn Backend>) {
    let elsewhere = Receiver::start().await.unwrap();
    let stage = Stage::new(backend, |_| {}).await;
    stage
        .receiver
        .otherwise(Reply::Redirect(elsewhere.url("/")));
    stage.insert(0, 3).await;
    let work = stage.dispatch(|_| {}).await;
    stage.is_settled().await;
    work.stop().await;
    assert_eq!(stage.account().await.dead, 3);
    assert_eq!(elsewhere.seen().connections, 0);
}

/// It may be what brings instances down, so it is not sent for ever.
pub(crate) async fn an_event_that_was_cut_off_too_often_is_given_up(backend: Arc<dyn Backend>) {
    let stage = Stage::new(backend, |_| {}).await;
    stage.insert(0, 1).await;
    for _ in 0..6 {
        assert_eq!(
            claim(&*stage.store, &stage.trigger, 1, "crasher", NO_LEASE)
                .await
                .len(),
            1
        );
    }
    let work = stage.dispatch(|_| {}).await;
    stage.is_settled().await;
    work.stop().await;
    assert_eq!(stage.receiver.seen().requests, 0);
    let letter = &stage.in_state(EventStatus::DeadLetter).await[0];
    let (_, attempts) = shown(&*stage.store, letter.event.id).await;
    assert_eq!(attempts.len(), 7);
    let error = attempts[6].attempt.error.as_deref().unwrap();
    assert!(error.contains("cut off"), "{error}");
}

/// Bodies without an end, in pieces or broken off, and heads that say more than they keep: each is
/// one answer or one failure, and nothing is repeated without a reason.
pub(crate) async fn strange_answers_are_answers_or_failures(backend: Arc<dyn Backend>) {
    let stage = Stage::new(backend, |d| {
        d.delivery.retry.num_retries = 1;
        d.delivery.retry.timeout = Duration::from_secs(5);
    })
    .await;
    stage.receiver.rule(|request| {
        let strange = match row_id(request) % 6 {
            0 => Reply::HugeBody(8 * 1024 * 1024),
            1 => Reply::BreakOffInBody,
            2 => Reply::RespondSlowly {
                body: Bytes::from_static(b"slow"),
                every: Duration::from_millis(5),
            },
            3 => Reply::Answer {
                status: 200,
                headers: vec![("content-type".into(), "application/json".into())],
                body: Bytes::from_static(b"{\"a\":\xff\x00 not json \\u0000"),
            },
            4 => Reply::AcceptAndClose,
            _ => Reply::Status(204),
        };
        (retry(request) == 0).then_some(strange)
    });
    stage.insert(0, 30).await;
    let work = stage.dispatch(|_| {}).await;
    stage.is_settled().await;
    work.stop().await;
    let account = stage.account().await;
    assert_eq!((account.delivered, account.dead), (30, 0));
    for event in stage.in_state(EventStatus::Delivered).await {
        let id = changefeed_testkit::events::row(event.event.new.as_deref())["id"]
            .as_u64()
            .unwrap();
        if matches!(id % 6, 2..=5) {
            let (_, attempts) = shown(&*stage.store, event.event.id).await;
            let answered = answered(&attempts).len();
            assert_eq!(
                answered, 1,
                "row {id}: a success as any other: {attempts:?}"
            );
        }
    }
}
