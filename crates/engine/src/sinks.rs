//! Where events, the batches of watches and the messages of subscriptions go.

mod batches;
pub mod destination;
mod exec;
mod file;
mod formats;
mod handler;
#[cfg(feature = "nats")]
pub mod nats;
pub mod objects;
mod open;
#[cfg(any(
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis",
    feature = "s3"
))]
mod place;
mod pushed;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
mod tls;
pub mod webhook;

use std::time::Duration;

use changefeed_core::{Answer, Attempt, Error, Outcome, Result, Sink, WatchDefinition, WatchName};
use webhook::{WebhookClient, WebhookOptions};

use crate::WatchFunction;

pub use batches::PostBatches;
pub use exec::Exec;
pub use file::Files;
pub use formats::{Dress, place_of};
pub use handler::Handler;
pub use open::{PushOptions, destination};
pub use pushed::{PushBatches, PushCommand, PushTo, Stdout};

/// Where the batches of a watch go; nothing if a program that uses the library takes them.
pub fn batch_sink(
    name: &WatchName,
    definition: &WatchDefinition,
    webhooks: WebhookOptions,
) -> Result<Option<Box<dyn WatchFunction>>> {
    Ok(match &definition.sink {
        Sink::Webhook(_) => {
            let variables = webhooks.variables.clone();
            let client = WebhookClient::new(webhooks)?;
            let post = PostBatches::prepare(client, name, definition, &variables)?;
            Some(Box::new(post))
        }
        Sink::Exec(command) => {
            let (format, timeout) = (definition.format(), definition.timeout);
            Some(Box::new(Exec::new(command, name, format, timeout)))
        }
        Sink::InProcess => None,
        other => {
            return Err(Error::invalid(format!(
                "only a subscription can push to {other}"
            )));
        }
    })
}

/// An attempt that is over.
#[derive(Debug, Clone)]
pub struct Sent {
    /// What the log keeps of it.
    pub attempt: Attempt,
    /// What to judge it by.
    pub answer: Answer,
    /// The body of the answer, for whoever [wants](webhook::Post::wants_answer) it.
    pub said: Option<String>,
}

impl Sent {
    /// An attempt that failed without an answer.
    pub fn failed(number: u32, error: String) -> Self {
        Sent {
            attempt: attempt(number, Outcome::Failure, Some(error), Duration::ZERO),
            answer: Answer::None,
            said: None,
        }
    }

    /// An attempt within this process that worked.
    pub fn handled(number: u32, took: Duration) -> Self {
        Sent {
            attempt: attempt(number, Outcome::Success, None, took),
            answer: Answer::Status {
                status: 200,
                retry_after: None,
            },
            said: None,
        }
    }

    /// An attempt that was ended before its outcome was known.
    pub(crate) fn cut_off(number: u32) -> Self {
        let error = "this instance was stopped before the outcome was known".to_owned();
        Sent {
            attempt: attempt(number, Outcome::Unknown, Some(error), Duration::ZERO),
            answer: Answer::CutOff,
            said: None,
        }
    }
}

fn attempt(number: u32, outcome: Outcome, error: Option<String>, took: Duration) -> Attempt {
    Attempt {
        number,
        outcome,
        status: None,
        request: None,
        response: None,
        error,
        duration_ms: i64::try_from(took.as_millis()).unwrap_or(i64::MAX),
    }
}
