//! Batches of a watch as requests to a webhook: signed, guarded and limited like those of events.

use std::time::Duration;

use async_trait::async_trait;
use changefeed_core::{
    Batch, Delivery, Error, Outcome, Result, Retry, Setting, WatchDefinition, WatchName, batch_json,
};
use http::HeaderValue;
use serde_json::value::RawValue;

use super::webhook::{Environment, Post, Target, WebhookClient};
use crate::WatchFunction;

/// Posts each batch to an address. An answer with a status of 200 to 299 is success.
#[derive(Debug, Clone)]
pub struct PostBatches {
    client: WebhookClient,
    target: Target,
    function_id: String,
    with_version: bool,
}

impl PostBatches {
    /// Prepares the webhook of a watch. What is wrong with it is an error that names the watch and
    /// no secret.
    pub fn prepare(
        client: WebhookClient,
        name: &WatchName,
        definition: &WatchDefinition,
        environment: Environment<'_>,
    ) -> Result<Self> {
        let url = definition
            .webhook
            .clone()
            .ok_or_else(|| Error::invalid(format!("watch '{name}' has no webhook")))?;
        let delivery = Delivery {
            webhook: Some(Setting::Value(url)),
            secrets_from_env: definition.secret_env.iter().cloned().collect(),
            retry: Retry {
                timeout: TIMEOUT,
                ..Retry::default()
            },
            ..Delivery::default()
        };
        let whose = format!("watch '{name}'");
        Ok(PostBatches {
            client,
            target: Target::prepare_for(&whose, &delivery, environment)?,
            function_id: name.function_id(),
            with_version: definition.with_version,
        })
    }
}

/// How long an answer may take. Leases are renewed meanwhile.
const TIMEOUT: Duration = Duration::from_secs(60);

#[async_trait]
impl WatchFunction for PostBatches {
    async fn call(&self, batch: &Batch) -> Result<(), String> {
        let text = batch_json(&batch.changes, self.with_version).map_err(|e| e.to_string())?;
        let body = RawValue::from_string(text).map_err(|e| e.to_string())?;
        // The same rows in the same versions are the same request, whichever attempt it is.
        let id = format!(
            "{}-{}-{}",
            self.function_id, batch.versions.0, batch.versions.1
        );
        let mut post = Post::json(&id, body);
        post.attempt = batch.attempt;
        post.headers
            .insert("changefeed-attempt", HeaderValue::from(batch.attempt));
        let sent = self.client.post(&self.target, post).await;
        match sent.attempt.outcome {
            Outcome::Success => Ok(()),
            _ => Err(sent
                .attempt
                .error
                .unwrap_or_else(|| "the webhook did not succeed".to_owned())),
        }
    }
}
