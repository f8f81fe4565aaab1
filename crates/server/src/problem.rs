//! Errors as their callers see them: one sentence and what to do next, as `application/problem+json`.
//! The status is decided here and nowhere else, by the kind of an error.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use changefeed_core::{Error, Kind};
use serde::Serialize;
use utoipa::{IntoResponses, ToSchema};

use crate::complaints::Failure;

/// What went wrong.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// Always `about:blank`: the status says what kind of error it is.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    kind_uri: &'static str,
    /// The status in words.
    #[schema(value_type = String)]
    title: &'static str,
    /// The status.
    #[serde(serialize_with = "number")]
    #[schema(value_type = u16)]
    status: StatusCode,
    /// What kind of thing went wrong; programs decide by this.
    #[schema(value_type = String)]
    kind: &'static str,
    /// One sentence.
    detail: String,
    /// What to do next.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
    #[serde(skip)]
    retry_after: Option<u32>,
    /// What the log should say.
    #[serde(skip)]
    failure: Option<Box<Failure>>,
}

/// The result of a handler.
pub(crate) type Answer<T> = Result<T, Problem>;

fn number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

impl Problem {
    pub(crate) fn new(status: StatusCode, kind: &'static str, detail: impl Into<String>) -> Self {
        Problem {
            kind_uri: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status,
            kind,
            detail: detail.into(),
            advice: None,
            retry_after: None,
            failure: None,
        }
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::BAD_REQUEST, "invalid", detail)
    }

    /// Too much at the same time, or too slow.
    pub(crate) fn overloaded(detail: impl Into<String>) -> Self {
        let mut problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail);
        problem.retry_after = Some(1);
        problem
    }

    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Why it went wrong, if the log should know.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failure.as_deref()
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// Seconds after which to try again.
    pub(crate) fn retry_after(&self) -> Option<u32> {
        self.retry_after
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// The problem as JSON text on one line.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Problem::from(&error)
    }
}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        use StatusCode as S;
        let (status, retry_after) = match error.kind() {
            Kind::Invalid => (S::BAD_REQUEST, None),
            Kind::NotFound => (S::NOT_FOUND, None),
            Kind::AlreadyExists | Kind::CursorAhead | Kind::Moved => (S::CONFLICT, None),
            Kind::CursorExpired | Kind::Recovered => (S::GONE, None),
            Kind::SchemaMissing | Kind::SchemaTooOld | Kind::SchemaTooNew => {
                (S::SERVICE_UNAVAILABLE, Some(5))
            }
            Kind::Unavailable | Kind::Busy => (S::SERVICE_UNAVAILABLE, Some(1)),
            Kind::Unsupported => (S::UNPROCESSABLE_ENTITY, None),
            _ => (S::INTERNAL_SERVER_ERROR, None),
        };
        let kind = error.kind().as_str();
        let mut problem = Problem::new(status, kind, error.message());
        problem.failure = status.is_server_error().then(|| {
            Box::new(Failure {
                error: error.to_string(),
                cause: std::error::Error::source(error).map(ToString::to_string),
            })
        });
        problem.advice = error.advice().map(str::to_owned);
        problem.retry_after = retry_after;
        problem
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (
            self.status,
            [(header::CONTENT_TYPE, "application/problem+json")],
            self.json(),
        )
            .into_response();
        // The gate tells the log; it knows what was said already.
        if let Some(failure) = self.failure {
            response.extensions_mut().insert(*failure);
        }
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Bearer realm=\"changefeed\""),
            );
        }
        response
    }
}

/// What any request may be answered with, for the description of the interface.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "only its description is used")]
pub(crate) enum Problems {
    #[response(
        status = 400,
        description = "malformed, or not possible",
        content_type = "application/problem+json"
    )]
    Invalid(Problem),
    #[response(
        status = 401,
        description = "no token, or not a valid one",
        content_type = "application/problem+json"
    )]
    Unauthorized(Problem),
    #[response(
        status = 403,
        description = "not allowed",
        content_type = "application/problem+json"
    )]
    Forbidden(Problem),
    #[response(
        status = 404,
        description = "no such thing",
        content_type = "application/problem+json"
    )]
    NotFound(Problem),
    #[response(
        status = 409,
        description = "in conflict with what is there",
        content_type = "application/problem+json"
    )]
    Conflict(Problem),
    #[response(
        status = 410,
        description = "the cursor has expired",
        content_type = "application/problem+json"
    )]
    Gone(Problem),
    #[response(
        status = 413,
        description = "the body is too large",
        content_type = "application/problem+json"
    )]
    TooLarge(Problem),
    #[response(
        status = 415,
        description = "the body is not JSON",
        content_type = "application/problem+json"
    )]
    NotJson(Problem),
    #[response(
        status = 422,
        description = "this database cannot do that",
        content_type = "application/problem+json"
    )]
    Unsupported(Problem),
    #[response(
        status = 431,
        description = "the header of the request is too large",
        content_type = "application/problem+json"
    )]
    HeaderTooLarge(Problem),
    #[response(
        status = 500,
        description = "the database refused",
        content_type = "application/problem+json"
    )]
    Database(Problem),
    #[response(
        status = 503,
        description = "try again after Retry-After",
        content_type = "application/problem+json"
    )]
    Unavailable(Problem),
}
