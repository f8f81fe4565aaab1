//! Redis and Valkey Streams.
//!
//! A shard has a stream, and the id of an entry is its cursor. A batch is one script that first compares the stream's newest
//! id with the one that the pusher knows of. Without that script a refused entry followed by an accepted one would be lost
//! for ever, because ids only grow.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, RedisError, Script};
use async_trait::async_trait;
use changefeed_core::{Cursor, Error, Result, Ulid};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::timeout;

use super::destination::{Appended, Destination, Held, Lane, Mark, Message};
use super::place::BrokerUrl;
use super::tls;

/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The port of a server whose URL has none.
const PORT: u16 = 6379;
/// The first field of every entry. It tells our entries from those of others.
const ID: &str = "id";
/// A script keeps the server busy, and the server limits what a client sends at once.
const MOST_BYTES: usize = 8 << 20;
/// What a server takes as one value unless it is told otherwise.
const LARGEST: usize = 512 << 20;
/// Ids do not tell numbers from ULIDs, but their sizes do: a ULID of 2005 or later is larger than this.
const ULIDS: u64 = 1 << 56;

/// A sink for one subscription in Redis or Valkey.
pub struct Redis {
    client: Client,
    server: String,
    encrypted: bool,
    stream: String,
    keep: u64,
    connection: Mutex<Option<Connected>>,
    append: Script,
    look: Script,
}

#[derive(Clone)]
struct Connected {
    connection: MultiplexedConnection,
    /// The most bytes of one value.
    largest: usize,
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("server", &self.server)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

impl Redis {
    /// A sink at `redis://[user:password@]host[:port]/STREAM[?maxlen=N]` or `redis://…/DATABASE?stream=STREAM`. The
    /// connection is made at the first use.
    pub fn connect(url: &str) -> Result<Self> {
        let mut url = BrokerUrl::parse(url)?;
        match url.scheme.as_str() {
            "redis" | "valkey" | "rediss" | "valkeys" => {}
            _ => {
                return Err(Error::invalid(
                    "the URL of a Redis sink begins with redis:// or valkey://, or rediss:// for TLS",
                ));
            }
        }
        let encrypted = url.scheme.ends_with("ss") || url.scheme.ends_with("ys");
        let (database, stream) = match url.take("stream") {
            Some(stream) if url.path.is_empty() => (0, stream),
            Some(stream) => {
                let database = url.path.parse::<u32>().map_err(|_| {
                    Error::invalid(format!(
                        "with ?stream= the path of a Redis URL is the number of a database, not '{}'",
                        url.path
                    ))
                })?;
                (database, stream)
            }
            None => (0, url.path.clone()),
        };
        if stream.is_empty() || stream.bytes().all(|b| b.is_ascii_digit()) {
            return Err(
                Error::invalid("the URL of a Redis sink names no stream").advise(
                    "write redis://host:6379/STREAM or redis://host:6379/DATABASE?stream=STREAM",
                ),
            );
        }
        let keep = url.take_number("maxlen")?.unwrap_or(0);
        url.nothing_else("stream, maxlen")?;
        let [server] = url.hosts.as_slice() else {
            return Err(Error::invalid("a Redis sink has one host"));
        };
        let secret = match (&url.user, &url.password) {
            (None, None) => String::new(),
            (user, password) => format!(
                "{}:{}@",
                utf8_percent_encode(user.as_deref().unwrap_or_default(), NON_ALPHANUMERIC),
                utf8_percent_encode(password.as_deref().unwrap_or_default(), NON_ALPHANUMERIC),
            ),
        };
        // The cause is left out: it could show the password.
        let client =
            Client::open(format!("redis://{secret}{server}/{database}")).map_err(|_| {
                Error::invalid(format!("'{server}' is not the address of a Redis server"))
            })?;
        Ok(Redis {
            client,
            server: server.clone(),
            encrypted,
            stream,
            keep,
            connection: Mutex::default(),
            append: Script::new(include_str!("redis/append.lua")),
            look: Script::new(include_str!("redis/look.lua")),
        })
    }

    /// The stream of a lane. A replay has ids that were there before, so it gets a stream of its own.
    fn stream(&self, lane: &Lane) -> String {
        match lane.epoch {
            0 => format!("{}:{}", self.stream, lane.shard),
            epoch => format!("{}:{}:{epoch}", self.stream, lane.shard),
        }
    }

    async fn connected(&self) -> std::result::Result<Connected, String> {
        let open = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(open) = open {
            return Ok(open);
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let mut connection = timeout(PATIENCE, self.dial(config))
            .await
            .unwrap_or_else(|_| Err("it does not answer".to_owned()))
            .map_err(|e| format!("Redis at {} cannot be reached: {e}", self.server))?;
        // A server that does not tell has the usual limit.
        let limit: std::result::Result<(String, usize), RedisError> = ::redis::cmd("CONFIG")
            .arg("GET")
            .arg("proto-max-bulk-len")
            .query_async(&mut connection)
            .await;
        let connected = Connected {
            connection,
            largest: limit.map_or(LARGEST, |(_, limit)| limit),
        };
        *self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(connected.clone());
        Ok(connected)
    }

    async fn dial(
        &self,
        config: AsyncConnectionConfig,
    ) -> std::result::Result<MultiplexedConnection, String> {
        if !self.encrypted {
            let dialled = self
                .client
                .get_multiplexed_async_connection_with_config(&config);
            return dialled.await.map_err(|e| e.to_string());
        }
        // The client would ask rustls for the one provider of the process; ours is known.
        let stream = tls::connect(&self.server, PORT).await?;
        let settings = self.client.get_connection_info().redis_settings();
        let opened = MultiplexedConnection::new_with_config(settings, stream, config).await;
        let (connection, driver) = opened.map_err(|e| e.to_string())?;
        // It ends with the last handle of the connection.
        tokio::spawn(driver);
        Ok(connection)
    }

    /// After any error the next call connects again: an address may mean another server after a failover.
    fn failed(&self, error: &RedisError) -> String {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        format!("Redis at {} says: {error}", self.server)
    }

    /// Appends entries that were counted into words before. Returns whether they were.
    async fn put(
        &self,
        stream: &str,
        after: &str,
        entries: &[Entry<'_>],
    ) -> std::result::Result<bool, String> {
        let mut connection = self.connected().await?.connection;
        let mut call = self.append.key(stream);
        call.arg(after).arg(self.keep);
        for entry in entries {
            call.arg(entry.words.len());
            for word in &entry.words {
                call.arg(*word);
            }
        }
        let answer: String = call
            .invoke_async(&mut connection)
            .await
            .map_err(|e| self.failed(&e))?;
        Ok(answer == "appended")
    }
}

/// An entry as the script wants it.
struct Entry<'a> {
    words: Vec<&'a [u8]>,
    size: usize,
}

impl<'a> Entry<'a> {
    /// An error says why the entry will never be taken.
    fn new(message: &'a Message, id: &'a str, largest: usize) -> std::result::Result<Self, String> {
        let mut words: Vec<&[u8]> = vec![id.as_bytes()];
        let mut field = |name: &'a str, value: &'a [u8]| words.extend([name.as_bytes(), value]);
        field(ID, message.id.as_bytes());
        field("key", message.key.as_bytes());
        if let Some(subject) = &message.subject {
            field("subject", subject.as_bytes());
        }
        for (name, value) in &message.headers {
            field(name, value.as_bytes());
        }
        field("body", &message.body);
        match words.iter().map(|word| word.len()).max() {
            Some(longest) if longest > largest => Err(format!(
                "it has a value of {longest} bytes, and Redis takes {largest} (proto-max-bulk-len)"
            )),
            _ => Ok(Entry {
                size: words.iter().map(|word| word.len() + 16).sum(),
                words,
            }),
        }
    }
}

#[async_trait]
impl Destination for Redis {
    async fn resume(&self, lane: &Lane) -> std::result::Result<Held, String> {
        let stream = self.stream(lane);
        let mut connection = self.connected().await?.connection;
        let (last, field): (String, String) = self
            .look
            .key(&stream)
            .invoke_async(&mut connection)
            .await
            .map_err(|e| self.failed(&e))?;
        if !field.is_empty() && field != ID {
            return Err(format!(
                "the last entry of the stream '{stream}' was not written by changefeed: others must not write there"
            ));
        }
        match cursor(&last) {
            Some(None) => Ok(Held::Nothing),
            Some(Some(cursor)) => Ok(Held::Upto(Mark { cursor, token: 0 })),
            None => Err(format!(
                "the newest id of the stream '{stream}', {last}, is not one of ours"
            )),
        }
    }

    async fn append(&self, lane: &Lane, after: Held, batch: &[Message]) -> Appended {
        let largest = match self.connected().await {
            Ok(connected) => connected.largest,
            Err(why) => return Appended::Unavailable(why),
        };
        let mut last = match after {
            Held::Nothing => NOTHING.to_owned(),
            Held::Upto(mark) => match entry_id(mark.cursor) {
                Some(id) => id,
                None => return Appended::Conflict,
            },
            // This sink can always tell, so the caller has not asked.
            Held::CannotTell => return Appended::Conflict,
        };
        let ids: Vec<Option<String>> = batch
            .iter()
            .map(|message| entry_id(message.cursor))
            .collect();
        let mut entries = Vec::with_capacity(batch.len());
        let mut refusal = None;
        for (message, id) in batch.iter().zip(&ids) {
            let entry = match id {
                Some(id) => Entry::new(message, id, largest),
                None => Err(format!(
                    "its cursor, {}, cannot be the id of an entry",
                    message.cursor
                )),
            };
            match entry {
                Ok(entry) => entries.push(entry),
                Err(why) => {
                    refusal = Some(why);
                    break;
                }
            }
        }
        let stream = self.stream(lane);
        let mut done = 0;
        while done < entries.len() {
            let part = &entries[done..done + first_part(&entries[done..])];
            match self.put(&stream, &last, part).await {
                Ok(true) => done += part.len(),
                Ok(false) => return Appended::Conflict,
                Err(why) => return Appended::Unavailable(why),
            }
            if let Some(Some(id)) = ids.get(done - 1) {
                last.clone_from(id);
            }
        }
        let held = match done.checked_sub(1) {
            Some(at) => Held::Upto(Mark {
                cursor: batch[at].cursor,
                token: 0,
            }),
            None => after,
        };
        match refusal {
            None => Appended::All(held),
            Some(reason) => Appended::Refused {
                index: done,
                held,
                reason,
            },
        }
    }
}

/// How many entries of the front go into one script.
fn first_part(entries: &[Entry<'_>]) -> usize {
    let mut size = 0;
    let fits = entries.iter().take_while(|entry| {
        size += entry.size;
        size <= MOST_BYTES
    });
    fits.count().max(1)
}

/// The newest id of a stream that never had an entry.
const NOTHING: &str = "0-0";

/// The id of an entry; nothing if its cursor could be taken for another one.
fn entry_id(cursor: Cursor) -> Option<String> {
    match cursor {
        Cursor::Number(number) => {
            let number = u64::try_from(number)
                .ok()
                .filter(|n| (1..ULIDS).contains(n))?;
            Some(format!("{number}-0"))
        }
        Cursor::Ulid(ulid) if ulid.high() >= ULIDS => {
            Some(format!("{}-{}", ulid.high(), ulid.low()))
        }
        _ => None,
    }
}

/// The cursor of an id, `Some(None)` for the beginning, and `None` for an id that is not ours.
fn cursor(id: &str) -> Option<Option<Cursor>> {
    let (high, low) = id.split_once('-')?;
    let (high, low) = (high.parse::<u64>().ok()?, low.parse::<u64>().ok()?);
    match (high, low) {
        (0, 0) => Some(None),
        (high, 0) if high < ULIDS => Some(Some(Cursor::Number(i64::try_from(high).ok()?))),
        (high, low) if high >= ULIDS => Some(Some(Cursor::Ulid(Ulid::from_parts(high, low)))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn ids_are_cursors_and_back() {
        let ulid: Ulid = "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap();
        let first_of_its_high = Ulid::from_parts(ulid.high(), 0);
        for some in [
            Cursor::Number(1),
            Cursor::Number(9_000_000_000),
            Cursor::Ulid(ulid),
            Cursor::Ulid(first_of_its_high),
        ] {
            assert_eq!(cursor(&entry_id(some).unwrap()), Some(Some(some)));
        }
        assert_eq!(cursor(NOTHING), Some(None));
        assert_eq!(cursor("5-1"), None);
        for none in [
            Cursor::Number(0),
            Cursor::Number(i64::MAX),
            Cursor::Ulid(Ulid::MIN),
        ] {
            assert_eq!(entry_id(none), None);
        }
    }

    #[test]
    fn urls_name_a_stream() {
        for good in [
            "redis://h/orders",
            "redis://:p%40@h:1/3?stream=orders&maxlen=5",
            "valkey://h?stream=o",
            "rediss://h/o",
        ] {
            assert!(Redis::connect(good).is_ok(), "{good}");
        }
        for bad in [
            "redis://h",
            "redis://h/3",
            "redis://a,b/o",
            "redis://h/o?x=1",
            "redis://h/o?maxlen=0",
        ] {
            assert!(Redis::connect(bad).is_err(), "{bad}");
        }
        let shown = format!(
            "{:?}",
            Redis::connect("redis://me:secret@h/orders").unwrap()
        );
        assert!(!shown.contains("secret"), "{shown}");
    }
}
