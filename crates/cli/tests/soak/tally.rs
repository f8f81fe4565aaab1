//! What has happened, in numbers: a table for people and one line of JSON.

use serde_json::{Map, Value, json};

/// Counts in the order in which they were first made.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    counts: Vec<(String, u64)>,
}

impl Tally {
    /// One more of these.
    pub(crate) fn count(&mut self, what: &str) {
        match self.counts.iter_mut().find(|(name, _)| name == what) {
            Some((_, count)) => *count += 1,
            None => self.counts.push((what.to_owned(), 1)),
        }
    }

    /// So many of these.
    pub(crate) fn note(&mut self, what: impl Into<String>, count: impl TryInto<u64>) {
        let count = count.try_into().unwrap_or(u64::MAX);
        self.counts.push((what.into(), count));
    }

    /// Prints everything.
    pub(crate) fn print(&self, database: &str, seed: u64) {
        let mut text = format!("\nchaos on {database}, seed {seed}\n");
        for (what, count) in &self.counts {
            text.push_str(&format!("  {what:<42} {count:>10}\n"));
        }
        let counts: Map<String, Value> = self
            .counts
            .iter()
            .map(|(what, count)| (what.replace([' ', '-'], "_"), json!(count)))
            .collect();
        let line = json!({"soak": database, "seed": seed, "counts": counts});
        eprintln!("{text}\n{line}");
    }
}
