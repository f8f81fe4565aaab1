//! Pages of other origins. `*` lets every page read. An origin that the operator has named may also
//! write, but only with a token: without one, whoever opens such a page would act with the rights of this
//! machine.

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use changefeed_core::{Error, Result};

use crate::problem::{Answer, Problem};

/// What an origin may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grant {
    Nothing,
    Read,
    Write,
}

fn grant(allowed: &[String], origin: &str) -> Grant {
    if origin != "*" && allowed.iter().any(|known| known == origin) {
        Grant::Write
    } else if allowed.iter().any(|known| known == "*") {
        Grant::Read
    } else {
        Grant::Nothing
    }
}

/// Refuses what cannot be an origin.
pub(crate) fn check(allowed: &[String]) -> Result<()> {
    for origin in allowed {
        let fine = origin.starts_with("http://") || origin.starts_with("https://");
        let valid = HeaderValue::from_str(origin).is_ok() && !origin.ends_with('/');
        if origin != "*" && !(fine && valid) {
            return Err(Error::invalid(format!("'{origin}' is not an origin"))
                .advise("write it like https://app.example, without a path"));
        }
    }
    Ok(())
}

/// Refuses a request that writes for a page of this origin, which is not ours, if it may not.
pub(crate) fn may_write(allowed: &[String], origin: &str, headers: &HeaderMap) -> Answer<()> {
    if grant(allowed, origin) != Grant::Write {
        return Err(
            Problem::forbidden(format!("pages of {origin} may not change anything here")).advise(
                "start `changefeed serve --cors-origin ORIGIN` with this very origin; '*' grants reading only",
            ),
        );
    }
    // Whether it is a valid one is judged later, by whoever judges all tokens.
    if !headers.contains_key(header::AUTHORIZATION) {
        return Err(Problem::forbidden(
            "pages of other origins may change something only with a token",
        )
        .advise("create one with `changefeed token create NAME --scope operate`, and send it"));
    }
    Ok(())
}

/// The answer to a browser that asks what it may send; `None` for other requests.
pub(crate) fn preflight(
    allowed: &[String],
    tokens: bool,
    method: &Method,
    headers: &HeaderMap,
) -> Option<Response> {
    if *method != Method::OPTIONS || !headers.contains_key("access-control-request-method") {
        return None;
    }
    let origin = headers.get(header::ORIGIN)?.to_str().ok()?;
    let mut answer = StatusCode::NO_CONTENT.into_response();
    let methods = match grant(allowed, origin) {
        Grant::Nothing => return Some(answer),
        // Without tokens nobody could send one.
        Grant::Write if tokens => "GET, HEAD, POST, PUT, PATCH, DELETE",
        Grant::Write | Grant::Read => "GET, HEAD",
    };
    let mut set = |name: &'static str, value: &'static str| {
        let value = HeaderValue::from_static(value);
        answer.headers_mut().insert(name, value);
    };
    set("access-control-allow-methods", methods);
    set(
        "access-control-allow-headers",
        "authorization, content-type, last-event-id, idempotency-key",
    );
    set("access-control-max-age", "600");
    Some(answer)
}

/// Says on every answer which pages may read it.
pub(crate) fn mark(allowed: &[String], origin: Option<&HeaderValue>, answer: &mut HeaderMap) {
    if allowed.is_empty() {
        return;
    }
    answer.append(header::VARY, HeaderValue::from_static("origin"));
    let Some(origin) = origin else {
        return;
    };
    let value = match origin.to_str().map(|o| grant(allowed, o)) {
        Ok(Grant::Write) => origin.clone(),
        Ok(Grant::Read) => HeaderValue::from_static("*"),
        _ => return,
    };
    answer.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_asterisk_is_for_reading() {
        let all = ["*".to_owned(), "https://app.example".to_owned()];
        assert_eq!(grant(&all, "https://evil.example"), Grant::Read);
        assert_eq!(grant(&all, "https://app.example"), Grant::Write);
        assert_eq!(grant(&all, "*"), Grant::Read, "no page is of that origin");
        assert_eq!(grant(&all[1..], "https://app.example.evil"), Grant::Nothing);
        assert!(check(&all).is_ok());
        for bad in ["app.example", "https://app.example/", "", "null"] {
            assert!(check(&[bad.to_owned()]).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_page_may_send_the_headers_that_the_interface_reads() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("origin", "https://app.example"),
            ("access-control-request-method", "POST"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let allowed = ["https://app.example".to_owned()];
        let answer = preflight(&allowed, true, &Method::OPTIONS, &headers).unwrap();
        let said = answer.headers()["access-control-allow-headers"]
            .to_str()
            .unwrap();
        for name in [
            "authorization",
            "content-type",
            "last-event-id",
            "idempotency-key",
        ] {
            assert!(said.split(", ").any(|one| one == name), "{name}");
        }
    }
}
