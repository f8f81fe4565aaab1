//! How many requests per second the webhook client makes on its own, without a database, against
//! the scripted receiver: what deliveries are compared with.
//!
//! `cargo run --release -p changefeed-engine --example webhook_rate [CONCURRENCY] [SECONDS]`
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a measurement, run by hand"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use changefeed_core::{
    Delivery, Event, EventBits, EventId, LeasedEvent, Operation, Outcome, Sink, TableName,
    TriggerId,
};
use changefeed_engine::sinks::webhook::{Target, Variables, WebhookClient, WebhookOptions};
use changefeed_receiver::Receiver;
use serde_json::value::RawValue;

/// An event whose body has about 500 bytes.
fn event() -> LeasedEvent {
    let row = format!(r#"{{"id":42,"note":"{}"}}"#, "x".repeat(180));
    LeasedEvent {
        trigger: TriggerId(1),
        event: Event {
            id: EventId::new(1_000_000_000_000_000, EventBits::new(7)),
            change_id: 1_000_000_000_000_000,
            trigger: "orders".parse().unwrap(),
            table: TableName::qualified("public", "orders"),
            op: Operation::Insert,
            old: None,
            new: Some(RawValue::from_string(row).unwrap()),
            session_variables: None,
            trace_context: None,
            created_at: "2026-03-01T12:00:00.123456+00:00".to_owned(),
        },
        generation: 1,
        attempt: 1,
        cut_off: 0,
    }
}

async fn measure(what: &str, delivery: Delivery, concurrency: usize, time: Duration) {
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let lookup = Variables::new(move |_| Some(secret.to_owned()));
    let target = Target::prepare(&"orders".parse().unwrap(), &delivery, &lookup).unwrap();
    let target = Arc::new(target);
    let client = WebhookClient::new(WebhookOptions::default()).unwrap();
    let failed = Arc::new(AtomicU64::new(0));
    let made = Arc::new(AtomicU64::new(0));
    let slowest = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let workers: Vec<_> = (0..concurrency)
        .map(|_| {
            let (client, target) = (client.clone(), Arc::clone(&target));
            let (made, failed) = (Arc::clone(&made), Arc::clone(&failed));
            let slowest = Arc::clone(&slowest);
            let event = event();
            tokio::spawn(async move {
                while began.elapsed() < time {
                    let sent = client.send(&target, &event).await;
                    let ms = sent.attempt.duration_ms.unsigned_abs();
                    slowest.fetch_max(ms, Ordering::Relaxed);
                    made.fetch_add(1, Ordering::Relaxed);
                    if sent.attempt.outcome != Outcome::Success {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    let made = made.load(Ordering::Relaxed);
    let rate = made as f64 / began.elapsed().as_secs_f64();
    let failed = failed.load(Ordering::Relaxed);
    let slowest = slowest.load(Ordering::Relaxed);
    println!("{what:<10} {rate:>8.0} requests/s, {failed} failed, slowest {slowest} ms");
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|a| a.parse::<u64>().unwrap());
    let concurrency = usize::try_from(numbers.next().unwrap_or(100)).unwrap();
    let time = Duration::from_secs(numbers.next().unwrap_or(5));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let receiver = Receiver::start_counting().await.unwrap();
        let plain = Delivery {
            sink: Sink::webhook(receiver.url("/")),
            ..Delivery::default()
        };
        let mut signed = plain.clone();
        if let Some(webhook) = signed.sink.as_webhook_mut() {
            webhook.secrets_from_env = vec!["SECRET".to_owned()];
        }
        signed.sink = signed.sink.granted();
        let recorder = Receiver::start().await.unwrap();
        let target = Delivery {
            sink: Sink::webhook(recorder.url("/")),
            ..Delivery::default()
        };
        let target = Target::prepare(
            &"orders".parse().unwrap(),
            &target,
            &Variables::new(|_| None),
        )
        .unwrap();
        let client = WebhookClient::new(WebhookOptions::default()).unwrap();
        client.send(&target, &event()).await;
        let length = recorder.requests()[0].body.len();
        println!("concurrency {concurrency}, bodies of {length} bytes");
        measure("plain", plain, concurrency, time).await;
        measure("signed", signed, concurrency, time).await;
        println!("{:?}", receiver.seen());
    });
}
