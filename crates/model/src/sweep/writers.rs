//! Applications that insert changes, and those who reorganize an index below them.

use super::{CHANGE, NUMBER, OF_SHARD, Role, State, Sweep, WRITER, page_of, session};
use crate::check::Next;
use crate::engine::{Mode, Owner, PAGE, Row, Stop};

impl Sweep {
    /// `insert into changefeed.change (feed_id, shard, change_id) values (…, next value for …)`.
    pub(super) fn writes(
        &self,
        state: &State,
        me: usize,
        shard: i8,
        early: bool,
        savepoint: bool,
    ) -> Next<State> {
        let by = session(me);
        let mut next = state.clone();
        let process = &mut next.processes[me];
        process.at += 1;
        let draw = |state: &mut State| {
            state.processes[me].bound = state.next_id;
            state.next_id += 1;
        };
        match state.processes[me].at {
            0 => {
                draw(&mut next);
                Next::one("draw early", next)
            }
            1 => {
                process.saw = state.committed;
                next.db.begin(by);
                if savepoint {
                    next.db.save(by);
                    draw(&mut next);
                    let place = (CHANGE, next.processes[me].bound);
                    if let Err(Stop::Blocked(by)) = self.insert(&mut next, me, place.1, shard) {
                        return Next::Blocked(usize::from(by));
                    }
                }
                Next::one("begin", next)
            }
            2 => {
                if savepoint {
                    next.db.rollback_to_savepoint(by);
                }
                if !early {
                    draw(&mut next);
                }
                Next::one("draw", next)
            }
            3 => {
                let id = next.processes[me].bound;
                match self.insert(&mut next, me, id, shard) {
                    Err(Stop::Blocked(by)) => Next::Blocked(usize::from(by)),
                    _ => Next::one("insert", next),
                }
            }
            4 => {
                let mut rolled_back = next.clone();
                rolled_back.db.rollback(by);
                next.db.commit(by);
                next.committed |= 1 << me;
                Next::To(vec![("commit", next), ("rollback", rolled_back)])
            }
            _ => Next::Over,
        }
    }

    fn insert(&self, state: &mut State, me: usize, id: i8, shard: i8) -> Result<(), Stop> {
        let by = session(me);
        if !state.db.is_free(page_of(id), by, Mode::Exclusive) {
            return Err(Stop::Blocked(self.reorganizer()));
        }
        let mut row = Row::default();
        row[NUMBER] = 0;
        row[WRITER] = i8::try_from(me).unwrap_or(i8::MAX);
        row[OF_SHARD] = shard;
        state.db.insert(by, (CHANGE, id), row)
    }

    /// Locks a page for a moment, if the index lets pages be locked.
    pub(super) fn reorganizes(&self, state: &State, me: usize) -> Next<State> {
        let by = session(me);
        if !self.page_locks || state.processes[me].at > 1 {
            return Next::Over;
        }
        let mut ways = Vec::new();
        if state.processes[me].at == 0 {
            for page in 0..3 {
                let rows_are_free = (2 * page..2 * page + 2)
                    .all(|id| state.db.is_free((CHANGE, id), by, Mode::Exclusive));
                let mut next = state.clone();
                let place = (PAGE + CHANGE, page);
                let lock = next.db.lock(place, by, Mode::Exclusive, Owner::Transaction);
                if rows_are_free && lock.is_ok() {
                    next.processes[me].at = 1;
                    ways.push(("lock page", next));
                }
            }
        } else {
            let mut next = state.clone();
            next.db.commit(by);
            next.processes[me].at = 2;
            ways.push(("free page", next));
        }
        Next::To(ways)
    }

    /// Whether a process belongs to the application, and may take as long as it likes.
    pub(super) fn is_outside(&self, process: usize) -> bool {
        matches!(self.roles[process], Role::Writer { .. } | Role::Consumer)
    }
}
