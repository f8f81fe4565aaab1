//! Trimming, backfilling, and the application that moves its cursor.

use super::{
    BACKFILL, BACKFILLED, BEFORE, CHANGE, CONSUMER, DONE, FINISHED, LAST, NUMBER, OF_SHARD, SHARD,
    START, State, Sweep, TRIMMED, WRITER, session,
};
use crate::check::Next;
use crate::engine::{Keep, Read, Row, Stop};
use crate::script::Line;

/// How many old rows are backfilled.
const OLD_ROWS: i8 = 2;
/// Numbers go up from so far below the start.
const BELOW: i8 = 8;

impl Sweep {
    pub(super) fn trims(&self, state: &State, me: usize) -> Next<State> {
        let Some(line) = self.trim.at(state.processes[me].at) else {
            return Next::Over;
        };
        let mut next = state.clone();
        next.processes[me].at += 1;
        match self.trim_step(&mut next, me, line) {
            Ok(()) => Next::one(line.step, next),
            Err(Stop::Blocked(_)) if line.hint("consumer", "nowait") => {
                next.db.rollback(session(me));
                next.processes[me].gone = true;
                Next::one("another time", next)
            }
            Err(Stop::Blocked(by)) => Next::Blocked(usize::from(by)),
            Err(_) => Next::Over,
        }
    }

    fn trim_step(&self, state: &mut State, me: usize, line: &Line) -> Result<(), Stop> {
        let by = session(me);
        let State { db, processes, .. } = state;
        let process = &mut processes[me];
        let keep = match line.hint("shard", "updlock") {
            true => Keep::Updlock,
            false => Keep::Default,
        };
        match line.step {
            "old" => {
                let shard = db.settled((SHARD, 0)).unwrap_or_default();
                process.bound = if shard[START] == 0 { 0 } else { shard[LAST] };
            }
            "begin" => db.begin(by),
            "lock" => {
                db.update(self.rules, by, (SHARD, 0), keep, |row| Some(Some(row)))?;
            }
            "backfill" => {
                let row = db.read(self.rules, by, (BACKFILL, 0), Read::Plain)?;
                // Unfinished, or younger than what is trimmed.
                if row.is_some() {
                    process.bound = 0;
                }
            }
            "consumers" => {
                let row = db.read(self.rules, by, (CONSUMER, 0), Read::Plain)?;
                let read = row.map_or(i8::MAX, |row| row[0]);
                process.bound = process.bound.min(read);
            }
            "choose" => {
                let upto = process.bound;
                let mut gone: Vec<(i8, i8)> = db
                    .committed(CHANGE)
                    .filter(|(_, row)| {
                        row[OF_SHARD] == 0 && row[NUMBER] != 0 && row[NUMBER] <= upto
                    })
                    .map(|(id, row)| (row[NUMBER], id))
                    .collect();
                gone.sort_unstable();
                process.count = gone.last().map_or(0, |(number, _)| *number);
                process.list = gone.iter().map(|(_, id)| *id).collect();
            }
            "delete" => {
                for id in process.list.clone() {
                    db.update(self.rules, by, (CHANGE, id), Keep::Default, |_| Some(None))?;
                }
            }
            "mark" if process.count > 0 => {
                let highest = process.count;
                db.update(self.rules, by, (SHARD, 0), Keep::Default, |mut row| {
                    row[TRIMMED] = row[TRIMMED].max(highest);
                    Some(Some(row))
                })?;
            }
            "commit" => db.commit(by),
            _ => {}
        }
        Ok(())
    }

    /// Moves the cursor to all that it could have read, in a transaction that takes its time.
    pub(super) fn consumes(&self, state: &State, me: usize) -> Next<State> {
        let by = session(me);
        let mut next = state.clone();
        next.processes[me].at += 1;
        match state.processes[me].at {
            0 => {
                next.db.begin(by);
                let last = next.db.settled((SHARD, 0)).unwrap_or_default()[LAST];
                let moved =
                    next.db
                        .update(self.rules, by, (CONSUMER, 0), Keep::Default, |mut row| {
                            row[0] = last;
                            Some(Some(row))
                        });
                match moved {
                    Err(Stop::Blocked(by)) => Next::Blocked(usize::from(by)),
                    _ => Next::one("move the cursor", next),
                }
            }
            1 => {
                let mut rolled_back = next.clone();
                rolled_back.db.rollback(by);
                next.db.commit(by);
                Next::To(vec![("commit", next), ("rollback", rolled_back)])
            }
            _ => Next::Over,
        }
    }

    /// Two batches of one row each. First its row is written, which says that it is under way.
    pub(super) fn backfills(&self, state: &State, me: usize) -> Next<State> {
        let by = session(me);
        let mut next = state.clone();
        if next.db.newest((BACKFILL, 0)).is_none() {
            return match next.db.insert(by, (BACKFILL, 0), Row::default()) {
                Ok(()) => {
                    next.db.commit(by);
                    Next::one("announce", next)
                }
                Err(_) => Next::Over,
            };
        }
        let Some(line) = self.backfill.at(state.processes[me].at) else {
            return Next::Over;
        };
        next.processes[me].at += 1;
        match self.backfill_step(&mut next, me, line) {
            Ok(()) => Next::one(line.step, next),
            Err(Stop::Blocked(by)) => Next::Blocked(usize::from(by)),
            Err(_) => Next::Over,
        }
    }

    fn backfill_step(&self, state: &mut State, me: usize, line: &Line) -> Result<(), Stop> {
        let by = session(me);
        let State { db, processes, .. } = state;
        let process = &mut processes[me];
        match line.step {
            "begin" => db.begin(by),
            "claim" => {
                if line.hint("backfill", "updlock") {
                    db.lock_row(by, (BACKFILL, 0))?;
                }
                let row = db.read(self.rules, by, (BACKFILL, 0), Read::Plain)?;
                let row = row.unwrap_or_default();
                process.count = row[DONE];
                if row[FINISHED] == 1 {
                    db.commit(by);
                    process.at = u8::MAX;
                }
            }
            "base" => {
                let row = db.scan_for(self.rules, by, (SHARD, 0))?.unwrap_or_default();
                let start = if row[START] == 0 {
                    row[LAST]
                } else {
                    row[START]
                };
                process.bound = start;
                process.last = Some(match row[BACKFILLED] {
                    0 => (start - BELOW).max(row[TRIMMED]),
                    to => to,
                });
            }
            "room" if process.last.unwrap_or(0) + 1 > process.bound => {
                // Readers must not wait for what cannot come.
                db.update(self.rules, by, (BACKFILL, 0), Keep::Default, |mut row| {
                    row[FINISHED] = 1;
                    Some(Some(row))
                })?;
                db.commit(by);
                process.at = u8::MAX;
            }
            "mark out" => {
                let to = process.last.unwrap_or(0) + 1;
                db.update(self.rules, by, (SHARD, 0), Keep::Default, |mut row| {
                    row[BACKFILLED] = to;
                    Some(Some(row))
                })?;
            }
            "give" => {
                let mut row = Row::default();
                row[NUMBER] = process.last.unwrap_or(0) + 1;
                row[WRITER] = 7;
                let shard = db.newest((SHARD, 0)).unwrap_or_default();
                let start = if shard[START] == 0 {
                    shard[LAST]
                } else {
                    shard[START]
                };
                let refused = row[NUMBER] > start || row[NUMBER] <= shard[TRIMMED];
                if refused && self.refuses {
                    // The trigger's error undoes the batch; the call is not repeated here.
                    db.rollback(by);
                    process.at = u8::MAX;
                } else {
                    db.insert(by, (CHANGE, 100 + row[NUMBER]), row)?;
                }
            }
            "done" => {
                let done = process.count + 1;
                db.update(self.rules, by, (BACKFILL, 0), Keep::Default, |mut row| {
                    row[DONE] = done;
                    row[FINISHED] = i8::from(done == OLD_ROWS);
                    Some(Some(row))
                })?;
            }
            "commit" => {
                db.commit(by);
                process.at = 0;
            }
            _ => {}
        }
        Ok(())
    }

    /// What a backfill has given stays, and lies above what was trimmed.
    pub(super) fn backfilled_stays(&self, state: &State) -> bool {
        let done = state.db.settled((BACKFILL, 0)).map_or(0, |row| row[DONE]);
        let trimmed = state.db.settled((SHARD, 0)).unwrap_or_default()[TRIMMED];
        let old = state
            .db
            .committed(CHANGE)
            .filter(|(_, row)| row[WRITER] == 7);
        let old: Vec<i8> = old.map(|(_, row)| row[NUMBER]).collect();
        old.len() == usize::try_from(done).unwrap_or(0) && old.iter().all(|n| *n > trimmed)
    }

    /// Whether this is a number for data older than the feed.
    pub(super) fn is_backfilled(number: i8) -> bool {
        number <= BEFORE
    }
}
