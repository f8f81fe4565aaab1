//! A webhook as its definition names it, with everything looked up that the environment holds.

use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use changefeed_core::{
    BATCH_VALUES, Delivery, EVENT_VALUES, Error, Format, Header, Result, Setting, Sink, Template,
    TemplatePlace, TemplateValues, TriggerName, Webhook,
};
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, Scheme};
use http::{Uri, uri};
use serde_json::value::RawValue;

use super::signature::Signer;
use super::{Variables, redact};

/// The shortest value that is hidden where a receiver echoes it: shorter ones, like `1`, would
/// hide half of an answer and nothing worth it.
const WORTH_HIDING: usize = 6;

/// Where requests of a trigger go, ready to be used for each of them.
#[derive(Clone)]
pub struct Target {
    pub(super) uri: Uri,
    /// The URL without secrets.
    pub(super) shown: String,
    /// Host and port, for sentences.
    pub(super) host: String,
    /// Values that must not be shown are marked as sensitive.
    pub(super) headers: HeaderMap,
    /// Those values, for answers that echo them.
    pub(super) hidden: Vec<String>,
    pub(super) signer: Option<Signer>,
    pub(super) blanks: Blanks,
    pub(super) format: Format,
    pub(super) max_retries: u32,
    pub(super) timeout: Duration,
}

/// What of a target is filled in for each request.
#[derive(Debug, Clone, Default)]
pub(super) struct Blanks {
    url: Option<Template>,
    headers: Vec<(HeaderName, Template)>,
    body: Option<Template>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("url", &self.shown)
            .field("format", &self.format)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Target {
    /// Prepares the webhook of an event trigger. A variable that is not set, a value that is not
    /// fit for its place or a secret that is none is an error that names the trigger and the
    /// variable, and never a value.
    pub fn prepare(
        trigger: &TriggerName,
        delivery: &Delivery,
        variables: &Variables,
    ) -> Result<Self> {
        let whose = format!("trigger '{trigger}'");
        let timeout = delivery.retry.timeout;
        let mut target = Self::prepare_for(&whose, &delivery.sink, timeout, variables)?;
        target.format = delivery.format;
        target.max_retries = delivery.retry.num_retries;
        Ok(target)
    }

    /// The same for something else that has a webhook; `whose` names it in errors.
    pub fn prepare_for(
        whose: &str,
        sink: &Sink,
        timeout: Duration,
        variables: &Variables,
    ) -> Result<Self> {
        let webhook = sink
            .as_webhook()
            .ok_or_else(|| Error::invalid(format!("{whose} has no webhook")))?;
        let preparation = Preparation {
            whose,
            variables,
            granted: &webhook.granted_env,
        };
        let (uri, shown, credentials) = preparation.url(&webhook.url)?;
        let mut hidden = Vec::new();
        let mut headers = HeaderMap::with_capacity(webhook.headers.len() + 8);
        for header in &webhook.headers {
            if header.value.template().is_some() {
                continue;
            }
            let (name, value) = preparation.header(header)?;
            if value.is_sensitive() {
                hidden.extend(secret_part(&value));
            }
            headers.append(name, value);
        }
        if let Some(credentials) = credentials
            && !headers.contains_key(AUTHORIZATION)
        {
            hidden.extend(secret_part(&credentials));
            headers.insert(AUTHORIZATION, credentials);
        }
        Ok(Target {
            host: preparation.host(&uri),
            uri,
            shown,
            headers,
            hidden,
            signer: preparation.signer(&webhook.secrets_from_env)?,
            blanks: preparation.blanks(webhook)?,
            format: Format::default(),
            max_retries: 0,
            timeout,
        })
    }

    /// Whether a definition can be prepared, as far as that does not depend on the environment.
    pub fn check(whose: &str, sink: &Sink) -> Result<()> {
        let known = |setting: &Setting| matches!(setting, Setting::Value(_));
        let Some(webhook) = sink.as_webhook().filter(|w| known(&w.url)) else {
            return Ok(());
        };
        let mut plain = Webhook::new(webhook.url.clone());
        let headers = webhook.headers.iter().filter(|h| known(&h.value));
        plain.headers = headers.cloned().collect();
        plain.body.clone_from(&webhook.body);
        let nothing = Variables::new(|_| None);
        Self::prepare_for(whose, &Sink::Webhook(plain), Duration::ZERO, &nothing).map(drop)
    }

    /// Whether requests need values.
    pub(crate) fn has_blanks(&self) -> bool {
        let Blanks { url, headers, body } = &self.blanks;
        url.is_some() || !headers.is_empty() || body.is_some()
    }

    /// Where a request with these values goes, and the same without secrets.
    pub(super) fn url(&self, values: &TemplateValues) -> Result<(Uri, String)> {
        let Some(template) = &self.blanks.url else {
            return Ok((self.uri.clone(), self.shown.clone()));
        };
        let filled = template.fill(values)?;
        let uri: Uri = filled
            .parse()
            .map_err(|e| Error::invalid("the template makes no URL").caused_by(e))?;
        // The template was judged when it was defined; this is what it is judged for.
        if uri.authority() != self.uri.authority() || uri.scheme() != self.uri.scheme() {
            return Err(Error::invalid("the template chooses another server"));
        }
        let shown = redact::url(&uri);
        Ok((uri, shown))
    }

    /// The body of a request with these values, if it is not the default one.
    pub(super) fn body(&self, values: &TemplateValues) -> Result<Option<Box<RawValue>>> {
        let Some(template) = &self.blanks.body else {
            return Ok(None);
        };
        let filled = template.fill(values)?;
        let body = RawValue::from_string(filled);
        body.map(Some)
            .map_err(|e| Error::invalid("the template of the body makes no JSON").caused_by(e))
    }

    /// Adds the headers that have blanks.
    pub(super) fn fill_headers(&self, values: &TemplateValues, to: &mut HeaderMap) -> Result<()> {
        for (name, template) in &self.blanks.headers {
            let filled = template.fill(values)?;
            let value = HeaderValue::from_bytes(filled.trim().as_bytes());
            let mut value = value.map_err(|e| {
                Error::invalid(format!("the template of header '{name}' makes no header"))
                    .caused_by(e)
            })?;
            value.set_sensitive(redact::looks_secret(name.as_str()));
            to.insert(name.clone(), value);
        }
        Ok(())
    }

    /// Its URL without secrets, for people.
    pub fn shown_url(&self) -> &str {
        &self.shown
    }
}

struct Preparation<'a> {
    whose: &'a str,
    variables: &'a Variables,
    granted: &'a [String],
}

impl Preparation<'_> {
    fn variable(&self, name: &str, purpose: &str) -> Result<String> {
        let value = self.variables.read(self.whose, name, self.granted)?;
        value.ok_or_else(|| {
            Error::invalid(format!(
                "the environment variable {name}, which holds {purpose} of {}, is not set",
                self.whose
            ))
            .advise("set it for every process that delivers events, and restart them")
        })
    }

    /// The URL to call, the URL to show, and the credentials that it contained.
    fn url(&self, webhook: &Setting) -> Result<(Uri, String, Option<HeaderValue>)> {
        let (text, place) = match webhook {
            Setting::Value(text) => (text.clone(), "the webhook".to_owned()),
            Setting::FromEnv(name) => (
                self.variable(name, "the webhook")?,
                format!("the webhook in the environment variable {name}"),
            ),
        };
        // What is wrong with it is not said, as the text itself must not be.
        let invalid = || {
            Error::invalid(format!("{place} of {} is not a URL", self.whose)).advise(
                "write http:// or https://, a host in ASCII, and a path without spaces; percent-encode \
                 everything else",
            )
        };
        let text = text.trim();
        let uri: Uri = match webhook.template() {
            Some(template) => Template::stand_in(template.trim()).parse(),
            None => text.parse(),
        }
        .map_err(|_| invalid())?;
        let scheme = uri.scheme().cloned().ok_or_else(invalid)?;
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(invalid());
        }
        let shown = match webhook {
            Setting::Value(text) => Template::put_back(text, redact::url(&uri)),
            Setting::FromEnv(_) => redact::only_origin(&uri),
        };
        let authority = uri.authority().ok_or_else(invalid)?.as_str();
        let (userinfo, host) = match authority.rsplit_once('@') {
            Some((userinfo, host)) => (Some(userinfo), host),
            None => (None, authority),
        };
        let authority: Authority = host.parse().map_err(|_| invalid())?;
        if authority.host().is_empty() {
            return Err(invalid());
        }
        self.check_port(&authority, &place)?;
        let credentials = userinfo.map(basic).transpose().map_err(|()| invalid())?;
        let mut parts = uri.into_parts();
        parts.authority = Some(authority);
        let uri = Uri::from_parts(parts).map_err(|_: uri::InvalidUriParts| invalid())?;
        Ok((uri, shown, credentials))
    }

    /// A port that is none would be read as if it were not there.
    fn check_port(&self, authority: &Authority, place: &str) -> Result<()> {
        let written = authority.as_str().rsplit_once(':');
        match written {
            // A colon in the brackets of an address is none before a port.
            Some((_, port))
                if !port.ends_with(']') && authority.port_u16().is_none_or(|p| p == 0) =>
            {
                Err(Error::invalid(format!(
                    "{place} of {} has the port '{port}', which is not possible",
                    self.whose
                ))
                .advise("ports are numbers from 1 to 65535"))
            }
            _ => Ok(()),
        }
    }

    fn host(&self, uri: &Uri) -> String {
        let port = uri.port_u16().unwrap_or(match uri.scheme_str() {
            Some("https") => 443,
            _ => 80,
        });
        format!("{}:{port}", uri.host().unwrap_or_default())
    }

    fn header(&self, header: &Header) -> Result<(HeaderName, HeaderValue)> {
        let name: HeaderName = header.name.parse().map_err(|_| {
            Error::invalid(format!(
                "'{}', a header of {}, is not the name of a header",
                header.name, self.whose
            ))
        })?;
        let (text, from_environment) = match &header.value {
            Setting::Value(text) => (text.clone(), false),
            Setting::FromEnv(variable) => {
                let purpose = format!("the header '{}'", header.name);
                (self.variable(variable, &purpose)?, true)
            }
        };
        let mut value = HeaderValue::from_bytes(text.trim().as_bytes()).map_err(|_| {
            Error::invalid(format!(
                "the value of the header '{}' of {} contains control characters",
                header.name, self.whose
            ))
        })?;
        value.set_sensitive(from_environment || redact::looks_secret(name.as_str()));
        Ok((name, value))
    }

    /// Every value is known here: which of them a definition may name was judged when it was made.
    fn blanks(&self, webhook: &Webhook) -> Result<Blanks> {
        let values: Vec<&str> = EVENT_VALUES.into_iter().chain(BATCH_VALUES).collect();
        let new = |text: &str, place| Template::new(text.trim(), place, &values);
        let mut headers = Vec::new();
        for header in &webhook.headers {
            if let Some(text) = header.value.template() {
                let name = header.name.parse();
                let name = name.map_err(|_| {
                    Error::invalid(format!("'{}' is not the name of a header", header.name))
                })?;
                headers.push((name, new(text, TemplatePlace::Header)?));
            }
        }
        let url = webhook.url.template();
        let body = webhook.body.as_deref();
        Ok(Blanks {
            url: url.map(|text| new(text, TemplatePlace::Url)).transpose()?,
            headers,
            body: body
                .map(|text| new(text, TemplatePlace::Body))
                .transpose()?,
        })
    }

    fn signer(&self, variables: &[String]) -> Result<Option<Signer>> {
        let secrets = variables
            .iter()
            .map(|name| self.variable(name, "a secret"))
            .collect::<Result<Vec<_>>>()?;
        Signer::new(&secrets).map_err(|(nth, why)| {
            let name = variables.get(nth).map_or("", String::as_str);
            Error::invalid(format!(
                "the environment variable {name}, a secret of {}, {why}",
                self.whose
            ))
            .advise("a secret is 'whsec_' and the base64 of 24 to 64 random bytes")
        })
    }
}

/// What of a value must not be seen: without the scheme, as in `Bearer …`, which an answer that
/// echoes it may leave out.
fn secret_part(value: &HeaderValue) -> Option<String> {
    let last = value.to_str().ok()?.rsplit(' ').next()?;
    (last.len() >= WORTH_HIDING).then(|| last.to_owned())
}

/// Credentials of a URL as a header, which is how a browser sends them.
fn basic(userinfo: &str) -> Result<HeaderValue, ()> {
    let mut plain = Vec::with_capacity(userinfo.len() + 1);
    let mut bytes = userinfo.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            plain.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(());
        };
        plain.push(u8::try_from(high * 16 + low).map_err(|_| ())?);
    }
    if !plain.contains(&b':') {
        plain.push(b':');
    }
    let text = format!("Basic {}", STANDARD.encode(plain));
    let mut value = HeaderValue::from_str(&text).map_err(|_| ())?;
    value.set_sensitive(true);
    Ok(value)
}
