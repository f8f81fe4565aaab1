//! The sweep as PostgreSQL runs it: `changefeed.number_shard`, which compares snapshots.
//!
//! There are no locks on rows here but the shard's, and no versions but the visibility of transactions: a
//! snapshot is the first transaction that had not begun, and those that were at work.

use stateright::Property;

use crate::check::{Checked, Next, Protocol};
use crate::script::{Line, Program, Script, step};

/// A `pg_snapshot`: everything below `end` is finished, except for `working`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Snapshot {
    end: i8,
    working: Vec<i8>,
}

impl Snapshot {
    fn shows(&self, xid: i8) -> bool {
        xid < self.end && !self.working.contains(&xid)
    }
}

/// `changefeed.number_shard` of numbering.sql: what orders, in its order. The parser for T-SQL does not
/// read it; the test looks for these texts, in this order, in the function.
pub fn number_shard() -> Script {
    Script::new(
        "changefeed.number_shard",
        [
            step("lock", "for no key update skip locked;"),
            step(
                "prev",
                "select p.* into strict prev from changefeed.progress p where p.feed_id = of_feed and p.shard = of_shard order by p.last_change_sequence_number desc, p.sweep_id desc limit 1;",
            ),
            step(
                "now",
                "now_at := changefeed.without_us(pg_current_snapshot());",
            ),
            step("cut", "offset piece limit 1;"),
            step(
                "number",
                "insert into changefeed.numbered (feed_id, shard, change_sequence_number, change_id) select of_feed, of_shard, next.last_change_sequence_number + row_number() over (order by n.change_id), n.change_id",
            ),
            step("snapshot", "next.snapshot := upto;"),
            step("progress", "insert into changefeed.progress"),
        ],
    )
}

/// `changefeed.finished_between`: which transactions have finished.
pub fn finished_between() -> Script {
    Script::new(
        "changefeed.finished_between",
        [
            step(
                "worked",
                "from pg_snapshot_xip(since) x where pg_visible_in_snapshot(x, upto)",
            ),
            step(
                "begun",
                "from pg_snapshot_xip(upto) x where x::text::bigint >= base union all select bound",
            ),
        ],
    )
}

/// Who takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Publishes one change, or one that it takes back by a savepoint and another.
    Writer,
    /// Calls `number_shard` so many times.
    Sweeper(u8),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Process {
    at: u8,
    times: u8,
    xid: i8,
    saw: u8,
    prev: (i8, Snapshot),
    now: Snapshot,
    upto: Snapshot,
    unfinished: bool,
    written: Vec<(i8, i8)>,
    lost: bool,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    next_xid: i8,
    next_id: i8,
    /// Transactions at work.
    working: Vec<i8>,
    /// The inbox: transaction, change, writer; what was rolled back is gone.
    inbox: Vec<(i8, i8, i8)>,
    committed: Vec<i8>,
    writers: u8,
    locked: Option<usize>,
    /// Committed progress: the last number, and the snapshot up to which there are numbers.
    progress: (i8, Snapshot),
    /// Committed numbers, with their changes.
    numbered: Vec<(i8, i8)>,
    processes: Vec<Process>,
    losses: u8,
}

/// The model.
#[derive(Debug, Clone)]
pub struct Snapshots {
    roles: Vec<Role>,
    program: Program,
    looks_at_worked: bool,
    /// How many changes are numbered in one piece.
    piece: usize,
    keeps_end: bool,
    waits: bool,
    losses: u8,
}

/// What a model of it is made of.
#[derive(Debug, Clone)]
pub struct Scripts {
    /// `number_shard`.
    pub number: Script,
    /// `finished_between`.
    pub finished: Script,
    /// A piece does not end before the last one did: `case when cut < pg_snapshot_xmax(next.snapshot) ...`.
    pub keeps_end: bool,
}

impl Scripts {
    /// As they are shipped.
    pub fn shipped() -> Self {
        Scripts {
            number: number_shard(),
            finished: finished_between(),
            keeps_end: true,
        }
    }
}

impl Snapshots {
    /// A model of these scripts.
    pub fn new(roles: &[Role], scripts: &Scripts) -> Self {
        Snapshots {
            roles: roles.to_vec(),
            program: Program::of(&scripts.number),
            looks_at_worked: scripts.finished.says("pg_visible_in_snapshot(x, upto)"),
            piece: 9,
            keeps_end: scripts.keeps_end,
            waits: !scripts.number.says("skip locked"),
            losses: 0,
        }
    }

    /// So many changes are one piece.
    pub fn piece(mut self, piece: usize) -> Self {
        self.piece = piece;
        self
    }

    /// So many processes are killed.
    pub fn losses(mut self, losses: u8) -> Self {
        self.losses = losses;
        self
    }

    fn writes(&self, state: &State, me: usize) -> Next<State> {
        let mut next = state.clone();
        next.processes[me].at += 1;
        match state.processes[me].at {
            0 => {
                next.processes[me].saw = state.writers;
                Next::one("begin", next)
            }
            1 => {
                let xid = state.next_xid;
                next.processes[me].xid = xid;
                next.next_xid += 1;
                next.working.push(xid);
                Next::one("first write", next)
            }
            2 => {
                let (xid, writer) = (state.processes[me].xid, i8::try_from(me).unwrap_or(0));
                next.inbox.push((xid, state.next_id, writer));
                next.next_id += 1;
                Next::one("publish", next)
            }
            3 => {
                let xid = state.processes[me].xid;
                next.working.retain(|x| *x != xid);
                let mut rolled_back = next.clone();
                rolled_back.inbox.retain(|(x, ..)| *x != xid);
                next.committed.push(xid);
                next.committed.sort_unstable();
                next.writers |= 1 << me;
                Next::To(vec![("commit", next), ("rollback", rolled_back)])
            }
            _ => Next::Over,
        }
    }

    /// Transactions that are finished in one snapshot and were not in another.
    fn finished(&self, since: &Snapshot, upto: &Snapshot) -> Vec<i8> {
        (0..upto.end)
            .filter(|xid| upto.shows(*xid))
            .filter(|xid| {
                *xid >= since.end || (self.looks_at_worked && since.working.contains(xid))
            })
            .collect()
    }

    fn sweeps(&self, state: &State, me: usize, times: u8) -> Next<State> {
        if state.processes[me].times >= times {
            return Next::Over;
        }
        let mut next = state.clone();
        let Some(line) = self.program.at(state.processes[me].at) else {
            // COMMIT: numbers and progress become visible, and the lock is free.
            let process = std::mem::take(&mut next.processes[me]);
            if process.written.is_empty() {
                next.locked = next.locked.filter(|by| *by != me);
            } else {
                next.numbered.extend(process.written);
                next.numbered.sort_unstable();
                next.progress = process.prev;
                next.locked = None;
            }
            next.processes[me].times = process.times + 1;
            return Next::one("commit", next);
        };
        next.processes[me].at += 1;
        match self.sweep_step(&mut next, me, line) {
            Some(by) => Next::Blocked(by),
            None => Next::one(line.step, next),
        }
    }

    fn sweep_step(&self, state: &mut State, me: usize, line: &Line) -> Option<usize> {
        let current = Snapshot {
            end: state.next_xid,
            working: state.working.clone(),
        };
        match line.step {
            "lock" => match state.locked {
                Some(by) if self.waits => return Some(by),
                Some(_) => {
                    // Somebody else has it.
                    let times = state.processes[me].times + 1;
                    state.processes[me] = Process {
                        times,
                        ..Process::default()
                    };
                }
                None => state.locked = Some(me),
            },
            "prev" => state.processes[me].prev = state.progress.clone(),
            "now" => state.processes[me].now = current,
            "cut" => self.cut(state, me),
            "number" => self.number(state, me),
            "snapshot" => {
                let process = &mut state.processes[me];
                process.prev.1 = process.upto.clone();
                if process.unfinished {
                    process.at = self.program.place("cut");
                }
            }
            _ => {}
        }
        None
    }

    /// Takes a piece: everything up to the transaction behind so many changes.
    fn cut(&self, state: &mut State, me: usize) {
        let process = &state.processes[me];
        let since = &process.prev.1;
        let mut upto = process.now.clone();
        let finished = self.finished(since, &upto);
        let mut rows: Vec<i8> = state
            .inbox
            .iter()
            .map(|(xid, ..)| *xid)
            .filter(|xid| finished.contains(xid) && state.committed.contains(xid))
            .collect();
        rows.sort_unstable();
        let cut = rows.get(self.piece).copied();
        if let Some(cut) = cut {
            let mut working = upto.working.clone();
            working.extend(since.working.iter().filter(|xid| **xid >= cut));
            let end = if self.keeps_end {
                cut.max(since.end)
            } else {
                cut
            };
            working.retain(|xid| *xid < end);
            working.sort_unstable();
            working.dedup();
            upto = Snapshot { end, working };
        }
        let process = &mut state.processes[me];
        process.upto = upto;
        process.unfinished = cut.is_some();
    }

    fn number(&self, state: &mut State, me: usize) {
        let process = &state.processes[me];
        let finished = self.finished(&process.prev.1, &process.upto);
        let mut ids: Vec<i8> = state
            .inbox
            .iter()
            .filter(|(xid, ..)| finished.contains(xid) && state.committed.contains(xid))
            .map(|(_, id, _)| *id)
            .collect();
        ids.sort_unstable();
        let process = &mut state.processes[me];
        for id in ids {
            process.prev.0 += 1;
            process.written.push((process.prev.0, id));
        }
    }

    fn number_of(&self, state: &State, id: i8) -> Option<i8> {
        let mut all = state.numbered.iter();
        all.find(|(_, numbered)| *numbered == id).map(|(n, _)| *n)
    }
}

impl State {
    /// How many changes have numbers.
    pub fn numbers(&self) -> usize {
        self.numbered.len()
    }
}

impl Protocol for Snapshots {
    type State = State;

    fn begin(&self) -> State {
        let snapshot = Snapshot {
            end: 1,
            working: Vec::new(),
        };
        State {
            next_xid: 1,
            next_id: 1,
            working: Vec::new(),
            inbox: Vec::new(),
            committed: Vec::new(),
            writers: 0,
            locked: None,
            progress: (0, snapshot),
            numbered: Vec::new(),
            processes: vec![Process::default(); self.roles.len()],
            losses: self.losses,
        }
    }

    fn processes(&self) -> usize {
        self.roles.len()
    }

    fn next(&self, state: &State, me: usize) -> Next<State> {
        match self.roles[me] {
            _ if state.processes[me].lost => Next::Over,
            Role::Writer => self.writes(state, me),
            Role::Sweeper(times) => self.sweeps(state, me, times),
        }
    }

    fn faults(&self, state: &State) -> Vec<(&'static str, State)> {
        let mut ways = Vec::new();
        for me in 0..self.roles.len() {
            let process = &state.processes[me];
            if state.losses == 0 || process.lost || process.at == 0 {
                continue;
            }
            let mut next = state.clone();
            next.losses -= 1;
            next.locked = next.locked.filter(|by| *by != me);
            let xid = process.xid;
            if next.working.contains(&xid) {
                next.working.retain(|x| *x != xid);
                next.inbox.retain(|(x, ..)| *x != xid);
            }
            next.processes[me] = Process {
                lost: true,
                saw: process.saw,
                ..Process::default()
            };
            ways.push(("is lost", next));
        }
        ways
    }

    fn properties(&self) -> Vec<Property<Checked<Self>>> {
        vec![
            Property::always(
                "1: nothing that was committed is skipped",
                |_, s: &State| {
                    let (_, snapshot) = &s.progress;
                    s.inbox.iter().all(|(xid, id, _)| {
                        let passed = s.committed.contains(xid) && snapshot.shows(*xid);
                        !passed || s.numbered.iter().any(|(_, numbered)| numbered == id)
                    })
                },
            ),
            Property::always("2: numbers are unique and gapless", |_, s: &State| {
                let numbers = s.numbered.iter().map(|(n, _)| *n);
                let mut ids: Vec<i8> = s.numbered.iter().map(|(_, id)| *id).collect();
                ids.sort_unstable();
                ids.dedup();
                numbers.eq(1..=s.progress.0) && ids.len() == s.numbered.len()
            }),
            Property::always(
                "3: who committed first comes first",
                |m: &Checked<Snapshots>, s: &State| {
                    s.inbox.iter().all(|(_, b, writer)| {
                        let saw = s.processes[usize::try_from(*writer).unwrap_or(0)].saw;
                        let Some(nb) = m.0.number_of(s, *b) else {
                            return true;
                        };
                        let mut before = s.inbox.iter().filter(|(_, _, a)| saw & (1 << a) != 0);
                        before.all(|(_, a, _)| m.0.number_of(s, *a).is_some_and(|na| na < nb))
                    })
                },
            ),
            Property::always("no deadlock", |m: &Checked<Snapshots>, s: &State| {
                !m.is_deadlocked(s)
            }),
            Property::sometimes("all have numbers", |m: &Checked<Snapshots>, s: &State| {
                let writers = m.0.roles.iter().filter(|r| **r == Role::Writer).count();
                s.numbered.len() == writers
            }),
        ]
    }
}
