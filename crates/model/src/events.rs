//! Events: claiming, renewing, finishing and releasing, with and without an order by key.
//!
//! Time is a number that grows whenever the checker likes. A claim lasts until the next number; an instance
//! that is stopped is one that takes no step while time passes.

mod scripts;
mod workers;

use stateright::Property;

use crate::check::{Checked, Next, Protocol};
use crate::engine::{Database, Row, Rules, Session, Table};
use crate::script::{Program, Script};
pub use scripts::Scripts;

pub(crate) const EVENT: Table = 0;
pub(crate) const ATTEMPT: Table = 1;
pub(crate) const TRIGGER: Table = 2;

// Columns of `event`; null is 0.
pub(crate) const DUE: usize = 0;
pub(crate) const GENERATION: usize = 1;
pub(crate) const TRIES: usize = 2;
pub(crate) const LOCKED_BY: usize = 3;
pub(crate) const DELIVERED: usize = 4;
pub(crate) const KEY: usize = 5;
// Columns of `event_attempt`.
pub(crate) const OUTCOME: usize = 0;
pub(crate) const LATE: usize = 1;
pub(crate) const UNKNOWN: i8 = 3;

/// How claims are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// At most so many at a time, in all instances together.
    pub overall: Option<usize>,
    /// Events of a key one after the other.
    pub ordered: bool,
}

/// Where an instance is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Phase {
    /// In `event_claim.sql`.
    #[default]
    Claim,
    /// It has an event.
    Holds,
    /// It has sent it.
    Sent,
    /// In `event_finish.sql`, with a success or a failure.
    Finish(bool),
    /// Nothing more.
    Done,
}

/// What one instance knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Process {
    pub(crate) phase: Phase,
    pub(crate) at: u8,
    pub(crate) rounds: u8,
    pub(crate) lost: bool,
    pub(crate) now: i8,
    pub(crate) room: i8,
    /// `@due`: the event, its generation, its tries and its owner.
    pub(crate) due: Option<[i8; 4]>,
    /// What it holds: the event and its generation, and until when it may trust that.
    pub(crate) holds: Option<(i8, i8)>,
    pub(crate) until: i8,
    pub(crate) renewed: bool,
    pub(crate) applied: bool,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) db: Database,
    pub(crate) now: i8,
    pub(crate) processes: Vec<Process>,
    /// What was sent: events with their generations.
    pub(crate) sent: Vec<(i8, i8)>,
    pub(crate) losses: u8,
    /// Somebody decided about an event that another one had by then.
    pub(crate) overwritten: bool,
    /// An event was claimed while an older one of its key was not finished.
    pub(crate) out_of_order: bool,
}

/// The model.
#[derive(Debug, Clone)]
pub struct Events {
    pub(crate) rules: Rules,
    pub(crate) wanted: Wanted,
    pub(crate) workers: usize,
    pub(crate) rounds: u8,
    /// The keys of the events.
    pub(crate) keys: Vec<i8>,
    pub(crate) time: i8,
    pub(crate) losses: u8,
    pub(crate) claim: Program,
    pub(crate) finish: Program,
    pub(crate) renew: Program,
    pub(crate) release: Program,
    pub(crate) reached: Vec<(&'static str, Condition)>,
}

/// Something that a state is or is not.
pub type Condition = fn(&Checked<Events>, &State) -> bool;

impl Events {
    /// A model of these scripts, with so many instances, and events with these keys.
    pub fn new(
        rules: Rules,
        wanted: Wanted,
        workers: usize,
        keys: &[i8],
        scripts: &Scripts,
    ) -> Self {
        Events {
            rules,
            wanted,
            workers,
            rounds: 1,
            keys: keys.to_vec(),
            time: 3,
            losses: 0,
            claim: Program::of(&scripts.claim),
            finish: Program::of(&scripts.finish),
            renew: Program::of(&scripts.renew),
            release: Program::of(&scripts.release),
            reached: Vec::new(),
        }
    }

    /// Each claims so many times.
    pub fn rounds(mut self, rounds: u8) -> Self {
        self.rounds = rounds;
        self
    }

    /// So many are lost, and the server notices.
    pub fn losses(mut self, losses: u8) -> Self {
        self.losses = losses;
        self
    }

    /// This must be reached.
    pub fn reaches(mut self, name: &'static str, condition: Condition) -> Self {
        self.reached.push((name, condition));
        self
    }

    /// Those who trust to have an event at this moment, by event.
    fn trusted(&self, state: &State) -> Vec<i8> {
        let holding = state.processes.iter().filter(|p| {
            let has = matches!(p.phase, Phase::Holds | Phase::Sent);
            has && !p.lost && state.now < p.until
        });
        holding
            .filter_map(|p| p.holds.map(|(event, _)| event))
            .collect()
    }
}

impl State {
    /// How many events are delivered.
    pub fn delivered(&self) -> usize {
        let events = self.db.committed(EVENT);
        events.filter(|(_, row)| row[DELIVERED] == 1).count()
    }

    /// Whether somebody's attempt was taken for cut off.
    pub fn has_unknown(&self) -> bool {
        self.db
            .committed(ATTEMPT)
            .any(|(_, row)| row[OUTCOME] == UNKNOWN)
    }

    /// Whether somebody came back late.
    pub fn has_late(&self) -> bool {
        self.db.committed(ATTEMPT).any(|(_, row)| row[LATE] == 1)
    }
}

pub(crate) fn session(process: usize) -> Session {
    u8::try_from(process).unwrap_or(u8::MAX)
}

pub(crate) fn attempt_key(event: i8, generation: i8) -> i8 {
    event * 16 + generation
}

impl Protocol for Events {
    type State = State;

    fn begin(&self) -> State {
        let mut rows = vec![((TRIGGER, 0), Row::default())];
        for (id, key) in (1..).zip(&self.keys) {
            let mut row = Row::default();
            row[DUE] = 1;
            row[KEY] = *key;
            rows.push(((EVENT, id), row));
        }
        State {
            db: Database::with(rows),
            now: 1,
            processes: vec![Process::default(); self.workers],
            sent: Vec::new(),
            losses: self.losses,
            overwritten: false,
            out_of_order: false,
        }
    }

    fn processes(&self) -> usize {
        self.workers
    }

    fn next(&self, state: &State, me: usize) -> Next<State> {
        match state.processes[me].lost || state.processes[me].rounds >= self.rounds {
            true => Next::Over,
            false => self.steps(state, me),
        }
    }

    fn faults(&self, state: &State) -> Vec<(&'static str, State)> {
        let mut ways = Vec::new();
        if state.now < self.time {
            let mut next = state.clone();
            next.now += 1;
            ways.push(("time passes", next));
        }
        for me in 0..self.workers {
            if state.losses > 0 && state.db.is_open(session(me)) {
                let mut next = state.clone();
                next.losses -= 1;
                next.db.lose(session(me));
                next.processes[me].lost = true;
                ways.push(("is lost", next));
            }
        }
        ways
    }

    fn properties(&self) -> Vec<Property<Checked<Self>>> {
        let mut all = vec![
            Property::always("8: what was sent is recorded", |_, s: &State| {
                s.sent.iter().all(|(event, generation)| {
                    let row = s.db.settled((EVENT, *event)).unwrap_or_default();
                    let holds = row[GENERATION] == *generation && row[LOCKED_BY] != 0;
                    let key = attempt_key(*event, *generation);
                    holds || s.db.settled((ATTEMPT, key)).is_some()
                })
            }),
            Property::always("8: nothing is dropped", |_, s: &State| {
                let mut events = s.db.committed(EVENT);
                events.all(|(_, row)| (row[DELIVERED] == 1) == (row[DUE] == 0))
            }),
            Property::always(
                "9: one has it at a time",
                |m: &Checked<Events>, s: &State| {
                    let mut held = m.0.trusted(s);
                    let all = held.len();
                    held.sort_unstable();
                    held.dedup();
                    held.len() == all
                },
            ),
            Property::always("9: who has lost it decides nothing", |_, s: &State| {
                !s.overwritten
            }),
            Property::always("9: events of a key are in order", |_, s: &State| {
                !s.out_of_order
            }),
            Property::always(
                "12: together no more than allowed",
                |m: &Checked<Events>, s: &State| {
                    m.0.wanted.overall.is_none_or(|n| m.0.trusted(s).len() <= n)
                },
            ),
            Property::always("no deadlock", |m: &Checked<Events>, s: &State| {
                !m.is_deadlocked(s)
            }),
        ];
        let reached = self.reached.iter();
        all.extend(reached.map(|(name, condition)| Property::sometimes(name, *condition)));
        all
    }
}

/// The scripts that this model executes.
pub fn tied() -> Vec<Script> {
    let scripts = Scripts::shipped();
    vec![
        scripts.claim,
        scripts.finish,
        scripts.renew,
        scripts.release,
    ]
}
