//! Deliveries per second, from the log to the log, against the same client sending the same
//! request to the same receiver with no database.
//!
//! Client, dispatcher and receiver share this process and its threads on both sides, so that
//! neither pays for switches between processes that the other does not have.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use changefeed::{
    Changefeed, Delivery, Error, EventTrigger, Kind, Result, Variables, WebhookOptions,
};
use changefeed_core::{LeasedEvent, Wanted};
use changefeed_engine::sinks::webhook::{Target, WebhookClient};
use tokio::task::JoinSet;

use super::{Delivering, Orders};
use crate::report::{Budget, Findings, Measure};
use crate::sample::Sample;
use crate::scale::Scale;

/// Requests of the bare client for one delivery of ours.
const BARE_FOR_ONE: u64 = 3;

/// The bare client, with one event that it sends again and again.
struct Bare {
    client: WebhookClient,
    target: Target,
    event: LeasedEvent,
}

impl Bare {
    async fn prepare(
        db: &Changefeed,
        orders: &impl Orders,
        trigger: &EventTrigger,
    ) -> Result<Arc<Self>> {
        orders.order(1).await?;
        let wanted = [Wanted {
            trigger: trigger.id,
            limit: 1,
            overall: None,
            ordered: false,
            debounced: false,
            paced: false,
        }];
        let lease = Duration::from_secs(30);
        let events = db
            .store()
            .claim_events(&wanted, "changefeed bench", lease)
            .await?;
        let Some(event) = events.into_iter().next() else {
            return Err(Error::new(Kind::Database, "an order made no event"));
        };
        db.store().release_events(&[event.claim()]).await?;
        deliver(db, 1).await?;
        let definition = &trigger.definition;
        let target = Target::prepare(
            &definition.name,
            &definition.delivery,
            &Variables::new(|_| None),
        )?;
        Ok(Arc::new(Bare {
            client: WebhookClient::new(WebhookOptions::default())?,
            target,
            event,
        }))
    }

    /// Sends so many, as many at the same time as a dispatcher does; returns how many per second.
    async fn send(self: &Arc<Self>, events: u64) -> Result<f64> {
        let left = Arc::new(AtomicI64::new(events as i64));
        let began = Instant::now();
        let mut senders = JoinSet::new();
        for _ in 0..Delivery::CONCURRENCY {
            let (bare, left) = (self.clone(), left.clone());
            senders.spawn(async move {
                while left.fetch_sub(1, Ordering::Relaxed) > 0 {
                    let sent = bare.client.send(&bare.target, &bare.event).await;
                    if let Some(error) = sent.attempt.error {
                        return Err(Error::new(Kind::Unavailable, error));
                    }
                }
                Ok(())
            });
        }
        while let Some(ended) = senders.join_next().await {
            ended
                .map_err(|e| Error::new(Kind::Database, "a sender was cut off").caused_by(e))??;
        }
        Ok(events as f64 / began.elapsed().as_secs_f64())
    }
}

/// Delivers so many events that wait; returns how many per second.
async fn deliver(db: &Changefeed, events: u64) -> Result<f64> {
    let mut delivering = Delivering::start(db)?;
    let rate = delivering.rate(events).await?;
    delivering.stop().await?;
    Ok(rate)
}

pub(crate) async fn measure(
    db: &Changefeed,
    orders: &impl Orders,
    scale: &Scale,
    budget: Option<Budget>,
    findings: &mut Findings<'_>,
) -> Result<()> {
    let receiver = super::receiver().await?;
    let trigger = orders.send_to(&receiver.url("/orders")).await?;
    let client = Bare::prepare(db, orders, &trigger).await?;
    let (mut bare, mut ours) = (Sample::default(), Sample::default());
    for turn in 0..=scale.delivery_turns {
        if turn % 3 == 1 {
            let turns = scale.delivery_turns;
            findings.doing(&format!("deliveries: turn {turn} of {turns}"));
        }
        orders.order(scale.deliveries).await?;
        orders.tidy().await?;
        // Turns of both sides last about as long, so that whatever else the machine does meets
        // them alike.
        let bare_rate = client.send(scale.deliveries * BARE_FOR_ONE).await?;
        let our_rate = deliver(db, scale.deliveries).await?;
        // The first turn only warms both up.
        if turn > 0 {
            bare.add(bare_rate);
            ours.add(our_rate);
        }
    }
    findings.add(Measure::compared(
        "deliveries, log and state written, against the bare client",
        "events/s",
        &ours,
        &bare,
        budget,
    ));
    findings.note(
        "deliveries: 100 requests at the same time; client and receiver share this process on \
         both sides",
    );
    Ok(())
}
