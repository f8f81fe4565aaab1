//! Every way in which a receiver can fail, and what the attempt says about it.

use std::time::Duration;

use bytes::Bytes;
use changefeed_core::{Answer, Outcome};
use changefeed_engine::sinks::Sent;
use changefeed_receiver::{Keep, Receiver, Reply};

use crate::webhook::support::*;

const SHORT: Duration = Duration::from_millis(300);

fn error(sent: &Sent) -> &str {
    sent.attempt.error.as_deref().unwrap()
}

/// There was no answer, and the sentence says why.
fn assert_broken(sent: &Sent, because: &str) {
    assert_eq!(sent.answer, Answer::None);
    assert_eq!(sent.attempt.outcome, Outcome::Failure);
    assert!(error(sent).contains(because), "{}", error(sent));
    assert!(!error(sent).contains('\n'));
    assert!(sent.attempt.request.is_some());
}

async fn send(reply: Reply) -> (Receiver, Sent) {
    send_within(Duration::from_secs(20), reply).await
}

async fn send_within(timeout: Duration, reply: Reply) -> (Receiver, Sent) {
    let receiver = Receiver::start().await.unwrap();
    receiver.next([reply]);
    let target = impatient(&receiver.url("/hook?x=1"), timeout);
    let sent = client().send(&target, &event()).await;
    (receiver, sent)
}

fn status(status: u16, retry_after: Option<u64>) -> Answer {
    Answer::Status {
        status,
        retry_after: retry_after.map(Duration::from_secs),
    }
}

#[tokio::test]
async fn what_is_accepted_is_a_success() {
    let (receiver, sent) = send(Reply::Accept).await;
    assert_eq!(sent.answer, status(200, None));
    assert_eq!(sent.attempt.outcome, Outcome::Success);
    assert_eq!((sent.attempt.number, sent.attempt.status), (2, Some(200)));
    assert_eq!(sent.attempt.error, None);
    let requests = receiver.requests();
    let [request] = requests.as_slice() else {
        panic!("{requests:?}");
    };
    assert!(request.complete);
    assert_eq!(
        (request.method.as_str(), request.path.as_str()),
        ("POST", "/hook?x=1")
    );
    let agent = concat!("changefeed/", env!("CARGO_PKG_VERSION"));
    assert_eq!(request.header("user-agent"), Some(agent));
    assert_eq!(
        request.header("host"),
        Some(receiver.address().to_string().as_str())
    );
    assert_eq!(request.header("traceparent"), Some(TRACE));
    assert_eq!(request.header("tracestate"), Some("a=1"));
    assert_eq!(request.header("webhook-id"), None);
}

#[tokio::test]
async fn statuses_are_told_as_they_are() {
    for code in [201, 204, 299] {
        let (_, sent) = send(Reply::Status(code)).await;
        assert_eq!(
            (sent.answer, sent.attempt.error),
            (status(code, None), None)
        );
    }
    for code in [400, 404, 410, 429, 500, 503, 599] {
        let (_, sent) = send(Reply::Status(code)).await;
        assert_eq!(sent.answer, status(code, None));
        assert_eq!(sent.attempt.outcome, Outcome::Failure);
        assert_eq!(sent.attempt.status, Some(code));
        assert!(error(&sent).contains(&code.to_string()));
    }
}

#[tokio::test]
async fn retry_after_is_passed_on() {
    let (_, sent) = send(Reply::StatusWithRetryAfter(503, "17".into())).await;
    assert_eq!(sent.answer, status(503, Some(17)));
    let (_, sent) = send(Reply::StatusWithRetryAfter(429, "yesterday".into())).await;
    assert_eq!(sent.answer, status(429, None));
    let past = "Sun, 06 Nov 1994 08:49:37 GMT";
    let (_, sent) = send(Reply::StatusWithRetryAfter(429, past.into())).await;
    assert_eq!(sent.answer, status(429, Some(0)));
    let (_, sent) = send(Reply::StatusWithRetryAfter(200, "17".into())).await;
    assert_eq!(sent.answer, status(200, None));
}

#[tokio::test]
async fn redirects_are_failures_and_not_followed() {
    let elsewhere = Receiver::start().await.unwrap();
    let (_, sent) = send(Reply::Redirect(elsewhere.url("/"))).await;
    assert_eq!(sent.answer, status(307, None));
    assert!(error(&sent).contains("redirects are not followed"));
    assert_eq!(elsewhere.seen().connections, 0);
}

#[tokio::test]
async fn a_receiver_that_hangs_is_left_after_the_timeout() {
    let (receiver, sent) = send_within(SHORT, Reply::Hang).await;
    assert_broken(&sent, "no answer from 127.0.0.1:");
    assert!(error(&sent).ends_with("within 300ms"));
    assert_eq!(sent.attempt.status, None);
    assert!((300..5000).contains(&sent.attempt.duration_ms));
    // The connection is given up with it.
    receiver
        .wait_until(|_, seen| seen.abandoned == 1)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_body_that_drips_is_left_after_the_timeout() {
    let drip = Reply::RespondSlowly {
        body: Bytes::from_static(&[b'x'; 10_000]),
        every: Duration::from_millis(10),
    };
    let (receiver, sent) = send_within(SHORT, drip).await;
    assert_broken(&sent, "began to answer, but was not done within 300ms");
    assert_eq!(sent.attempt.status, Some(200));
    assert!(
        value(&sent.attempt.response)["body"]
            .as_str()
            .unwrap()
            .starts_with('x')
    );
    receiver
        .wait_until(|_, seen| seen.abandoned == 1)
        .await
        .unwrap();
}

#[tokio::test]
async fn slow_but_in_time_is_fine() {
    let (_, sent) = send(Reply::RespondSlowly {
        body: Bytes::from_static(b"ok"),
        every: Duration::from_millis(10),
    })
    .await;
    assert_eq!(sent.answer, status(200, None));
    assert_eq!(value(&sent.attempt.response)["body"], "ok");
    let (_, sent) = send(Reply::AcceptAfter(Duration::from_millis(20))).await;
    assert_eq!(sent.answer, status(200, None));
}

#[tokio::test]
async fn garbage_is_no_answer() {
    let (_, sent) = send(Reply::Garbage).await;
    assert_broken(&sent, "is not HTTP");
}

#[tokio::test]
async fn resets_and_closed_connections_are_told() {
    let (receiver, sent) = send(Reply::ResetBeforeReading).await;
    assert_broken(&sent, "127.0.0.1:");
    assert!(
        error(&sent).contains("reset") || error(&sent).contains("closed"),
        "{}",
        error(&sent)
    );
    assert!(!receiver.requests()[0].complete);
    let (receiver, sent) = send(Reply::DropAfterReading).await;
    assert_broken(
        &sent,
        "closed the connection before its answer was complete",
    );
    assert!(receiver.requests()[0].complete);
    let (_, sent) = send(Reply::BreakOffInBody).await;
    assert_broken(
        &sent,
        "closed the connection before its answer was complete",
    );
    assert_eq!(sent.attempt.status, Some(200));
}

#[tokio::test]
async fn nobody_there_and_no_such_name() {
    let receiver = Receiver::start().await.unwrap();
    let (url, address) = (receiver.url("/"), receiver.address());
    drop(receiver);
    let client = client();
    // The port is closed when the receiver's task has ended.
    let sent = loop {
        let sent = client.send(&target(&url), &event()).await;
        if sent.answer == Answer::None && error(&sent).contains("refused") {
            break sent;
        }
    };
    assert_broken(&sent, "refused the connection");
    let sent = client
        .send(&target("http://nowhere.invalid/"), &event())
        .await;
    assert_broken(&sent, "its name could not be resolved");
    // The same client finds it again when it is back.
    let _back = Receiver::start_at(address, Keep::Everything).await.unwrap();
    let sent = client.send(&target(&url), &event()).await;
    assert_eq!(sent.answer, status(200, None));
}

#[tokio::test]
async fn connections_are_used_again_also_after_failures() {
    let receiver = Receiver::start().await.unwrap();
    let client = client();
    let target = target(&receiver.url("/"));
    receiver.next([
        Reply::Accept,
        Reply::Status(500),
        Reply::Redirect("/".into()),
    ]);
    for _ in 0..10 {
        client.send(&target, &event()).await;
    }
    assert_eq!(receiver.seen().connections, 1);
    assert_eq!(receiver.seen().answered, 10);
}

#[tokio::test]
async fn a_connection_that_the_receiver_closed_meanwhile_costs_no_attempt() {
    let receiver = Receiver::start().await.unwrap();
    let client = client();
    let target = target(&receiver.url("/"));
    receiver.otherwise(Reply::AcceptAndClose);
    for round in 1..=200 {
        let sent = client.send(&target, &event()).await;
        assert_eq!(sent.answer, status(200, None), "{:?}", sent.attempt.error);
        receiver
            .wait_until(|_, seen| seen.answered == round && seen.in_flight == 0)
            .await
            .unwrap();
    }
    assert_eq!(receiver.seen().connections, 200);
}
