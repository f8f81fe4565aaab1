//! What Prometheus gets to see. No globals: an instance has one of these, and whoever counts has a
//! reference. The names are documented in docs/metrics.md, and a test compares.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use changefeed_core::{Outcome, Tallies};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::gauges::Gauges;
use super::samples::Samples;

type Labels<const N: usize> = [(&'static str, String); N];
type Counters<const N: usize> = Family<Labels<N>, Counter>;
type Histograms<const N: usize> = Family<Labels<N>, Histogram, fn() -> Histogram>;

/// What this instance has counted.
pub struct Meters {
    registry: Registry,
    sweeps: Counter,
    swept: Counter,
    sweep_lag: Histogram,
    /// The groups that this instance sweeps or would sweep, and under which name.
    candidate: Mutex<BTreeMap<String, String>>,
    attempts: Counters<2>,
    delivery: Histograms<1>,
    batches: Counters<2>,
    pushed: Counters<1>,
    push_time: Histograms<1>,
    push_batch: Histograms<1>,
    push_failures: Counters<1>,
    push_refusals: Counters<1>,
    push_lost: Counters<1>,
    store: Histograms<1>,
    store_errors: Counters<2>,
    requests: Counters<3>,
    request_time: Histograms<1>,
    changes: Counter,
    tallies: Mutex<Tallies>,
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meters").finish_non_exhaustive()
    }
}

fn quick() -> Histogram {
    Histogram::new([
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
    ])
}

fn slow() -> Histogram {
    Histogram::new([
        0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    ])
}

fn sizes() -> Histogram {
    Histogram::new([1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0])
}

impl Meters {
    /// Nothing counted yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::registered())
    }

    fn registered() -> Self {
        let mut meters = Meters {
            registry: Registry::with_prefix("changefeed"),
            sweeps: Counter::default(),
            swept: Counter::default(),
            sweep_lag: quick(),
            candidate: Mutex::default(),
            attempts: Family::default(),
            delivery: Family::new_with_constructor(slow),
            batches: Family::default(),
            pushed: Family::default(),
            push_time: Family::new_with_constructor(quick),
            push_batch: Family::new_with_constructor(sizes),
            push_failures: Family::default(),
            push_refusals: Family::default(),
            push_lost: Family::default(),
            store: Family::new_with_constructor(quick),
            store_errors: Family::default(),
            requests: Family::default(),
            request_time: Family::new_with_constructor(quick),
            changes: Counter::default(),
            tallies: Mutex::default(),
        };
        let r = &mut meters.registry;
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        r.register("build", "The version of the program", Info::new(version));
        r.register(
            "sweeps",
            "Sweeps that this instance has made",
            meters.sweeps.clone(),
        );
        r.register(
            "swept_changes",
            "Changes that this instance has numbered",
            meters.swept.clone(),
        );
        r.register(
            "sweep_lag_seconds",
            "Time since the previous sweep of a shard that got numbers: how long a change waited at most",
            meters.sweep_lag.clone(),
        );
        r.register(
            "delivery_attempts",
            "Attempts of this instance to deliver events, by trigger and outcome",
            meters.attempts.clone(),
        );
        r.register(
            "delivery_seconds",
            "How long attempts took",
            meters.delivery.clone(),
        );
        r.register(
            "watch_batches",
            "Batches that this instance has handed over, by watch and outcome",
            meters.batches.clone(),
        );
        r.register(
            "pushed_messages",
            "Messages that sinks have taken from this instance, by subscription",
            meters.pushed.clone(),
        );
        r.register(
            "push_seconds",
            "How long sinks took for a batch, by subscription",
            meters.push_time.clone(),
        );
        r.register(
            "push_batch_messages",
            "How many messages a batch had, by subscription",
            meters.push_batch.clone(),
        );
        r.register(
            "push_failures",
            "Batches that a sink did not take and that are tried again, by subscription",
            meters.push_failures.clone(),
        );
        r.register(
            "push_refusals",
            "Messages that a sink will never take, by subscription",
            meters.push_refusals.clone(),
        );
        r.register(
            "push_lost_messages",
            "Messages that a sink had taken and lost, and that were sent again, by subscription",
            meters.push_lost.clone(),
        );
        r.register(
            "store_seconds",
            "How long calls of the database took, by operation",
            meters.store.clone(),
        );
        r.register(
            "store_errors",
            "Calls of the database that failed, by operation and kind of error",
            meters.store_errors.clone(),
        );
        r.register(
            "http_requests",
            "Requests, by route, method and status",
            meters.requests.clone(),
        );
        r.register(
            "http_request_seconds",
            "How long requests took until their answer began, by route",
            meters.request_time.clone(),
        );
        r.register(
            "read_changes",
            "Changes that this instance has read from the database for anybody",
            meters.changes.clone(),
        );
        meters
    }

    pub(super) fn swept(&self, changes: i64, lags_ms: impl Iterator<Item = i64>) {
        self.sweeps.inc();
        self.swept.inc_by(u64::try_from(changes).unwrap_or(0));
        for lag in lags_ms {
            self.sweep_lag.observe(lag as f64 / 1000.0);
        }
    }

    pub(super) fn candidate(&self, group: &str, owner: &str) {
        let mut candidate = self
            .candidate
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if candidate.get(group).is_none_or(|known| known != owner) {
            candidate.insert(group.to_owned(), owner.to_owned());
        }
    }

    pub(super) fn attempted(&self, trigger: &str, outcome: Outcome, took: Duration) {
        let labels = [
            ("trigger", trigger.to_owned()),
            ("outcome", outcome.as_str().to_owned()),
        ];
        self.attempts.get_or_create(&labels).inc();
        let labels = [("trigger", trigger.to_owned())];
        let seconds = took.as_secs_f64();
        self.delivery.get_or_create(&labels).observe(seconds);
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let tally = tallies.triggers.entry(trigger.to_owned()).or_default();
        match outcome {
            Outcome::Success => tally.success += 1,
            Outcome::Failure | Outcome::Unknown => tally.failure += 1,
        }
    }

    pub(super) fn batch(&self, watch: &str, outcome: &str, worked: bool) {
        let labels = [("watch", watch.to_owned()), ("outcome", outcome.to_owned())];
        self.batches.get_or_create(&labels).inc();
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let tally = tallies.watches.entry(watch.to_owned()).or_default();
        match worked {
            true => tally.success += 1,
            false => tally.failure += 1,
        }
    }

    pub(crate) fn pushed(&self, subscription: &str, messages: usize, took: Duration) {
        let labels = [("subscription", subscription.to_owned())];
        let seconds = took.as_secs_f64();
        self.pushed.get_or_create(&labels).inc_by(messages as u64);
        self.push_time.get_or_create(&labels).observe(seconds);
        let size = self.push_batch.get_or_create(&labels);
        size.observe(messages as f64);
    }

    pub(crate) fn push_failed(&self, subscription: &str) {
        let labels = [("subscription", subscription.to_owned())];
        self.push_failures.get_or_create(&labels).inc();
    }

    pub(crate) fn push_refused(&self, subscription: &str) {
        let labels = [("subscription", subscription.to_owned())];
        self.push_refusals.get_or_create(&labels).inc();
    }

    pub(crate) fn push_lost(&self, subscription: &str, messages: i64) {
        let labels = [("subscription", subscription.to_owned())];
        let lost = self.push_lost.get_or_create(&labels);
        lost.inc_by(u64::try_from(messages).unwrap_or(0));
    }

    pub(super) fn read(&self, changes: usize) {
        self.changes.inc_by(changes as u64);
    }

    pub(super) fn called(&self, operation: &'static str, took: Duration, failed: Option<String>) {
        let labels = [("operation", operation.to_owned())];
        let seconds = took.as_secs_f64();
        self.store.get_or_create(&labels).observe(seconds);
        if let Some(kind) = failed {
            let labels = [("operation", operation.to_owned()), ("kind", kind)];
            self.store_errors.get_or_create(&labels).inc();
        }
    }

    /// A request was answered.
    pub fn answered(&self, route: &str, method: &str, status: u16, took: Duration) {
        let labels = [
            ("route", route.to_owned()),
            ("method", method.to_owned()),
            ("status", status.to_string()),
        ];
        self.requests.get_or_create(&labels).inc();
        let labels = [("route", route.to_owned())];
        let seconds = took.as_secs_f64();
        self.request_time.get_or_create(&labels).observe(seconds);
    }

    /// What this instance has done so far, for the others.
    pub fn tallies(&self) -> Tallies {
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        tallies.clone()
    }

    /// Everything, as Prometheus wants it.
    pub fn text(&self, samples: &Arc<Samples>, now: Gauges) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        let mut sampled = Registry::with_prefix("changefeed");
        let candidate = self
            .candidate
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let collected = now.with(samples.clone(), candidate.clone());
        drop(candidate);
        sampled.register_collector(Box::new(collected));
        let mut rest = String::new();
        let _ = encode(&mut rest, &sampled);
        // One document has one end.
        let end = text.trim_end().strip_suffix("# EOF").map(str::len);
        text.truncate(end.unwrap_or(text.len()));
        text.push_str(&rest);
        text
    }
}
