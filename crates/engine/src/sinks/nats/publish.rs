//! Putting a batch into a stream, under the condition that nothing was added meanwhile.

use std::str::FromStr;

use async_nats::header::{
    NATS_BATCH_COMMIT, NATS_BATCH_COMMIT_FINAL, NATS_BATCH_ID, NATS_BATCH_SEQUENCE,
    NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, NATS_EXPECTED_STREAM, NATS_MESSAGE_ID,
};
use async_nats::jetstream;
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use async_nats::{Client, HeaderMap, HeaderName, HeaderValue, Request};
use serde::Deserialize;
use tokio::time::timeout;

use super::super::destination::{Appended, Held, Lane, Mark, Message};
use super::subjects::Subjects;
use super::{CURSOR, EPOCH, PATIENCE, SHARD, SUBSCRIPTION, Stream, silent};

/// Tells the server which subjects to look at for the condition; since 2.11.
const CONDITION_SUBJECT: HeaderName =
    HeaderName::from_static("Nats-Expected-Last-Subject-Sequence-Subject");
/// The server's limit on the length of an atomic batch.
const MOST: usize = 1000;
/// An atomic batch waits in the server's memory until it is complete.
const MOST_BYTES: usize = 8 << 20;
/// JetStream writes the length of headers as 16 bits.
const LARGEST_HEADERS: usize = u16::MAX as usize;

/// The server's numbers of errors, which are part of its interface.
mod code {
    pub(super) const WRONG_LAST_SEQUENCE: u64 = 10071;
    pub(super) const WRONG_LAST_SEQUENCE_NOW: u64 = 10164;
    pub(super) const MESSAGE_TOO_LARGE: u64 = 10054;
    pub(super) const HEADERS_TOO_LARGE: u64 = 10097;
    pub(super) const BATCHES_DISABLED: u64 = 10174;
    pub(super) const BATCH_INCOMPLETE: u64 = 10176;
    pub(super) const BATCH_HEADER_UNSUPPORTED: u64 = 10177;
    pub(super) const BATCH_TOO_LARGE: u64 = 10199;
    pub(super) const BATCH_HAS_DUPLICATE: u64 = 10201;
    pub(super) const ID_IN_PROCESS: u64 = 10158;
}

/// What a batch needs on its way.
pub(super) struct Way<'a> {
    pub(super) client: &'a Client,
    pub(super) subjects: &'a Subjects,
    pub(super) stream: &'a Stream,
    pub(super) lane: &'a Lane,
}

/// A message as NATS takes it.
struct Dressed<'a> {
    message: &'a Message,
    subject: &'a str,
    /// Handed over to the client when the message is sent.
    headers: HeaderMap,
    size: usize,
}

/// Why a batch is not in the stream as a whole.
enum Failed {
    Conflict,
    /// The stream knows the id of a message, although this sequence was to be the newest.
    Repeated(u64),
    Unavailable(String),
    /// The message at this index; those before it are stored, the last with this sequence.
    Refused(usize, u64, String),
}

/// What the server answers.
#[derive(Deserialize)]
struct Ack {
    #[serde(default)]
    error: Option<AckError>,
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    duplicate: bool,
    #[serde(default)]
    batch: Option<String>,
    #[serde(default)]
    count: usize,
}

#[derive(Deserialize)]
struct AckError {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

impl Way<'_> {
    pub(super) async fn append(&self, after: Held, expected: u64, batch: &[Message]) -> Appended {
        let filter = self.subjects.lane(self.lane);
        let mut dressed = Vec::with_capacity(batch.len());
        let mut refusal = None;
        for message in batch {
            match self.dress(&filter, message) {
                Ok(message) => dressed.push(message),
                Err(why) => {
                    refusal = Some(why);
                    break;
                }
            }
        }
        let (mut token, mut done) = (expected, 0);
        let held = |done: usize, token: u64| match done.checked_sub(1) {
            Some(last) => Held::Upto(Mark {
                cursor: batch[last].cursor,
                token,
            }),
            None => after,
        };
        while done < dressed.len() {
            let count = first_part(&dressed[done..]);
            let part = &mut dressed[done..done + count];
            match self.put(&filter, token, part).await {
                Ok(sequence) => {
                    token = sequence;
                    done += count;
                }
                Err(Failed::Conflict) => return Appended::Conflict,
                Err(Failed::Repeated(expected)) => return self.repeated(&filter, expected).await,
                Err(Failed::Unavailable(why)) => return Appended::Unavailable(why),
                Err(Failed::Refused(index, sequence, reason)) => {
                    return Appended::Refused {
                        index: done + index,
                        held: held(done + index, sequence),
                        reason,
                    };
                }
            }
        }
        match refusal {
            None => Appended::All(held(done, token)),
            Some(reason) => Appended::Refused {
                index: done,
                held: held(done, token),
                reason,
            },
        }
    }

    /// A message with its headers; an error says why it will never be taken.
    fn dress<'m>(&self, filter: &'m str, message: &'m Message) -> Result<Dressed<'m>, String> {
        let subject = self.subjects.message(filter, message.subject.as_deref())?;
        let mut headers = HeaderMap::new();
        for (name, value) in &message.headers {
            // The server would take them for orders of ours.
            if name.to_ascii_lowercase().starts_with("nats-") {
                return Err(format!("the header '{name}' is the server's own"));
            }
            let name = HeaderName::from_str(name)
                .map_err(|_| format!("'{name}' cannot be the name of a header"))?;
            headers.append(name, value_of(value)?);
        }
        headers.insert(
            HeaderName::from_static(CURSOR),
            value_of(&message.cursor.to_string())?,
        );
        headers.insert(
            HeaderName::from_static(EPOCH),
            value_of(&self.lane.epoch.to_string())?,
        );
        headers.insert(
            HeaderName::from_static(SHARD),
            value_of(&self.lane.shard.to_string())?,
        );
        headers.insert(
            HeaderName::from_static(SUBSCRIPTION),
            value_of(&self.lane.subscription)?,
        );
        value_of(&message.id)?;
        // What is added for the condition and for the batch has a fixed size, more or less.
        let head = 300 + filter.len() + message.id.len() + size_of(&headers);
        if head > LARGEST_HEADERS {
            return Err(format!(
                "its headers have {head} bytes, and JetStream takes {LARGEST_HEADERS}"
            ));
        }
        let size = head + message.body.len();
        let largest = self
            .client
            .max_payload()
            .min(self.stream.largest.unwrap_or(usize::MAX));
        if size > largest {
            return Err(format!(
                "it has {size} bytes with its headers, and NATS takes {largest} (max_payload of the server, max_msg_size \
                 of the stream '{}')",
                self.stream.name
            ));
        }
        Ok(Dressed {
            message,
            subject,
            headers,
            size,
        })
    }

    /// Returns the sequence of the last message.
    async fn put(
        &self,
        filter: &str,
        expected: u64,
        part: &mut [Dressed<'_>],
    ) -> Result<u64, Failed> {
        if self.stream.atomic && part.len() > 1 {
            match timeout(PATIENCE, self.put_batch(filter, expected, part)).await {
                Ok(Ok(Some(sequence))) => return Ok(sequence),
                // Not as a batch: one by one shows which message is at fault.
                Ok(Ok(None)) => {
                    for message in part.iter_mut() {
                        let again = self.dress(filter, message.message);
                        message.headers = again.map_err(Failed::Unavailable)?.headers;
                    }
                }
                Ok(Err(failed)) => return Err(failed),
                Err(_) => return Err(Failed::Unavailable(silent())),
            }
        }
        let mut last = expected;
        for (index, message) in part.iter_mut().enumerate() {
            let mut headers = std::mem::take(&mut message.headers);
            headers.insert(NATS_MESSAGE_ID, message.message.id.as_str());
            self.condition(&mut headers, filter, last);
            let ack = self.ask(message, headers).await?;
            match ack.error {
                Some(e)
                    if matches!(
                        e.err_code,
                        code::MESSAGE_TOO_LARGE | code::HEADERS_TOO_LARGE
                    ) =>
                {
                    return Err(Failed::Refused(index, last, e.description));
                }
                Some(e) => return Err(failure(e, last)),
                None if ack.duplicate => return Err(Failed::Repeated(last)),
                None => last = ack.seq,
            }
        }
        Ok(last)
    }

    /// Nothing of a batch is stored before its last message, which commits it, has come; the server compares then.
    /// Returns nothing if the server takes no such batch, and has stored nothing.
    async fn put_batch(
        &self,
        filter: &str,
        expected: u64,
        part: &mut [Dressed<'_>],
    ) -> Result<Option<u64>, Failed> {
        let id = format!("{:032x}", fastrand::u128(..));
        // 2.12.0 refuses ids of messages in batches.
        let with_ids = self.client.is_server_compatible(2, 12, 1);
        let count = part.len();
        let mut answer = None;
        for (index, message) in part.iter_mut().enumerate() {
            let mut headers = std::mem::take(&mut message.headers);
            if with_ids {
                headers.insert(NATS_MESSAGE_ID, message.message.id.as_str());
            }
            headers.insert(NATS_BATCH_ID, id.as_str());
            headers.insert(NATS_BATCH_SEQUENCE, (index + 1).to_string());
            if index == 0 {
                self.condition(&mut headers, filter, expected);
            }
            if index + 1 == count {
                headers.insert(NATS_BATCH_COMMIT, NATS_BATCH_COMMIT_FINAL);
                answer = Some(self.ask(message, headers).await?);
            } else {
                let (subject, body) = (message.subject.to_owned(), message.message.body.clone());
                self.client
                    .publish_with_headers(subject, headers, body)
                    .await
                    .map_err(|e| Failed::Unavailable(format!("NATS cannot be written to: {e}")))?;
            }
        }
        let Some(ack) = answer else {
            return Ok(None);
        };
        match ack.error {
            None if ack.batch.as_deref() == Some(&id) && ack.count == count => Ok(Some(ack.seq)),
            None => Err(Failed::Unavailable(
                "the server did not store the batch as a whole, although its stream has allow_atomic".to_owned(),
            )),
            Some(e) => match e.err_code {
                code::MESSAGE_TOO_LARGE
                | code::HEADERS_TOO_LARGE
                | code::BATCHES_DISABLED
                | code::BATCH_INCOMPLETE
                | code::BATCH_HEADER_UNSUPPORTED
                | code::BATCH_TOO_LARGE => Ok(None),
                _ => Err(failure(e, expected)),
            },
        }
    }

    /// The server looks at ids before it compares sequences. Usually the message is there because another pusher has
    /// written it. Otherwise it was removed, and the stream still remembers its id, which ends.
    async fn repeated(&self, filter: &str, expected: u64) -> Appended {
        let context = jetstream::new(self.client.clone());
        let last = async {
            let stream = context.get_stream_no_info(&self.stream.name).await.ok()?;
            match stream.get_last_raw_message_by_subject(filter).await {
                Ok(message) => Some(message.sequence),
                Err(e) if e.kind() == LastRawMessageErrorKind::NoMessageFound => Some(0),
                Err(_) => None,
            }
        };
        match timeout(PATIENCE, last).await {
            Ok(Some(last)) if last != expected => Appended::Conflict,
            _ => Appended::Unavailable(
                "the stream remembers the id of a message that it does not hold any more: it takes the message again \
                 when its duplicate_window has passed"
                    .to_owned(),
            ),
        }
    }

    fn condition(&self, headers: &mut HeaderMap, filter: &str, expected: u64) {
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, expected.to_string());
        headers.insert(NATS_EXPECTED_STREAM, self.stream.name.as_str());
        if self.subjects.is_spread() {
            headers.insert(CONDITION_SUBJECT, filter);
        }
    }

    async fn ask(&self, message: &Dressed<'_>, headers: HeaderMap) -> Result<Ack, Failed> {
        let request = Request::new()
            .headers(headers)
            .payload(message.message.body.clone());
        // The client has a limit of its own for the answer, but none for its queue.
        let asked = self
            .client
            .send_request(message.subject.to_owned(), request);
        let answer = timeout(PATIENCE, asked)
            .await
            .map_err(|_| Failed::Unavailable(silent()))?
            .map_err(|e| Failed::Unavailable(format!("NATS has not acknowledged: {e}")))?;
        serde_json::from_slice(&answer.payload).map_err(|e| {
            Failed::Unavailable(format!("NATS has acknowledged in an unknown form: {e}"))
        })
    }
}

/// How many messages of the front fit one batch.
fn first_part(messages: &[Dressed<'_>]) -> usize {
    let mut size = 0;
    let fits = messages.iter().take(MOST).take_while(|message| {
        size += message.size;
        size <= MOST_BYTES
    });
    fits.count().max(1)
}

fn failure(error: AckError, expected: u64) -> Failed {
    match error.err_code {
        code::WRONG_LAST_SEQUENCE | code::WRONG_LAST_SEQUENCE_NOW => Failed::Conflict,
        code::BATCH_HAS_DUPLICATE | code::ID_IN_PROCESS => Failed::Repeated(expected),
        number => Failed::Unavailable(format!("NATS answers: {} ({number})", error.description)),
    }
}

fn value_of(text: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_str(text).map_err(|_| "a header has a line break in its value".to_owned())
}

/// The bytes of headers on the wire.
fn size_of(headers: &HeaderMap) -> usize {
    let lines = headers
        .iter()
        .flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
    "NATS/1.0\r\n\r\n".len()
        + lines
            .map(|(name, value)| AsRef::<[u8]>::as_ref(name).len() + value.as_str().len() + 4)
            .sum::<usize>()
}
