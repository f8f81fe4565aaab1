//! Numbering as SQLite does it: in the writer's transaction, because there is one writer at a time.
//!
//! A transaction that has read and then writes must have read the newest state, or it fails (SQLITE_BUSY): its
//! snapshot cannot be made a writer's. Readers see what was committed when their transaction began.

use stateright::Property;

use crate::check::{Checked, Next, Protocol};
use crate::script::{Program, Script, step};

/// The trigger that numbers a change: both statements are of one trigger, so the first takes the file's write
/// lock, and the second sees the newest number.
pub fn change_insert() -> Script {
    Script::new(
        "changefeed_change_insert",
        [
            step(
                "lock",
                "update changefeed_change_id set value = value + 1 where new.change_id is null;",
            ),
            step(
                "number",
                "insert into changefeed_numbered (feed_id, shard, change_sequence_number, change_id) select d.feed_id, d.shard, 1 + max(d.start, d.trimmed, coalesce((select max(n.change_sequence_number) from changefeed_numbered n where n.feed_id = new.feed_id and n.shard = new.shard), 0)),",
            ),
        ],
    )
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Process {
    at: u8,
    /// The state of the file that its snapshot shows.
    snapshot: Option<u8>,
    number: i8,
    saw: u8,
    done: bool,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    version: u8,
    writer: Option<usize>,
    /// Committed numbers, with their writers.
    numbered: Vec<(i8, usize)>,
    committed: u8,
    processes: Vec<Process>,
}

/// The model: so many writers, of which the first reads something in its transaction before it writes.
#[derive(Debug, Clone)]
pub struct OneWriter {
    writers: usize,
    program: Program,
    /// Whether a stale snapshot can become a writer's, which SQLite refuses.
    refuses_stale: bool,
}

impl OneWriter {
    /// A model of this script.
    pub fn new(writers: usize, script: &Script, refuses_stale: bool) -> Self {
        OneWriter {
            writers,
            program: Program::of(script),
            refuses_stale,
        }
    }
}

impl Protocol for OneWriter {
    type State = State;

    fn begin(&self) -> State {
        State {
            version: 0,
            writer: None,
            numbered: Vec::new(),
            committed: 0,
            processes: vec![Process::default(); self.writers],
        }
    }

    fn processes(&self) -> usize {
        self.writers
    }

    fn next(&self, state: &State, me: usize) -> Next<State> {
        let process = &state.processes[me];
        if process.done {
            return Next::Over;
        }
        let mut next = state.clone();
        if process.at == 0 {
            next.processes[me].at = 1;
            next.processes[me].saw = state.committed;
            next.processes[me].snapshot = (me == 0).then_some(state.version);
            return Next::one("begin", next);
        }
        let Some(line) = self.program.at(process.at - 1) else {
            let mut rolled_back = next.clone();
            rolled_back.processes[me].done = true;
            rolled_back.writer = None;
            next.processes[me].done = true;
            next.writer = None;
            next.version += 1;
            next.numbered.push((process.number, me));
            next.numbered.sort_unstable();
            next.committed |= 1 << me;
            return Next::To(vec![("commit", next), ("rollback", rolled_back)]);
        };
        next.processes[me].at += 1;
        match line.step {
            "lock" => {
                let stale = process.snapshot.is_some_and(|seen| seen != state.version);
                match state.writer {
                    Some(by) => return Next::Blocked(by),
                    None if stale && self.refuses_stale => {
                        next.processes[me].done = true;
                        return Next::one("busy", next);
                    }
                    None => next.writer = Some(me),
                }
            }
            "number" => {
                let seen = state.numbered.iter().map(|(number, _)| *number);
                let seen: Vec<i8> = match process.snapshot {
                    // A stale snapshot shows what was there when it was taken.
                    Some(version) => seen.take(usize::from(version)).collect(),
                    None => seen.collect(),
                };
                next.processes[me].number = seen.into_iter().max().unwrap_or(0) + 1;
            }
            _ => {}
        }
        Next::one(line.step, next)
    }

    fn properties(&self) -> Vec<Property<Checked<Self>>> {
        vec![
            Property::always("2: numbers are unique and gapless", |_, s: &State| {
                s.numbered
                    .iter()
                    .map(|(n, _)| *n)
                    .eq(1..=i8::try_from(s.numbered.len()).unwrap_or(0))
            }),
            Property::always("3: who committed first comes first", |_, s: &State| {
                s.numbered.iter().all(|(nb, b)| {
                    let saw = s.processes[*b].saw;
                    s.numbered
                        .iter()
                        .all(|(na, a)| saw & (1 << a) == 0 || na < nb)
                })
            }),
            Property::always("no deadlock", |m: &Checked<OneWriter>, s: &State| {
                !m.is_deadlocked(s)
            }),
            Property::sometimes("all have numbers", |m: &Checked<OneWriter>, s: &State| {
                s.numbered.len() == m.0.writers
            }),
        ]
    }
}
