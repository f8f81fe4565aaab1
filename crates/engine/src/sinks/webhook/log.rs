//! What the log of attempts keeps of a request and of its answer.

use bytes::BytesMut;
use changefeed_core::Result;
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::value::RawValue;

use super::redact::{HIDDEN, looks_secret, scrub};
use super::target::Target;
use super::to_raw;

/// The longest body of a request that is kept whole.
const REQUEST_LIMIT: usize = 64 * 1024;

#[derive(Serialize)]
struct Request<'a> {
    url: &'a str,
    headers: Headers<'a>,
    body: RequestBody<'a>,
    /// Says what is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<String>,
}

/// JSON as long as it is whole, and text when it had to be cut.
#[derive(Serialize)]
#[serde(untagged)]
enum RequestBody<'a> {
    Whole(&'a RawValue),
    Beginning(&'a str),
}

/// The headers that we set; those that the protocol adds are not among them.
struct Headers<'a>(&'a HeaderMap);

impl Serialize for Headers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.keys_len()))?;
        for name in self.0.keys() {
            let mut values = self.0.get_all(name).iter().map(|value| {
                if value.is_sensitive() {
                    HIDDEN.into()
                } else {
                    String::from_utf8_lossy(value.as_bytes())
                }
            });
            let mut all = values.next().unwrap_or_default();
            for value in values {
                all += ", ";
                all += value;
            }
            map.serialize_entry(name.as_str(), &all)?;
        }
        map.end()
    }
}

/// Writes down a request.
pub(super) fn request(url: &str, headers: &HeaderMap, body: &RawValue) -> Result<Box<RawValue>> {
    let whole = body.get();
    let kept = cut(whole, REQUEST_LIMIT);
    let complete = kept.len() == whole.len();
    to_raw(&Request {
        url,
        headers: Headers(headers),
        body: if complete {
            RequestBody::Whole(body)
        } else {
            RequestBody::Beginning(kept)
        },
        cut: (!complete).then(|| format!("the first {} of {} bytes", kept.len(), whole.len())),
    })
}

/// The beginning of a text, at most `limit` bytes.
fn cut(text: &str, limit: usize) -> &str {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[derive(Serialize)]
struct Response<'a> {
    status: u16,
    headers: Shown,
    body: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<String>,
}

/// Headers of an answer: others chose them, so they are looked at name by name, and no more of
/// them is kept than of a body.
struct Shown(Vec<(String, String)>);

impl Serialize for Shown {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

fn shown(target: &Target, headers: &HeaderMap, limit: usize) -> Shown {
    let mut left = limit;
    let mut shown = Vec::with_capacity(headers.keys_len());
    for name in headers.keys() {
        let value = if looks_secret(name.as_str()) {
            HIDDEN.to_owned()
        } else {
            let values: Vec<_> = headers
                .get_all(name)
                .iter()
                .map(|value| String::from_utf8_lossy(value.as_bytes()))
                .collect();
            scrub(values.join(", "), &target.hidden)
        };
        let size = name.as_str().len() + value.len();
        if size > left {
            break;
        }
        left -= size;
        shown.push((name.as_str().to_owned(), value));
    }
    Shown(shown)
}

/// The beginning of an answer's body, and how much there was.
pub(super) struct Beginning {
    kept: BytesMut,
    limit: usize,
    room: usize,
    seen: u64,
    all: Option<BytesMut>,
}

impl Beginning {
    /// Keeps a little more than is shown, so that a secret at the very end is still found.
    pub(super) fn new(target: &Target, limit: usize) -> Self {
        let longest = target.hidden.iter().map(String::len).max().unwrap_or(0);
        Beginning {
            kept: BytesMut::new(),
            limit,
            room: limit.saturating_add(longest),
            seen: 0,
            all: None,
        }
    }

    /// Keeps everything that is read, for somebody else than the log.
    pub(super) fn keep_all(&mut self) {
        self.all = Some(BytesMut::new());
    }

    /// What was kept for somebody else.
    pub(super) fn all(&self) -> Option<String> {
        let all = self.all.as_ref()?;
        Some(String::from_utf8_lossy(all).into_owned())
    }

    pub(super) fn add(&mut self, piece: &[u8]) {
        let free = self.room - self.kept.len();
        self.kept.extend_from_slice(&piece[..piece.len().min(free)]);
        self.seen += piece.len() as u64;
        if let Some(all) = &mut self.all {
            all.extend_from_slice(piece);
        }
    }

    /// How many bytes have arrived.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }
}

/// Writes down an answer. `None` for one that cannot be, which does not happen.
pub(super) fn response(
    target: &Target,
    status: StatusCode,
    headers: &HeaderMap,
    body: &Beginning,
) -> Option<Box<RawValue>> {
    // A database may know no NUL in its texts, and no receiver needs one.
    let text = String::from_utf8_lossy(&body.kept).replace('\0', "\u{fffd}");
    let text = scrub(text, &target.hidden);
    let text = cut(&text, body.limit);
    let limit = body.limit as u64;
    to_raw(&Response {
        status: status.as_u16(),
        headers: shown(target, headers, body.limit),
        body: text,
        cut: (body.seen > limit).then(|| format!("the first {limit} bytes")),
    })
    .ok()
}
