//! Events of every trigger that has a webhook.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use changefeed_core::{
    Delivery, EventTrigger, Header, LeasedEvent, Result, Setting, Sink, TriggerId,
};

use super::redact::{self, HIDDEN};
use super::{Target, WebhookClient};
use crate::Deliverer;
use crate::sinks::Sent;

/// Delivers the events of every trigger that has a webhook.
#[derive(Debug)]
pub struct Webhooks {
    client: WebhookClient,
    /// What was prepared, and from which definition.
    targets: Mutex<HashMap<TriggerId, (Delivery, Arc<Target>)>>,
}

impl Webhooks {
    /// Delivers with this client.
    pub fn new(client: WebhookClient) -> Self {
        Webhooks {
            client,
            targets: Mutex::default(),
        }
    }

    fn target(&self, trigger: &EventTrigger) -> Result<Arc<Target>> {
        let delivery = &trigger.definition.delivery;
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, target)) = targets.get(&trigger.id)
            && known == delivery
        {
            return Ok(target.clone());
        }
        let target = Target::prepare(&trigger.definition.name, delivery, &self.client.variables)?;
        let target = Arc::new(target);
        targets.insert(trigger.id, (delivery.clone(), target.clone()));
        Ok(target)
    }
}

#[async_trait]
impl Deliverer for Webhooks {
    fn serves(&self, trigger: &EventTrigger) -> Result<bool> {
        if trigger.definition.delivery.sink.as_webhook().is_none() {
            return Ok(false);
        }
        self.target(trigger).map(|_| true)
    }

    async fn deliver(&self, trigger: &EventTrigger, event: &LeasedEvent) -> Sent {
        match self.target(trigger) {
            Ok(target) => self.client.send(&target, event).await,
            Err(error) => Sent::failed(event.attempt, error.to_string()),
        }
    }
}

/// A sink as people may see it: without what looks like a secret.
pub fn without_secrets(sink: &Sink) -> Sink {
    let mut shown = sink.clone();
    let Some(webhook) = shown.as_webhook_mut() else {
        return shown;
    };
    // Which variables it may read is between the database and the instances.
    webhook.granted_env.clear();
    if let Setting::Value(url) = &mut webhook.url {
        *url = redact::written(url).unwrap_or_else(|| HIDDEN.to_owned());
    }
    for Header { name, value } in &mut webhook.headers {
        if let Setting::Value(value) = value
            && redact::looks_secret(name)
        {
            *value = HIDDEN.to_owned();
        }
    }
    shown
}
