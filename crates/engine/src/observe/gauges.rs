//! Gauges that are known when somebody asks: those of the last sample, and those of this moment.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use changefeed_core::{Connections, LeaseHolder};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::samples::Samples;

/// What is true at this moment.
#[derive(Debug, Clone)]
pub struct Gauges {
    /// Connections to the database.
    pub database: Connections,
    /// Connections of clients.
    pub connections: usize,
    /// Requests at work.
    pub working: usize,
    /// Long polls and streams.
    pub waiting: usize,
    /// Each loop, and how many seconds ago it was last answered by the database.
    pub loops: Vec<(String, f64)>,
}

impl Gauges {
    /// `candidate` are the groups that this instance sweeps or would sweep, and under which name.
    pub(super) fn with(
        self,
        samples: Arc<Samples>,
        candidate: BTreeMap<String, String>,
    ) -> Collected {
        Collected {
            now: self,
            samples,
            candidate,
        }
    }
}

#[derive(Debug)]
pub(super) struct Collected {
    now: Gauges,
    samples: Arc<Samples>,
    candidate: BTreeMap<String, String>,
}

/// Writes one gauge with any number of label sets.
fn gauge<'a, const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl Iterator<Item = ([(&'static str, String); N], f64)> + 'a,
) -> fmt::Result {
    let mut values = values.peekable();
    if values.peek().is_none() {
        return Ok(());
    }
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        // A family without labels would be written with empty braces.
        if N == 0 {
            metric.encode_gauge(&value)?;
        } else {
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
    }
    Ok(())
}

fn seconds(ms: i64) -> f64 {
    ms as f64 / 1000.0
}

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let e = &mut encoder;
        let now = &self.now;
        let c = now.database;
        let states = [
            ("most", c.most),
            ("open", c.open),
            ("idle", c.idle),
            ("waiting", c.waiting),
        ];
        gauge(
            e,
            "connections",
            "Connections to the database: most possible, open, idle, and callers who wait for one",
            states
                .into_iter()
                .map(|(state, n)| ([("state", state.to_owned())], n as f64)),
        )?;
        gauge(
            e,
            "loop_age_seconds",
            "How long ago the database last answered a loop of this instance",
            now.loops
                .iter()
                .map(|(name, age)| ([("loop", name.clone())], *age)),
        )?;
        gauge(
            e,
            "http_connections",
            "Connections of clients that are open",
            std::iter::once(([], now.connections as f64)),
        )?;
        gauge(
            e,
            "http_working",
            "Requests at work",
            std::iter::once(([], now.working as f64)),
        )?;
        gauge(
            e,
            "http_waiting",
            "Long polls and streams that wait",
            std::iter::once(([], now.waiting as f64)),
        )?;
        let Some(sample) = self.samples.latest() else {
            return Ok(());
        };
        gauge(
            e,
            "sample_age_seconds",
            "How old the gauges below are that come from the database",
            std::iter::once(([], sample.age().as_secs_f64())),
        )?;
        let status = &sample.status;
        let shards = || {
            status.feeds.iter().flat_map(|feed| {
                feed.shards.iter().map(|shard| {
                    let labels = [
                        ("feed", feed.name.to_string()),
                        ("shard", shard.state.shard.to_string()),
                    ];
                    (labels, shard)
                })
            })
        };
        gauge(
            e,
            "shard_last_number",
            "The newest number of a shard; its rate is the rate of changes",
            shards().filter_map(|(l, s)| Some((l, s.state.last.number()? as f64))),
        )?;
        gauge(
            e,
            "shard_pending_changes",
            "Committed changes that wait for their number",
            shards().map(|(l, s)| (l, s.state.pending as f64)),
        )?;
        gauge(
            e,
            "shard_lag_seconds",
            "How long changes have been waiting for their number, as far as samples have seen",
            shards().map(|(l, s)| (l, seconds(s.lag_ms))),
        )?;
        let subscriptions = || {
            let all = status.subscriptions.iter();
            all.map(|s| ([("subscription", s.name.to_string())], s))
        };
        gauge(
            e,
            "subscription_failing_seconds",
            "How long the sink of a subscription has taken nothing",
            subscriptions().map(|(l, s)| (l, s.failing_ms.map_or(0.0, seconds))),
        )?;
        gauge(
            e,
            "subscription_stopped_shards",
            "Shards of a subscription that a person has to see to",
            subscriptions().map(|(l, s)| (l, s.stopped_shards as f64)),
        )?;
        let consumers = || {
            status.consumers.iter().map(|c| {
                let labels = [
                    ("feed", c.feed.to_string()),
                    ("shard", c.shard.to_string()),
                    ("consumer", c.name.to_string()),
                ];
                (labels, c)
            })
        };
        gauge(
            e,
            "consumer_lag_changes",
            "Numbered changes that a consumer has not read",
            consumers().map(|(l, c)| (l, c.lag_changes as f64)),
        )?;
        gauge(
            e,
            "consumer_lag_seconds",
            "How long the oldest of them has had its number",
            consumers().map(|(l, c)| (l, seconds(c.lag_ms))),
        )?;
        gauge(
            e,
            "consumer_expired",
            "1 if what comes after the consumer's cursor was trimmed",
            consumers().map(|(l, c)| (l, f64::from(u8::from(c.expired)))),
        )?;
        let triggers = || {
            status
                .triggers
                .iter()
                .map(|t| ([("trigger", t.state.name.to_string())], t))
        };
        gauge(
            e,
            "trigger_pending_events",
            "Events that wait or are being delivered; counting stops at 100,000",
            triggers().map(|(l, t)| (l, t.state.pending as f64)),
        )?;
        gauge(
            e,
            "trigger_in_flight_events",
            "Events that are being delivered now: leases that are held",
            triggers().map(|(l, t)| (l, t.state.in_flight as f64)),
        )?;
        gauge(
            e,
            "trigger_dead_letters",
            "Dead letters; counting stops at 100,000",
            triggers().map(|(l, t)| (l, t.state.dead_letters as f64)),
        )?;
        gauge(
            e,
            "trigger_overdue_seconds",
            "How long the event that has waited longest is overdue",
            triggers().map(|(l, t)| (l, seconds(t.state.overdue_ms.unwrap_or(0)))),
        )?;
        gauge(
            e,
            "trigger_paused",
            "1 if the trigger delivers nothing at present",
            triggers().map(|(l, t)| (l, f64::from(u8::from(t.paused.is_some())))),
        )?;
        let watches = || {
            status
                .watches
                .iter()
                .map(|w| ([("watch", w.status.watch.name.to_string())], w))
        };
        gauge(
            e,
            "watch_unprocessed_rows",
            "Changed rows that were not processed yet, those in process included",
            watches().map(|(l, w)| (l, w.status.unprocessed as f64)),
        )?;
        gauge(
            e,
            "watch_leased_rows",
            "Changed rows that an instance holds",
            watches().map(|(l, w)| (l, w.status.leased as f64)),
        )?;
        gauge(
            e,
            "watch_parked_rows",
            "Parked rows",
            watches().map(|(l, w)| (l, w.status.parked as f64)),
        )?;
        let held = |lease: &LeaseHolder| lease.expires_in_ms > 0;
        gauge(
            e,
            "sweep_leader",
            "1 if this instance sweeps the group, 0 if it stands by",
            // By the same look as the leases: what an instance believes of itself may be out of date.
            self.candidate.iter().map(|(group, owner)| {
                let lease = format!("sweep/{group}");
                let leads = |l: &LeaseHolder| l.name == lease && l.owner == *owner && held(l);
                let leads = status.leases.iter().any(leads);
                ([("group", group.clone())], f64::from(u8::from(leads)))
            }),
        )?;
        gauge(
            e,
            "lease_held",
            "1 if an instance holds the lease",
            status.leases.iter().map(|lease| {
                let held = f64::from(u8::from(held(lease)));
                let labels = [
                    ("lease", lease.name.clone()),
                    ("owner", lease.owner.clone()),
                ];
                (labels, held)
            }),
        )?;
        gauge(
            e,
            "instances",
            "Instances that were heard of lately",
            std::iter::once(([], status.instances.len() as f64)),
        )?;
        gauge(
            e,
            "ulid_incidents",
            "How often the ULID writers of a shard had to go on without one of theirs",
            status.incidents.iter().map(|i| {
                let labels = [("feed", i.feed.to_string()), ("shard", i.shard.to_string())];
                (labels, i.count as f64)
            }),
        )
    }
}
