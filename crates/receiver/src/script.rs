//! What the receiver was told, and what it has seen: shared by its connections.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use crate::{Reply, Request};

/// A decision about a request that has been read.
pub(crate) type Rule = Arc<dyn Fn(&Request) -> Option<Reply> + Send + Sync>;

/// How much of the requests a receiver keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Everything.
    Everything,
    /// Nothing but counts: memory does not grow, and nothing is spent on recording.
    Counts,
}

/// What a receiver has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// Connections.
    pub connections: u64,
    /// Requests, read to their end or not.
    pub requests: u64,
    /// Requests that an answer was completely written for.
    pub answered: u64,
    /// Requests that are being read or answered, hanging ones included.
    pub in_flight: u64,
    /// The highest number of those at any time.
    pub most_in_flight: u64,
    /// Requests that hang.
    pub hanging: u64,
    /// Hanging or slow requests whose sender went away before the answer was over.
    pub abandoned: u64,
    /// Bytes of huge bodies that could be written.
    pub huge_bytes: u64,
}

struct State {
    queue: VecDeque<Reply>,
    rule: Option<Rule>,
    otherwise: Reply,
    requests: Vec<Request>,
    seen: Seen,
}

/// The script and the record.
pub(crate) struct Script {
    pub(crate) keep: Keep,
    state: Mutex<State>,
    changed: Notify,
    released: watch::Sender<()>,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").finish_non_exhaustive()
    }
}

impl Script {
    pub(crate) fn new(keep: Keep) -> Self {
        Script {
            keep,
            state: Mutex::new(State {
                queue: VecDeque::new(),
                rule: None,
                otherwise: Reply::Accept,
                requests: Vec::new(),
                seen: Seen::default(),
            }),
            changed: Notify::new(),
            released: watch::Sender::new(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A rule that panicked has failed its test already; the others go on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn queue(&self, replies: impl IntoIterator<Item = Reply>) {
        self.state().queue.extend(replies);
    }

    pub(crate) fn set_rule(&self, rule: Rule) {
        self.state().rule = Some(rule);
    }

    pub(crate) fn set_otherwise(&self, reply: Reply) {
        self.state().otherwise = reply;
    }

    pub(crate) fn forget(&self) {
        self.state().requests.clear();
    }

    pub(crate) fn release(&self) {
        self.released.send_replace(());
    }

    /// Where the next release will be seen.
    pub(crate) fn releases(&self) -> watch::Receiver<()> {
        self.released.subscribe()
    }

    pub(crate) fn look<T>(&self, look: impl FnOnce(&[Request], &Seen) -> T) -> T {
        let state = self.state();
        look(&state.requests, &state.seen)
    }

    pub(crate) async fn wait_until(
        &self,
        mut condition: impl FnMut(&[Request], &Seen) -> bool,
    ) -> Vec<Request> {
        loop {
            // Registered before the look, so that nothing happens unnoticed in between.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let met =
                self.look(|requests, seen| condition(requests, seen).then(|| requests.to_vec()));
            if let Some(requests) = met {
                return requests;
            }
            changed.await;
        }
    }

    /// Changes the counts.
    pub(crate) fn count<T>(&self, change: impl FnOnce(&mut Seen) -> T) -> T {
        let result = change(&mut self.state().seen);
        self.changed.notify_waiters();
        result
    }

    /// A connection begins: its number.
    pub(crate) fn connected(&self) -> u64 {
        self.count(|seen| {
            seen.connections += 1;
            seen.connections
        })
    }

    /// A request begins: what was queued for it, if anything was.
    pub(crate) fn begin(&self) -> Option<Reply> {
        let mut state = self.state();
        let seen = &mut state.seen;
        seen.in_flight += 1;
        seen.most_in_flight = seen.most_in_flight.max(seen.in_flight);
        state.queue.pop_front()
    }

    /// A request is over, however it ended.
    pub(crate) fn end(&self) {
        self.count(|seen| seen.in_flight -= 1);
    }

    /// What rules say about a request that nothing was queued for.
    pub(crate) fn decide(&self, request: &Request) -> Reply {
        let (rule, otherwise) = {
            let state = self.state();
            (state.rule.clone(), state.otherwise.clone())
        };
        rule.and_then(|rule| rule(request)).unwrap_or(otherwise)
    }

    /// The reply to every request, if nobody wants to see them: there is no need to take them apart.
    pub(crate) fn unseen(&self) -> Option<Reply> {
        let state = self.state();
        (self.keep == Keep::Counts && state.rule.is_none()).then(|| state.otherwise.clone())
    }

    /// Writes a request down.
    pub(crate) fn record(&self, request: Option<Request>) {
        let mut state = self.state();
        state.seen.requests += 1;
        if self.keep == Keep::Everything {
            state.requests.extend(request);
        }
        drop(state);
        self.changed.notify_waiters();
    }
}
