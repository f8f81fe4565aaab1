//! Batches of a watch as requests to a webhook: signed, guarded and limited like those of events.

use std::fmt::Write;

use async_trait::async_trait;
use changefeed_core::{
    Batch, BatchFormat, Outcome, Result, TemplateValues, WatchDefinition, WatchName, batch_json,
};
use http::HeaderValue;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::Sent;
use super::webhook::{Post, Target, Variables, WebhookClient};
use crate::{Handled, WatchFunction, traces};

/// Posts each batch to an address. An answer with a status of 200 to 299 is success, but for the rows that its body
/// says have failed.
#[derive(Debug, Clone)]
pub struct PostBatches {
    client: WebhookClient,
    target: Target,
    name: WatchName,
    function_id: String,
    format: BatchFormat,
}

impl PostBatches {
    /// Prepares the webhook of a watch. What is wrong with it is an error that names the watch and
    /// no secret.
    pub fn prepare(
        client: WebhookClient,
        name: &WatchName,
        definition: &WatchDefinition,
        variables: &Variables,
    ) -> Result<Self> {
        let whose = format!("watch '{name}'");
        let (sink, timeout) = (&definition.sink, definition.timeout);
        Ok(PostBatches {
            client,
            target: Target::prepare_for(&whose, sink, timeout, variables)?,
            name: name.clone(),
            function_id: name.function_id(),
            format: definition.format(),
        })
    }
}

#[async_trait]
impl WatchFunction for PostBatches {
    async fn call(&self, batch: &Batch) -> Result<Handled, String> {
        let text = batch_json(&batch.changes, self.format).map_err(|e| e.to_string())?;
        let body = RawValue::from_string(text).map_err(|e| e.to_string())?;
        let id = id(&self.function_id, batch);
        let mut sent = self.post(batch, Post::json(&id, body.clone())).await;
        if sent.attempt.outcome == Outcome::Unknown {
            // It says nothing about the batch: that must not cost an attempt. Receivers know the
            // request by its id.
            tracing::debug!(error = sent.attempt.error, "a batch is posted again");
            let again = Post {
                fresh: true,
                ..Post::json(&id, body)
            };
            sent = self.post(batch, again).await;
        }
        match sent.attempt.outcome {
            Outcome::Success => Handled::read(sent.said.as_deref().unwrap_or_default()),
            _ => Err(sent
                .attempt
                .error
                .unwrap_or_else(|| "the webhook did not succeed".to_owned())),
        }
    }
}

impl PostBatches {
    async fn post(&self, batch: &Batch, mut post: Post<'_>) -> Sent {
        post.attempt = batch.attempt;
        if self.target.has_blanks() {
            let raw = |json: serde_json::Result<Box<RawValue>>| json.ok();
            post.values = TemplateValues::default()
                .and(
                    "watch",
                    raw(serde_json::value::to_raw_value(&self.name)).as_deref(),
                )
                .and("changes", Some(&post.body))
                .and(
                    "attempt",
                    raw(serde_json::value::to_raw_value(&batch.attempt)).as_deref(),
                );
        }
        post.wants_answer = true;
        post.headers
            .insert("changefeed-attempt", HeaderValue::from(batch.attempt));
        if let Some(trace) = traces::here()
            && let Ok(parent) = HeaderValue::from_str(&trace.traceparent)
        {
            post.headers.insert("traceparent", parent);
        }
        self.client.post(&self.target, post).await
    }
}

/// What receivers know a request by: the same rows in the same versions are the same request,
/// whichever attempt it is, and any other set of rows is another, also after a backup was restored.
fn id(function_id: &str, batch: &Batch) -> String {
    let mut hash = Sha256::new();
    for change in &batch.changes {
        hash.update(change.version.to_be_bytes());
        hash.update(change.bits.to_be_bytes());
    }
    let mut id = format!("{function_id}-");
    for byte in &hash.finalize()[..16] {
        let _ = write!(id, "{byte:02x}");
    }
    id
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use changefeed_core::{RowChange, RowOperation};

    use super::*;

    fn batch(attempt: u32, versions: &[i64]) -> Batch {
        let change = |version| RowChange {
            operation: RowOperation::Update,
            item: RawValue::NULL.to_owned(),
            version,
            bits: version ^ 77,
            columns: None,
            before: None,
            images: None,
        };
        Batch {
            changes: versions.iter().copied().map(change).collect(),
            ..Batch::leased(i64::from(attempt), (1, 3), attempt, Instant::now())
        }
    }

    #[test]
    fn a_request_is_known_by_all_of_its_rows() {
        let first = id("f", &batch(1, &[1, 3]));
        assert_eq!(first, id("f", &batch(2, &[1, 3])));
        assert_ne!(
            first,
            id("f", &batch(2, &[1, 2, 3])),
            "a receiver would drop row 2"
        );
        assert_ne!(first, id("g", &batch(1, &[1, 3])));
        let mut restored = batch(1, &[1, 3]);
        restored.changes[1].bits += 1;
        assert_ne!(first, id("f", &restored), "another change has this version");
        assert_eq!(first.len(), "f-".len() + 32);
    }
}
