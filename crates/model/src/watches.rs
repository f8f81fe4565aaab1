//! Watches: from a committed change to the function, by the server's change tracking or by our trigger's log.
//!
//! Each change of a row gives it a higher value. Change tracking numbers a transaction when it commits; what is
//! asked for outside of a snapshot may show the number before the change can be seen, what is asked for
//! within one may not. A lease lasts until time moves on.

mod scripts;
mod sources;
mod workers;

use stateright::Property;

use crate::check::{Checked, Next, Protocol};
use crate::engine::{Database, Row, Rules, Session, Table};
use crate::script::{Program, Script};
pub use scripts::Scripts;

pub(crate) const ROW: Table = 0;
pub(crate) const WATCHED: Table = 1;
pub(crate) const WATCH: Table = 2;
pub(crate) const BACKLOG: Table = 3;
pub(crate) const LOG: Table = 4;

// Columns of `watched_table`.
pub(crate) const LAST_VERSION: usize = 0;
pub(crate) const TRACKED_VERSION: usize = 1;
pub(crate) const TRACKED_IN: usize = 2;
// Columns of a backlog; null is 0.
pub(crate) const LEASE: usize = 0;
pub(crate) const OWNER: usize = 1;
pub(crate) const EXPIRES: usize = 2;
pub(crate) const ATTEMPTS: usize = 3;
pub(crate) const NEWER: usize = 4;
pub(crate) const PARKED: usize = 5;

/// Who takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Changes a row, and commits or rolls back.
    Writer {
        /// The row's key.
        key: i8,
    },
    /// Takes, processes and settles, so many times.
    Worker {
        /// How often.
        rounds: u8,
    },
    /// Change tracking's own clean-up goes past everything.
    CleanUp,
    /// Somebody switches change tracking off and on again.
    Switch,
}

/// What the server's change tracking knows of the table.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Tracking {
    /// Its own table, another one each time it is switched on; 0 while it is off.
    pub(crate) id: i8,
    /// The last version that was given, and the last one whose changes can be seen.
    pub(crate) given: i8,
    pub(crate) current: i8,
    /// What is retained begins after this version.
    pub(crate) floor: i8,
    /// Keys with the version of their last change.
    pub(crate) changes: Vec<(i8, i8)>,
}

/// Where a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Phase {
    /// Reading what has changed.
    #[default]
    Read,
    /// Moving it to the backlog.
    Move,
    /// Loading existing rows.
    Load,
    /// Leasing a row.
    Lease,
    /// Reading the row.
    Rows,
    /// The function is at work.
    Call,
    /// Settling, with a success or a failure.
    Settle(bool),
}

/// What one process knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Process {
    pub(crate) phase: Phase,
    pub(crate) at: u8,
    pub(crate) rounds: u8,
    pub(crate) lost: bool,
    /// Of a writer: the version of its transaction.
    pub(crate) version: i8,
    pub(crate) until: i8,
    pub(crate) since: i8,
    pub(crate) known: i8,
    pub(crate) floor: i8,
    pub(crate) noted: i8,
    pub(crate) missed: bool,
    /// What a snapshot sees of the changes.
    pub(crate) snapshot: Option<Vec<(i8, i8)>>,
    /// Keys that were scanned or picked.
    pub(crate) keys: Vec<i8>,
    /// The row that it has, by which lease, until when, and what it read.
    pub(crate) key: i8,
    pub(crate) lease: i8,
    pub(crate) expires: i8,
    pub(crate) value: i8,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) db: Database,
    pub(crate) tracking: Tracking,
    pub(crate) orders: i8,
    pub(crate) now: i8,
    pub(crate) processes: Vec<Process>,
    /// The newest value of each row that the function has processed.
    pub(crate) handled: [i8; 3],
    pub(crate) losses: u8,
    /// The version up to which changes were moved went back.
    pub(crate) moved_again: bool,
    /// Somebody settled a row that another one had by then.
    pub(crate) overwritten: bool,
}

/// The model.
#[derive(Debug, Clone)]
pub struct Watches {
    pub(crate) rules: Rules,
    pub(crate) roles: Vec<Role>,
    /// Whether the server's own change tracking notes the changes.
    pub(crate) native: bool,
    pub(crate) read: Program,
    pub(crate) noted: Program,
    pub(crate) moves: Program,
    pub(crate) function: Program,
    pub(crate) load: Program,
    pub(crate) lease: Program,
    pub(crate) settle: Program,
    pub(crate) done: Program,
    pub(crate) compares_life: bool,
    /// How many changes are moved at a time.
    pub(crate) chunk: usize,
    pub(crate) time: i8,
    pub(crate) losses: u8,
    pub(crate) reached: Vec<(&'static str, Condition)>,
}

/// Something that a state is or is not.
pub type Condition = fn(&Checked<Watches>, &State) -> bool;

impl Watches {
    /// A model of these scripts.
    pub fn new(rules: Rules, native: bool, roles: &[Role], scripts: &Scripts) -> Self {
        Watches {
            rules,
            roles: roles.to_vec(),
            native,
            read: Program::of(&scripts.read),
            noted: Program::of(&scripts.noted),
            moves: Program::of(&scripts.moves),
            function: Program::of(&scripts.function),
            load: Program::of(&scripts.load),
            lease: Program::of(&scripts.lease),
            settle: Program::of(&scripts.settle),
            done: Program::of(&scripts.done),
            compares_life: scripts.compares_life,
            chunk: 9,
            time: 2,
            losses: 0,
            reached: Vec::new(),
        }
    }

    /// So many changes are moved at a time.
    pub fn chunk(mut self, chunk: usize) -> Self {
        self.chunk = chunk;
        self
    }

    /// So many sessions are lost, and the server notices.
    pub fn losses(mut self, losses: u8) -> Self {
        self.losses = losses;
        self
    }

    /// Time runs until then.
    pub fn until(mut self, time: i8) -> Self {
        self.time = time;
        self
    }

    /// This must be reached.
    pub fn reaches(mut self, name: &'static str, condition: Condition) -> Self {
        self.reached.push((name, condition));
        self
    }

    /// Whether every committed change was processed, or can still be found.
    fn nothing_is_lost(&self, state: &State) -> bool {
        let watched = state.db.settled((WATCHED, 0)).unwrap_or_default();
        let tracking = &state.tracking;
        let loading = state.db.settled((WATCH, 0)).is_some_and(|row| row[0] != 0);
        // Noticed by whoever moves next.
        let gap = self.native
            && (tracking.id == 0
                || watched[TRACKED_IN] != tracking.id
                || watched[TRACKED_VERSION] < tracking.floor);
        state.db.committed(ROW).all(|(key, row)| {
            let place = usize::try_from(key).unwrap_or_default();
            let noted = tracking
                .changes
                .iter()
                .any(|(k, version)| *k == key && *version > watched[TRACKED_VERSION]);
            let logged = state.db.committed(LOG).any(|(_, log)| log[0] == key);
            state.handled[place] >= row[0]
                || gap
                || loading
                || (self.native && noted)
                || logged
                || state.db.settled((BACKLOG, key)).is_some()
        })
    }

    fn trusted(&self, state: &State) -> Vec<i8> {
        let holding = state.processes.iter().filter(|p| {
            matches!(p.phase, Phase::Rows | Phase::Call) && !p.lost && state.now < p.expires
        });
        holding.map(|p| p.key).collect()
    }
}

impl State {
    /// Whether a row was handed over with its newest value.
    pub fn has_handled(&self, value: i8) -> bool {
        self.handled.contains(&value)
    }

    /// Whether a newer change waits behind one in process.
    pub fn has_newer(&self) -> bool {
        self.db.committed(BACKLOG).any(|(_, row)| row[NEWER] == 1)
    }

    /// Whether a row was given up.
    pub fn has_parked(&self) -> bool {
        self.db.committed(BACKLOG).any(|(_, row)| row[PARKED] == 1)
    }

    /// Whether somebody has noticed that changes were missed.
    pub fn is_loading(&self) -> bool {
        self.db.settled((WATCH, 0)).is_some_and(|row| row[0] != 0)
    }
}

pub(crate) fn session(process: usize) -> Session {
    u8::try_from(process).unwrap_or(u8::MAX)
}

impl Protocol for Watches {
    type State = State;

    fn begin(&self) -> State {
        let mut watched = Row::default();
        watched[TRACKED_IN] = 1;
        let rows = vec![
            ((ROW, 1), Row::default()),
            ((ROW, 2), Row::default()),
            ((WATCHED, 0), watched),
            ((WATCH, 0), Row::default()),
        ];
        State {
            db: Database::with(rows),
            tracking: Tracking {
                id: i8::from(self.native),
                ..Tracking::default()
            },
            orders: 0,
            now: 1,
            processes: vec![Process::default(); self.roles.len()],
            handled: [0; 3],
            losses: self.losses,
            moved_again: false,
            overwritten: false,
        }
    }

    fn processes(&self) -> usize {
        self.roles.len()
    }

    fn next(&self, state: &State, me: usize) -> Next<State> {
        if state.processes[me].lost {
            return Next::Over;
        }
        match self.roles[me] {
            Role::Writer { key } => self.writes(state, me, key),
            Role::Worker { rounds } if state.processes[me].rounds < rounds => self.works(state, me),
            Role::Worker { .. } => Next::Over,
            Role::CleanUp => self.cleans_up(state, me),
            Role::Switch => self.switches(state, me),
        }
    }

    fn faults(&self, state: &State) -> Vec<(&'static str, State)> {
        let mut ways = Vec::new();
        if state.now < self.time {
            let mut next = state.clone();
            next.now += 1;
            ways.push(("time passes", next));
        }
        for me in 0..self.roles.len() {
            // A writer that has its version is on its way to be committed.
            let between = state.processes[me].version == 0;
            if state.losses > 0 && between && state.db.is_open(session(me)) {
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
            Property::always(
                "10: every change is handed over",
                |m: &Checked<Watches>, s| m.0.nothing_is_lost(s),
            ),
            Property::always("9: one has a row at a time", |m: &Checked<Watches>, s| {
                let mut held = m.0.trusted(s);
                let all = held.len();
                held.sort_unstable();
                held.dedup();
                held.len() == all
            }),
            Property::always("9: who has lost a row settles nothing", |_, s: &State| {
                !s.overwritten
            }),
            Property::always("10: what was moved is not moved again", |_, s: &State| {
                !s.moved_again
            }),
            Property::always("no deadlock", |m: &Checked<Watches>, s| !m.is_deadlocked(s)),
            Property::always("no worker waits for a writer", |m: &Checked<Watches>, s| {
                m.0.workers_wait_for_no_writer(s)
            }),
            Property::sometimes("something is handed over", |_, s: &State| {
                s.handled.iter().any(|value| *value > 0)
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
        scripts.read,
        scripts.noted,
        scripts.moves,
        scripts.function,
        scripts.missed,
        scripts.load,
        scripts.lease,
        scripts.claim,
        scripts.settle,
        scripts.done,
        scripts.failed,
    ]
}
