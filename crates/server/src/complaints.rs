//! What the log says about requests that failed: the first of a kind at once, and then one line a minute
//! with a count. A database that is away makes every request fail, and the log must stay readable.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use changefeed_engine::CancellationToken;

/// How often a repeated complaint is logged.
const EVERY: Duration = Duration::from_secs(60);
/// Different complaints that are told apart.
const KINDS: usize = 50;

/// Why a request failed, for the log.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) error: String,
    pub(crate) cause: Option<String>,
}

/// What was said, and how often it came again since.
#[derive(Debug, Default)]
pub(crate) struct Complaints(Mutex<BTreeMap<String, u64>>);

impl Complaints {
    /// A request has failed.
    pub(crate) fn failed(&self, failure: &Failure) {
        if self.is_new(&failure.error) {
            tracing::warn!(
                error = failure.error,
                cause = failure.cause,
                "a request failed"
            );
        }
    }

    fn is_new(&self, error: &str) -> bool {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = match said.len() < KINDS || said.contains_key(error) {
            true => error,
            false => "other errors",
        };
        if let Some(again) = said.get_mut(key) {
            *again += 1;
            return false;
        }
        said.insert(key.to_owned(), 0);
        true
    }

    /// What came again since the last time, and forgets what did not.
    fn again(&self) -> Vec<(String, u64)> {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        said.retain(|_, again| *again > 0);
        said.iter_mut()
            .map(|(error, again)| (error.clone(), std::mem::take(again)))
            .collect()
    }

    /// Tells every minute what came again, until told to stop.
    pub(crate) async fn run(&self, shutdown: CancellationToken) {
        loop {
            let stopped = tokio::time::timeout(EVERY, shutdown.cancelled()).await;
            for (error, requests) in self.again() {
                tracing::warn!(requests, error, "requests failed in the last minute");
            }
            if stopped.is_ok() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_and_the_others_are_counted() {
        let complaints = Complaints::default();
        assert!(complaints.is_new("away") && !complaints.is_new("away"));
        assert!(!complaints.is_new("away") && complaints.is_new("broken"));
        assert_eq!(complaints.again(), [("away".to_owned(), 2)]);
        assert!(!complaints.is_new("away"), "it goes on");
        assert_eq!(complaints.again(), [("away".to_owned(), 1)]);
        assert!(complaints.again().is_empty());
        assert!(complaints.is_new("away"), "it was over");
        for n in 0..1000 {
            complaints.is_new(&n.to_string());
        }
        assert!(complaints.again().len() <= KINDS + 1);
    }
}
