//! Spans around what goes out: a delivery, a batch of a watch.
//!
//! They are `tracing` spans of the target [`TARGET`] and cost nothing unless somebody subscribes to it.
//! With the feature `otel` a span belongs to the trace that the writer named, and what is sent names the
//! span: the receiver's work hangs below the attempt that caused it.

use changefeed_core::{Attempt, EventTrigger, LeasedEvent, Outcome, Watch};
use serde_json::value::RawValue;
use tracing::Span;

use crate::sinks::webhook::Trace;

/// The target of our spans, for filters.
pub const TARGET: &str = "changefeed::traces";

/// The span of an attempt to deliver an event.
pub(crate) fn delivery(trigger: &EventTrigger, leased: &LeasedEvent) -> Span {
    let span = tracing::debug_span!(
        target: TARGET,
        "deliver",
        otel.name = format!("deliver {}", trigger.definition.name),
        otel.kind = "client",
        otel.status_code = tracing::field::Empty,
        otel.status_description = tracing::field::Empty,
        http.response.status_code = tracing::field::Empty,
        changefeed.trigger = %trigger.definition.name,
        changefeed.event = %leased.event.id,
        changefeed.attempt = i64::from(leased.attempt),
    );
    if !span.is_disabled() {
        join(&span, leased.event.trace_context.as_deref());
    }
    span
}

/// Records the outcome of a delivery.
pub(crate) fn ended(span: &Span, attempt: &Attempt) {
    if let Some(status) = attempt.status {
        span.record("http.response.status_code", i64::from(status));
    }
    if attempt.outcome != Outcome::Success {
        failed(span, attempt.error.as_deref().unwrap_or_default());
    }
}

/// The span of a function that is called with a batch.
pub(crate) fn batch(watch: &Watch, rows: usize, attempt: u32) -> Span {
    tracing::debug_span!(
        target: TARGET,
        "watch",
        otel.name = format!("watch {}", watch.name),
        otel.kind = "client",
        otel.status_code = tracing::field::Empty,
        otel.status_description = tracing::field::Empty,
        changefeed.watch = %watch.name,
        changefeed.rows = i64::try_from(rows).unwrap_or(i64::MAX),
        changefeed.attempt = i64::from(attempt),
    )
}

/// Says that what a span was about has failed.
pub(crate) fn failed(span: &Span, why: &str) {
    span.record("otel.status_code", "ERROR");
    span.record("otel.status_description", why);
}

#[cfg(feature = "otel")]
mod joined {
    use opentelemetry::Context;
    use opentelemetry::trace::{
        SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState,
    };
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    use super::{RawValue, Span, Trace};

    /// Puts a span into the trace that a writer named, if it named one.
    pub(super) fn join(span: &Span, written: Option<&RawValue>) {
        if let Some(parent) = Trace::read(written).as_ref().and_then(context_of) {
            // Fails only where nobody collects traces.
            let _ = span.set_parent(Context::new().with_remote_span_context(parent));
        }
    }

    fn context_of(trace: &Trace) -> Option<SpanContext> {
        let mut parts = trace.traceparent.split('-').skip(1);
        let id = TraceId::from_hex(parts.next()?).ok()?;
        let span = SpanId::from_hex(parts.next()?).ok()?;
        let flags = u8::from_str_radix(parts.next()?, 16).ok()?;
        let state = trace.tracestate.as_deref().unwrap_or_default();
        Some(SpanContext::new(
            id,
            span,
            TraceFlags::new(flags),
            true,
            state.parse().unwrap_or(TraceState::NONE),
        ))
    }

    /// The current span, for outgoing calls.
    pub(crate) fn here() -> Option<Trace> {
        let context = Span::current().context();
        let span = context.span();
        let here = span.span_context();
        here.is_valid().then(|| Trace {
            traceparent: format!(
                "00-{}-{}-{:02x}",
                here.trace_id(),
                here.span_id(),
                here.trace_flags().to_u8()
            ),
            tracestate: Some(here.trace_state().header()).filter(|state| !state.is_empty()),
        })
    }
}

#[cfg(not(feature = "otel"))]
mod joined {
    use super::{RawValue, Span, Trace};

    pub(super) fn join(_: &Span, _: Option<&RawValue>) {}

    pub(crate) fn here() -> Option<Trace> {
        None
    }
}

pub(crate) use joined::here;
use joined::join;
