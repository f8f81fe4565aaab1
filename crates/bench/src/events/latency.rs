//! From the commit of a row to the arrival of its event at the webhook.

use std::sync::Arc;
use std::time::Duration;

use changefeed::{Changefeed, Error, Kind, Result};
use serde::Deserialize;

use super::{Delivering, Orders};
use crate::latency::{Log, Publish, judge_rate, publish};
use crate::report::{Budget, Findings, Measure};

/// Events per second.
const RATE: u32 = 100;
/// Until the dispatcher has begun to look.
const SETTLE: Duration = Duration::from_millis(1500);

/// What is read of a request.
#[derive(Deserialize)]
struct Body {
    event: Event,
}

#[derive(Deserialize)]
struct Event {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    new: Order,
}

#[derive(Deserialize)]
struct Order {
    id: i64,
}

fn order_of(body: &[u8]) -> Option<i64> {
    let body: Body = serde_json::from_slice(body).ok()?;
    Some(body.event.data.new.id)
}

/// Orders through `writers`, with ids from `first_id` on, while a dispatcher delivers.
pub(crate) async fn measure<P: Publish>(
    db: &Changefeed,
    orders: &impl Orders,
    writers: Vec<P>,
    first_id: i64,
    length: Duration,
    budget: Option<Budget>,
    findings: &mut Findings<'_>,
) -> Result<()> {
    findings.doing("latency: commit to webhook at 100 events/s");
    let events = (length.as_secs_f64() * f64::from(RATE)) as usize;
    let receiver = super::receiver().await?;
    orders.send_to(&receiver.url("/orders")).await?;
    let delivering = Delivering::start(db)?;
    tokio::time::sleep(SETTLE).await;
    let log = Arc::new(Log::new(first_id, events));
    receiver.rule({
        let log = log.clone();
        move |request| {
            order_of(&request.body).map(|id| log.saw(id));
            None
        }
    });
    let rate = publish(writers, &log, RATE).await?;
    receiver
        .wait_for(events as u64)
        .await
        .map_err(|e| Error::new(Kind::Database, "events did not arrive").caused_by(e))?;
    delivering.stop().await?;
    judge_rate(rate, RATE, findings);
    let latencies = log.latencies();
    for (name, part, budget) in [
        ("commit to webhook at 100 events/s, p50", 0.5, budget),
        ("commit to webhook at 100 events/s, p99", 0.99, None),
        ("commit to webhook at 100 events/s, longest", 1.0, None),
    ] {
        let figure = latencies.quantile(part);
        findings.add(Measure::alone(name, "ms", figure, budget));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_known_by_its_id() {
        let body = br#"{"id":"x","event":{"op":"INSERT","data":{"old":null,"new":{"id":7}}}}"#;
        assert_eq!(order_of(body), Some(7));
        assert_eq!(order_of(b"{}"), None);
    }
}
