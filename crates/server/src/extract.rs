//! What requests bring along, checked before a handler sees it: bodies that are JSON, and parameters.
//! Whatever is wrong becomes one sentence.

use axum::RequestExt;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use bytes::Bytes;
use changefeed_core::Uuid;
use serde::de::DeserializeOwned;

use crate::problem::{Answer, Problem};

/// A body of JSON. One that is absent is `{}`: every field may have a default.
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let kind = request
            .headers()
            .get(header::CONTENT_TYPE)
            .map(|v| String::from_utf8_lossy(v.as_bytes()).to_ascii_lowercase());
        let json = kind.as_deref().is_some_and(|kind| {
            let essence = kind.split(';').next().unwrap_or_default().trim();
            essence == "application/json" || essence.ends_with("+json")
        });
        let body: Bytes = request.extract().await.map_err(unread)?;
        if body.is_empty() {
            return parse(b"{}").map(Body);
        }
        // Without this a form on a foreign page could write.
        if !json {
            return Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "invalid",
                "the body is not sent as JSON",
            )
            .advise("add the header 'Content-Type: application/json'"));
        }
        parse(&body).map(Body)
    }
}

/// The key of a request that may be repeated, if it has one.
pub(crate) struct IdempotencyKey(pub(crate) Option<Uuid>);

impl<S: Send + Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let Some(key) = parts.headers.get("idempotency-key") else {
            return Ok(IdempotencyKey(None));
        };
        // The draft standard writes it as a quoted string.
        let text = key.to_str().unwrap_or_default().trim().trim_matches('"');
        match text.parse() {
            Ok(key) => Ok(IdempotencyKey(Some(key))),
            Err(_) => Err(Problem::invalid("the Idempotency-Key is not a UUID")
                .advise("make one for each request, and repeat a request with its own")),
        }
    }
}

/// The error for a body that is too large.
pub(crate) fn too_large() -> Problem {
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "invalid",
        "the body is larger than this server accepts",
    )
    .advise("send less at a time, or start `changefeed serve --max-body BYTES`")
}

fn unread(rejection: axum::extract::rejection::BytesRejection) -> Problem {
    match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => too_large(),
        _ => Problem::invalid("the body could not be read"),
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Answer<T> {
    if has_nul(body) {
        return Err(nul());
    }
    if depth(body) > DEEPEST {
        return Err(Problem::invalid(format!(
            "the body is nested deeper than {DEEPEST} levels"
        )));
    }
    // A list of its values would be taken for an object as well, and then mean something by accident.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(Problem::invalid("the body is not a JSON object"));
    }
    serde_json::from_slice(body)
        .map_err(|error| Problem::invalid(format!("the body is not as expected: {error}")))
}

/// How deep JSON may be nested. Databases take hundreds of levels, and none of them takes thousands.
const DEEPEST: usize = 100;

/// How deep this JSON is nested; that of something that is not JSON does not matter.
fn depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut quoted, mut escaped) = (false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => {
                depth += 1;
                deepest = depth.max(deepest);
            }
            b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Whether a text within this JSON holds U+0000, which no database takes.
fn has_nul(json: &[u8]) -> bool {
    // Backslashes are counted only where there is something behind them: a body of nothing but backslashes
    // would otherwise be read once for each of its bytes.
    json.windows(6).enumerate().any(|(at, six)| {
        let escapes = || json[..at].iter().rev().take_while(|b| **b == b'\\').count();
        six == b"\\u0000" && escapes() % 2 == 0
    })
}

fn nul() -> Problem {
    Problem::invalid("texts cannot hold the character U+0000")
}

/// The parameters behind the question mark.
pub(crate) struct Params<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or_default();
        if query.contains("%00") || query.contains('\0') {
            return Err(nul());
        }
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(params)) => Ok(Params(params)),
            Err(QueryRejection::FailedToDeserializeQueryString(error)) => {
                let cause = std::error::Error::source(&error)
                    .map_or_else(|| error.to_string(), ToString::to_string);
                Err(Problem::invalid(format!(
                    "the parameters are not as expected: {cause}"
                )))
            }
            Err(_) => Err(Problem::invalid("the parameters cannot be read")),
        }
    }
}

/// The variable parts of a path.
pub(crate) struct Segments<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Segments<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        if parts.uri.path().contains("%00") {
            return Err(nul());
        }
        Path::<T>::from_request_parts(parts, state)
            .await
            .map(|Path(segments)| Segments(segments))
            .map_err(|_| {
                Problem::invalid("the path is not valid UTF-8, or a part of it is malformed")
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nul_is_found_and_a_backslash_before_it_is_not_one() {
        assert!(has_nul(br#"{"a":"x\u0000y"}"#));
        assert!(!has_nul(br#"{"a":"x\\u0000y"}"#));
        assert!(has_nul(br#"{"a":"x\\\u0000y"}"#));
        // A body of the largest size is read in no time.
        assert!(!has_nul(&[b'\\'; 1024 * 1024]));
    }

    #[test]
    fn depth_is_that_of_brackets_outside_of_texts() {
        assert_eq!(depth(br#"{"a":[[1],{"b":"[[[[\"[["}]}"#), 3);
        assert_eq!(depth(br"]]}}"), 0);
        assert_eq!(depth("[".repeat(20_000).as_bytes()), 20_000);
    }
}
