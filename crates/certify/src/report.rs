//! What was found, in one file.

use std::collections::BTreeMap;
use std::time::Duration;

use changefeed::{Finding, Result};
use serde::Serialize;

use crate::place::Deadlocks;
use crate::plans::Plan;

/// What was looked at, and how it ended.
#[derive(Debug, Clone, Serialize)]
pub struct Part {
    /// What should hold.
    pub name: String,
    /// Why it does not, if so.
    pub failure: Option<String>,
    /// How long it took.
    pub seconds: f64,
}

/// A history in figures.
#[derive(Debug, Clone, Default, Serialize)]
pub struct HistoryReport {
    /// How long it was.
    pub seconds: f64,
    /// Transactions that were committed, and that were rolled back.
    pub committed: usize,
    /// Transactions that were rolled back.
    pub rolled_back: usize,
    /// Changes that got a number.
    pub changes: usize,
    /// Pages that were read.
    pub pages: usize,
    /// ULID transactions that were committed.
    pub ulid_transactions: usize,
    /// From the confirmed commit of a change until a reader had it, in milliseconds: the median and the slowest of a
    /// hundred.
    pub latency_ms: Option<(f64, f64)>,
    /// What the checkers found; none means that the promises were kept.
    pub violations: Vec<String>,
}

impl HistoryReport {
    pub(crate) fn worst(&self) -> Option<String> {
        let first = self.violations.first()?;
        Some(format!(
            "{} violations, the first: {first}",
            self.violations.len()
        ))
    }
}

/// Everything that was found.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The version of the program.
    pub program: &'static str,
    /// The scratch database, which is gone by now.
    pub database: String,
    /// Versions and settings.
    pub facts: BTreeMap<String, String>,
    /// What `doctor` says about the server.
    pub findings: Vec<Finding>,
    /// What was looked at.
    pub parts: Vec<Part>,
    /// The history.
    pub history: Option<HistoryReport>,
    /// The plans, with what is wrong with them.
    pub plans: Vec<Plan>,
    /// What the server told of deadlocks.
    pub deadlocks: Vec<String>,
    /// What a reader of this should know.
    pub notes: Vec<String>,
    /// How long all of it took.
    pub seconds: f64,
}

impl Report {
    pub(crate) fn new(database: &str) -> Self {
        Report {
            program: env!("CARGO_PKG_VERSION"),
            database: database.to_owned(),
            facts: BTreeMap::new(),
            findings: Vec::new(),
            parts: Vec::new(),
            history: None,
            plans: Vec::new(),
            deadlocks: Vec::new(),
            notes: Vec::new(),
            seconds: 0.0,
        }
    }

    /// Whether everything held.
    pub fn holds(&self) -> bool {
        self.failures().next().is_none()
    }

    /// What did not hold.
    pub fn failures(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(|part| part.failure.is_some())
    }

    pub(crate) fn note(&mut self, note: &str) {
        self.notes.push(note.to_owned());
    }

    pub(crate) fn passed(&mut self, name: &str, took: Duration) {
        self.parts.push(Part {
            name: name.to_owned(),
            failure: None,
            seconds: took.as_secs_f64(),
        });
    }

    pub(crate) fn failed(&mut self, name: &str, why: &str, took: Duration) {
        self.parts.push(Part {
            name: name.to_owned(),
            failure: Some(why.to_owned()),
            seconds: took.as_secs_f64(),
        });
    }

    pub(crate) fn outcome(&mut self, name: &str, outcome: Result<()>, took: Duration) {
        match outcome {
            Ok(()) => self.passed(name, took),
            Err(error) => self.failed(name, &error.to_string(), took),
        }
    }

    /// Plans read what they need, and no more.
    pub(crate) fn judge_plans(&mut self, plans: Vec<Plan>, took: Duration) {
        let name = "no statement walks through a table that grows";
        if plans.is_empty() {
            self.note("plans could not be seen with the rights of this user");
            return;
        }
        let bad: Vec<String> = plans
            .iter()
            .flat_map(|plan| {
                let of = |complaint: &String| format!("{complaint}, in {}", plan.statement);
                plan.complaints.iter().map(of).collect::<Vec<_>>()
            })
            .collect();
        match bad.first() {
            None => self.passed(name, took),
            Some(first) => {
                self.failed(
                    name,
                    &format!("{} complaints, the first: {first}", bad.len()),
                    took,
                );
            }
        }
        self.plans = plans;
    }

    /// Work of ours meets nobody in a deadlock.
    pub(crate) fn judge_deadlocks(&mut self, before: Deadlocks, after: Deadlocks) {
        let name = "nobody met in a deadlock";
        let more = after.count - before.count;
        self.deadlocks = after.told;
        if more == 0 {
            return self.passed(name, Duration::ZERO);
        }
        let why = format!("the server counted {more} while we worked");
        self.failed(name, &why, Duration::ZERO);
    }
}
