//! RabbitMQ: quorum and classic queues, streams as queues, and exchanges.
//!
//! A queue cannot be asked for its newest message, and it compares nothing. So messages come at least once: a batch is
//! published on the shard's own channel, and counts when the broker has confirmed every message of it. After a
//! failure all of it is published again. What is published on one channel arrives in that order; so a message is never
//! seen for the first time before those that precede it.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use changefeed_core::{Error, Result, fill, format_span};
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueDeclareOptions,
};
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ErrorKind,
    ExchangeKind,
};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::destination::{Appended, Destination, Held, Lane, Message};
use super::place::BrokerUrl;

/// How long the broker may take to greet. One that has just begun to listen may not answer for a while.
const CONNECTING: Duration = Duration::from_secs(5);
/// The longest routing key, message id and name that the protocol has.
const LONGEST_NAME: usize = 255;

/// A sink for one subscription in RabbitMQ.
pub struct RabbitMq {
    uri: AMQPUri,
    target: Target,
    /// How many messages may wait for their confirmation.
    window: usize,
    patience: Duration,
    open: Mutex<Open>,
}

#[derive(Debug)]
enum Target {
    /// A template for the name of a queue, and the type that it is created with.
    Queue(String, String),
    /// An exchange that is there.
    Exchange(String),
}

#[derive(Default)]
struct Open {
    connection: Option<Connection>,
    channels: HashMap<Lane, Channel>,
}

/// Why a batch was not confirmed.
enum Failed {
    /// The broker will never take one of these messages.
    Refused(String),
    Away(String),
}

impl fmt::Debug for RabbitMq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMq")
            .field("host", &self.uri.authority.host)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

impl RabbitMq {
    /// A sink at `amqp://[user:password@]host[:port][/VHOST]?queue=QUEUE[&type=quorum|classic|stream]` or
    /// `amqp://…?exchange=EXCHANGE`; `window=N` bounds the messages that wait for confirmations. The connection is made at
    /// the first use.
    pub fn connect(url: &str, patience: Duration) -> Result<Self> {
        let mut url = BrokerUrl::parse(url)?;
        match url.scheme.as_str() {
            "amqp" => {}
            "amqps" => {
                return Err(
                    Error::invalid("TLS to RabbitMQ is not supported yet").advise(
                        "let a proxy such as stunnel on this host speak TLS, and use amqp:// to it",
                    ),
                );
            }
            _ => {
                return Err(Error::invalid(
                    "the URL of a RabbitMQ sink begins with amqp://",
                ));
            }
        }
        let target = match (url.take("queue"), url.take("exchange")) {
            (Some(queue), None) if !queue.is_empty() => {
                let kind = url.take("type").unwrap_or_else(|| "quorum".to_owned());
                if !["quorum", "classic", "stream"].contains(&kind.as_str()) {
                    return Err(Error::invalid(format!("'{kind}' is not a type of queues"))
                        .advise("use quorum, classic or stream"));
                }
                queue_name(&queue, "feed", "0")?;
                Target::Queue(queue, kind)
            }
            (None, Some(exchange)) if !exchange.is_empty() => Target::Exchange(exchange),
            _ => {
                return Err(Error::invalid(
                    "the URL of a RabbitMQ sink names a queue or an exchange",
                )
                .advise("write amqp://host/?queue=QUEUE or amqp://host/?exchange=EXCHANGE"));
            }
        };
        let window = url.take_number("window")?.unwrap_or(1000);
        url.nothing_else("queue, type, exchange, window")?;
        let [host] = url.hosts.as_slice() else {
            return Err(Error::invalid("a RabbitMQ sink has one host"));
        };
        let (host, port) = match host.rsplit_once(':') {
            Some((host, port)) => {
                let port = port.parse().map_err(|_| {
                    Error::invalid(format!("'{port}' is not the port of a RabbitMQ server"))
                })?;
                (host.to_owned(), port)
            }
            None => (host.clone(), 5672),
        };
        let guest = || "guest".to_owned();
        let uri = AMQPUri {
            scheme: AMQPScheme::AMQP,
            authority: AMQPAuthority {
                userinfo: AMQPUserInfo {
                    username: url.user.clone().unwrap_or_else(guest),
                    password: url.password.clone().unwrap_or_else(guest),
                },
                host,
                port,
            },
            vhost: match url.path.as_str() {
                "" => "/".to_owned(),
                path => path.to_owned(),
            },
            query: AMQPQueryString::default(),
        };
        Ok(RabbitMq {
            uri,
            target,
            window: usize::try_from(window).unwrap_or(usize::MAX),
            patience,
            open: Mutex::default(),
        })
    }

    fn whose(&self) -> String {
        let authority = &self.uri.authority;
        format!("RabbitMQ at {}:{}", authority.host, authority.port)
    }

    /// The channel of a lane, on which messages are confirmed.
    async fn channel(&self, lane: &Lane) -> std::result::Result<Channel, Failed> {
        let told = |error: lapin::Error| self.told(&error);
        let mut open = self.open.lock().await;
        if let Some(channel) = open.channels.get(lane)
            && channel.status().connected()
        {
            return Ok(channel.clone());
        }
        let connection = match &open.connection {
            Some(connection) if connection.status().connected() => connection,
            _ => {
                open.channels.clear();
                let named = ConnectionProperties::default()
                    .with_connection_name(LongString::from("changefeed"));
                let connecting = Connection::connect_uri(self.uri.clone(), named);
                let connected = timeout(CONNECTING, connecting)
                    .await
                    .map_err(|_| Failed::Away(format!("{} does not answer", self.whose())))?;
                open.connection.insert(connected.map_err(told)?)
            }
        };
        if let Target::Queue(template, kind) = &self.target {
            let queue = self.queue(template, lane)?;
            self.declare(connection, &queue, kind).await?;
        }
        let channel = connection.create_channel().await.map_err(told)?;
        if let Target::Exchange(exchange) = &self.target {
            let there = ExchangeDeclareOptions {
                passive: true,
                ..ExchangeDeclareOptions::default()
            };
            // Of one that is there the server compares nothing.
            let kind = ExchangeKind::Topic;
            let asked = channel.exchange_declare(
                ShortString::from(exchange.as_str()),
                kind,
                there,
                FieldTable::default(),
            );
            asked.await.map_err(told)?;
        }
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await
            .map_err(told)?;
        open.channels.insert(lane.clone(), channel.clone());
        Ok(channel)
    }

    /// Creates a queue unless it is there. One that is there is never changed.
    async fn declare(
        &self,
        connection: &Connection,
        queue: &str,
        kind: &str,
    ) -> std::result::Result<(), Failed> {
        let told = |error: lapin::Error| self.told(&error);
        let name = || ShortString::from(queue);
        let look = connection.create_channel().await.map_err(told)?;
        let there = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        match look
            .queue_declare(name(), there, FieldTable::default())
            .await
        {
            Ok(_) => return Ok(()),
            Err(error) if is(&error, AMQPSoftError::NOTFOUND) => {}
            Err(error) => return Err(told(error)),
        }
        let mut arguments = FieldTable::default();
        arguments.insert(
            ShortString::from("x-queue-type"),
            AMQPValue::LongString(LongString::from(kind)),
        );
        let lasting = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let make = connection.create_channel().await.map_err(told)?;
        make.queue_declare(name(), lasting, arguments)
            .await
            .map_err(told)?;
        tracing::info!(queue, kind, "a queue was created");
        Ok(())
    }

    fn queue(&self, template: &str, lane: &Lane) -> std::result::Result<String, Failed> {
        queue_name(template, lane.feed.as_str(), &lane.shard.to_string())
            .map_err(|e| Failed::Away(e.to_string()))
    }

    fn told(&self, error: &lapin::Error) -> Failed {
        Failed::Away(format!("{} says: {error}", self.whose()))
    }

    /// Publishes messages and waits until all are confirmed.
    async fn publish(&self, lane: &Lane, batch: &[Message]) -> std::result::Result<(), Failed> {
        let channel = self.channel(lane).await?;
        for part in batch.chunks(self.window) {
            let mut confirmations = Vec::with_capacity(part.len());
            for message in part {
                let (exchange, key) = match &self.target {
                    Target::Queue(template, _) => ("", self.queue(template, lane)?),
                    Target::Exchange(exchange) => (
                        exchange.as_str(),
                        message
                            .subject
                            .clone()
                            .unwrap_or_else(|| format!("{}.{}", lane.feed, lane.shard)),
                    ),
                };
                // What no queue takes comes back instead of being thrown away.
                let options = BasicPublishOptions {
                    mandatory: true,
                    ..BasicPublishOptions::default()
                };
                let published = channel.basic_publish(
                    ShortString::from(exchange),
                    ShortString::from(key.as_str()),
                    options,
                    &message.body,
                    properties(lane, message),
                );
                confirmations.push(published.await.map_err(|e| self.refused(&e))?);
            }
            for confirmation in confirmations {
                match confirmation.await.map_err(|e| self.refused(&e))? {
                    Confirmation::Ack(None) => {}
                    Confirmation::Ack(Some(back)) | Confirmation::Nack(Some(back)) => {
                        return Err(Failed::Away(format!(
                            "{} has no queue for the routing key '{}' ({})",
                            self.whose(),
                            back.delivery.routing_key,
                            back.reply_text
                        )));
                    }
                    Confirmation::Nack(None) => {
                        return Err(Failed::Away(format!(
                            "{} did not take a message: the queue is full, or has failed",
                            self.whose()
                        )));
                    }
                    Confirmation::NotRequested => {
                        return Err(Failed::Away("nothing is confirmed".to_owned()));
                    }
                }
            }
        }
        Ok(())
    }

    /// A channel is closed by PRECONDITION_FAILED when a message is too large.
    fn refused(&self, error: &lapin::Error) -> Failed {
        match error.kind() {
            ErrorKind::ProtocolError(amqp) if is(error, AMQPSoftError::PRECONDITIONFAILED) => {
                Failed::Refused(amqp.get_message().to_string())
            }
            _ => self.told(error),
        }
    }

    /// The same, in time. After a failure nothing of this channel is used again: confirmations may be on their way.
    async fn published(&self, lane: &Lane, batch: &[Message]) -> std::result::Result<(), Failed> {
        let done = timeout(self.patience, self.publish(lane, batch)).await;
        let done = done.unwrap_or_else(|_| {
            let limit = format_span(self.patience);
            Err(Failed::Away(format!(
                "{} has not confirmed within {limit}",
                self.whose()
            )))
        });
        if done.is_err()
            && let Some(channel) = self.open.lock().await.channels.remove(lane)
        {
            let closing = channel.close(200, ShortString::from("published again"));
            let _ = timeout(Duration::from_secs(1), closing).await;
        }
        done
    }
}

/// Whether an error is of this kind.
fn is(error: &lapin::Error, kind: AMQPSoftError) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(amqp) if *amqp.kind() == AMQPErrorKind::Soft(kind))
}

fn queue_name(template: &str, feed: &str, shard: &str) -> Result<String> {
    let name = fill(template, &[("feed", feed), ("shard", shard)]).map_err(|_| {
        Error::invalid(format!(
            "the queue '{template}' has a blank that nothing fills"
        ))
        .advise("use {feed} and {shard}")
    })?;
    if name.len() > LONGEST_NAME {
        return Err(Error::invalid("the name of a queue has at most 255 bytes"));
    }
    Ok(name)
}

fn properties(lane: &Lane, message: &Message) -> BasicProperties {
    let mut headers = FieldTable::default();
    let mut header = |name: &str, value: &str| {
        let value = AMQPValue::LongString(LongString::from(value));
        headers.insert(ShortString::from(name), value);
    };
    for (name, value) in &message.headers {
        if name.len() <= LONGEST_NAME {
            header(name, value);
        }
    }
    header("changefeed-cursor", &message.cursor.to_string());
    header("changefeed-shard", &lane.shard.to_string());
    header("changefeed-epoch", &lane.epoch.to_string());
    header("changefeed-subscription", &lane.subscription);
    header("changefeed-key", &message.key);
    BasicProperties::default()
        .with_content_type(ShortString::from("application/json"))
        .with_message_id(ShortString::from(message.id.as_str()))
        // To be kept on the disk.
        .with_delivery_mode(2)
        .with_app_id(ShortString::from("changefeed"))
        .with_headers(headers)
}

/// What the protocol has no room for.
fn too_long(message: &Message) -> Option<String> {
    let subject = message.subject.as_ref().map_or(0, String::len);
    (subject > LONGEST_NAME)
        .then(|| format!("its routing key has {subject} bytes, and RabbitMQ takes {LONGEST_NAME}"))
}

#[async_trait]
impl Destination for RabbitMq {
    async fn resume(&self, _: &Lane) -> std::result::Result<Held, String> {
        Ok(Held::CannotTell)
    }

    async fn append(&self, lane: &Lane, _: Held, batch: &[Message]) -> Appended {
        let refused = |index, reason| Appended::Refused {
            index,
            held: Held::CannotTell,
            reason,
        };
        let long = batch.iter().position(|message| too_long(message).is_some());
        let fits = &batch[..long.unwrap_or(batch.len())];
        match self.published(lane, fits).await {
            Ok(()) => {}
            Err(Failed::Away(why)) => return Appended::Unavailable(why),
            Err(Failed::Refused(reason)) if fits.len() == 1 => return refused(0, reason),
            // One by one, to find the one that is meant.
            Err(Failed::Refused(_)) => {
                for (index, message) in fits.iter().enumerate() {
                    match self.published(lane, std::slice::from_ref(message)).await {
                        Ok(()) => {}
                        Err(Failed::Away(why)) => return Appended::Unavailable(why),
                        Err(Failed::Refused(reason)) => return refused(index, reason),
                    }
                }
            }
        }
        match long.and_then(|index| Some((index, too_long(&batch[index])?))) {
            Some((index, reason)) => refused(index, reason),
            None => Appended::All(Held::CannotTell),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_queue_or_an_exchange() {
        let open = |url: &str| RabbitMq::connect(url, Duration::from_secs(1));
        let sink = open("amqp://me:hu%2Fsh@h:1/shop?queue=orders-{shard}&type=classic").unwrap();
        assert_eq!(sink.uri.vhost, "shop");
        assert_eq!(sink.uri.authority.userinfo.password, "hu/sh");
        assert!(!format!("{sink:?}").contains("hu/sh"));
        assert_eq!(open("amqp://h?exchange=e").unwrap().uri.vhost, "/");
        for bad in [
            "amqp://h",
            "amqp://h?queue=",
            "amqp://h?queue=q&exchange=e",
            "amqp://h?queue=q&type=odd",
            "amqp://h?queue=q-{what}",
            "amqp://h?queue=q&x=1",
            "amqp://a,b?queue=q",
            "amqp://h:x?queue=q",
            "amqps://h?queue=q",
        ] {
            assert!(open(bad).is_err(), "{bad}");
        }
    }
}
