//! Where things go, as written: the same options for triggers and watches.

use changefeed::{Header, Result, Setting, Sink, Webhook};

/// A webhook.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct WebhookArgs {
    /// The URL that requests are posted to
    #[arg(long, value_name = "URL")]
    pub(crate) webhook: Option<String>,
    /// The environment variable that holds the URL, where requests are sent from
    #[arg(long, value_name = "VAR", conflicts_with = "webhook")]
    pub(crate) webhook_env: Option<String>,
    /// A template of the body, instead of the default one; '@FILE' reads it from a file
    #[arg(long, value_name = "TEMPLATE")]
    pub(crate) body: Option<String>,
    /// A header of every request
    #[arg(long, value_name = "K=V")]
    pub(crate) header: Vec<String>,
    /// A header whose value is in an environment variable
    #[arg(long, value_name = "K=VAR")]
    pub(crate) header_env: Vec<String>,
    /// The environment variable with the secret that signs requests (whsec_…); twice while it is
    /// exchanged for another
    #[arg(long, value_name = "VAR")]
    pub(crate) secret_env: Vec<String>,
}

/// Where batches go.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct BatchSinkArgs {
    /// A command that gets each batch as JSON on its standard input; exit 0 is success
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["webhook", "webhook_env"])]
    exec: Option<String>,
    #[command(flatten)]
    webhook: WebhookArgs,
}

impl BatchSinkArgs {
    /// How to say where batches go.
    pub(crate) const ADVICE: &str = "add --webhook URL or --exec COMMAND";

    /// The sink that was typed, if there is one.
    pub(crate) fn sink(self) -> Result<Option<Sink>> {
        match self.exec {
            Some(command) => Ok(Some(Sink::Exec(command))),
            None => self.webhook.sink(),
        }
    }
}

impl WebhookArgs {
    /// The webhook that was typed, if there is one.
    pub(crate) fn sink(self) -> Result<Option<Sink>> {
        let from_env = self.webhook_env.map(Setting::FromEnv);
        let Some(url) = self.webhook.map(Setting::Value).or(from_env) else {
            let given = !(self.header.is_empty() && self.header_env.is_empty());
            if given || !self.secret_env.is_empty() || self.body.is_some() {
                return Err(crate::usage("headers, secrets and a body need a webhook")
                    .advise("name the webhook too, or leave them out"));
            }
            return Ok(None);
        };
        let mut headers = Vec::new();
        for text in &self.header {
            let (name, value) = pair(text, "--header", "K=V")?;
            headers.push(Header {
                name,
                value: Setting::Value(value),
            });
        }
        for text in &self.header_env {
            let (name, variable) = pair(text, "--header-env", "K=VAR")?;
            headers.push(Header {
                name,
                value: Setting::FromEnv(variable),
            });
        }
        // The order in which they are stored, so that the same definition is always equal to itself.
        headers.sort_by(|a, b| a.name.cmp(&b.name));
        let webhook = Webhook {
            headers,
            body: self.body.map(template).transpose()?,
            secrets_from_env: self.secret_env,
            ..Webhook::new(url)
        };
        Ok(Some(Sink::Webhook(webhook).granted()))
    }
}

/// A template as it was typed, or from a file.
fn template(text: String) -> Result<String> {
    let Some(path) = text.strip_prefix('@') else {
        return Ok(text);
    };
    std::fs::read_to_string(path)
        .map_err(|e| crate::usage(format!("the template '{path}' cannot be read: {e}")))
}

fn pair(text: &str, option: &str, form: &str) -> Result<(String, String)> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.trim().to_owned(), value.to_owned())),
        None => Err(crate::usage(format!("'{text}' is not a header"))
            .advise(format!("write {option} {form}"))),
    }
}
