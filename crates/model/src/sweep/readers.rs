//! Readers, and what the promises say.

use super::{
    BACKFILL, CHANGE, FINISHED, LAST, NUMBER, OF_SHARD, Process, Role, SHARD, START, State, Sweep,
    TRIMMED, WRITER, session,
};
use crate::check::{Next, Protocol};
use crate::engine::{Read, Stop};
use crate::script::Line;

impl Sweep {
    /// Pages, one after the other. `last` is the cursor.
    pub(super) fn reads(&self, state: &State, me: usize, pages: u8) -> Next<State> {
        if state.processes[me].times >= pages {
            return Next::Over;
        }
        let Some(line) = self.page.at(state.processes[me].at) else {
            return Next::one("page is over", self.judge(state, me));
        };
        let mut next = state.clone();
        match self.page_step(&mut next, me, line) {
            Ok(()) => Next::one(line.step, next),
            Err(Stop::Blocked(by)) => Next::Blocked(usize::from(by)),
            Err(_) => Next::Over,
        }
    }

    fn page_step(&self, state: &mut State, me: usize, line: &Line) -> Result<(), Stop> {
        let by = session(me);
        let State { db, processes, .. } = state;
        let process = &mut processes[me];
        let cursor = process.last.unwrap_or(0);
        process.at += 1;
        match line.step {
            "begun" => {
                let backfill = db.read(self.rules, by, (BACKFILL, 0), Read::Plain)?;
                process.begun = backfill.is_some();
            }
            "upto" => {
                let row = db.scan_for(self.rules, by, (SHARD, 0))?.unwrap_or_default();
                let start = if row[START] == 0 {
                    row[LAST]
                } else {
                    row[START]
                };
                let backfill = db.read(self.rules, by, (BACKFILL, 0), Read::Plain)?;
                let unfinished = backfill.is_some_and(|row| row[FINISHED] == 0);
                process.bound = if cursor < start && unfinished {
                    start
                } else {
                    i8::MAX
                };
                process.position = cursor;
            }
            "page" if self.rules.versioned => {
                let mut found: Vec<(i8, i8)> = db
                    .committed(CHANGE)
                    .filter(|(_, row)| row[OF_SHARD] == 0)
                    .map(|(id, row)| (row[NUMBER], id))
                    .filter(|(number, _)| *number > cursor && *number <= process.bound)
                    .collect();
                found.sort_unstable();
                process.list = found.into_iter().flat_map(|(n, id)| [n, id]).collect();
            }
            "page" if process.waits_at != 0 => {
                // It waits at the entry that it has found, whatever comes before that meanwhile.
                let id = std::mem::take(&mut process.waits_at);
                if let Some(row) = db.read(self.rules, by, (CHANGE, id), Read::Locking)?
                    && row[NUMBER] == process.position
                {
                    process.list.extend([row[NUMBER], id]);
                }
                process.at -= 1;
            }
            "page" => {
                // The index of numbers, entry by entry: also those that are not committed yet.
                let entry = db
                    .keys(CHANGE)
                    .into_iter()
                    .filter_map(|id| Some((db.newest((CHANGE, id))?, id)))
                    .filter(|(row, _)| row[OF_SHARD] == 0 && row[NUMBER] > process.position)
                    .map(|(row, id)| (row[NUMBER], id))
                    .min();
                if let Some((number, id)) = entry.filter(|(number, _)| *number <= process.bound) {
                    process.position = number;
                    process.waits_at = id;
                    process.at -= 1;
                }
            }
            "ends" => {
                let row = db.scan_for(self.rules, by, (SHARD, 0))?.unwrap_or_default();
                process.count = row[TRIMMED];
                process.saw = row[START].max(0).unsigned_abs();
                if row[START] == 0 {
                    process.saw = row[LAST].unsigned_abs();
                }
                if line.says("backfill") {
                    let backfill = db.read(self.rules, by, (BACKFILL, 0), Read::Plain)?;
                    process.began = backfill.is_some() && !process.begun;
                }
            }
            "began" => {
                let backfill = db.read(self.rules, by, (BACKFILL, 0), Read::Plain)?;
                process.began = backfill.is_some() && !process.begun;
            }
            _ => {}
        }
        Ok(())
    }

    /// What our reader makes of the answers: `read_page` in read.rs.
    fn judge(&self, state: &State, me: usize) -> State {
        let mut next = state.clone();
        let process = &mut next.processes[me];
        let cursor = process.last.unwrap_or(0);
        let first = cursor == 0;
        let (list, trimmed, start) = (
            std::mem::take(&mut process.list),
            process.count,
            i8::try_from(process.saw).unwrap_or(i8::MAX),
        );
        let cut = process.began && cursor < start;
        let times = process.times + 1;
        let mut got = std::mem::take(&mut process.got);
        *process = Process {
            times,
            last: Some(cursor),
            ..Process::default()
        };
        if cursor < trimmed && !first {
            // "Cursor expired": it goes no further.
            process.gone = true;
            process.got = got;
            return next;
        }
        let mut expected = cursor.max(start).max(if first { trimmed } else { 0 }) + 1;
        for pair in list.chunks(2) {
            let (number, id) = (pair[0], pair[1]);
            if cut && number > start {
                break;
            }
            if number >= expected {
                if number > expected && self.keeps_contiguous {
                    break;
                }
                expected = number + 1;
            }
            got.push((number, id));
        }
        process.last = got.last().map(|(number, _)| *number).or(Some(cursor));
        process.got = got;
        next
    }

    // The promises ------------------------------------------------------------------------------

    fn readers<'s>(&self, state: &'s State) -> impl Iterator<Item = (&'s Process, bool)> {
        let roles = self.roles.clone();
        state
            .processes
            .iter()
            .zip(roles)
            .filter_map(|(p, role)| match role {
                Role::Reader { first, .. } => Some((p, first)),
                _ => None,
            })
    }

    /// What a reader was given has no holes, and nothing that is there lies below its cursor unread. A
    /// reader that has seen one backfilled change sees them all.
    pub(super) fn nothing_is_skipped(&self, state: &State) -> bool {
        self.readers(state).all(|(reader, first)| {
            let cursor = reader.last.unwrap_or(0);
            let live = reader.got.iter().filter(|(n, _)| !Self::is_backfilled(*n));
            let live: Vec<i8> = live.map(|(n, _)| *n).collect();
            let begins = live.first().copied().unwrap_or_default();
            let has_holes = live.iter().zip(begins..).any(|(n, e)| *n != e);
            let from = if first { begins } else { super::BEFORE + 1 };
            let begins_right = live.is_empty() || begins == from;
            let some_old = reader.got.iter().any(|(n, _)| Self::is_backfilled(*n));
            let unread = state.db.committed(CHANGE).any(|(id, row)| {
                let number = row[NUMBER];
                number != 0
                    && row[OF_SHARD] == 0
                    && number <= cursor
                    && (!Self::is_backfilled(number) || some_old)
                    && !reader.got.contains(&(number, id))
            });
            !has_holes && begins_right && !unread
        })
    }

    pub(super) fn numbers_are_gapless(&self, state: &State) -> bool {
        [0, 1].into_iter().all(|shard| {
            let Some(row) = state.db.settled((SHARD, shard)) else {
                return true;
            };
            let mut numbers: Vec<i8> = state
                .db
                .committed(CHANGE)
                .filter(|(_, c)| c[OF_SHARD] == shard && c[NUMBER] != 0)
                .map(|(_, c)| c[NUMBER])
                .collect();
            numbers.sort_unstable();
            let unique = numbers.windows(2).all(|pair| pair[0] < pair[1]);
            let live: Vec<i8> = numbers
                .into_iter()
                .filter(|n| !Self::is_backfilled(*n))
                .collect();
            let from = row[TRIMMED].max(super::BEFORE) + 1;
            unique && live == (from..=row[LAST]).collect::<Vec<i8>>()
        })
    }

    /// For ids that were drawn within the transaction. A had committed when B began.
    pub(super) fn order_is_kept(&self, state: &State) -> bool {
        let numbers: Vec<(usize, i8, i8)> = state
            .db
            .committed(CHANGE)
            .map(|(_, row)| {
                (
                    usize::try_from(row[WRITER]).unwrap_or(9),
                    row[OF_SHARD],
                    row[NUMBER],
                )
            })
            .collect();
        numbers.iter().all(|(b, shard, nb)| {
            let early = !matches!(self.roles.get(*b), Some(Role::Writer { early: false, .. }));
            let saw = state.processes.get(*b).map_or(0, |p| p.saw);
            early
                || *nb == 0
                || numbers.iter().all(|(a, other, na)| {
                    *a == 7 || shard != other || saw & (1 << a) == 0 || (*na != 0 && na < nb)
                })
        })
    }

    pub(super) fn rolled_back_stays_away(&self, state: &State) -> bool {
        state.db.committed(CHANGE).all(|(id, row)| {
            let writer = usize::try_from(row[WRITER]).unwrap_or(9);
            row[WRITER] == 7
                || (state.committed & (1 << writer) != 0 && state.processes[writer].bound == id)
        })
    }

    pub(super) fn pages_stay(&self, state: &State) -> bool {
        self.readers(state).all(|(reader, _)| {
            reader.got.iter().all(|(number, id)| {
                state
                    .db
                    .settled((CHANGE, *id))
                    .is_none_or(|row| row[NUMBER] == *number)
            })
        })
    }

    /// Nobody who sweeps waits for the application, not even behind somebody else.
    pub(super) fn sweeps_wait_for_nobody_outside(&self, state: &State) -> bool {
        let sweepers =
            (0..self.roles.len()).filter(|p| matches!(self.roles[*p], Role::Sweeper { .. }));
        sweepers.into_iter().all(|sweeper| {
            let mut at = sweeper;
            for _ in 0..self.roles.len() {
                match self.next(state, at) {
                    Next::Blocked(by) if self.is_outside(by) => return false,
                    Next::Blocked(by) => at = by,
                    _ => return true,
                }
            }
            true
        })
    }
}

// What tests want to have reached.
impl State {
    /// How many changes have a number.
    pub fn numbers(&self) -> usize {
        self.db
            .committed(CHANGE)
            .filter(|(_, row)| row[NUMBER] != 0)
            .count()
    }

    /// How much the reader has that has most.
    pub fn read_most(&self) -> usize {
        self.processes
            .iter()
            .map(|p| p.got.len())
            .max()
            .unwrap_or(0)
    }

    /// Whether something was trimmed.
    pub fn is_trimmed(&self) -> bool {
        self.db
            .settled((SHARD, 0))
            .is_some_and(|row| row[TRIMMED] > 0)
    }

    /// Whether somebody was told that a cursor has expired.
    pub fn has_expired(&self) -> bool {
        self.processes.iter().any(|p| p.gone && p.times > 0)
    }
}

impl Sweep {
    /// Whether a change whose id was drawn too early stands before one that was committed before it began.
    pub fn early_breaks_the_order(&self, state: &State) -> bool {
        let late = Sweep {
            roles: self
                .roles
                .iter()
                .map(|role| match role {
                    Role::Writer {
                        shard, savepoint, ..
                    } => Role::Writer {
                        shard: *shard,
                        early: false,
                        savepoint: *savepoint,
                    },
                    other => *other,
                })
                .collect(),
            ..self.clone()
        };
        !late.order_is_kept(state)
    }
}
