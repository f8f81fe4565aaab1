//! Events to a function in this process.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use changefeed_core::{Event, EventTrigger, LeasedEvent, Result, TriggerName};
use futures_util::future::BoxFuture;

use super::Sent;
use crate::Deliverer;

type Function = dyn Fn(Event) -> BoxFuture<'static, Result<(), String>> + Send + Sync;

/// Gives the events of one trigger to an async function. An error, a panic or more time than the
/// trigger's timeout is a failed attempt, and retried as its definition says.
#[derive(Clone)]
pub struct Handler {
    trigger: TriggerName,
    function: Arc<Function>,
}

impl Handler {
    /// A handler of the events of this trigger.
    pub fn new<F, W, E>(trigger: TriggerName, function: F) -> Self
    where
        F: Fn(Event) -> W + Send + Sync + 'static,
        W: Future<Output = Result<(), E>> + Send + 'static,
        E: Display,
    {
        Handler {
            trigger,
            function: Arc::new(move |event| {
                let work = function(event);
                Box::pin(async move { work.await.map_err(|error| error.to_string()) })
            }),
        }
    }
}

#[async_trait]
impl Deliverer for Handler {
    fn serves(&self, trigger: &EventTrigger) -> Result<bool> {
        Ok(trigger.definition.name == self.trigger)
    }

    async fn deliver(&self, trigger: &EventTrigger, event: &LeasedEvent) -> Sent {
        let began = Instant::now();
        let timeout = trigger.definition.delivery.retry.timeout;
        let work = (self.function)(event.event.clone());
        match tokio::time::timeout(timeout, work).await {
            Ok(Ok(())) => Sent::handled(event.attempt, began.elapsed()),
            Ok(Err(error)) => {
                let mut sent = Sent::failed(event.attempt, error);
                sent.attempt.duration_ms =
                    i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX);
                sent
            }
            Err(_) => Sent::failed(
                event.attempt,
                format!("the handler took longer than the timeout of {timeout:?}"),
            ),
        }
    }
}
