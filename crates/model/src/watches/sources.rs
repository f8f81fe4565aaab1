//! Writers, and what happens to change tracking.

use super::{LOG, ROW, State, Tracking, Watches, session};
use crate::check::Next;
use crate::engine::{Keep, Row, Stop};

impl Watches {
    /// One transaction that changes a row.
    pub(super) fn writes(&self, state: &State, me: usize, key: i8) -> Next<State> {
        let by = session(me);
        let mut next = state.clone();
        next.processes[me].at += 1;
        match state.processes[me].at {
            0 => {
                next.db.begin(by);
                let written =
                    next.db
                        .update(self.rules, by, (ROW, key), Keep::Default, |mut row| {
                            row[0] += 1;
                            Some(Some(row))
                        });
                if let Err(Stop::Blocked(by)) = written {
                    return Next::Blocked(usize::from(by));
                }
                if !self.native {
                    // Our trigger, in the same transaction.
                    next.orders += 1;
                    let mut row = Row::default();
                    row[0] = key;
                    let _ = next.db.insert(by, (LOG, next.orders), row);
                }
                Next::one("write", next)
            }
            1 if self.native && state.tracking.id != 0 => {
                let mut rolled_back = next.clone();
                rolled_back.db.rollback(by);
                rolled_back.processes[me].at = 9;
                next.tracking.given += 1;
                next.processes[me].version = next.tracking.given;
                Next::To(vec![("version", next), ("rollback", rolled_back)])
            }
            1 | 2 => {
                let version = state.processes[me].version;
                let mut rolled_back = next.clone();
                rolled_back.db.rollback(by);
                rolled_back.processes[me].at = 9;
                next.processes[me].at = 9;
                next.processes[me].version = 0;
                next.db.commit(by);
                if version == 0 {
                    return Next::To(vec![("commit", next), ("rollback", rolled_back)]);
                }
                if version != state.tracking.current + 1 {
                    // They become visible in the order of their versions.
                    return Next::To(Vec::new());
                }
                next.tracking.current = version;
                if next.tracking.id != 0 {
                    next.tracking.changes.retain(|(k, _)| *k != key);
                    next.tracking.changes.push((key, version));
                    next.tracking.changes.sort_unstable();
                }
                Next::one("commit", next)
            }
            _ => Next::Over,
        }
    }

    /// Retention is over for everything: first the floor moves, and then the changes go.
    pub(super) fn cleans_up(&self, state: &State, me: usize) -> Next<State> {
        let mut next = state.clone();
        next.processes[me].at += 1;
        match state.processes[me].at {
            0 if state.tracking.id != 0 && state.tracking.current > state.tracking.floor => {
                next.tracking.floor = state.tracking.current;
                Next::one("floor", next)
            }
            1 => {
                let floor = next.tracking.floor;
                next.tracking
                    .changes
                    .retain(|(_, version)| *version > floor);
                Next::one("clean up", next)
            }
            0 => Next::To(Vec::new()),
            _ => Next::Over,
        }
    }

    pub(super) fn switches(&self, state: &State, me: usize) -> Next<State> {
        let mut next = state.clone();
        next.processes[me].at += 1;
        let Tracking { current, given, .. } = state.tracking;
        match state.processes[me].at {
            // ALTER TABLE waits for those who write.
            0 if current == given => {
                next.tracking.id = 0;
                next.tracking.changes.clear();
                Next::one("off", next)
            }
            0 => Next::To(Vec::new()),
            1 => {
                next.tracking.id = 2;
                next.tracking.floor = current;
                Next::one("on", next)
            }
            _ => Next::Over,
        }
    }
}
