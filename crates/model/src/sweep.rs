//! The sweep: `sweep_shard` beside writers, other sweeps, readers, `trim.sql` and a backfill.

mod numbering;
mod readers;
mod scripts;
mod upkeep;
mod writers;

use stateright::Property;

use crate::check::{Checked, Next, Protocol};
use crate::engine::{Database, Keep, PAGE, Place, Read, Row, Rules, Session, Stop, Table};
use crate::script::{Line, Program, Script};
pub use scripts::{Scripts, index_lines, page, read, sweep_shard, trim};

pub(crate) const CHANGE: Table = 0;
pub(crate) const SHARD: Table = 1;
pub(crate) const BACKFILL: Table = 2;
pub(crate) const CONSUMER: Table = 3;

// Columns of `change`.
pub(crate) const NUMBER: usize = 0;
pub(crate) const WRITER: usize = 1;
pub(crate) const OF_SHARD: usize = 2;
// Columns of `shard`.
pub(crate) const LAST: usize = 0;
pub(crate) const START: usize = 1;
pub(crate) const TRIMMED: usize = 2;
pub(crate) const BACKFILLED: usize = 3;
// Columns of `backfill`.
pub(crate) const DONE: usize = 0;
pub(crate) const FINISHED: usize = 1;

/// The number before the first.
pub const BEFORE: i8 = 10;

/// Who takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Inserts a change into a shard and commits or rolls back. `early`: it draws its id before its
    /// transaction begins. `savepoint`: it has inserted another one before, and taken that back.
    Writer {
        /// The shard.
        shard: i8,
        /// Whether the id is drawn before the transaction begins.
        early: bool,
        /// Whether a savepoint is rolled back to first.
        savepoint: bool,
    },
    /// Sweeps a shard so many times.
    Sweeper {
        /// The shard.
        shard: i8,
        /// How often.
        times: u8,
    },
    /// Reads pages of shard 0, so many, from `first` or from the start.
    Reader {
        /// How many pages.
        pages: u8,
        /// Whether backfilled changes are wanted.
        first: bool,
    },
    /// Trims shard 0 once.
    Trimmer,
    /// Moves the consumer of shard 0 within a transaction of the application.
    Consumer,
    /// Gives numbers below the start in two batches.
    Backfiller,
    /// REORGANIZE of the index of changes without a number.
    Reorganizer,
}

/// Something that a state is or is not.
pub type Condition = fn(&Checked<Sweep>, &State) -> bool;

/// The model.
#[derive(Debug, Clone)]
pub struct Sweep {
    pub(crate) rules: Rules,
    pub(crate) roles: Vec<Role>,
    pub(crate) sweep: Program,
    pub(crate) trim: Program,
    pub(crate) page: Program,
    pub(crate) backfill: Program,
    pub(crate) refuses: bool,
    pub(crate) page_locks: bool,
    pub(crate) keeps_contiguous: bool,
    /// How many changes a sweep takes.
    pub(crate) batch: usize,
    pub(crate) losses: u8,
    /// What has to be reached for a run to mean anything.
    pub(crate) reached: Vec<(&'static str, Condition)>,
    pub(crate) backward: bool,
}

/// What one process knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Process {
    pub(crate) at: u8,
    pub(crate) times: u8,
    pub(crate) bound: i8,
    /// The end of the shard in the snapshot of a sweep.
    pub(crate) seen: i8,
    pub(crate) last: Option<i8>,
    pub(crate) position: i8,
    /// What was collected, or what of it is still to be done.
    pub(crate) list: Vec<i8>,
    pub(crate) count: i8,
    /// Writers that had committed when this one began, or when this sweep did.
    pub(crate) saw: u8,
    /// The numbers and ids that a reader was given.
    pub(crate) got: Vec<(i8, i8)>,
    pub(crate) gone: bool,
    /// The entry of an index that a reader has come to.
    pub(crate) waits_at: i8,
    /// A reader saw a backfill before its page, or only after it.
    pub(crate) begun: bool,
    pub(crate) began: bool,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) db: Database,
    pub(crate) next_id: i8,
    pub(crate) processes: Vec<Process>,
    /// Writers that have committed.
    pub(crate) committed: u8,
    /// A sweep ended with an error.
    pub(crate) failed: bool,
    /// A sweep left out what was committed before it began.
    pub(crate) left_out: bool,
    pub(crate) losses: u8,
}

impl Sweep {
    /// A model of these scripts.
    pub fn new(rules: Rules, roles: &[Role], scripts: &Scripts) -> Self {
        Sweep {
            rules,
            roles: roles.to_vec(),
            sweep: Program::of(&scripts.sweep),
            trim: Program::of(&scripts.trim),
            page: Program::of(&scripts.page),
            backfill: Program::of(&scripts.backfill),
            refuses: scripts
                .refusal
                .says("i.change_sequence_number <= s.trimmed_to"),
            page_locks: !scripts
                .index
                .says("index ix_needs_seqnum on change allow_page_locks = off"),
            keeps_contiguous: scripts.keeps_contiguous,
            batch: 9,
            losses: 0,
            reached: Vec::new(),
            backward: scripts.backward,
        }
    }

    /// A sweep takes so many changes at most.
    pub fn batch(mut self, batch: usize) -> Self {
        self.batch = batch;
        self
    }

    /// So many processes are lost in the middle of what they do.
    pub fn losses(mut self, losses: u8) -> Self {
        self.losses = losses;
        self
    }

    /// This must be reached.
    pub fn reaches(mut self, name: &'static str, condition: Condition) -> Self {
        self.reached.push((name, condition));
        self
    }

    fn sweeps(&self, state: &State, me: usize, shard: i8, times: u8) -> Next<State> {
        let process = &state.processes[me];
        if process.times >= times {
            return Next::Over;
        }
        let Some(line) = self.sweep.at(process.at) else {
            return Next::Over;
        };
        let mut state = state.clone();
        match self.sweep_step(&mut state, me, shard, line) {
            Ok(()) => Next::one(line.step, state),
            Err(Stop::Blocked(by)) => Next::Blocked(usize::from(by)),
            Err(_) => {
                self.sweep_fails(&mut state, me);
                Next::one(line.step, state)
            }
        }
    }

    fn sweep_fails(&self, state: &mut State, me: usize) {
        state.failed = true;
        state.db.rollback(session(me));
        self.sweep_over(state, me);
    }

    fn sweep_over(&self, state: &mut State, me: usize) {
        let times = state.processes[me].times + 1;
        state.processes[me] = Process {
            times,
            at: self.first_step(),
            ..Process::default()
        };
    }

    fn sweep_step(&self, state: &mut State, me: usize, shard: i8, line: &Line) -> Result<(), Stop> {
        let by = session(me);
        let place: Place = (SHARD, shard);
        let State { db, processes, .. } = state;
        let process = &mut processes[me];
        if process.at == self.first_step() && process.seen == 0 {
            process.saw = state.committed;
        }
        process.at += 1;
        match line.step {
            "bound" => {
                process.bound = state.next_id;
                state.next_id += 1;
            }
            "look" | "begin" => db.begin(by),
            "look at the end" => {
                self.take_snapshot(db, by);
                let row = db.read(self.rules, by, place, Read::Plain)?;
                process.seen = row.map_or(0, |row| row[LAST]);
            }
            "look at changes" => self.look(state, me, shard, line)?,
            "looked" => db.commit(by),
            "compare" => {
                if line.says("@last = @seen") && process.last != Some(process.seen) {
                    db.commit(by);
                    process.at = self.first_step();
                    return Ok(());
                }
                self.collected(state, me, line);
            }
            "lock" => {
                let keep = match line.hint("shard", "updlock") {
                    true => Keep::Updlock,
                    false => Keep::Default,
                };
                if !line.hint("shard", "forceseek") {
                    db.scan_for(self.rules, by, place)?;
                }
                let found = db.update(self.rules, by, place, keep, |row| Some(Some(row)))?;
                if line.says("output inserted.last_change_sequence_number") && found {
                    process.last = db.newest(place).map(|row| row[LAST]);
                }
                self.autocommit(state, by);
            }
            "state" => {
                let row = match line.hint("shard", "forceseek") {
                    true => db.read(self.rules, by, place, Read::Plain)?,
                    false => db.scan_for(self.rules, by, place)?,
                };
                process.last = row.map(|row| row[LAST]);
            }
            "collect" | "collect by locks" => {
                let is_over = self.collect(state, me, shard, line)?;
                state.processes[me].at -= u8::from(!is_over);
            }
            "number" => return self.number(state, me, line),
            "end" => {
                let (last, count) = (process.last.unwrap_or(0), process.count);
                let compares = line.says("s.last_change_sequence_number = @last");
                let found = db.update(self.rules, by, place, Keep::Default, |mut row| {
                    if compares && row[LAST] != last {
                        return None;
                    }
                    row[LAST] = last + count;
                    if row[START] == 0 && line.says("start = isnull(s.start, @last)") {
                        row[START] = last;
                    }
                    Some(Some(row))
                })?;
                if !found && self.sweep.has("if @@rowcount <> 1") {
                    self.sweep_fails(state, me);
                    return Ok(());
                }
                self.autocommit(state, by);
            }
            "commit" => self.sweep_commits(state, me),
            _ => {}
        }
        let process = &mut state.processes[me];
        process.at = self.skip(process.at);
        Ok(())
    }

    /// Behind the steps that are for databases of the other kind: `if @versioned = …`.
    fn skip(&self, mut at: u8) -> u8 {
        const SNAPSHOTS: [&str; 5] = [
            "look",
            "look at the end",
            "look at changes",
            "looked",
            "compare",
        ];
        let other: &[&str] = match (self.rules.versioned, self.rules.snapshots) {
            (true, _) => &["bound", "collect by locks"],
            (false, true) => &["bound", "collect", "collect by locks"],
            (false, false) => &["collect"],
        };
        let snapshots = self.rules.snapshots && !self.rules.versioned;
        while self.sweep.at(at).is_some_and(|line| {
            other.contains(&line.step) || !snapshots && SNAPSHOTS.contains(&line.step)
        }) {
            at += 1;
        }
        at
    }

    fn first_step(&self) -> u8 {
        self.skip(0)
    }

    /// A statement outside of a transaction is one of its own.
    fn autocommit(&self, state: &mut State, by: Session) {
        if !state.db.is_open(by) {
            state.db.commit(by);
        }
    }

    fn sweep_commits(&self, state: &mut State, me: usize) {
        state.db.commit(session(me));
        let saw = state.processes[me].saw;
        let Role::Sweeper { shard, .. } = self.roles[me] else {
            return;
        };
        let waiting = state.db.committed(CHANGE).filter(|(_, row)| {
            row[NUMBER] == 0 && row[OF_SHARD] == shard && saw & (1 << row[WRITER]) != 0
        });
        if waiting.count() > 0 && self.batch > 8 {
            state.left_out = true;
        }
        self.sweep_over(state, me);
    }

    pub(crate) fn reorganizer(&self) -> Session {
        let place = self.roles.iter().position(|r| *r == Role::Reorganizer);
        session(place.unwrap_or_default())
    }
}

pub(crate) fn session(process: usize) -> Session {
    u8::try_from(process).unwrap_or(u8::MAX)
}

/// The page of an index that a change's entry is on.
pub(crate) fn page_of(id: i8) -> Place {
    (PAGE + CHANGE, id / 2)
}

impl Protocol for Sweep {
    type State = State;

    fn begin(&self) -> State {
        let mut shard = Row::default();
        shard[LAST] = BEFORE;
        let mut rows = vec![((SHARD, 0), shard), ((SHARD, 1), shard)];
        let mut consumer = Row::default();
        consumer[0] = BEFORE;
        if self.roles.contains(&Role::Consumer) {
            rows.push(((CONSUMER, 0), consumer));
        }
        let process = Process::default();
        State {
            db: Database::with(rows),
            next_id: 1,
            processes: self
                .roles
                .iter()
                .map(|role| match role {
                    Role::Reader { first: false, .. } => Process {
                        last: Some(BEFORE),
                        ..process.clone()
                    },
                    Role::Reader { first: true, .. } => Process {
                        last: Some(0),
                        ..process.clone()
                    },
                    Role::Writer { early: false, .. } => Process {
                        at: 1,
                        ..process.clone()
                    },
                    Role::Sweeper { .. } => Process {
                        at: self.first_step(),
                        ..process.clone()
                    },
                    _ => process.clone(),
                })
                .collect(),
            committed: 0,
            failed: false,
            left_out: false,
            losses: self.losses,
        }
    }

    fn processes(&self) -> usize {
        self.roles.len()
    }

    fn next(&self, state: &State, me: usize) -> Next<State> {
        if state.processes[me].gone {
            return Next::Over;
        }
        match self.roles[me] {
            Role::Writer {
                shard,
                early,
                savepoint,
            } => self.writes(state, me, shard, early, savepoint),
            Role::Sweeper { shard, times } => self.sweeps(state, me, shard, times),
            Role::Reader { pages, .. } => self.reads(state, me, pages),
            Role::Trimmer => self.trims(state, me),
            Role::Consumer => self.consumes(state, me),
            Role::Backfiller => self.backfills(state, me),
            Role::Reorganizer => self.reorganizes(state, me),
        }
    }

    fn faults(&self, state: &State) -> Vec<(&'static str, State)> {
        if state.losses == 0 {
            return Vec::new();
        }
        let open = (0..self.roles.len()).filter(|p| state.db.is_open(session(*p)));
        open.map(|process| {
            let mut state = state.clone();
            state.losses -= 1;
            state.db.lose(session(process));
            state.processes[process].gone = true;
            ("lost", state)
        })
        .collect()
    }

    fn properties(&self) -> Vec<Property<Checked<Self>>> {
        let mut all = vec![
            Property::always(
                "1: nothing that was committed is skipped",
                |m: &Checked<Sweep>, s| m.0.nothing_is_skipped(s),
            ),
            Property::always("2: numbers are unique and gapless", |m, s| {
                m.0.numbers_are_gapless(s)
            }),
            Property::always("3: who committed first comes first", |m, s| {
                m.0.order_is_kept(s)
            }),
            Property::always("4: what was rolled back never appears", |m, s| {
                m.0.rolled_back_stays_away(s)
            }),
            Property::always("5: a page read twice is the same", |m, s| m.0.pages_stay(s)),
            Property::always("1: what was backfilled stays", |m, s| {
                m.0.backfilled_stays(s)
            }),
            Property::always("no sweep fails", |_, s: &State| !s.failed),
            Property::always("a sweep leaves nothing out", |_, s: &State| !s.left_out),
            Property::always("no deadlock", |m, s| !m.is_deadlocked(s)),
            Property::always("no sweep waits for a writer", |m, s| {
                m.0.sweeps_wait_for_nobody_outside(s)
            }),
            Property::sometimes("it comes to an end", |m, s| m.is_over(s)),
        ];
        let reached = self.reached.iter();
        all.extend(reached.map(|(name, condition)| Property::sometimes(name, *condition)));
        all
    }
}

/// The scripts that this model executes, by their names in the shipped SQL.
pub fn tied() -> Vec<Script> {
    let scripts = Scripts::shipped();
    vec![
        scripts.sweep,
        scripts.trim,
        scripts.page,
        scripts.backfill,
        scripts.refusal,
        scripts::read(),
    ]
}

/// The indexes that decide which locks there are.
pub fn indexes() -> Script {
    Scripts::shipped().index
}
