//! What a receiver can make us hold and read.

use bytes::Bytes;
use changefeed_core::{Answer, Outcome};
use changefeed_engine::sinks::webhook::{Post, WebhookClient, WebhookOptions};
use changefeed_receiver::{Receiver, Reply};

use crate::webhook::support::*;

const MIB: u64 = 1024 * 1024;

#[tokio::test]
async fn a_huge_answer_is_not_read_to_its_end() {
    let receiver = Receiver::start().await.unwrap();
    receiver.next([Reply::HugeBody(1024 * MIB)]);
    let client = client();
    let target = target(&receiver.url("/"));
    let sent = client.send(&target, &event()).await;
    // The receiver did say that it took the event.
    assert_eq!(sent.attempt.outcome, Outcome::Success);
    let response = value(&sent.attempt.response);
    assert_eq!(response["body"].as_str().unwrap().len(), 4096);
    assert_eq!(response["cut"], "the first 4096 bytes");
    // The connection is closed: the receiver's write fails after what the buffers took.
    let seen = |s: &changefeed_receiver::Seen| s.in_flight == 0;
    receiver.wait_until(|_, s| seen(s)).await.unwrap();
    assert!(
        receiver.seen().huge_bytes < 64 * MIB,
        "{:?}",
        receiver.seen()
    );
    assert_eq!(receiver.seen().answered, 0);
    let sent = client.send(&target, &event()).await;
    assert_eq!(sent.attempt.outcome, Outcome::Success);
    assert_eq!(receiver.seen().connections, 2);
}

#[tokio::test]
async fn a_large_answer_is_read_and_its_connection_used_again() {
    let receiver = Receiver::start().await.unwrap();
    receiver.next([Reply::HugeBody(MIB), Reply::Accept]);
    let client = client();
    let target = target(&receiver.url("/"));
    client.send(&target, &event()).await;
    client.send(&target, &event()).await;
    assert_eq!(receiver.seen().connections, 1);
}

#[tokio::test]
async fn an_endless_head_is_no_answer() {
    let receiver = Receiver::start().await.unwrap();
    receiver.next([Reply::Answer {
        status: 200,
        headers: vec![("x-long".into(), "x".repeat(1024 * 1024))],
        body: Bytes::new(),
    }]);
    let sent = client().send(&target(&receiver.url("/")), &event()).await;
    assert_eq!(sent.answer, Answer::None);
}

#[tokio::test]
async fn the_log_keeps_the_beginning_of_answers_as_text() {
    let receiver = Receiver::start().await.unwrap();
    let client = WebhookClient::new(WebhookOptions {
        response_limit: 10,
        ..WebhookOptions::default()
    })
    .unwrap();
    let answer = |body: &'static [u8]| Reply::Answer {
        status: 422,
        headers: vec![
            ("x-why".into(), "no".into()),
            ("x-long".into(), "x".repeat(100)),
        ],
        body: Bytes::from_static(body),
    };
    receiver.next([
        answer(b"bad \xff\x00"),
        answer("ääääääääää".as_bytes()),
        answer(b"0123456789"),
    ]);
    let target = target(&receiver.url("/"));
    let sent = client.send(&target, &event()).await;
    let response = value(&sent.attempt.response);
    assert_eq!(response["status"], 422);
    assert_eq!(response["body"], "bad \u{fffd}\u{fffd}");
    assert_eq!(response.get("cut"), None);
    assert_eq!(response["headers"].get("x-long"), None);
    let sent = client.send(&target, &event()).await;
    let response = value(&sent.attempt.response);
    assert_eq!(response["body"], "äääää");
    assert_eq!(response["cut"], "the first 10 bytes");
    let sent = client.send(&target, &event()).await;
    assert_eq!(value(&sent.attempt.response).get("cut"), None);
}

#[tokio::test]
async fn a_large_event_is_sent_whole_and_logged_in_part() {
    let receiver = Receiver::start().await.unwrap();
    let text = "é".repeat(5 * 1024 * 1024);
    let body = raw(&format!("[\"{text}\"]"));
    let length = body.get().len();
    let sent = client()
        .post(&target(&receiver.url("/")), Post::json("batch-1", body))
        .await;
    assert_eq!(sent.attempt.outcome, Outcome::Success);
    assert_eq!(receiver.requests()[0].body.len(), length);
    let request = value(&sent.attempt.request);
    assert!(request["body"].as_str().unwrap().starts_with("[\"éé"));
    assert_eq!(request["cut"], format!("the first 65536 of {length} bytes"));
    assert!(sent.attempt.request.unwrap().get().len() < 70_000);
}

/// Resident memory of this process in KiB.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn huge_answers_do_not_add_up_in_memory() {
    let receiver = Receiver::start_counting().await.unwrap();
    receiver.otherwise(Reply::HugeBody(8 * MIB));
    let client = client();
    let target = target(&receiver.url("/"));
    let event = event();
    for _ in 0..20 {
        client.send(&target, &event).await;
    }
    let before = resident();
    for _ in 0..200 {
        client.send(&target, &event).await;
    }
    let grown = resident().saturating_sub(before);
    // Other tests of this program run beside; 200 answers kept would be more than 200 MiB.
    assert!(grown < 100 * 1024, "{grown} KiB");
}
