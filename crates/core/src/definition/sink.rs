//! Where events and batches go.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::broker::{Broker, Container, hide_password};
use super::template::{Template, TemplatePlace};
use crate::environment::check_variable;
use crate::{Error, Result};

/// Where events of a trigger and batches of a watch go.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Sink {
    /// They are posted.
    Webhook(Webhook),
    /// A command gets them on its standard input.
    Exec(String),
    /// A program that uses the library handles them.
    #[default]
    InProcess,
    /// A file per shard; subscriptions only.
    File(String),
    /// The standard output of the instance; subscriptions only.
    Stdout,
    /// A directory with an object per batch; subscriptions only.
    Directory(String),
    /// A broker or an object store, by its URL; subscriptions only.
    Broker(Broker, String),
}

/// An address that requests are posted to.
#[derive(Debug, Clone, PartialEq)]
pub struct Webhook {
    /// The URL.
    pub url: Setting,
    /// Headers of every request.
    pub headers: Vec<Header>,
    /// A template of the body, instead of the default one.
    pub body: Option<String>,
    /// Environment variables with the secrets that sign requests: one, or two while they are
    /// exchanged.
    pub secrets_from_env: Vec<String>,
    /// The variables named here that every instance may read, because the definition was made on the
    /// command line or in the file; others must be [allowed](crate::AllowedVariables).
    pub granted_env: Vec<String>,
}

/// A text, or the name of an environment variable that holds it. In JSON and in the file it is
/// `"text"` or `{"env": "NAME"}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "SettingText", into = "SettingText")]
pub enum Setting {
    /// The text.
    Value(String),
    /// The variable, read by the instance that delivers.
    FromEnv(String),
}

impl Setting {
    /// The text, if it is a template.
    pub fn template(&self) -> Option<&str> {
        match self {
            Setting::Value(text) if Template::is_one(text) => Some(text),
            _ => None,
        }
    }
}

/// A header of every request.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Setting,
}

impl Sink {
    /// A webhook without headers and secrets.
    pub fn webhook(url: impl Into<String>) -> Self {
        Sink::Webhook(Webhook::new(Setting::Value(url.into())))
    }

    /// The webhook, if it is one.
    pub fn as_webhook(&self) -> Option<&Webhook> {
        match self {
            Sink::Webhook(webhook) => Some(webhook),
            _ => None,
        }
    }

    /// The webhook, to be changed.
    pub fn as_webhook_mut(&mut self) -> Option<&mut Webhook> {
        match self {
            Sink::Webhook(webhook) => Some(webhook),
            _ => None,
        }
    }

    /// Whether it acts on the machine of the instance. It is then not defined over HTTP, and an instance
    /// uses it only if it was allowed to.
    pub fn is_local(&self) -> bool {
        matches!(
            self,
            Sink::Exec(_) | Sink::File(_) | Sink::Directory(_) | Sink::Stdout
        )
    }

    /// Whether events of a trigger can go there, or only batches of a watch.
    pub fn takes_events(&self) -> bool {
        matches!(self, Sink::Webhook(_) | Sink::InProcess)
    }

    /// Checks what can be checked without an environment. Its templates are given these values; without any, it
    /// cannot have templates.
    pub fn validate(&self, values: &[&str]) -> Result<()> {
        match self {
            Sink::Webhook(webhook) => webhook.validate(values),
            Sink::Exec(command) if command.trim().is_empty() => {
                Err(Error::invalid("the command is empty"))
            }
            Sink::Exec(_) | Sink::InProcess => Ok(()),
            Sink::File(_) | Sink::Directory(_) | Sink::Stdout | Sink::Broker(..) => Err(
                Error::invalid(format!("only a subscription can push to {self}")),
            ),
        }
    }

    /// The same for a subscription.
    pub(super) fn validate_for_pushing(&self) -> Result<()> {
        match self {
            Sink::File(path) if path.trim().is_empty() || path.ends_with('/') => {
                Err(Error::invalid("the path of the file is missing").advise("write file:PATH"))
            }
            Sink::Directory(path) => {
                let (path, options) = path.split_once('?').unwrap_or((path, ""));
                if path.trim().is_empty() {
                    return Err(Error::invalid("the path of the directory is missing")
                        .advise("write dir:PATH"));
                }
                if !options.is_empty() && (!options.starts_with("as=") || options.contains('&')) {
                    return Err(Error::invalid(format!(
                        "the address of a directory has an unknown option '{options}'"
                    ))
                    .advise("known options: as"));
                }
                self.container().map(|_| ())
            }
            Sink::Broker(broker, url) => broker.validate(url),
            Sink::File(_) | Sink::Stdout => Ok(()),
            Sink::Webhook(_) | Sink::Exec(_) | Sink::InProcess => self.validate(&[]),
        }
    }

    /// The text that it is read from, in a subscription.
    pub fn address(&self) -> String {
        match self {
            Sink::Webhook(webhook) => match &webhook.url {
                Setting::Value(url) => url.clone(),
                Setting::FromEnv(variable) => format!("${variable}"),
            },
            Sink::Exec(command) => format!("exec:{command}"),
            Sink::InProcess => "in_process".to_owned(),
            Sink::File(path) => format!("file:{path}"),
            Sink::Stdout => "stdout:".to_owned(),
            Sink::Directory(path) => format!("dir:{path}"),
            Sink::Broker(_, url) => url.clone(),
        }
    }

    /// What its objects hold a batch as; nothing if it has no objects.
    pub fn container(&self) -> Result<Option<Container>> {
        match self {
            Sink::Directory(address) | Sink::Broker(Broker::S3, address) => {
                Container::of(address).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The same, with objects that hold a batch as this.
    pub fn holding(self, container: Container) -> Result<Sink> {
        let address = self.address();
        if self.container()?.is_none() {
            return Err(Error::invalid(format!(
                "only directories and object stores hold batches as {container}"
            ))
            .advise("leave --as out, or push to s3://BUCKET/PREFIX or dir:PATH"));
        }
        let (base, query) = address.split_once('?').unwrap_or((&address, ""));
        let mut options: Vec<&str> = query.split('&').filter(|o| !o.is_empty()).collect();
        options.retain(|option| !option.starts_with("as="));
        let option = format!("as={container}");
        options.push(&option);
        format!("{base}?{}", options.join("&")).parse()
    }

    /// The same without the password of a broker.
    #[must_use]
    pub fn without_password(&self) -> Sink {
        match self {
            Sink::Broker(broker, url) => Sink::Broker(*broker, hide_password(url)),
            other => other.clone(),
        }
    }
}

impl std::str::FromStr for Sink {
    type Err = Error;

    /// Reads the address of a sink, as subscriptions write it.
    fn from_str(text: &str) -> Result<Self> {
        if text.starts_with("http://") || text.starts_with("https://") {
            return Ok(Sink::webhook(text));
        }
        if let Some(broker) = Broker::of(text) {
            return Ok(Sink::Broker(broker, text.to_owned()));
        }
        if let Some(path) = text.strip_prefix("dir:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return Ok(Sink::Directory(path.to_owned()));
        }
        if let Some(path) = text.strip_prefix("file:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return Ok(Sink::File(path.to_owned()));
        }
        if let Some(command) = text.strip_prefix("exec:") {
            return Ok(Sink::Exec(command.to_owned()));
        }
        match text {
            "stdout:" | "stdout" | "-" => Ok(Sink::Stdout),
            "in_process" => Ok(Sink::InProcess),
            _ => Err(Error::invalid(format!("'{text}' is not a sink")).advise(
                "write nats://HOST/SUBJECT, redis://HOST/STREAM, amqp://HOST/?queue=QUEUE, s3://BUCKET/PREFIX, https://…, file:PATH, dir:PATH, \
                 exec:COMMAND or stdout:",
            )),
        }
    }
}

/// For people; an address may hold secrets.
impl fmt::Display for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sink::Webhook(webhook) => match &webhook.url {
                Setting::Value(url) => f.write_str(url),
                Setting::FromEnv(variable) => write!(f, "${variable}"),
            },
            Sink::Exec(command) => f.write_str(command),
            Sink::InProcess => f.write_str("a handler of the library"),
            other => f.write_str(&other.without_password().address()),
        }
    }
}

impl Webhook {
    /// What of it is a template, and what that is called. A value from the environment is none.
    fn templates(&self) -> impl Iterator<Item = (String, TemplatePlace, &str)> {
        let url = self.url.template();
        let url = url.map(|text| ("the webhook".to_owned(), TemplatePlace::Url, text));
        let headers = self.headers.iter().filter_map(|header| {
            let text = header.value.template()?;
            Some((
                format!("header '{}'", header.name),
                TemplatePlace::Header,
                text,
            ))
        });
        let body = self.body.as_deref();
        let body = body.map(|text| ("the body".to_owned(), TemplatePlace::Body, text));
        url.into_iter().chain(headers).chain(body)
    }

    /// An address without headers and secrets.
    pub fn new(url: Setting) -> Self {
        Webhook {
            url,
            headers: Vec::new(),
            body: None,
            secrets_from_env: Vec::new(),
            granted_env: Vec::new(),
        }
    }

    fn validate(&self, values: &[&str]) -> Result<()> {
        if let Setting::Value(url) = &self.url
            && !(url.starts_with("http://") || url.starts_with("https://"))
        {
            return Err(Error::invalid(format!("'{url}' is not a webhook"))
                .advise("write a URL that begins with http:// or https://"));
        }
        for (what, place, text) in self.templates() {
            let inside = |e: Error| match e.advice() {
                Some(advice) => {
                    Error::invalid(format!("{what}: {}", e.message())).advise(advice.to_owned())
                }
                None => Error::invalid(format!("{what}: {}", e.message())),
            };
            if values.is_empty() {
                return Err(Error::invalid(format!("{what} cannot be a template here"))
                    .advise("event triggers and watches have templates"));
            }
            if place == TemplatePlace::Url {
                fixed_server(text)?;
            }
            Template::new(text, place, values).map_err(inside)?;
        }
        for (at, header) in self.headers.iter().enumerate() {
            header.validate()?;
            let same = |other: &Header| other.name.eq_ignore_ascii_case(&header.name);
            if self.headers[..at].iter().any(same) {
                return Err(Error::invalid(format!(
                    "the header '{}' is given twice",
                    header.name
                )));
            }
        }
        self.variables().try_for_each(check_variable)?;
        if self.secrets_from_env.len() > 2 {
            return Err(Error::invalid(
                "a webhook has at most two secrets: the new one and the one it replaces",
            ));
        }
        Ok(())
    }
}

/// Refuses a URL whose server a template would choose.
fn fixed_server(url: &str) -> Result<()> {
    let behind = url.split_once("://").map_or("", |(_, behind)| behind);
    let server = behind.split(['/', '?', '#']).next().unwrap_or_default();
    if server.is_empty() || Template::is_one(server) {
        return Err(
            Error::invalid("the server of a webhook cannot be chosen by a template")
                .advise("write it out, like https://example.com/{{ id }}"),
        );
    }
    if server.contains('@') {
        return Err(
            Error::invalid("a webhook with a template has no credentials in its URL")
                .advise("write a header 'authorization', or name its variable"),
        );
    }
    Ok(())
}

impl Header {
    fn validate(&self) -> Result<()> {
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        if self.name.is_empty() || !self.name.chars().all(token) {
            return Err(Error::invalid(format!(
                "'{}' is not the name of a header",
                self.name
            )));
        }
        // What the delivery itself depends on.
        let ours = [
            "content-type",
            "content-length",
            "host",
            "connection",
            "transfer-encoding",
            "webhook-id",
            "webhook-timestamp",
            "webhook-signature",
        ];
        let name = self.name.to_ascii_lowercase();
        if ours.contains(&name.as_str()) || name.starts_with("ce-") {
            return Err(Error::invalid(format!(
                "the header '{}' is set by changefeed itself",
                self.name
            )));
        }
        if let Setting::Value(value) = &self.value
            && !Template::is_one(value)
            && value.chars().any(|c| c.is_control() && c != '\t')
        {
            return Err(Error::invalid(format!(
                "the value of header '{}' contains control characters",
                self.name
            )));
        }
        Ok(())
    }
}

#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "neither a text nor the name of an environment variable: write {\"env\": \"NAME\"}"
)]
pub(super) enum SettingText {
    Value(String),
    FromEnv(Variable),
}

#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Variable {
    /// The name of an environment variable, where things are delivered.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[A-Za-z_][A-Za-z0-9_]*$"))]
    env: String,
}

impl From<SettingText> for Setting {
    fn from(text: SettingText) -> Self {
        match text {
            SettingText::Value(value) => Setting::Value(value),
            SettingText::FromEnv(variable) => Setting::FromEnv(variable.env),
        }
    }
}

impl From<Setting> for SettingText {
    fn from(setting: Setting) -> Self {
        match setting {
            Setting::Value(value) => SettingText::Value(value),
            Setting::FromEnv(env) => SettingText::FromEnv(Variable { env }),
        }
    }
}

/// One secret, or two while they are exchanged.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a secret is written as {\"env\": \"NAME\"}, or a list of two of these"
)]
pub(super) enum Secrets {
    One(Variable),
    Several(Vec<Variable>),
}

impl Secrets {
    /// The names of their variables.
    pub(super) fn names(self) -> Vec<String> {
        match self {
            Secrets::One(secret) => vec![secret.env],
            Secrets::Several(secrets) => secrets.into_iter().map(|secret| secret.env).collect(),
        }
    }

    fn of(names: Vec<String>) -> Option<Self> {
        let mut secrets: Vec<Variable> = names.into_iter().map(|env| Variable { env }).collect();
        match secrets.len() {
            0 => None,
            1 => secrets.pop().map(Secrets::One),
            _ => Some(Secrets::Several(secrets)),
        }
    }
}

/// The headers, secrets and granted variables of a webhook, as they are written.
pub(super) fn webhook_text(
    webhook: Webhook,
) -> (BTreeMap<String, Setting>, Option<Secrets>, Vec<String>) {
    let header = |header: Header| (header.name, header.value);
    (
        webhook.headers.into_iter().map(header).collect(),
        Secrets::of(webhook.secrets_from_env),
        webhook.granted_env,
    )
}

/// The keys of a sink, as they stand among those of a definition.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SinkText {
    /// The address that requests are posted to: a text, or `{"env": "NAME"}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<SettingText>))]
    webhook: Option<Setting>,
    /// Headers of every request: texts, or `{"env": "NAME"}`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, SettingText>))]
    header: BTreeMap<String, Setting>,
    /// The secret that signs requests: `{"env": "NAME"}`, or a list of two of these while it is
    /// exchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<Secrets>,
    /// A template of the body of a request, instead of the default body.
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    /// The command that gets batches on its standard input; not over HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    exec: Option<String>,
    /// A program that uses the library handles it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    in_process: bool,
    /// Kept in the database only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(ignore))]
    granted_env: Vec<String>,
}

impl SinkText {
    pub(super) const KEYS: [&'static str; 7] = [
        "webhook",
        "header",
        "secret",
        "body",
        "exec",
        "in_process",
        "granted_env",
    ];
}

impl From<Sink> for SinkText {
    fn from(sink: Sink) -> Self {
        match sink {
            Sink::Webhook(webhook) => {
                let (url, body) = (webhook.url.clone(), webhook.body.clone());
                let (header, secret, granted_env) = webhook_text(webhook);
                SinkText {
                    webhook: Some(url),
                    header,
                    secret,
                    body,
                    granted_env,
                    ..SinkText::default()
                }
            }
            Sink::Exec(command) => SinkText {
                exec: Some(command),
                ..SinkText::default()
            },
            // Nothing else is accepted where these keys are used.
            _ => SinkText {
                in_process: true,
                ..SinkText::default()
            },
        }
    }
}

impl TryFrom<SinkText> for Sink {
    type Error = Error;

    fn try_from(text: SinkText) -> Result<Self> {
        let unclear = || {
            Error::invalid(
                "it is not clear where it goes: give one of 'webhook', 'exec' and 'in_process'",
            )
        };
        if text.webhook.is_none()
            && (!text.header.is_empty() || text.secret.is_some() || text.body.is_some())
        {
            return Err(Error::invalid("headers, secrets and a body need a webhook")
                .advise("add 'webhook', or leave 'header', 'secret' and 'body' out"));
        }
        match (text.webhook, text.exec, text.in_process) {
            (Some(url), None, false) => Ok(Sink::Webhook(Webhook {
                url,
                headers: text
                    .header
                    .into_iter()
                    .map(|(name, value)| Header { name, value })
                    .collect(),
                body: text.body,
                secrets_from_env: text.secret.map(Secrets::names).unwrap_or_default(),
                granted_env: text.granted_env,
            })),
            (None, Some(command), false) => Ok(Sink::Exec(command)),
            (None, None, true) => Ok(Sink::InProcess),
            _ => Err(unclear()),
        }
    }
}
