//! NATS JetStream.
//!
//! A shard has a subject, and its newest message says where the shard stands: headers hold the cursor and the epoch.
//! A batch is appended on the condition that this message still is the newest (expected-last-subject-sequence). A stream
//! with `allow_atomic` takes a batch as a whole or not at all.
//!
//! Other streams get one message at a time, each with the sequence that the server gave to the one before. Messages are
//! never sent ahead with *predicted* sequences: a shard that shares the stream may take one of them, and then a message is
//! refused and the one behind it, whose prediction is right by accident, is stored.

mod publish;
mod subjects;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{
    Config, LastRawMessageErrorKind, RetentionPolicy, StorageType,
};
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{Client, ConnectOptions, Event, ServerAddr, connection::State};
use async_trait::async_trait;
use changefeed_core::{Cursor, Error, Result};
use subjects::{Subjects, covers};
use tokio::sync::{OnceCell, watch};
use tokio::time::timeout;

use super::destination::{Appended, Destination, Held, Lane, Mark, Message};
use super::place::BrokerUrl;
use super::webhook;

/// The cursor of a message.
pub const CURSOR: &str = "Changefeed-Cursor";
/// The epoch of a message.
pub const EPOCH: &str = "Changefeed-Epoch";
/// The subscription that wrote a message.
pub const SUBSCRIPTION: &str = "Changefeed-Subscription";
/// The shard of a message.
pub const SHARD: &str = "Changefeed-Shard";

/// How long the server may take to answer. A new leader of a stream knows nothing of a batch that the old one was sent.
const PATIENCE: Duration = Duration::from_secs(5);

/// A sink for one subscription in NATS JetStream.
pub struct Nats {
    url: BrokerUrl,
    subjects: Subjects,
    stream: Option<String>,
    replicas: usize,
    client: OnceCell<Client>,
    /// How often the connection was lost.
    lost: watch::Sender<u64>,
    lanes: Mutex<HashMap<Lane, Known>>,
}

/// What the last look at a lane has shown.
#[derive(Clone)]
struct Known {
    stream: Arc<Stream>,
    /// The sequence that the server compares when the lane is believed to hold nothing. It is not zero when messages of
    /// an earlier epoch are there.
    nothing: u64,
}

/// The stream that takes a lane.
struct Stream {
    name: String,
    atomic: bool,
    /// The largest message with its headers.
    largest: Option<usize>,
}

impl fmt::Debug for Nats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nats")
            .field("hosts", &self.url.hosts)
            .field("subjects", &self.subjects)
            .finish_non_exhaustive()
    }
}

impl Nats {
    /// A sink at `nats://[user:password@]host[:port][,host…]/SUBJECT[?stream=NAME&replicas=N]`; `nats+tls` insists on
    /// TLS. The connection is made at the first use.
    ///
    /// Without a template the messages of a shard have the subject `SUBJECT.SHARD`. A template begins with
    /// `SUBJECT.{shard}.`, or with `SUBJECT.` if the feed has one shard only.
    pub fn connect(url: &str, template: Option<&str>) -> Result<Self> {
        let mut url = BrokerUrl::parse(url)?;
        if !matches!(url.scheme.as_str(), "nats" | "nats+tls") {
            return Err(Error::invalid(
                "the URL of a NATS sink begins with nats:// or nats+tls://",
            ));
        }
        let stream = url.take("stream").filter(|name| !name.is_empty());
        let replicas = url.take_number("replicas")?.unwrap_or(1);
        url.nothing_else("stream, replicas")?;
        Ok(Nats {
            subjects: Subjects::new(&url.path, template)?,
            stream,
            replicas: usize::try_from(replicas).unwrap_or(usize::MAX),
            url,
            client: OnceCell::new(),
            lost: watch::Sender::new(0),
            lanes: Mutex::default(),
        })
    }

    async fn client(&self) -> std::result::Result<&Client, String> {
        self.client
            .get_or_try_init(|| async {
                let mut servers = Vec::new();
                for host in &self.url.hosts {
                    let server: ServerAddr = format!("nats://{host}")
                        .parse()
                        .map_err(|_| format!("'{host}' is not the address of a NATS server"))?;
                    servers.push(server);
                }
                let lost = self.lost.clone();
                let options = ConnectOptions::new()
                    .name("changefeed")
                    .require_tls(self.url.scheme == "nats+tls")
                    .tls_client_config(webhook::tls(&[]).map_err(|e| e.to_string())?)
                    .request_timeout(Some(PATIENCE))
                    .event_callback(move |event| {
                        if matches!(event, Event::Disconnected | Event::Closed) {
                            lost.send_modify(|times| *times += 1);
                        }
                        std::future::ready(())
                    })
                    .reconnect_delay_callback(|attempt| {
                        // Soon at first; a second is what a take-over may wait.
                        Duration::from_millis(20 << attempt.min(5)).min(Duration::from_secs(1))
                    });
                let options = match (&self.url.user, &self.url.password) {
                    (Some(user), Some(password)) => {
                        options.user_and_password(user.clone(), password.clone())
                    }
                    (Some(token), None) => options.token(token.clone()),
                    _ => options,
                };
                options.connect(servers).await.map_err(|e| {
                    format!(
                        "NATS at {} cannot be reached: {e}",
                        self.url.hosts.join(",")
                    )
                })
            })
            .await
    }

    /// Does something as long as the connection lasts: what was sent over one that is lost may never be answered.
    async fn connected<T>(
        &self,
        work: impl Future<Output = std::result::Result<T, String>>,
    ) -> std::result::Result<T, String> {
        let mut lost = self.lost.subscribe();
        let client = timeout(PATIENCE, self.client())
            .await
            .map_err(|_| silent())??;
        let hosts = || self.url.hosts.join(",");
        if client.connection_state() != State::Connected {
            return Err(format!("NATS at {} is away", hosts()));
        }
        tokio::select! {
            done = work => done,
            _ = lost.changed() => Err(format!("the connection to NATS at {} was lost", hosts())),
        }
    }

    /// Where a lane stands, and what is remembered for the next batch.
    async fn look(&self, lane: &Lane) -> std::result::Result<(Held, Known), String> {
        let client = self.client().await?;
        let context = jetstream::new(client.clone());
        let filter = self.subjects.lane(lane);
        if self.subjects.is_spread() && !client.is_server_compatible(2, 11, 0) {
            return Err(
                "subject templates need NATS 2.11 or later: older servers compare one subject only"
                    .to_owned(),
            );
        }
        let (stream, handle) = self.stream(&context, &filter).await?;
        // Asked of the stream's leader: a direct get may be answered by a replica that is behind.
        let last = match handle.get_last_raw_message_by_subject(&filter).await {
            Ok(message) => Some(message),
            Err(e) if e.kind() == LastRawMessageErrorKind::NoMessageFound => None,
            Err(e) => return Err(format!("the last message of {filter} cannot be read: {e}")),
        };
        let (held, nothing) = match last {
            None => (Held::Nothing, 0),
            Some(message) => position(lane, &filter, &message)?,
        };
        let known = Known {
            stream: Arc::new(stream),
            nothing,
        };
        self.lanes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(lane.clone(), known.clone());
        Ok((held, known))
    }

    /// Finds the stream that takes the subjects of a lane, or makes one. One that is there is never changed.
    async fn stream(
        &self,
        context: &jetstream::Context,
        filter: &str,
    ) -> std::result::Result<(Stream, jetstream::stream::Stream), String> {
        let found = match &self.stream {
            Some(name) => Some(name.clone()),
            None => match context.stream_by_subject(filter).await {
                Ok(name) => Some(name),
                Err(e) if e.kind() == jetstream::context::GetStreamByNameErrorKind::NotFound => {
                    None
                }
                Err(e) => return Err(format!("JetStream does not tell its streams: {e}")),
            },
        };
        let mut handle = None;
        if let Some(name) = &found {
            handle = match context.get_stream(name).await {
                Ok(stream) => Some(stream),
                Err(e) => match e.kind() {
                    GetStreamErrorKind::JetStream(e)
                        if e.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                    {
                        None
                    }
                    _ => return Err(format!("the stream '{name}' cannot be read: {e}")),
                },
            };
        }
        let handle = match handle {
            Some(handle) => handle,
            None => {
                let name = found.unwrap_or_else(|| self.subjects.stream_name());
                self.create(context, name).await?
            }
        };
        let config = &handle.cached_info().config;
        judge(config, filter)?;
        let largest = usize::try_from(config.max_message_size)
            .ok()
            .filter(|size| *size > 0);
        let stream = Stream {
            name: config.name.clone(),
            atomic: config.allow_atomic_publish,
            largest,
        };
        Ok((stream, handle))
    }

    async fn create(
        &self,
        context: &jetstream::Context,
        name: String,
    ) -> std::result::Result<jetstream::stream::Stream, String> {
        let config = Config {
            name: name.clone(),
            subjects: vec![self.subjects.all()],
            storage: StorageType::File,
            num_replicas: self.replicas,
            allow_direct: true,
            allow_atomic_publish: true,
            description: Some("Changes, written by changefeed".to_owned()),
            ..Config::default()
        };
        context
            .create_stream(config)
            .await
            .map_err(|e| format!("the stream '{name}' cannot be created: {e}"))
    }
}

/// What the newest message of a lane says, and what the server compares if it says "nothing".
fn position(
    lane: &Lane,
    filter: &str,
    message: &StreamMessage,
) -> std::result::Result<(Held, u64), String> {
    let header = |name: &'static str| message.headers.get(name).map(|value| value.as_str());
    let cursor = header(CURSOR).and_then(|text| text.parse::<Cursor>().ok());
    let epoch = header(EPOCH).and_then(|text| text.parse::<u32>().ok());
    let (Some(cursor), Some(epoch)) = (cursor, epoch) else {
        return Err(format!(
            "the last message of {filter} was not written by changefeed: others must not write there"
        ));
    };
    let writer = header(SUBSCRIPTION).unwrap_or_default();
    if writer != lane.subscription {
        return Err(format!(
            "{filter} holds messages of the subscription '{writer}': give each subscription a subject of its own"
        ));
    }
    let shard = header(SHARD).unwrap_or_default();
    if shard != lane.shard.to_string() {
        return Err(format!(
            "{filter} holds messages of shard {shard}: a feed with several shards needs {{shard}} behind the prefix \
             of its subject template"
        ));
    }
    if epoch > lane.epoch {
        return Err(format!(
            "{filter} holds messages of epoch {epoch}, but this instance pushes epoch {}: a replay has begun elsewhere",
            lane.epoch
        ));
    }
    if epoch < lane.epoch {
        return Ok((Held::Nothing, message.sequence));
    }
    let mark = Mark {
        cursor,
        token: message.sequence,
    };
    Ok((Held::Upto(mark), 0))
}

/// Whether a stream can keep the promise.
fn judge(config: &Config, filter: &str) -> std::result::Result<(), String> {
    let name = &config.name;
    if !config
        .subjects
        .iter()
        .any(|pattern| covers(pattern, filter))
    {
        return Err(format!(
            "the stream '{name}' does not take {filter}: add that to its subjects, or name another stream by ?stream="
        ));
    }
    if config.retention != RetentionPolicy::Limits {
        return Err(format!(
            "the stream '{name}' removes messages that were consumed, and with them the position of the subscription: \
             use a stream with retention 'limits', and let the work queue be sourced from it"
        ));
    }
    if config.no_ack {
        return Err(format!("the stream '{name}' acknowledges nothing (no_ack)"));
    }
    if config.subject_transform.is_some() {
        return Err(format!(
            "the stream '{name}' changes subjects, so that positions cannot be found"
        ));
    }
    Ok(())
}

#[async_trait]
impl Destination for Nats {
    async fn resume(&self, lane: &Lane) -> std::result::Result<Held, String> {
        let seen = async {
            let seen = timeout(PATIENCE, self.look(lane)).await;
            seen.map_err(|_| silent())?
        };
        self.connected(seen).await.map(|(held, _)| held)
    }

    async fn append(&self, lane: &Lane, after: Held, batch: &[Message]) -> Appended {
        let work = async {
            let known = {
                let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
                lanes.get(lane).cloned()
            };
            let known = match known {
                Some(known) => known,
                None => {
                    let seen = timeout(PATIENCE, self.look(lane)).await;
                    seen.map_err(|_| silent())??.1
                }
            };
            let expected = match after {
                Held::Upto(mark) => mark.token,
                Held::Nothing => known.nothing,
                // This sink can always tell, so the caller has not asked.
                Held::CannotTell => return Ok(Appended::Conflict),
            };
            let way = publish::Way {
                client: self.client().await?,
                subjects: &self.subjects,
                stream: &known.stream,
                lane,
            };
            Ok(way.append(after, expected, batch).await)
        };
        self.connected(work)
            .await
            .unwrap_or_else(Appended::Unavailable)
    }
}

fn silent() -> String {
    format!("NATS did not answer within {} s", PATIENCE.as_secs())
}
