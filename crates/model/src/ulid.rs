//! ULID transactions: begin, new, commit, and what becomes of a holder that goes silent.
//!
//! A client is *silent* from when it stops until it takes its next step: that is all that a waiter can see
//! of it. Whether a silent one is dead or merely slow the checker decides, by waking it or not.

mod clients;
mod scripts;

use stateright::Property;

use crate::check::{Checked, Next, Protocol};
use crate::engine::{APPLICATION_LOCK, Database, Rules, Session, Table};
use crate::script::{Program, Script};
pub use scripts::Scripts;

pub(crate) const INCIDENT: Table = 0;
pub(crate) const SHARD_ULID: Table = 1;
pub(crate) const LIFE: Table = 2;
pub(crate) const APPLICATION: Table = 3;

/// A ULID: its time, and its number within that.
pub type Ulid = (i8, i8);

/// How a client works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Client {
    /// READ COMMITTED, the lock for the transaction.
    Plain,
    /// SERIALIZABLE.
    Serializable,
    /// SNAPSHOT: `lock_ulid_shard` before the transaction.
    Snapshot,
    /// COMMIT without `commit_ulid_transaction`.
    Raw,
}

/// Where a client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Phase {
    /// It has not begun, or begins again.
    #[default]
    Idle,
    /// In `ulid_wait`, before its transaction.
    Lock,
    /// In `ulid_enter`.
    Enter,
    /// In `ulid_wait`, called by `ulid_enter`.
    Wait,
    /// It draws a ULID.
    Draw,
    /// It writes the row with the ULID.
    Write,
    /// In `commit_ulid_transaction`.
    Commit,
    /// It says COMMIT.
    Publish,
    /// In `report_incident`.
    Report,
    /// It has done what it wanted, or given up.
    Done,
}

/// What one client knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Process {
    pub(crate) phase: Phase,
    pub(crate) at: u8,
    pub(crate) tries: u8,
    pub(crate) frozen: bool,
    pub(crate) silent: bool,
    pub(crate) lost: bool,
    pub(crate) incidents: i8,
    pub(crate) read_committed: bool,
    pub(crate) before: Option<Ulid>,
    pub(crate) floor: Option<Ulid>,
    pub(crate) time: i8,
    pub(crate) next: Ulid,
    pub(crate) base: i8,
    pub(crate) ulid: Option<Ulid>,
    pub(crate) observed: i8,
    pub(crate) published: bool,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) db: Database,
    pub(crate) sequence: i8,
    pub(crate) processes: Vec<Process>,
    /// What was committed, in this order.
    pub(crate) published: Vec<Ulid>,
    pub(crate) freezes: u8,
    pub(crate) losses: u8,
    /// Somebody committed although its lock was burned.
    pub(crate) zombie_committed: bool,
    /// Somebody holds a lock that was burned before it got it.
    pub(crate) entered_burned: bool,
    /// An incident was counted of which there was none.
    pub(crate) miscounted: bool,
    /// A transaction failed although no incident was counted during it.
    pub(crate) failed: bool,
}

/// The model.
#[derive(Debug, Clone)]
pub struct Ulids {
    pub(crate) rules: Rules,
    pub(crate) clients: Vec<Client>,
    pub(crate) wait: Program,
    pub(crate) enter: Program,
    pub(crate) commit: Program,
    pub(crate) report: Program,
    pub(crate) one_batch: bool,
    pub(crate) freezes: u8,
    pub(crate) losses: u8,
    pub(crate) times: i8,
    pub(crate) known: bool,
    pub(crate) reached: Vec<(&'static str, Condition)>,
}

/// Something that a state is or is not.
pub type Condition = fn(&Checked<Ulids>, &State) -> bool;

impl Ulids {
    /// A model of these scripts.
    pub fn new(rules: Rules, clients: &[Client], scripts: &Scripts) -> Self {
        Ulids {
            rules,
            clients: clients.to_vec(),
            wait: Program::of(&scripts.wait),
            enter: Program::of(&scripts.enter),
            commit: Program::of(&scripts.commit),
            report: Program::of(&scripts.report),
            one_batch: scripts.batch.says("commit transaction"),
            freezes: 0,
            losses: 0,
            times: 1,
            known: false,
            reached: Vec::new(),
        }
    }

    /// So many clients stop in the middle of what they do, and may wake up at any moment.
    pub fn freezes(mut self, freezes: u8) -> Self {
        self.freezes = freezes;
        self
    }

    /// So many are lost, and the server notices.
    pub fn losses(mut self, losses: u8) -> Self {
        self.losses = losses;
        self
    }

    /// The clock shows any of so many times, one after the other or not.
    pub fn times(mut self, times: i8) -> Self {
        self.times = times;
        self
    }

    /// There were transactions of this shard before.
    pub fn known(mut self) -> Self {
        self.known = true;
        self
    }

    /// This must be reached.
    pub fn reaches(mut self, name: &'static str, condition: Condition) -> Self {
        self.reached.push((name, condition));
        self
    }

    /// Between two round trips: a client can stop there, and the server does not go on by itself.
    fn is_between_calls(&self, process: &Process) -> bool {
        match process.phase {
            Phase::Draw | Phase::Write => true,
            Phase::Commit | Phase::Enter => process.at == 0,
            Phase::Publish => !self.one_batch,
            _ => false,
        }
    }
}

impl State {
    /// Who holds the lock with this number of incidents.
    pub(crate) fn holder(&self, incidents: i8) -> Option<usize> {
        let mode = crate::engine::Mode::Exclusive;
        (0..self.processes.len()).find(|p| {
            self.db
                .holds((APPLICATION_LOCK, incidents), session(*p), mode)
        })
    }

    /// How many incidents there were.
    pub fn incidents(&self) -> i8 {
        self.db.newest((INCIDENT, 0)).map_or(0, |row| row[0])
    }

    /// How many transactions were committed.
    pub fn commits(&self) -> usize {
        self.published.len()
    }

    /// Whether somebody who was judged dead has woken up and been refused.
    pub fn has_refused(&self) -> bool {
        self.incidents() > 0
            && self
                .processes
                .iter()
                .any(|p| p.tries > 0 && !p.published && p.phase == Phase::Idle)
    }
}

pub(crate) fn session(process: usize) -> Session {
    u8::try_from(process).unwrap_or(u8::MAX)
}

impl Protocol for Ulids {
    type State = State;

    fn begin(&self) -> State {
        let rows = match self.known {
            true => vec![
                ((INCIDENT, 0), [0; 8]),
                ((SHARD_ULID, 0), [1, 0, 0, 0, 0, 0, 0, 0]),
            ],
            false => Vec::new(),
        };
        State {
            db: Database::with(rows),
            sequence: 0,
            processes: vec![Process::default(); self.clients.len()],
            published: Vec::new(),
            freezes: self.freezes,
            losses: self.losses,
            zombie_committed: false,
            entered_burned: false,
            miscounted: false,
            failed: false,
        }
    }

    fn processes(&self) -> usize {
        self.clients.len()
    }

    fn next(&self, state: &State, me: usize) -> Next<State> {
        let process = &state.processes[me];
        if process.frozen || process.lost || process.phase == Phase::Done {
            return Next::Over;
        }
        self.steps(state, me)
    }

    fn faults(&self, state: &State) -> Vec<(&'static str, State)> {
        let mut ways = Vec::new();
        for (me, process) in state.processes.iter().enumerate() {
            let mut next = state.clone();
            if process.frozen {
                next.processes[me].frozen = false;
                ways.push(("wakes up", next));
            } else if state.freezes > 0 && self.is_between_calls(process) {
                next.freezes -= 1;
                next.processes[me].frozen = true;
                next.processes[me].silent = true;
                ways.push(("stops", next));
            }
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
            Property::always("6: ULIDs increase for every observer", |_, s: &State| {
                s.published.windows(2).all(|pair| pair[0] < pair[1])
            }),
            Property::always("7: who was judged dead cannot commit", |_, s: &State| {
                !s.zombie_committed
            }),
            Property::always("7: an incident is counted once", |_, s: &State| {
                !s.miscounted
            }),
            Property::always(
                "7: nobody waits for who is silent",
                |m: &Checked<Ulids>, s| m.0.nobody_waits_for_the_silent(s),
            ),
            Property::always(
                "7: one incident stops nobody for ever",
                |m: &Checked<Ulids>, s: &State| {
                    m.0.freezes > 1
                        || !s
                            .processes
                            .iter()
                            .any(|p| p.phase == Phase::Done && !p.published)
                },
            ),
            Property::always("nobody enters by a burned lock", |_, s: &State| {
                !s.entered_burned
            }),
            Property::always("nobody fails without an incident", |_, s: &State| !s.failed),
            Property::always("no deadlock", |m: &Checked<Ulids>, s| !m.is_deadlocked(s)),
            Property::sometimes("everybody commits", |m: &Checked<Ulids>, s: &State| {
                s.published.len() == m.0.clients.len()
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
        scripts.wait,
        scripts.enter,
        scripts.commit,
        scripts.report,
        scripts.batch,
    ]
}
