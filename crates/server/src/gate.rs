//! What every request passes before a handler sees it, and every answer on its way out.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::app::{App, Options};
use crate::complaints::Failure;
use crate::cors;
use crate::extract::too_large;
use crate::listen::LARGEST_HEADER;
use crate::problem::{Answer, Problem};
use crate::socket::unreadable;

/// Counts requests and adds what every answer carries.
pub(crate) async fn around(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let method = request.method().clone();
    // By the pattern, not by the path: nobody may make metrics grow by asking for nonsense.
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "none".to_owned(), |p| p.as_str().to_owned());
    let origin = request.headers().get(header::ORIGIN).cloned();
    let admitted = foreign(&app.options, &request).and_then(|()| fits(&app.options, &request));
    let answer = match admitted {
        Ok(()) => {
            let (allowed, tokens) = (&app.options.cors_origins, app.access.has_tokens());
            match cors::preflight(allowed, tokens, &method, request.headers()) {
                Some(answer) => answer,
                None => next.run(request).await,
            }
        }
        Err(problem) => problem.into_response(),
    };
    if let Some(failure) = answer.extensions().get::<Failure>() {
        app.complaints.failed(failure);
    }
    let word = match method {
        Method::GET
        | Method::HEAD
        | Method::POST
        | Method::PUT
        | Method::PATCH
        | Method::DELETE => method.as_str(),
        _ => "other",
    };
    let status = answer.status().as_u16();
    app.meters.answered(&route, word, status, began.elapsed());
    let mut answer = secured(&app.options, answer);
    cors::mark(
        &app.options.cors_origins,
        origin.as_ref(),
        answer.headers_mut(),
    );
    answer
}

/// Who asks; handlers find it among the request's extensions.
pub(crate) async fn identify(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    match app.access.rights(request.headers()).await {
        Ok(rights) => {
            request.extensions_mut().insert(rights);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

/// Refuses what a web page of somebody else's has sent.
fn foreign(options: &Options, request: &Request) -> Answer<()> {
    let host = host(request.headers(), request.uri());
    if options.is_loopback() {
        // A page whose name was pointed at this machine would be of our own origin; its name is
        // what gives it away.
        let known = host.as_deref().is_some_and(|host| is_ours(options, host));
        if !known {
            return Err(Problem::forbidden(format!(
                "this server does not answer to the name '{}'",
                host.unwrap_or_default()
            ))
            .advise("use localhost or 127.0.0.1, or start `changefeed serve --allow-host NAME`"));
        }
    }
    if matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    ) {
        return Ok(());
    }
    let headers = request.headers();
    let mut named = false;
    // There should be one; whoever sends several must be allowed for each.
    for origin in headers.get_all(header::ORIGIN) {
        named = true;
        let origin = origin.to_str().unwrap_or("an unreadable origin");
        let same = host.as_deref().is_some_and(|host| is_same(origin, host));
        if !same {
            cors::may_write(&options.cors_origins, origin, headers)?;
        }
    }
    let site = headers.get("sec-fetch-site");
    if !named && site.is_some_and(|site| site == "cross-site") {
        return Err(Problem::forbidden(
            "pages of other sites may not change anything here",
        ));
    }
    Ok(())
}

/// Refuses what says of itself that it is too large, before any of it is read.
fn fits(options: &Options, request: &Request) -> Answer<()> {
    let sizes = request
        .headers()
        .iter()
        .map(|(n, v)| n.as_str().len() + v.len());
    if sizes.sum::<usize>() > LARGEST_HEADER {
        return Err(unreadable(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
    }
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    match length {
        Some(length) if length > options.max_body as u64 => Err(too_large()),
        _ => Ok(()),
    }
}

/// The host that was asked, with its port. HTTP/2 has it in the address.
fn host(headers: &HeaderMap, uri: &Uri) -> Option<String> {
    match headers.get(header::HOST) {
        Some(host) => host.to_str().ok().map(str::to_ascii_lowercase),
        None => uri.authority().map(|a| a.as_str().to_ascii_lowercase()),
    }
}

/// A host without its port.
fn name(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').map_or(host, |(address, _)| address);
    }
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

fn is_ours(options: &Options, host: &str) -> bool {
    let name = name(host);
    let address = name.parse::<IpAddr>();
    name == "localhost"
        || address.is_ok_and(|a| a.is_loopback())
        || options
            .allow_hosts
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name))
}

fn is_same(origin: &str, host: &str) -> bool {
    let origin = origin.to_ascii_lowercase();
    origin
        .split_once("://")
        .is_some_and(|(_, rest)| rest == host)
}

fn secured(options: &Options, mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    let mut set = |name: &'static str, value: &'static str| {
        // The page brings a policy of its own.
        if !headers.contains_key(name) {
            headers.insert(name, HeaderValue::from_static(value));
        }
    };
    set("x-content-type-options", "nosniff");
    set("x-frame-options", "DENY");
    set("referrer-policy", "no-referrer");
    set(
        "content-security-policy",
        "default-src 'none'; frame-ancestors 'none'",
    );
    set("cache-control", "no-store");
    if options.cors_origins.is_empty() {
        set("cross-origin-resource-policy", "same-origin");
    }
    if options.tls.is_some() {
        set("strict-transport-security", "max-age=31536000");
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_answered_to() {
        let mut options = Options::new(([127, 0, 0, 1], 8787).into());
        options.allow_hosts.push("Feeds.local".to_owned());
        for ours in [
            "localhost",
            "localhost:8787",
            "127.0.0.1:1",
            "127.1.2.3",
            "[::1]:8787",
            "feeds.local:80",
        ] {
            assert!(is_ours(&options, ours), "{ours}");
        }
        for foreign in [
            "evil.example",
            "localhost.evil.example",
            "192.168.0.1:8787",
            "",
            "127.0.0.1.evil.example",
        ] {
            assert!(!is_ours(&options, foreign), "{foreign}");
        }
    }

    #[test]
    fn an_origin_is_the_same_with_its_port_only() {
        assert!(is_same("http://localhost:8787", "localhost:8787"));
        assert!(!is_same("http://localhost:3000", "localhost:8787"));
        assert!(!is_same("null", "localhost:8787"));
    }
}
