//! How much is done: enough for a figure that can be trusted, or enough for a first look.

use std::time::Duration;

/// What to measure, and how thoroughly.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Less of everything: less than a minute instead of some. The figures are rougher, and long
    /// histories are shorter.
    pub quick: bool,
}

/// The amounts that follow from the options.
#[derive(Debug, Clone)]
pub(crate) struct Scale {
    /// Rounds of everything that is compared with the bare database.
    pub(crate) rounds: usize,
    /// How often each side takes its turn at writing.
    pub(crate) turns: usize,
    /// How long a turn lasts.
    pub(crate) slice: Duration,
    /// Changes that wait for the sweep.
    pub(crate) backlog: i64,
    /// Small sweeps under a held snapshot.
    pub(crate) small_sweeps: usize,
    /// Small sweeps that are compared, at the beginning and at the end.
    pub(crate) small_sample: usize,
    /// Pages read by one side in one round.
    pub(crate) pages: usize,
    /// Numbered changes of the short and the long history.
    pub(crate) short_history: i64,
    pub(crate) long_history: i64,
    /// How often each of them is swept and read.
    pub(crate) looks: usize,
    /// How long changes are followed.
    pub(crate) follow: Duration,
    /// How long nothing happens.
    pub(crate) idle: Duration,
    /// How often each side takes its turn at delivering.
    pub(crate) delivery_turns: usize,
    /// Events that are delivered in a turn.
    pub(crate) deliveries: u64,
    /// Delivered events in a long log.
    pub(crate) event_log: i64,
    /// Events that were delivered while a snapshot was held.
    pub(crate) held_events: i64,
    /// How often events are taken, of an empty queue and of a full one.
    pub(crate) empty_claims: usize,
    pub(crate) full_claims: usize,
    /// How long a process works off its backlog.
    pub(crate) work: Duration,
    /// Changes that are pushed in a round.
    pub(crate) pushed: i64,
}

impl Scale {
    pub(crate) fn of(options: Options) -> Self {
        let whole = Scale {
            rounds: 5,
            turns: 30,
            slice: Duration::from_millis(300),
            backlog: 300_000,
            small_sweeps: 2000,
            small_sample: 200,
            pages: 200,
            short_history: 100_000,
            long_history: 10_000_000,
            looks: 31,
            follow: Duration::from_secs(10),
            idle: Duration::from_secs(10),
            delivery_turns: 15,
            deliveries: 15_000,
            event_log: 1_000_000,
            held_events: 1_000_000,
            empty_claims: 300,
            full_claims: 40,
            work: Duration::from_secs(15),
            pushed: 200_000,
        };
        if !options.quick {
            return whole;
        }
        Scale {
            rounds: 3,
            turns: 11,
            slice: Duration::from_millis(250),
            backlog: 60_000,
            small_sweeps: 600,
            small_sample: 100,
            pages: 60,
            long_history: 1_000_000,
            looks: 21,
            follow: Duration::from_secs(3),
            idle: Duration::from_secs(4),
            delivery_turns: 5,
            deliveries: 10_000,
            event_log: 200_000,
            held_events: 100_000,
            empty_claims: 100,
            full_claims: 20,
            work: Duration::from_secs(3),
            pushed: 50_000,
            ..whole
        }
    }
}
