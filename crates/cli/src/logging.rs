//! Where logs go, and traces.

mod repeats;

use std::io::IsTerminal;

use tracing_subscriber::filter::FilterExt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::args::{Args, Command, LogFormat};
use repeats::Repeats;

/// Logs go to standard error, so that standard output is data; `RUST_LOG` chooses what, or `-v`. Traces go to a
/// collector if one is named, and what is not sent yet goes when the answer is dropped.
pub(crate) fn init(args: &Args) -> traces::Unsent {
    let ours = match (&args.command, args.verbose) {
        // They would be written over the screen.
        (Command::Top(_), _) => "off",
        // Its sweepers come and go by the dozen.
        (Command::Bench(_), 0) => "warn",
        (_, 0) => "info",
        (_, 1) => "debug",
        (_, _) => "trace",
    };
    let others = if ours == "off" { "off" } else { "warn" };
    let chosen = EnvFilter::try_from_default_env().unwrap_or_else(|_| {
        EnvFilter::new(format!(
            "{others},changefeed={ours},deadpool=off,tiberius=off"
        ))
    });
    let repeats = Repeats::default();
    let filter = chosen.and(repeats.clone());
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let log = match args.log_format {
        LogFormat::Text => log.with_ansi(colours).with_filter(filter).boxed(),
        LogFormat::Json => log.json().flatten_event(true).with_filter(filter).boxed(),
    };
    let (traces, unsent) = traces::layer();
    tracing_subscriber::registry().with(log).with(traces).init();
    tokio::spawn(repeats.tell());
    unsent
}

#[cfg(feature = "otel")]
mod traces {
    //! OpenTelemetry by OTLP over HTTP, set up by the variables that every such program knows:
    //! `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER` and others.

    use std::io::Write;

    use opentelemetry::trace::TracerProvider;
    use opentelemetry_otlp::SpanExporter;
    use opentelemetry_sdk::Resource;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing::{Level, Subscriber};
    use tracing_subscriber::Layer;
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::registry::LookupSpan;

    /// Sends what is left.
    pub(crate) struct Unsent(Option<SdkTracerProvider>);

    impl Drop for Unsent {
        fn drop(&mut self) {
            if let Some(Err(error)) = self.0.take().map(|provider| provider.shutdown()) {
                tracing::warn!(%error, "the last traces were not sent");
            }
        }
    }

    /// Nothing, unless a collector is named.
    pub(super) fn layer<S>() -> (Option<impl Layer<S>>, Unsent)
    where
        S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        let Some(provider) = provider() else {
            return (None, Unsent(None));
        };
        let layer = tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("changefeed"))
            .with_filter(Targets::new().with_target(changefeed::TRACES, Level::DEBUG));
        (Some(layer), Unsent(Some(provider)))
    }

    fn provider() -> Option<SdkTracerProvider> {
        let named = [
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        ];
        named
            .iter()
            .find(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))?;
        // Traces over HTTPS need a cryptography provider of the process.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let exporter = match SpanExporter::builder().with_http().build() {
            Ok(exporter) => exporter,
            Err(error) => {
                // There is no log yet. The work matters more than its traces.
                let _ = writeln!(std::io::stderr(), "warning: no traces are sent: {error}");
                return None;
            }
        };
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("changefeed");
        }
        Some(
            SdkTracerProvider::builder()
                .with_batch_exporter(exporter)
                .with_resource(resource.build())
                .build(),
        )
    }
}

#[cfg(not(feature = "otel"))]
mod traces {
    use tracing_subscriber::layer::Identity;

    /// Without the feature there is nothing to send.
    pub(crate) struct Unsent;

    pub(super) fn layer() -> (Identity, Unsent) {
        (Identity::new(), Unsent)
    }
}
