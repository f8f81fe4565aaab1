//! Where events and changed rows are sent to: a receiver that fails now and then, and in bad times
//! often.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use changefeed_testkit::receiver::{Receiver, Reply, Request};
use serde_json::Value;

/// How it can be; the first is well.
pub(crate) const MOODS: [&str; 6] = [
    "well",
    "receiver fails",
    "receiver hangs",
    "receiver closes",
    "receiver resets",
    "receiver talks garbage",
];

pub(crate) struct Receiving {
    /// Events.
    pub(crate) receiver: Receiver,
    /// Changed rows.
    pub(crate) rows: Receiver,
    mood: Arc<AtomicU8>,
}

impl Receiving {
    pub(crate) async fn start() -> Self {
        let mood = Arc::new(AtomicU8::new(0));
        let receiver = Receiver::start().await.unwrap();
        let of = Arc::clone(&mood);
        receiver.rule(move |request| bad(&of).or_else(|| fails_by_row(request)));
        let rows = Receiver::start().await.unwrap();
        let of = Arc::clone(&mood);
        rows.rule(move |_| {
            bad(&of).or_else(|| match fastrand::u8(..30) {
                0 => Some(Reply::Status(500)),
                1 => Some(Reply::DropAfterReading),
                2 => Some(Reply::AcceptAndClose),
                _ => None,
            })
        });
        Receiving {
            receiver,
            rows,
            mood,
        }
    }

    pub(crate) fn set_mood(&self, mood: usize) {
        self.mood
            .store(u8::try_from(mood).unwrap(), Ordering::SeqCst);
        self.receiver.release();
        self.rows.release();
    }

    pub(crate) fn requests(&self) -> u64 {
        self.receiver.seen().requests + self.rows.seen().requests
    }
}

/// In bad times, every second request.
fn bad(mood: &AtomicU8) -> Option<Reply> {
    let reply = match mood.load(Ordering::SeqCst) {
        1 => Reply::Status(503),
        2 => Reply::Hang,
        3 => Reply::DropAfterReading,
        4 => Reply::ResetBeforeReading,
        5 => Reply::Garbage,
        _ => return None,
    };
    fastrand::bool().then_some(reply)
}

/// Every eighth event fails once, and every fiftieth for good, in one way or another.
fn fails_by_row(request: &Request) -> Option<Reply> {
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    let data = &body["event"]["data"];
    let row = data["new"]["id"].as_u64().or(data["old"]["id"].as_u64())?;
    let first = body["delivery_info"]["current_retry"] == 0;
    let fails = row % 8 == 0 && first || row % 50 == 1;
    fails.then(|| match row % 6 {
        0 => Reply::DropAfterReading,
        1 => Reply::Status(500),
        2 => Reply::Garbage,
        3 => Reply::ResetBeforeReading,
        4 => Reply::AcceptAndClose,
        _ => Reply::AcceptAfter(Duration::from_millis(60)),
    })
}
