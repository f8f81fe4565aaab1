//! What a definition says where a secret is not shown. Whoever reads a definition, changes something else
//! in it and writes it back means that the secret stays what it is.

use changefeed_core::{Error, Header, Result, Setting, Sink, Template, Webhook};
use http::Uri;

use super::deliverer::without_secrets;
use super::redact::{self, HIDDEN};

/// Puts the secrets of a stored definition where a new one only has their placeholders.
///
/// They are kept only for requests to the same place: whoever may change a definition could otherwise have
/// its secrets sent to an address of their own.
pub fn keep_secrets(new: &mut Sink, stored: Option<&Sink>) -> Result<()> {
    let stored = stored.and_then(Sink::as_webhook);
    match new.as_webhook_mut() {
        Some(new) => keep_webhook_secrets(new, stored),
        None => Ok(()),
    }
}

fn keep_webhook_secrets(new: &mut Webhook, stored: Option<&Webhook>) -> Result<()> {
    let same_place = stored.is_some_and(|stored| same_place(new, stored));
    for Header { name, value } in &mut new.headers {
        if *value != Setting::Value(HIDDEN.to_owned()) {
            continue;
        }
        let kept = stored.and_then(|stored| stored.headers.iter().find(|h| h.name == *name));
        let what = format!("the value of header '{name}'");
        let Some(Header {
            value: Setting::Value(kept),
            ..
        }) = kept
        else {
            return Err(nothing_stored(&what));
        };
        if !same_place {
            return Err(elsewhere(&what));
        }
        *value = Setting::Value(kept.clone());
    }
    if let Setting::Value(url) = &new.url
        && hides(url)
    {
        let Some(stored) = stored else {
            return Err(nothing_stored("the webhook"));
        };
        let shown = without_secrets(&Sink::Webhook(stored.clone()));
        if shown.as_webhook().map(|w| &w.url) != Some(&new.url) {
            return Err(elsewhere("a part of the webhook"));
        }
        new.url.clone_from(&stored.url);
    }
    Ok(())
}

/// Whether a URL holds a placeholder where a secret belongs.
fn hides(url: &str) -> bool {
    let Ok(uri) = Template::stand_in(url).parse::<Uri>() else {
        return url == HIDDEN;
    };
    let credentials = uri.authority().map_or("", |a| a.as_str()).rsplit_once('@');
    let parameters = uri.query().unwrap_or_default().split('&');
    credentials.is_some_and(|(credentials, _)| credentials == HIDDEN)
        || parameters
            .filter_map(|p| p.split_once('='))
            .any(|(name, value)| value == HIDDEN && redact::looks_secret(name))
}

/// Whether requests go to the same server. An address from the environment is the same by its variable.
fn same_place(new: &Webhook, stored: &Webhook) -> bool {
    let server = |url: &str| {
        let uri: Uri = Template::stand_in(url).parse().ok()?;
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let host = uri.host()?.to_ascii_lowercase();
        let standard = if scheme == "https" { 443 } else { 80 };
        Some((scheme, host, uri.port_u16().unwrap_or(standard)))
    };
    match (&new.url, &stored.url) {
        (Setting::Value(new), Setting::Value(stored)) => {
            server(new).is_some_and(|new| Some(new) == server(stored))
        }
        (new, stored) => new == stored,
    }
}

fn nothing_stored(what: &str) -> Error {
    Error::invalid(format!(
        "{what} is '{HIDDEN}', which stands for a secret that is not shown, but none is stored"
    ))
    .advise("give the secret itself, or the environment variable that holds it")
}

fn elsewhere(what: &str) -> Error {
    Error::invalid(format!(
        "{what} is '{HIDDEN}', which stands for the stored secret, but the webhook is another one now"
    ))
    .advise("give the secrets again with a new webhook, or an environment variable that holds them")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(url: &str, headers: &[(&str, &str)]) -> Sink {
        Sink::Webhook(Webhook {
            headers: headers
                .iter()
                .map(|(name, value)| Header {
                    name: (*name).to_owned(),
                    value: Setting::Value((*value).to_owned()),
                })
                .collect(),
            ..Webhook::new(Setting::Value(url.to_owned()))
        })
    }

    #[test]
    fn what_is_shown_and_written_back_is_what_was_stored() {
        let url = "https://u:p@a.example/x?token=t&page=2";
        let headers = [
            ("authorization", "one"),
            ("x-team", "***"),
            ("x-api-key", "two"),
        ];
        let stored = to(url, &headers);
        let mut back = without_secrets(&stored);
        assert_ne!(back, stored);
        keep_secrets(&mut back, Some(&stored)).unwrap();
        assert_eq!(back, stored);
    }

    #[test]
    fn a_placeholder_without_a_secret_or_for_another_place_is_refused() {
        let stored = to("https://a.example/x", &[("authorization", "one")]);
        let refused = |mut new: Sink, stored: Option<&Sink>, says: &str| {
            let error = keep_secrets(&mut new, stored).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        };
        let hidden = [("authorization", "***")];
        refused(to("https://a.example/x", &hidden), None, "none is stored");
        let other = [("x-api-key", "***")];
        refused(to("https://a.example/x", &other), Some(&stored), "none is");
        for evil in [
            "https://evil.example/x",
            "http://a.example/x",
            "https://a.example:8443/x",
            "https://a.example@evil.example/x",
        ] {
            refused(to(evil, &hidden), Some(&stored), "another one");
        }
        refused(to("https://***@a.example/", &[]), None, "none is stored");
        let secret = to("https://u:p@a.example/x", &[]);
        refused(to("https://***@b.example/x", &[]), Some(&secret), "another");
        // The same server, another path.
        let mut moved = to("https://A.example:443/y", &hidden);
        keep_secrets(&mut moved, Some(&stored)).unwrap();
        let headers = |sink: &Sink| sink.as_webhook().unwrap().headers.clone();
        assert_eq!(headers(&moved), headers(&stored));
        // Not where a secret belongs.
        let mut stars = to("https://a.example/***?page=***", &[]);
        keep_secrets(&mut stars, None).unwrap();
        // Nobody means three stars, whatever the header is called.
        let stars = to("https://a.example/x", &[("x-team", "***")]);
        refused(stars, Some(&stored), "none is");
    }
}
