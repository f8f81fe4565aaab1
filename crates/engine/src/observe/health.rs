//! Whether the loops of this instance are alive, and whether they get anywhere.
//!
//! A loop that waits for a database that does not answer looks as healthy as one that has nothing to do. So
//! every call that a loop makes is noted: one that is under way for too long, or that has done nothing but
//! fail for too long, is told of. The loops know nothing of this; their store notes it (`metered.rs`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::CancellationToken;
use changefeed_core::{Error, Kind, Remedy};

/// How long a call of a loop may take, or fail, before this instance is not ready.
const LATE: Duration = Duration::from_secs(10);
/// A call that failed and was not made again for this long is not wanted any more.
const FORGET: Duration = Duration::from_secs(120);
/// How often the log is brought up to date.
const LOOK: Duration = Duration::from_secs(1);

/// The loops of an instance and what became of them. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Health {
    loops: Arc<Mutex<BTreeMap<String, Loop>>>,
}

#[derive(Debug, Default)]
struct Loop {
    /// Why it has ended.
    ended: Option<String>,
    /// When a call of it was last answered.
    answered: Option<Instant>,
    /// The calls under way, and when they began.
    calls: BTreeMap<u64, (String, Instant)>,
    /// What failed the last time it was tried.
    failing: BTreeMap<String, Failing>,
    numbers: u64,
}

#[derive(Debug)]
struct Failing {
    since: Instant,
    last: Instant,
    /// Somebody else holds what it needs.
    held: bool,
    error: String,
}

impl Loop {
    /// What is wrong with it.
    fn trouble(&self, now: Instant) -> Option<String> {
        if let Some(why) = &self.ended {
            return Some(format!("ended: {why}"));
        }
        let slow = self.calls.values().min_by_key(|(_, began)| *began);
        if let Some((what, began)) = slow
            && now.duration_since(*began) > LATE
        {
            let seconds = now.duration_since(*began).as_secs();
            return Some(format!("{what}: no answer of the database for {seconds} s"));
        }
        self.fails(now, false)
    }

    /// What it cannot do because somebody else holds a lock, and what no other instance could do either.
    fn held_up(&self, now: Instant) -> Option<String> {
        self.fails(now, true)
    }

    fn fails(&self, now: Instant, held: bool) -> Option<String> {
        let failing = self
            .failing
            .iter()
            .filter(|(_, f)| f.held == held && now.duration_since(f.last) < FORGET)
            .min_by_key(|(_, f)| f.since)?;
        let (what, Failing { since, error, .. }) = failing;
        let lasts = now.duration_since(*since);
        (lasts > LATE).then(|| format!("{what}: has failed for {} s: {error}", lasts.as_secs()))
    }
}

impl Health {
    /// A loop runs.
    pub fn runs(&self, name: &str) {
        self.loops().insert(name.to_owned(), Loop::default());
    }

    /// A loop has ended, and this is why.
    pub fn ended(&self, name: &str, why: impl Into<String>) {
        let mut loops = self.loops();
        loops.entry(name.to_owned()).or_default().ended = Some(why.into());
    }

    /// Where the calls of a loop are noted.
    pub fn pulse(&self, name: &str) -> Pulse {
        Pulse {
            health: self.clone(),
            name: name.to_owned(),
        }
    }

    fn loops(&self) -> MutexGuard<'_, BTreeMap<String, Loop>> {
        self.loops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Each loop and what is wrong with it.
    pub fn checks(&self) -> BTreeMap<String, Option<String>> {
        let now = Instant::now();
        let loops = self.loops();
        loops
            .iter()
            .map(|(name, one)| (name.clone(), one.trouble(now)))
            .collect()
    }

    /// What loops cannot do because somebody else holds a lock, one sentence each.
    pub fn held_up(&self) -> Vec<String> {
        let now = Instant::now();
        let loops = self.loops();
        loops.values().filter_map(|one| one.held_up(now)).collect()
    }

    /// How long ago a call of each loop was last answered.
    pub fn ages(&self) -> Vec<(String, f64)> {
        let loops = self.loops();
        loops
            .iter()
            .filter_map(|(name, one)| {
                let age = one.answered?.elapsed().as_secs_f64();
                Some((name.clone(), age))
            })
            .collect()
    }

    /// Tells the log when a loop stops getting anywhere, and when it goes on, until told to stop.
    pub async fn tell(&self, shutdown: CancellationToken) {
        let mut told: BTreeMap<String, bool> = BTreeMap::new();
        while tokio::time::timeout(LOOK, shutdown.cancelled())
            .await
            .is_err()
        {
            let now = Instant::now();
            let troubles: Vec<(String, Option<String>)> = self
                .loops()
                .iter()
                .map(|(name, one)| (name.clone(), one.trouble(now).or_else(|| one.held_up(now))))
                .collect();
            for (name, trouble) in troubles {
                let was = told.insert(name.clone(), trouble.is_some());
                match trouble {
                    Some(why) if was != Some(true) => {
                        tracing::error!(name, why, "this loop makes no progress");
                    }
                    None if was == Some(true) => tracing::info!(name, "this loop goes on"),
                    _ => {}
                }
            }
        }
    }
}

/// Where the calls of one loop are noted. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Pulse {
    health: Health,
    name: String,
}

impl Pulse {
    /// A call begins.
    pub(super) fn call(&self, what: String) -> Call {
        let mut loops = self.health.loops();
        let this = loops.entry(self.name.clone()).or_default();
        this.numbers += 1;
        let number = this.numbers;
        this.calls.insert(number, (what.clone(), Instant::now()));
        Call {
            pulse: self.clone(),
            number,
            what,
        }
    }
}

/// A call under way; one that is dropped was cut off.
#[derive(Debug)]
pub(super) struct Call {
    pulse: Pulse,
    number: u64,
    what: String,
}

impl Call {
    /// The call is over.
    pub(super) fn over(self, error: Option<&Error>) {
        let mut loops = self.pulse.health.loops();
        let Some(this) = loops.get_mut(&self.pulse.name) else {
            return;
        };
        let now = Instant::now();
        match error {
            // It may pass by itself, and the loop tries again.
            Some(error) if error.kind().remedy() == Remedy::Retry => {
                let failing = this.failing.entry(self.what.clone()).or_insert(Failing {
                    since: now,
                    last: now,
                    held: false,
                    error: String::new(),
                });
                failing.last = now;
                failing.held = error.kind() == Kind::Busy;
                failing.error = error.to_string();
            }
            // Any other error ends the loop, or is one about this call alone.
            _ => {
                this.failing.remove(&self.what);
                this.answered = Some(now);
            }
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(this) = self.pulse.health.loops().get_mut(&self.pulse.name) {
            this.calls.remove(&self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trouble(health: &Health, after: Duration) -> Option<String> {
        let loops = health.loops();
        loops["sweep"].trouble(Instant::now() + after)
    }

    #[test]
    fn a_call_without_an_answer_and_one_that_only_fails_are_told_of() {
        let health = Health::default();
        health.runs("sweep");
        let (soon, late) = (LATE / 2, LATE * 2);
        let pulse = health.pulse("sweep");
        let call = pulse.call("sweep of group 0".to_owned());
        assert_eq!(trouble(&health, soon), None);
        let said = trouble(&health, late).unwrap();
        assert!(said.starts_with("sweep of group 0: no answer"), "{said}");
        call.over(None);
        assert_eq!(trouble(&health, late), None);
        let away = Error::new(changefeed_core::Kind::Unavailable, "away");
        for _ in 0..2 {
            pulse.call("sweep of group 1".to_owned()).over(Some(&away));
            // Another group that works does not hide it.
            pulse.call("sweep of group 0".to_owned()).over(None);
        }
        assert_eq!(trouble(&health, soon), None);
        let said = trouble(&health, late).unwrap();
        assert!(said.contains("group 1") && said.contains("away"), "{said}");
        assert_eq!(
            trouble(&health, FORGET * 2),
            None,
            "no further attempt is made"
        );
        // A lock that somebody keeps is no fault of this instance.
        let held = Error::new(Kind::Busy, "locked");
        pulse.call("sweep of group 1".to_owned()).over(Some(&held));
        assert_eq!(trouble(&health, late), None);
        let said = health.loops()["sweep"].held_up(Instant::now() + late);
        assert!(said.unwrap().ends_with("s: locked"));
        pulse.call("sweep of group 1".to_owned()).over(None);
        assert_eq!(trouble(&health, late), None);
        assert_eq!(health.loops()["sweep"].held_up(Instant::now() + late), None);
        drop(pulse.call("cut off".to_owned()));
        assert_eq!(trouble(&health, late), None);
        health.ended("sweep", "done");
        assert_eq!(trouble(&health, soon), Some("ended: done".to_owned()));
    }
}
