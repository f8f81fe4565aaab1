//! What must not be read in a log: credentials, by where they stand and by where they came from.

use changefeed_core::Template;
use http::Uri;

/// What stands in a log where a secret was.
pub(super) const HIDDEN: &str = "***";

/// Whether a header or a parameter of this name holds a secret, as far as names tell.
pub(super) fn looks_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    const PARTS: [&str; 10] = [
        "auth",
        "cookie",
        "token",
        "secret",
        "password",
        "passwd",
        "credential",
        "session",
        "signature",
        "jwt",
    ];
    const WHOLE: [&str; 6] = ["sig", "code", "pwd", "pass", "key", "apikey"];
    PARTS.iter().any(|part| name.contains(part))
        || WHOLE.contains(&name.as_str())
        || name.ends_with("-key")
        || name.ends_with("_key")
        || name.ends_with("apikey")
}

/// A URL without what is secret in it: the credentials before the host, and the values of
/// parameters whose names look secret.
pub(super) fn url(uri: &Uri) -> String {
    let mut shown = origin(uri);
    shown.push_str(uri.path());
    if let Some(query) = uri.query() {
        let mut separator = '?';
        for parameter in query.split('&') {
            shown.push(separator);
            separator = '&';
            match parameter.split_once('=') {
                Some((name, _)) if looks_secret(name) => {
                    shown.push_str(name);
                    shown.push('=');
                    shown.push_str(HIDDEN);
                }
                _ => shown.push_str(parameter),
            }
        }
    }
    shown
}

/// A URL as it was written, which may have blanks, without what is secret in it. `None` if it is no URL.
pub(super) fn written(text: &str) -> Option<String> {
    let uri: Uri = Template::stand_in(text).parse().ok()?;
    uri.authority()?;
    Some(Template::put_back(text, url(&uri)))
}

/// Only where a URL leads to. URLs that come from the environment often hold their secret in the
/// path, like those of chat programs.
pub(super) fn only_origin(uri: &Uri) -> String {
    format!("{}/{HIDDEN}", origin(uri))
}

fn origin(uri: &Uri) -> String {
    let authority = uri.authority().map_or("", |a| a.as_str());
    let (credentials, host) = match authority.rsplit_once('@') {
        Some((_, host)) => (format!("{HIDDEN}@"), host),
        None => (String::new(), authority),
    };
    let scheme = uri.scheme_str().unwrap_or_default();
    format!("{scheme}://{credentials}{host}")
}

/// Hides the given values where a receiver echoes them.
pub(super) fn scrub(text: String, values: &[String]) -> String {
    values.iter().fold(text, |text, value| {
        if text.contains(value.as_str()) {
            text.replace(value.as_str(), HIDDEN)
        } else {
            text
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_what_is_secret() {
        for secret in [
            "authorization",
            "Proxy-Authorization",
            "cookie",
            "set-cookie",
            "x-api-key",
            "X-Functions-Key",
            "x-hasura-admin-secret",
            "x-gitlab-token",
            "access_token",
            "sig",
            "api_key",
            "X-Amz-Signature",
        ] {
            assert!(looks_secret(secret), "{secret}");
        }
        for harmless in [
            "content-type",
            "x-tenant",
            "design",
            "page",
            "keyboard",
            "x-monkey",
        ] {
            assert!(!looks_secret(harmless), "{harmless}");
        }
    }

    #[test]
    fn urls_are_shown_without_credentials() {
        let shown = |text: &str| url(&text.parse().unwrap());
        assert_eq!(
            shown("https://me:pw@example.com:8443/a/b?x=1&token=abc&y"),
            "https://***@example.com:8443/a/b?x=1&token=***&y"
        );
        assert_eq!(shown("http://example.com"), "http://example.com/");
        let uri = "https://me:pw@hooks.example.com/T000/B000/XXXX?x=1";
        assert_eq!(
            only_origin(&uri.parse().unwrap()),
            "https://***@hooks.example.com/***"
        );
    }
}
