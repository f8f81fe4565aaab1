//! The one place that knows which sinks there are.

use std::path::PathBuf;
use std::sync::Arc;

use changefeed_core::{Broker, Container, Error, Kind, Result, Sink, SubscriptionDefinition};

use super::destination::Destination;
use super::file::Files;
#[cfg(feature = "nats")]
use super::nats::Nats;
#[cfg(feature = "s3")]
use super::objects::S3;
use super::objects::{Directory, Objects};
use super::pushed::{PushBatches, PushCommand, Stdout};
#[cfg(feature = "rabbitmq")]
use super::rabbitmq::RabbitMq;
#[cfg(feature = "redis")]
use super::redis::Redis;
use super::webhook::{WebhookClient, WebhookOptions};

/// What subscriptions may do on this machine.
#[derive(Debug, Clone, Default)]
pub struct PushOptions {
    /// How webhooks are called.
    pub webhooks: WebhookOptions,
    /// Whether commands are run.
    pub allow_exec: bool,
    /// The directories that files may be in.
    pub allow_files: Vec<PathBuf>,
}

/// Opens a sink of a subscription: the one that it pushes to, or the one that refused messages go to.
pub async fn destination(
    sink: &Sink,
    definition: &SubscriptionDefinition,
    options: &PushOptions,
) -> Result<Arc<dyn Destination>> {
    let timeout = definition.timeout;
    Ok(match sink {
        Sink::Webhook(_) => {
            let variables = options.webhooks.variables.clone();
            let client = WebhookClient::new(options.webhooks.clone())?;
            Arc::new(PushBatches::prepare(client, definition, sink, &variables)?)
        }
        Sink::Exec(_) if !options.allow_exec => {
            // Otherwise everybody who may write to the database could run commands here.
            let message = "subscriptions may not run commands on this machine";
            let error = Error::new(Kind::Permission, message);
            return Err(error.advise("start `changefeed serve --allow-exec`"));
        }
        Sink::Exec(command) => Arc::new(PushCommand::new(command, timeout)),
        Sink::File(path) => Arc::new(Files::new(path, timeout, &options.allow_files)?),
        Sink::Stdout => Arc::new(Stdout),
        Sink::Directory(address) => {
            let path = address
                .split_once('?')
                .map_or(&address[..], |(path, _)| path);
            let store = Directory::new(path, &options.allow_files)?;
            Arc::new(Objects::new(Arc::new(store), Container::of(address)?)?)
        }
        #[cfg(feature = "nats")]
        Sink::Broker(Broker::Nats, url) => {
            Arc::new(Nats::connect(url, definition.subject.as_deref())?)
        }
        #[cfg(feature = "redis")]
        Sink::Broker(Broker::Redis, url) => Arc::new(Redis::connect(url)?),
        #[cfg(feature = "rabbitmq")]
        Sink::Broker(Broker::RabbitMq, url) => Arc::new(RabbitMq::connect(url, timeout)?),
        #[cfg(feature = "s3")]
        Sink::Broker(Broker::S3, url) => {
            let store = S3::new(url, timeout)?;
            Arc::new(Objects::new(Arc::new(store), Container::of(url)?)?)
        }
        #[allow(unreachable_patterns, reason = "brokers are chosen by features")]
        Sink::Broker(broker, _) => {
            let feature = broker.feature();
            let message = format!(
                "this program cannot push to {sink}: it was built without the feature '{feature}'"
            );
            return Err(Error::new(Kind::Unsupported, message)
                .advise(format!("build it with --features {feature}")));
        }
        Sink::InProcess => {
            return Err(Error::invalid(
                "a subscription of a program is run by that program",
            ));
        }
    })
}
