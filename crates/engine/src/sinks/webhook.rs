//! Events as requests to a webhook.
//!
//! A [`WebhookClient`] is made once and shared; a [`Target`] is prepared once per trigger. An
//! attempt is then one call of [`WebhookClient::send`], which never fails: whatever happens on
//! the way is what the attempt says. What is not an event, like a batch of a watch, goes the same
//! way through [`WebhookClient::post`].
//!
//! A definition's headers may replace `user-agent`, and nothing else that is set here.
//!
//! No redirect is followed, no proxy is used, and HTTP/1.1 is spoken. Secrets are in no error and
//! in no log.

mod body;
mod cloudevents;
mod connector;
mod deliverer;
mod failure;
mod guard;
mod log;
mod placeholders;
mod redact;
mod retry_after;
mod signature;
mod target;
mod trace;
mod variables;
mod wire;

use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use changefeed_core::{
    Answer, Attempt, Error, Format, Kind, LeasedEvent, Outcome, Result, TemplateValues,
};
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::time::timeout_at;

pub use deliverer::{Webhooks, without_secrets};
pub use placeholders::keep_secrets;
pub use target::Target;
pub use variables::Variables;

use connector::Connector;
pub use connector::Reach;
#[cfg(any(feature = "nats", feature = "s3"))]
pub(super) use connector::tls;
use log::Beginning;
pub(crate) use trace::Trace;
use wire::Ended;

use super::Sent;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The most of an answer that is read; then the connection is closed.
const READ_LIMIT: u64 = 1024 * 1024;

/// The largest head of an answer, and with it what a connection may hold in memory.
const HEAD_LIMIT: usize = 64 * 1024;

/// How a [`WebhookClient`] behaves.
#[derive(Debug, Clone)]
pub struct WebhookOptions {
    /// Which addresses webhooks may have.
    pub reach: Reach,
    /// How much of an answer's body is kept for the log, in bytes.
    pub response_limit: usize,
    /// How long a connection may take to be made, TLS included; a trigger's shorter timeout goes
    /// before it.
    pub connect_timeout: Duration,
    /// How long a connection that nobody uses is kept. Less than what common servers grant (2 s
    /// to 5 s): a server that closes a connection in the moment in which it is used makes an
    /// attempt fail without a need.
    pub idle_timeout: Duration,
    /// How many unused connections are kept per host.
    pub idle_connections: usize,
    /// Certificates to trust besides those of the system, in DER.
    pub root_certificates: Vec<Vec<u8>>,
    /// Where the values of the variables that definitions name come from.
    pub variables: Variables,
}

impl Default for WebhookOptions {
    fn default() -> Self {
        WebhookOptions {
            reach: Reach::default(),
            response_limit: 4 * 1024,
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_millis(1500),
            idle_connections: 512,
            root_certificates: Vec::new(),
            variables: Variables::default(),
        }
    }
}

/// Sends requests to webhooks. Cheap to clone: the connections are shared.
#[derive(Clone)]
pub struct WebhookClient {
    http: Client<Connector, Full<Bytes>>,
    /// The same, with a connection of its own for every request.
    fresh: Client<Connector, Full<Bytes>>,
    response_limit: usize,
    user_agent: HeaderValue,
    variables: Variables,
}

impl fmt::Debug for WebhookClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookClient").finish_non_exhaustive()
    }
}

/// A request to make.
#[derive(Debug)]
pub struct Post<'a> {
    /// What receivers know it by, the same for every attempt: ASCII without full stops.
    pub id: &'a str,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// What the body is.
    pub content_type: HeaderValue,
    /// Whether it goes over a connection of its own, and not over one that was used before: because
    /// that is how the one before it was lost.
    pub fresh: bool,
    /// Headers besides those of the target. They go to the log as they are.
    pub headers: HeaderMap,
    /// The body, passed through byte for byte, unless the target has a template of it.
    pub body: Box<RawValue>,
    /// What blanks of the target are filled with.
    pub values: TemplateValues,
    /// Whether somebody reads what the answer says.
    pub wants_answer: bool,
}

impl<'a> Post<'a> {
    /// A first attempt to send some JSON.
    pub fn json(id: &'a str, body: Box<RawValue>) -> Self {
        Post {
            id,
            attempt: 1,
            fresh: false,
            content_type: JSON,
            headers: HeaderMap::new(),
            body,
            values: TemplateValues::default(),
            wants_answer: false,
        }
    }
}

/// What came back.
#[derive(Default)]
struct Exchange {
    status: Option<StatusCode>,
    retry_after: Option<Duration>,
    response: Option<Box<RawValue>>,
    /// What the answer says, if somebody asks.
    said: Option<String>,
    /// Why there is no complete answer.
    broken: Option<String>,
    /// Whether that says nothing about the request: a connection that was used before had ended.
    unknown: bool,
}

impl WebhookClient {
    /// A client. Its connections belong to the runtime of the sender.
    pub fn new(options: WebhookOptions) -> Result<Self> {
        let roots: Vec<_> = options
            .root_certificates
            .into_iter()
            .map(Into::into)
            .collect();
        let connector = Connector::new(options.reach, options.connect_timeout, &roots)?;
        let keeping = |connections: usize| {
            Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(options.idle_timeout)
                .pool_max_idle_per_host(connections)
                .http1_max_buf_size(HEAD_LIMIT)
                .build(connector.clone())
        };
        Ok(WebhookClient {
            http: keeping(options.idle_connections),
            fresh: keeping(0),
            response_limit: options.response_limit,
            user_agent: HeaderValue::from_static(concat!("changefeed/", env!("CARGO_PKG_VERSION"))),
            variables: options.variables,
        })
    }

    /// Makes an attempt to deliver an event, within the trigger's timeout.
    pub async fn send(&self, target: &Target, leased: &LeasedEvent) -> Sent {
        let id = leased.event.id.to_string();
        match post_of(target, leased, &id) {
            Ok(post) => self.post(target, post).await,
            Err(error) => Sent::failed(leased.attempt, error.to_string()),
        }
    }

    /// What would be sent for an event, as the log would keep it.
    pub fn preview(&self, target: &Target, leased: &LeasedEvent) -> Result<Box<RawValue>> {
        let id = leased.event.id.to_string();
        Ok(self.request(target, post_of(target, leased, &id)?)?.1)
    }

    /// Makes a request, within the target's timeout.
    pub async fn post(&self, target: &Target, post: Post<'_>) -> Sent {
        let began = Instant::now();
        let (number, fresh, wants_answer) = (post.attempt, post.fresh, post.wants_answer);
        let (request, logged) = match self.request(target, post) {
            Ok(request) => request,
            Err(error) => return Sent::failed(number, error.to_string()),
        };
        let exchange = self
            .exchange(target, request, fresh, wants_answer, began)
            .await;
        let (answer, outcome, error) = match (exchange.broken, exchange.status) {
            (None, Some(status)) => {
                let answer = Answer::Status {
                    status: status.as_u16(),
                    retry_after: exchange.retry_after,
                };
                match verdict(status, &target.host) {
                    None => (answer, Outcome::Success, None),
                    Some(sentence) => (answer, Outcome::Failure, Some(sentence)),
                }
            }
            // The next attempt goes over a connection of its own, so this happens once.
            (broken, _) if exchange.unknown => (Answer::CutOff, Outcome::Unknown, broken),
            (broken, _) => (Answer::None, Outcome::Failure, broken),
        };
        Sent {
            attempt: Attempt {
                number,
                outcome,
                status: exchange.status.map(|status| status.as_u16()),
                request: Some(logged),
                response: exchange.response,
                error,
                duration_ms: i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX),
            },
            answer,
            said: exchange.said,
        }
    }

    /// Puts a request together, and what the log keeps of it.
    fn request(
        &self,
        target: &Target,
        post: Post<'_>,
    ) -> Result<(Request<Full<Bytes>>, Box<RawValue>)> {
        let (uri, shown) = target.url(&post.values)?;
        let body = target.body(&post.values)?.unwrap_or(post.body);
        let mut headers = target.headers.clone();
        target.fill_headers(&post.values, &mut headers)?;
        if !headers.contains_key(USER_AGENT) {
            headers.insert(USER_AGENT, self.user_agent.clone());
        }
        headers.insert(CONTENT_TYPE, post.content_type);
        // Replaces what is configured under the same names.
        headers.extend(post.headers);
        if let Some(signer) = &target.signer {
            let now = SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs();
            let signature = signer.sign(post.id, now, body.get().as_bytes());
            insert(&mut headers, "webhook-id", post.id)?;
            headers.insert("webhook-timestamp", HeaderValue::from(now));
            insert(&mut headers, "webhook-signature", &signature)?;
        }
        let logged = log::request(&shown, &headers, &body)?;
        let body = Bytes::from(String::from(Box::<str>::from(body)));
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        Ok((request, logged))
    }

    async fn exchange(
        &self,
        target: &Target,
        request: Request<Full<Bytes>>,
        fresh: bool,
        wants_answer: bool,
        began: Instant,
    ) -> Exchange {
        let limit = target.timeout;
        let deadline = (began + limit).into();
        let answered = timeout_at(deadline, async {
            if fresh {
                return self.fresh.request(request).await;
            }
            match self.http.request(request.clone()).await {
                // Nothing was said yet, so nothing is repeated.
                Err(error) if wire::ended(&error, began) == Some(Ended::Unsent) => {
                    self.fresh.request(request).await
                }
                answered => answered,
            }
        });
        let response = match answered.await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) if !fresh && wire::ended(&error, began) == Some(Ended::Unanswered) => {
                return Exchange::unknown(&target.host);
            }
            Ok(Err(error)) => return Exchange::broken(failure::sentence(&error, &target.host)),
            Err(_) => {
                let host = &target.host;
                return Exchange::broken(format!("no answer from {host} within {limit:?}"));
            }
        };
        let (head, body) = response.into_parts();
        let mut beginning = Beginning::new(target, self.response_limit);
        if wants_answer {
            beginning.keep_all();
        }
        let broken = if body.is_end_stream() {
            None
        } else {
            match timeout_at(deadline, read(body, &mut beginning)).await {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(failure::sentence(&error, &target.host)),
                Err(_) => Some(format!(
                    "{} began to answer, but was not done within {limit:?}",
                    target.host
                )),
            }
        };
        Exchange {
            status: Some(head.status),
            retry_after: retry_after::retry_after(head.status, &head.headers, SystemTime::now()),
            response: log::response(target, head.status, &head.headers, &beginning),
            said: beginning.all(),
            broken,
            unknown: false,
        }
    }
}

/// Reads a body, so that its connection can be used again, but not a huge one.
async fn read(mut body: Incoming, beginning: &mut Beginning) -> Result<(), hyper::Error> {
    while let Some(frame) = body.frame().await {
        if let Some(piece) = frame?.data_ref() {
            beginning.add(piece);
            if beginning.seen() > READ_LIMIT {
                // Dropping the rest closes the connection. The status was said all the same.
                break;
            }
        }
    }
    Ok(())
}

/// The request for an event in the format that its trigger asks for.
fn post_of<'a>(target: &Target, leased: &LeasedEvent, id: &'a str) -> Result<Post<'a>> {
    let event = &leased.event;
    let trace = Trace::read(event.trace_context.as_deref());
    let mut headers = HeaderMap::new();
    let (content_type, body) = match target.format {
        Format::Hasura => (JSON, body::hasura(leased, target.max_retries)?),
        Format::Cloudevents => {
            let body = cloudevents::structured(event, trace.as_ref())?;
            (cloudevents::STRUCTURED, body)
        }
        Format::CloudeventsBinary => {
            let (body, attributes) = cloudevents::binary(event, trace.as_ref())?;
            headers.extend(attributes);
            (JSON, body)
        }
    };
    if let Some(trace) = &crate::traces::here().or(trace) {
        insert(&mut headers, "traceparent", &trace.traceparent)?;
        if let Some(state) = &trace.tracestate {
            insert(&mut headers, "tracestate", state)?;
        }
    }
    let values = match target.has_blanks() {
        true => values(leased, target.max_retries)?,
        false => TemplateValues::default(),
    };
    Ok(Post {
        id,
        attempt: leased.attempt,
        fresh: leased.cut_off > 0,
        content_type,
        headers,
        body,
        values,
        wants_answer: false,
    })
}

/// What the blanks of a trigger's target are filled with: see `EVENT_VALUES`.
fn values(leased: &LeasedEvent, max_retries: u32) -> Result<TemplateValues> {
    let event = &leased.event;
    Ok(TemplateValues::default()
        .and_members(&body::hasura(leased, max_retries)?)
        .and("op", Some(&to_raw(&event.op)?))
        .and("old", event.old.as_deref())
        .and("new", event.new.as_deref())
        .and("session_variables", event.session_variables.as_deref())
        .and("attempt", Some(&to_raw(&leased.attempt)?)))
}

/// Why a status is no success; `None` if it is one.
fn verdict(status: StatusCode, host: &str) -> Option<String> {
    let code = status.as_u16();
    match code {
        200..=299 => None,
        300..=399 => Some(format!(
            "{host} answered with status {code}, and redirects are not followed"
        )),
        _ => Some(format!("{host} answered with status {code}")),
    }
}

fn insert(headers: &mut HeaderMap, name: &'static str, value: &str) -> Result<()> {
    let value = HeaderValue::from_str(value)
        .map_err(|e| Error::invalid(format!("{name} cannot be a header")).caused_by(e))?;
    headers.insert(HeaderName::from_static(name), value);
    Ok(())
}

fn to_raw(value: &impl Serialize) -> Result<Box<RawValue>> {
    to_raw_value(value)
        .map_err(|e| Error::new(Kind::Database, "the event cannot be written as JSON").caused_by(e))
}

impl Exchange {
    fn broken(sentence: String) -> Self {
        Exchange {
            broken: Some(sentence),
            ..Exchange::default()
        }
    }

    fn unknown(host: &str) -> Self {
        let sentence = format!(
            "{host} closed a connection that was kept open, before a byte of an answer: whether the \
             request arrived is not known, and it is repeated over a new one"
        );
        Exchange {
            unknown: true,
            ..Exchange::broken(sentence)
        }
    }
}
