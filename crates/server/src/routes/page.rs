//! The dashboard: files that are part of the program. They hold no data, so anybody may have them;
//! what they show they ask of `/api`, with the rights of whoever looks.

use std::borrow::Cow;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use super::nowhere;
use crate::extract::Segments;

/// Nothing from elsewhere, nothing inline, and no text that becomes markup: rows hold what strangers
/// have written, and whatever slips past the page's own care is refused by the browser.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

struct File {
    name: &'static str,
    content: &'static str,
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        static FILES: &[File] = &[$(File {
            name: $name,
            content: include_str!(concat!("../../page/", $name)),
        }),*];
    };
}

files!(
    "index.html",
    "icon.svg",
    "base.css",
    "forms.css",
    "parts.css",
    "api.js",
    "app.js",
    "chart.js",
    "define.js",
    "dom.js",
    "event.js",
    "events.js",
    "feeds.js",
    "form.js",
    "format.js",
    "history.js",
    "instances.js",
    "interface.js",
    "keys.js",
    "overview.js",
    "parts.js",
    "preview.js",
    "rows.js",
    "series.js",
    "subscriptions.js",
    "tail.js",
    "token.js",
    "triggers.js",
    "watches.js",
);

/// The page itself.
pub(crate) async fn index(headers: HeaderMap) -> Response {
    answer("index.html", &headers).await
}

/// What the page is made of.
pub(crate) async fn file(Segments(name): Segments<String>, headers: HeaderMap) -> Response {
    answer(&name, &headers).await
}

async fn answer(name: &str, headers: &HeaderMap) -> Response {
    let Some(file) = FILES.iter().find(|file| file.name == name) else {
        return nowhere().await.into_response();
    };
    let content = current(file);
    let tag = tag(&content);
    let known = headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .any(|known| known.trim().trim_start_matches("W/") == tag);
    let mut answer = if known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let kind = [(header::CONTENT_TYPE, kind(name))];
        (kind, content.into_owned()).into_response()
    };
    let headers = answer.headers_mut();
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    // Kept, but asked about each time: a page and modules of two versions do not fit together.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(POLICY),
    );
    answer
}

/// The file as it was compiled in.
#[cfg(not(debug_assertions))]
fn current(file: &File) -> Cow<'static, str> {
    Cow::Borrowed(file.content)
}

/// The file as it was compiled in, or as it is now: whoever works on the page names its directory in
/// `CHANGEFEED_PAGE` and need not compile after each change.
#[cfg(debug_assertions)]
fn current(file: &File) -> Cow<'static, str> {
    std::env::var_os("CHANGEFEED_PAGE")
        .and_then(|directory| {
            std::fs::read_to_string(std::path::Path::new(&directory).join(file.name)).ok()
        })
        .map_or(Cow::Borrowed(file.content), Cow::Owned)
}

fn kind(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/html; charset=utf-8",
    }
}

fn tag(content: &str) -> String {
    let digest = Sha256::digest(content);
    let digits: String = digest.iter().take(8).map(|b| format!("{b:02x}")).collect();
    format!("\"{digits}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the page asks for must be there, or it is a blank page.
    #[test]
    fn every_file_that_is_named_is_there() {
        for file in FILES {
            let names = file
                .content
                .split(['"', '\''])
                .filter_map(|word| word.strip_prefix("/page/").or(word.strip_prefix("./")))
                .filter(|word| word.contains('.'));
            for name in names {
                let known = FILES.iter().any(|file| file.name == name);
                assert!(known, "{} asks for {name}", file.name);
            }
        }
    }

    /// Text of rows must never be read as markup.
    #[test]
    fn nothing_is_made_of_markup() {
        for file in FILES.iter().filter(|f| f.name.ends_with(".js")) {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
            ] {
                assert!(!file.content.contains(word), "{} has {word}", file.name);
            }
        }
    }
}
