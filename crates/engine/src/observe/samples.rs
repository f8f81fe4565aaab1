//! What the database looks like, every few seconds: one look serves the dashboard, the charts and
//! Prometheus, however many of them there are.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::{CancellationToken, Changefeed};
use changefeed_core::view::{
    FeedStatus, InstanceStatus, ShardStatus, Status, SubscriptionStatus, SubscriptionView,
    TriggerStatus, WatchOverview,
};
use changefeed_core::{
    Cursor, EventTrigger, FeedName, Instance, Kind, LeaseHolder, Result, ShardId, ShardState,
    Tallies, Tally, TriggerState,
};

use super::meters::Meters;
use super::series::{Line, Series};

/// The time between two samples.
pub const STEP: Duration = Duration::from_secs(5);
/// The longest time between the end of one and the next.
const LONGEST_REST: Duration = Duration::from_secs(60);
/// How long the changes of a shard may wait without any of them getting its number, in milliseconds.
const LATE_MS: i64 = 10_000;

/// One look at the database.
#[derive(Debug)]
pub struct Sample {
    taken: Instant,
    /// When, by this machine's clock.
    pub at: SystemTime,
    /// What was seen.
    pub status: Status,
    /// For each shard that has changes waiting: its newest number then, and since when.
    stuck: BTreeMap<(FeedName, ShardId), (Cursor, Instant)>,
    /// The triggers whose events nobody delivers, one sentence each.
    undelivered: Vec<String>,
    /// What each instance had done.
    tallies: BTreeMap<String, Tallies>,
}

impl Sample {
    /// The shards whose changes get no numbers, and the triggers whose events nobody delivers.
    fn standstill(&self) -> Vec<String> {
        let mut told = standstill(&self.status);
        told.extend(self.undelivered.iter().cloned());
        told
    }

    /// How long ago it was taken.
    pub fn age(&self) -> Duration {
        self.taken.elapsed()
    }
}

/// The instance that samples. What it has done itself it knows at once; of the others it learns only
/// what they announced, which comes in beats that need not be those of the samples.
#[derive(Debug)]
pub struct Own {
    /// Its name.
    pub name: String,
    /// What it has counted.
    pub meters: Arc<Meters>,
}

/// The last sample, and what is kept of those before.
#[derive(Debug, Default)]
pub struct Samples {
    latest: Mutex<Option<Arc<Sample>>>,
    /// Why the last look failed.
    error: Mutex<Option<String>>,
    series: Mutex<Series>,
}

impl Samples {
    /// The last sample.
    pub fn latest(&self) -> Option<Arc<Sample>> {
        let latest = self.latest.lock();
        latest.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why the last look failed.
    pub fn error(&self) -> Option<String> {
        let error = self.error.lock();
        error.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The last hour of the lines that are wanted.
    pub fn lines(&self, wanted: impl Fn(&Line) -> bool) -> Vec<(Line, Vec<Option<f32>>)> {
        let series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        series.lines(wanted)
    }

    /// What stands still, one sentence each.
    pub fn standstill(&self) -> Vec<String> {
        self.latest()
            .map_or_else(Vec::new, |sample| sample.standstill())
    }

    /// Samples until told to stop.
    pub async fn run(&self, db: Changefeed, own: Own, shutdown: CancellationToken) {
        let mut first = true;
        loop {
            let began = Instant::now();
            let (shards, error) = match self.sample(&db, &own).await {
                Ok(shards) => (shards, None),
                Err(error) => {
                    tracing::debug!(%error, "no sample");
                    (0, Some(error.to_string()))
                }
            };
            *self.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
            // The first one also pays for what is done once.
            let rest = match std::mem::take(&mut first) {
                true => STEP,
                false => rest_after(began.elapsed(), shards),
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(rest) => {}
            }
        }
    }

    /// Takes a sample and returns its number of shards.
    async fn sample(&self, db: &Changefeed, own: &Own) -> Result<usize> {
        let before = self.latest();
        let before = before.as_deref();
        let sample = look(db, Some(own), before, before).await?;
        let missed = before.map_or(0, |before| {
            let steps = (sample.taken - before.taken).as_secs_f64() / STEP.as_secs_f64();
            (steps.round() as usize).saturating_sub(1)
        });
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        series.step(missed, lines(&sample.status));
        drop(series);
        let was = before.map_or_else(Vec::new, Sample::standstill);
        let is = sample.standstill();
        match (was.is_empty(), is.is_empty()) {
            (true, false) => tracing::error!(what = is.join("; "), "something stands still"),
            (false, true) => tracing::info!("what stood still goes on"),
            _ => {}
        }
        let shards = sample.status.feeds.iter().map(|f| f.shards.len()).sum();
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(sample));
        Ok(shards)
    }
}

/// The shards whose changes wait although none of them gets its number, one sentence each. Somebody may
/// have locked the shard, or nobody sweeps its group; `doctor` says which.
fn standstill(status: &Status) -> Vec<String> {
    let shards = status
        .feeds
        .iter()
        .flat_map(|feed| feed.shards.iter().map(move |shard| (&feed.name, shard)));
    shards
        .filter(|(_, shard)| shard.lag_ms >= LATE_MS)
        .map(|(feed, shard)| {
            format!(
                "feed {feed} shard {}: {} changes have waited for their numbers for {} s; \
                 `changefeed doctor` looks for the reason",
                shard.state.shard,
                shard.state.pending,
                shard.lag_ms / 1000
            )
        })
        .collect()
}

/// Events that are due are taken at once, unless they wait for others of their key, or for those that are under way.
/// If nothing moves, somebody has locked the trigger, or nobody delivers; `doctor` says which.
fn undelivered(trigger: &EventTrigger, state: &TriggerState, moves: bool) -> Option<String> {
    let waited = state.overdue_ms.filter(|ms| *ms >= LATE_MS)?;
    let awaited = trigger.paused.is_some() || trigger.definition.capture.order_by.is_some();
    (!awaited && !moves && state.in_flight == 0).then(|| {
        format!(
            "trigger {}: {} events wait, the oldest for {} s, and nobody delivers them; \
             `changefeed doctor` looks for the reason",
            trigger.definition.name,
            state.pending,
            waited / 1000
        )
    })
}

/// The rest for each shard that was looked at, so that thousands of idle ones cost hardly anything.
const REST_PER_SHARD: Duration = Duration::from_millis(2);

/// Where counting takes long, a twentieth of the time is spent on it, unless nobody would believe the
/// numbers any more.
fn rest_after(took: Duration, shards: usize) -> Duration {
    let shards = REST_PER_SHARD.saturating_mul(u32::try_from(shards).unwrap_or(u32::MAX));
    let least = STEP.saturating_sub(took);
    (took * 19)
        .max(shards)
        .clamp(least, LONGEST_REST.max(least))
}

/// The values of a sample that are kept for charts.
fn lines(status: &Status) -> impl Iterator<Item = (Line, f64)> {
    let mut lines = Vec::new();
    let mut add = |kind, name: &str, value: Option<f64>| {
        if let Some(value) = value {
            lines.push(((kind, name.to_owned()), value));
        }
    };
    for feed in &status.feeds {
        let name = feed.name.as_str();
        add("feed_rate", name, feed.rate);
        add("feed_pending", name, Some(feed.pending as f64));
    }
    let mut lags: BTreeMap<String, i64> = BTreeMap::new();
    for consumer in &status.consumers {
        let name = format!("{}/{}", consumer.feed, consumer.name);
        *lags.entry(name).or_default() += consumer.lag_changes;
    }
    for (name, lag) in lags {
        add("consumer_lag", &name, Some(lag as f64));
    }
    for trigger in &status.triggers {
        let name = trigger.state.name.as_str();
        add("trigger_success_rate", name, trigger.success_rate);
        add("trigger_failure_rate", name, trigger.failure_rate);
        add("trigger_pending", name, Some(trigger.state.pending as f64));
        let dead_letters = trigger.state.dead_letters as f64;
        add("trigger_dead_letters", name, Some(dead_letters));
    }
    for subscription in &status.subscriptions {
        let name = subscription.name.as_str();
        add("subscription_rate", name, subscription.rate);
        add(
            "subscription_lag",
            name,
            Some(subscription.lag_changes as f64),
        );
    }
    for watch in &status.watches {
        let name = watch.status.watch.name.as_str();
        let unprocessed = watch.status.unprocessed as f64;
        add("watch_unprocessed", name, Some(unprocessed));
    }
    lines.into_iter()
}

/// Takes one sample. How long changes wait comes from the sample before, and rates from the state at
/// `earlier`.
pub(super) async fn look(
    db: &Changefeed,
    own: Option<&Own>,
    before: Option<&Sample>,
    earlier: Option<&Sample>,
) -> Result<Sample> {
    let store = db.store();
    let mut status = Status::default();
    status.database.incarnation = Some(store.incarnation().await?);
    let mut stuck = BTreeMap::new();
    let taken = Instant::now();
    let passed = earlier.map(|earlier| (taken - earlier.taken).as_secs_f64());
    for feed in store.feeds().await? {
        let name = feed.name.clone();
        let then = earlier.and_then(|b| b.status.feeds.iter().find(|f| f.name == name));
        let mut out = FeedStatus {
            name: name.clone(),
            id: feed.id,
            rate: None,
            pending: 0,
            lag_ms: 0,
            shards: Vec::new(),
            error: None,
        };
        match store.shard_states(&feed).await {
            Ok(states) => {
                for state in states {
                    let key = (name.clone(), state.shard);
                    let known = before.and_then(|b| b.stuck.get(&key));
                    let since = waits_since(&state, known, taken);
                    // Found by order: there may be ten thousand, every five seconds.
                    let then = then.and_then(|f| {
                        let at = f
                            .shards
                            .binary_search_by_key(&state.shard, |s| s.state.shard);
                        at.ok().map(|at| &f.shards[at])
                    });
                    let lag = since.map_or(Duration::ZERO, |since| taken - since);
                    if let Some(since) = since {
                        stuck.insert(key, (state.last, since));
                    }
                    out.shards.push(shard(state, then, passed, lag));
                }
            }
            // One feed that is broken must not hide the others.
            Err(error) if error.kind() != Kind::Unavailable => out.error = Some(error.to_string()),
            Err(error) => return Err(error),
        }
        let rates: Vec<f64> = out.shards.iter().filter_map(|s| s.rate).collect();
        out.rate = (!rates.is_empty()).then(|| rates.iter().sum());
        out.pending = out.shards.iter().map(|s| s.state.pending).sum();
        out.lag_ms = out.shards.iter().map(|s| s.lag_ms).max().unwrap_or(0);
        status.feeds.push(out);
    }
    status.consumers = store.consumers().await?;
    let instances = store.instances().await?;
    let leases = store.lease_holders().await?;
    let tallies: BTreeMap<String, Tallies> = instances
        .iter()
        .map(|i| (i.name.clone(), i.tallies.clone()))
        .chain(own.map(|own| (own.name.clone(), own.meters.tallies())))
        .collect();
    let work = Work {
        now: &tallies,
        before: earlier.map(|e| &e.tallies),
        passed,
    };
    let undelivered;
    (status.triggers, undelivered) = triggers(db, &work).await?;
    for watch in store.watches().await? {
        let name = watch.name.to_string();
        let (total, _) = work.of(|t| &t.watches, &name);
        match db.watch_status(&watch, 0).await {
            Ok(state) => status.watches.push(WatchOverview {
                status: state,
                success: total.success,
                failure: total.failure,
            }),
            // Its table may be gone, or it was dropped since.
            Err(error) if error.kind() != Kind::Unavailable => {
                tracing::debug!(watch = name, %error, "the state of this watch cannot be read");
            }
            Err(error) => return Err(error),
        }
    }
    for subscription in store.subscriptions().await? {
        let view = SubscriptionView::new(&subscription, &status.consumers, &leases);
        let name = &view.definition.name;
        let then = earlier.and_then(|e| e.status.subscriptions.iter().find(|s| s.name == *name));
        let before = then
            .map(|then| then.sent)
            .zip(passed.filter(|passed| *passed > 0.0));
        status
            .subscriptions
            .push(SubscriptionStatus::new(&view, before));
    }
    status.incidents = store.incidents().await?;
    status.instances = seen(&instances, &leases);
    status.leases = leases;
    Ok(Sample {
        taken,
        at: SystemTime::now(),
        status,
        stuck,
        undelivered,
        tallies,
    })
}

/// How all triggers are doing, and those whose events nobody delivers.
async fn triggers(db: &Changefeed, work: &Work<'_>) -> Result<(Vec<TriggerStatus>, Vec<String>)> {
    let states = db.store().trigger_states().await?;
    let triggers = db.store().triggers().await?;
    let still = triggers
        .iter()
        .filter_map(|trigger| {
            let name = &trigger.definition.name;
            let (_, rates) = work.of(|t| &t.triggers, name.as_str());
            let moves = rates.is_some_and(|(success, failure)| success + failure > 0.0);
            let state = states.iter().find(|s| s.name == *name)?;
            undelivered(trigger, state, moves)
        })
        .collect();
    let all = triggers
        .into_iter()
        .map(|trigger| {
            let name = trigger.definition.name;
            let (total, rates) = work.of(|t| &t.triggers, name.as_str());
            let state = states.iter().find(|s| s.name == name).cloned();
            TriggerStatus {
                state: state.unwrap_or_else(|| TriggerState::new(name)),
                table: trigger.definition.table,
                paused: trigger.paused,
                success_rate: rates.map(|(success, _)| success),
                failure_rate: rates.map(|(_, failure)| failure),
                success: total.success,
                failure: total.failure,
            }
        })
        .collect();
    Ok((all, still))
}

/// Who serves, with the leases that each holds.
pub fn seen(instances: &[Instance], leases: &[LeaseHolder]) -> Vec<InstanceStatus> {
    let held = |owner: &str| -> Vec<String> {
        leases
            .iter()
            .filter(|l| l.owner == owner && l.expires_in_ms > 0)
            .map(|l| l.name.clone())
            .collect()
    };
    instances
        .iter()
        .map(|instance| InstanceStatus {
            leases: held(&instance.name),
            instance: instance.clone(),
        })
        .collect()
}

/// Since when a shard has had changes that wait for their number: as long as its newest number stays
/// the same they are the same changes.
fn waits_since(
    state: &ShardState,
    known: Option<&(Cursor, Instant)>,
    now: Instant,
) -> Option<Instant> {
    if state.pending == 0 {
        return None;
    }
    match known {
        Some((last, since)) if *last == state.last => Some(*since),
        _ => Some(now),
    }
}

fn shard(
    state: ShardState,
    earlier: Option<&ShardStatus>,
    passed: Option<f64>,
    lag: Duration,
) -> ShardStatus {
    let before = earlier.and_then(|e| e.state.last.number());
    // Numbers are gapless, so their difference is how many changes there were.
    let rate = match (state.last.number(), before, passed) {
        (Some(now), Some(before), Some(passed)) if passed > 0.0 => {
            Some((now - before).max(0) as f64 / passed)
        }
        _ => None,
    };
    ShardStatus {
        state,
        lag_ms: i64::try_from(lag.as_millis()).unwrap_or(i64::MAX),
        rate,
    }
}

/// What all instances have done, now and at the last look.
struct Work<'a> {
    now: &'a BTreeMap<String, Tallies>,
    before: Option<&'a BTreeMap<String, Tallies>>,
    passed: Option<f64>,
}

impl Work<'_> {
    /// The total of one thing, and its rates of success and failure since the last look.
    fn of(
        &self,
        what: impl Fn(&Tallies) -> &BTreeMap<String, Tally>,
        name: &str,
    ) -> (Tally, Option<(f64, f64)>) {
        let (mut total, mut added) = (Tally::default(), Tally::default());
        for (instance, tallies) in self.now {
            let now = what(tallies).get(name).copied().unwrap_or_default();
            let then = self
                .before
                .and_then(|b| b.get(instance))
                .and_then(|t| what(t).get(name).copied())
                .unwrap_or_default();
            total.success += now.success;
            total.failure += now.failure;
            let since = now.since(then);
            added.success += since.success;
            added.failure += since.failure;
        }
        let rates = self
            .passed
            .filter(|passed| *passed > 0.0)
            .map(|passed| (added.success as f64 / passed, added.failure as f64 / passed));
        (total, rates)
    }
}

#[cfg(test)]
mod tests {
    use changefeed_core::{
        Capture, Delivery, FeedId, OrderBy, SweepGroup, TableName, TriggerDefinition, TriggerId,
    };

    use super::*;

    fn state(last: i64, pending: i64) -> ShardState {
        ShardState {
            shard: ShardId(0),
            sweep_group: SweepGroup(0),
            last: Cursor::Number(last),
            pending,
            since_ms: 0,
        }
    }

    #[test]
    fn a_rate_is_the_difference_of_numbers() {
        let earlier = shard(state(100, 0), None, None, Duration::ZERO);
        assert_eq!(earlier.rate, None);
        let now = shard(state(150, 0), Some(&earlier), Some(5.0), Duration::ZERO);
        assert_eq!(now.rate, Some(10.0));
    }

    #[test]
    fn changes_wait_for_as_long_as_no_number_is_given() {
        let (then, now) = (Instant::now(), Instant::now() + STEP);
        let first = waits_since(&state(100, 3), None, then).unwrap();
        assert_eq!(first, then);
        let known = (Cursor::Number(100), first);
        assert_eq!(waits_since(&state(100, 5), Some(&known), now), Some(then));
        assert_eq!(waits_since(&state(101, 5), Some(&known), now), Some(now));
        assert_eq!(waits_since(&state(101, 0), Some(&known), now), None);
    }

    #[test]
    fn a_shard_that_stands_still_is_told_of() {
        let seconds = Duration::from_secs;
        let feed = FeedStatus {
            name: "orders".parse().unwrap(),
            id: FeedId(37),
            rate: None,
            pending: 14,
            lag_ms: 12_000,
            shards: vec![
                shard(state(100, 7), None, None, seconds(9)),
                shard(state(100, 0), None, None, Duration::ZERO),
                shard(state(100, 7), None, None, seconds(12)),
            ],
            error: None,
        };
        let status = Status {
            feeds: vec![feed],
            ..Status::default()
        };
        let told = standstill(&status);
        assert_eq!(told.len(), 1);
        assert!(
            told[0].starts_with("feed orders shard 0: 7 changes have waited"),
            "{told:?}"
        );
        assert!(told[0].contains("for 12 s"), "{told:?}");
    }

    #[test]
    fn a_trigger_whose_events_nobody_takes_is_told_of() {
        let definition = TriggerDefinition {
            name: "mail".parse().unwrap(),
            table: TableName::unqualified("orders"),
            capture: Capture::default(),
            delivery: Delivery::default(),
        };
        let mut trigger = EventTrigger {
            id: TriggerId(1),
            definition,
            paused: None,
        };
        let state = |overdue_ms, in_flight| TriggerState {
            name: "mail".parse().unwrap(),
            pending: 7,
            in_flight,
            dead_letters: 0,
            overdue_ms,
        };
        let stuck = state(Some(12_000), 0);
        let told = undelivered(&trigger, &stuck, false).unwrap();
        assert!(
            told.starts_with("trigger mail: 7 events wait, the oldest for 12 s"),
            "{told}"
        );
        assert_eq!(undelivered(&trigger, &stuck, true), None);
        assert_eq!(undelivered(&trigger, &state(Some(9_000), 0), false), None);
        assert_eq!(undelivered(&trigger, &state(Some(12_000), 1), false), None);
        assert_eq!(undelivered(&trigger, &state(None, 0), false), None);
        // Behind one that is to be tried again.
        trigger.definition.capture.order_by = Some(OrderBy::Key);
        assert_eq!(undelivered(&trigger, &stuck, false), None);
        trigger.definition.capture.order_by = None;
        trigger.paused = Some("rest".to_owned());
        assert_eq!(undelivered(&trigger, &stuck, false), None);
    }

    #[test]
    fn looking_costs_little_and_does_not_stop() {
        let seconds = Duration::from_secs;
        assert_eq!(rest_after(Duration::ZERO, 100), STEP);
        assert_eq!(
            rest_after(Duration::from_millis(100), 1),
            STEP - Duration::from_millis(100)
        );
        assert_eq!(rest_after(seconds(1), 1), seconds(19));
        assert_eq!(rest_after(seconds(1), 12_000), seconds(24));
        assert_eq!(rest_after(seconds(15), 1), LONGEST_REST);
        assert_eq!(rest_after(seconds(300), 1), LONGEST_REST);
    }

    #[test]
    fn what_instances_have_done_adds_up() {
        let tallies = |success| {
            let mut tallies = Tallies::default();
            let tally = Tally {
                success,
                failure: 0,
            };
            tallies.triggers.insert("t".to_owned(), tally);
            tallies
        };
        let before = BTreeMap::from([("a".to_owned(), tallies(10))]);
        let now = BTreeMap::from([("a".to_owned(), tallies(15)), ("b".to_owned(), tallies(5))]);
        let work = Work {
            now: &now,
            before: Some(&before),
            passed: Some(5.0),
        };
        let (total, rates) = work.of(|t| &t.triggers, "t");
        assert_eq!((total.success, rates), (20, Some((2.0, 0.0))));
    }
}
