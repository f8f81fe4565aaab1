//! Sinks that cannot be asked what they hold: standard output, webhooks, commands and closures. They get messages at
//! least once, in order, and know them by their ids.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use changefeed_core::{Answer, Backoff, Outcome, Result, SubscriptionDefinition, format_span};
use http::{HeaderName, HeaderValue};
use serde_json::value::RawValue;
use tokio::io::AsyncWriteExt;

use super::destination::{Appended, Destination, Held, Lane, Message};
use super::exec;
use super::webhook::{Post, Target, Variables, WebhookClient};

/// One line per message on the standard output of the process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stdout;

#[async_trait]
impl Destination for Stdout {
    async fn resume(&self, _: &Lane) -> Result<Held, String> {
        Ok(Held::CannotTell)
    }

    async fn append(&self, _: &Lane, _: Held, batch: &[Message]) -> Appended {
        let mut out = tokio::io::stdout();
        let written = async {
            // One write: the lines of another shard must not come in between.
            out.write_all(&lines(batch)).await?;
            out.flush().await
        };
        all_or_away(written.await.map_err(|e| e.to_string()))
    }
}

/// Posts each batch to a webhook, as a JSON array. An answer with a status of 200 to 299 is success.
#[derive(Debug, Clone)]
pub struct PushBatches {
    client: WebhookClient,
    target: Target,
    content_type: HeaderValue,
    most: usize,
}

impl PushBatches {
    /// Prepares the webhook of a subscription.
    pub fn prepare(
        client: WebhookClient,
        definition: &SubscriptionDefinition,
        sink: &changefeed_core::Sink,
        variables: &Variables,
    ) -> Result<Self> {
        use changefeed_core::SubscriptionFormat::{Cloudevents, CloudeventsBinary};
        let whose = format!("subscription '{}'", definition.name);
        Ok(PushBatches {
            client,
            target: Target::prepare_for(&whose, sink, definition.timeout, variables)?,
            content_type: HeaderValue::from_static(match definition.format {
                Cloudevents => "application/cloudevents-batch+json",
                _ => "application/json",
            }),
            // The attributes of one event are headers of its request.
            most: match definition.format {
                CloudeventsBinary => 1,
                _ => 1000,
            },
        })
    }

    async fn post(&self, lane: &Lane, batch: &[Message], fresh: bool) -> Posted {
        let Some(last) = batch.last() else {
            return Posted::Taken;
        };
        let single = self.most == 1;
        let mut text = String::new();
        for (at, message) in batch.iter().enumerate() {
            text.push(if at == 0 { '[' } else { ',' });
            text.push_str(&String::from_utf8_lossy(&message.body));
        }
        text.push(']');
        if single {
            text = String::from_utf8_lossy(&last.body).into_owned();
        }
        let body = match RawValue::from_string(text) {
            Ok(body) => body,
            Err(error) => return Posted::Refused(error.to_string()),
        };
        let mut post = Post::json(&last.id, body);
        post.fresh = fresh;
        post.content_type = self.content_type.clone();
        let (shard, cursor) = (lane.shard.to_string(), last.cursor.to_string());
        let mut headers: Vec<(&str, &str)> = vec![
            ("idempotency-key", &last.id),
            ("changefeed-subscription", &lane.subscription),
            ("changefeed-feed", lane.feed.as_str()),
            ("changefeed-shard", &shard),
            ("changefeed-cursor", &cursor),
        ];
        if single {
            headers.extend(last.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())));
        }
        for (name, value) in headers {
            if let (Ok(name), Ok(value)) = (
                HeaderName::from_bytes(name.as_bytes()),
                HeaderValue::from_str(value),
            ) {
                post.headers.insert(name, value);
            }
        }
        let sent = self.client.post(&self.target, post).await;
        let why = sent.attempt.error.unwrap_or_default();
        match (sent.attempt.outcome, sent.answer) {
            (Outcome::Success, _) => Posted::Taken,
            (Outcome::Unknown, _) if !fresh => Posted::Lost,
            // What is wrong with the content, and stays wrong.
            (
                _,
                Answer::Status {
                    status: 400 | 413 | 415 | 422,
                    ..
                },
            ) => Posted::Refused(why),
            _ => Posted::Away(why),
        }
    }

    /// Posts one message of several, and tries again for a while: to give up is to begin with the first one again, and
    /// a receiver that often fails would never get to the last.
    async fn insisted(&self, lane: &Lane, message: &Message) -> Posted {
        let mut backoff = Backoff::default();
        for _ in 0..4 {
            match self.posted(lane, std::slice::from_ref(message)).await {
                Posted::Away(_) | Posted::Lost => tokio::time::sleep(backoff.failed()).await,
                told => return told,
            }
        }
        self.posted(lane, std::slice::from_ref(message)).await
    }

    async fn posted(&self, lane: &Lane, batch: &[Message]) -> Posted {
        match self.post(lane, batch, false).await {
            // It says nothing about the batch: the connection had ended before.
            Posted::Lost => self.post(lane, batch, true).await,
            other => other,
        }
    }
}

const LOST: &str = "the connection was lost";

enum Posted {
    Taken,
    Refused(String),
    Away(String),
    Lost,
}

#[async_trait]
impl Destination for PushBatches {
    async fn resume(&self, _: &Lane) -> Result<Held, String> {
        Ok(Held::CannotTell)
    }

    async fn append(&self, lane: &Lane, _: Held, batch: &[Message]) -> Appended {
        match self.posted(lane, batch).await {
            Posted::Taken => Appended::All(Held::CannotTell),
            Posted::Away(why) => Appended::Unavailable(why),
            Posted::Lost => Appended::Unavailable(LOST.to_owned()),
            Posted::Refused(reason) if batch.len() == 1 => refused(0, reason),
            Posted::Refused(_) => {
                // One by one, to find the one that is meant.
                for (index, message) in batch.iter().enumerate() {
                    match self.insisted(lane, message).await {
                        Posted::Taken => {}
                        Posted::Refused(reason) => return refused(index, reason),
                        Posted::Away(why) => return Appended::Unavailable(why),
                        Posted::Lost => return Appended::Unavailable(LOST.to_owned()),
                    }
                }
                Appended::All(Held::CannotTell)
            }
        }
    }

    fn most(&self) -> usize {
        self.most
    }
}

fn refused(index: usize, reason: String) -> Appended {
    Appended::Refused {
        index,
        held: Held::CannotTell,
        reason,
    }
}

/// Runs a shell command per batch, which gets one message per line on its standard input. Exit 0 is success.
#[derive(Debug, Clone)]
pub struct PushCommand {
    command: String,
    timeout: Duration,
}

impl PushCommand {
    /// A command, which is ended if a batch takes it longer than this.
    pub fn new(command: impl Into<String>, timeout: Duration) -> Self {
        PushCommand {
            command: command.into(),
            timeout,
        }
    }
}

#[async_trait]
impl Destination for PushCommand {
    async fn resume(&self, _: &Lane) -> Result<Held, String> {
        Ok(Held::CannotTell)
    }

    async fn append(&self, lane: &Lane, _: Held, batch: &[Message]) -> Appended {
        let shard = lane.shard.to_string();
        let id = batch.last().map_or("", |message| &message.id);
        let environment = [
            ("CHANGEFEED_SUBSCRIPTION", lane.subscription.as_str()),
            ("CHANGEFEED_FEED", lane.feed.as_str()),
            ("CHANGEFEED_SHARD", &shard),
            ("CHANGEFEED_IDEMPOTENCY_KEY", id),
        ];
        let input = lines(batch);
        let run = exec::run(&self.command, &environment, &input, None);
        let ended = tokio::time::timeout(self.timeout, run).await;
        all_or_away(ended.unwrap_or_else(|_| {
            let limit = format_span(self.timeout);
            Err(format!("'{}' had not ended after {limit}", self.command))
        }))
    }
}

type Pushing = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Hands each batch to a function of the program.
pub struct PushTo<F> {
    function: F,
}

impl<F> fmt::Debug for PushTo<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushTo").finish_non_exhaustive()
    }
}

impl<F: Fn(Lane, Vec<Message>) -> Pushing + Send + Sync> PushTo<F> {
    /// A function that gets the messages of a shard in order, at least once. What it fails with is logged, and the
    /// same messages come again.
    pub fn new(function: F) -> Self {
        PushTo { function }
    }
}

#[async_trait]
impl<F: Fn(Lane, Vec<Message>) -> Pushing + Send + Sync> Destination for PushTo<F> {
    async fn resume(&self, _: &Lane) -> Result<Held, String> {
        Ok(Held::CannotTell)
    }

    async fn append(&self, lane: &Lane, _: Held, batch: &[Message]) -> Appended {
        all_or_away((self.function)(lane.clone(), batch.to_vec()).await)
    }
}

fn lines(batch: &[Message]) -> Vec<u8> {
    let mut lines = Vec::with_capacity(batch.iter().map(|m| m.body.len() + 1).sum());
    for message in batch {
        lines.extend_from_slice(&message.body);
        lines.push(b'\n');
    }
    lines
}

fn all_or_away(done: Result<(), String>) -> Appended {
    match done {
        Ok(()) => Appended::All(Held::CannotTell),
        Err(why) => Appended::Unavailable(why),
    }
}
