//! Receivers that close connections which we have kept open: that says nothing about the request,
//! so it must not cost a retry.

use std::time::{Duration, Instant};

use changefeed_core::{
    Answer, Batch, LeasedEvent, Outcome, RowChange, RowOperation, Sink, WatchDefinition,
};
use changefeed_engine::WatchFunction;
use changefeed_engine::sinks::PostBatches;
use changefeed_engine::sinks::webhook::Variables;
use changefeed_receiver::{Receiver, Reply};

use crate::webhook::support::*;

/// The event, when an attempt of it was cut off.
fn repeated() -> LeasedEvent {
    LeasedEvent {
        cut_off: 1,
        ..event()
    }
}

#[tokio::test]
async fn an_end_without_a_byte_on_a_used_connection_is_unknown_and_repeated_on_a_new_one() {
    for how in [Reply::DropAfterReading, Reply::ResetBeforeReading] {
        let receiver = Receiver::start().await.unwrap();
        let (client, target) = (client(), target(&receiver.url("/")));
        receiver.next([Reply::Accept, how.clone()]);
        let first = client.send(&target, &event()).await;
        assert_eq!(first.attempt.outcome, Outcome::Success);
        let lost = client.send(&target, &event()).await;
        assert_eq!(lost.attempt.outcome, Outcome::Unknown, "{how:?}: {lost:?}");
        assert_eq!(lost.answer, Answer::CutOff, "no retry is used up");
        let error = lost.attempt.error.unwrap();
        assert!(error.contains("that was kept open"), "{error}");
        assert!(lost.attempt.request.is_some(), "it is in the log");

        // There is a kept connection, and it is not used.
        assert_eq!(
            client.send(&target, &event()).await.attempt.outcome,
            Outcome::Success
        );
        let again = client.send(&target, &repeated()).await;
        assert_eq!(again.attempt.outcome, Outcome::Success);
        let connections: Vec<_> = receiver.requests().iter().map(|r| r.connection).collect();
        assert_eq!(connections, [1, 1, 2, 3], "{how:?}");
    }
}

#[tokio::test]
async fn an_end_without_a_byte_on_a_new_connection_is_a_failure() {
    let receiver = Receiver::start().await.unwrap();
    receiver.otherwise(Reply::DropAfterReading);
    let (client, target) = (client(), target(&receiver.url("/")));
    for event in [event(), repeated()] {
        let sent = client.send(&target, &event).await;
        assert_eq!(sent.attempt.outcome, Outcome::Failure);
        assert_eq!(sent.answer, Answer::None);
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_a_failure_on_any_connection() {
    for how in [Reply::Garbage, Reply::BreakOffInBody] {
        let receiver = Receiver::start().await.unwrap();
        let (client, target) = (client(), target(&receiver.url("/")));
        receiver.next([Reply::Accept, how.clone()]);
        client.send(&target, &event()).await;
        let sent = client.send(&target, &event()).await;
        assert_eq!(sent.attempt.outcome, Outcome::Failure, "{how:?}");
        assert_eq!(receiver.seen().connections, 1);
    }
}

#[tokio::test]
async fn a_silent_receiver_is_a_failure_also_on_a_used_connection() {
    let receiver = Receiver::start().await.unwrap();
    let target = impatient(&receiver.url("/"), Duration::from_millis(300));
    let client = client();
    receiver.next([Reply::Accept, Reply::Hang]);
    client.send(&target, &event()).await;
    let sent = client.send(&target, &event()).await;
    assert_eq!(sent.attempt.outcome, Outcome::Failure);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_closes_every_connection_behind_its_answer_fails_nothing() {
    let receiver = Receiver::start().await.unwrap();
    receiver.otherwise(Reply::AcceptAndClose);
    let (client, target) = (client(), target(&receiver.url("/")));
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (client, target) = (client.clone(), target.clone());
        senders.spawn(async move {
            let mut unknown = 0;
            for _ in 0..50 {
                let mut sent = client.send(&target, &event()).await;
                if sent.attempt.outcome == Outcome::Unknown {
                    unknown += 1;
                    sent = client.send(&target, &repeated()).await;
                }
                assert_eq!(sent.attempt.outcome, Outcome::Success, "{sent:?}");
            }
            unknown
        });
    }
    let unknown: u64 = senders.join_all().await.into_iter().sum();
    // Whoever was not answered was read at most once.
    let seen = receiver.seen();
    assert!((800..=800 + unknown).contains(&seen.answered), "{seen:?}");
}

#[tokio::test]
async fn a_batch_of_a_watch_is_posted_again_within_its_attempt() {
    let receiver = Receiver::start().await.unwrap();
    let definition = WatchDefinition::new(Sink::webhook(receiver.url("/")));
    let nothing = Variables::new(|_| None);
    let name = "mail".parse().unwrap();
    let post = PostBatches::prepare(client(), &name, &definition, &nothing).unwrap();
    let batch = Batch {
        changes: vec![RowChange {
            operation: RowOperation::Insert,
            item: raw("{}"),
            version: 1,
            bits: 0,
            columns: None,
            before: None,
            images: None,
        }],
        ..Batch::leased(1, (1, 1), 1, Instant::now())
    };
    receiver.next([Reply::Accept, Reply::DropAfterReading, Reply::Accept]);
    post.call(&batch).await.unwrap();
    post.call(&batch).await.unwrap();
    let connections: Vec<_> = receiver.requests().iter().map(|r| r.connection).collect();
    assert_eq!(connections, [1, 1, 2]);
    // Twice in a row is the receiver's doing.
    receiver.next([
        Reply::Accept,
        Reply::DropAfterReading,
        Reply::DropAfterReading,
    ]);
    post.call(&batch).await.unwrap();
    post.call(&batch).await.unwrap_err();
}
