//! What a sweep does between its locks: collecting changes, in a snapshot or by locks, and giving them their numbers.

use super::{CHANGE, NUMBER, OF_SHARD, State, Sweep, page_of, session};
use crate::engine::{Database, Keep, Mode, Read, Session, Stop};
use crate::script::Line;

impl Sweep {
    /// A snapshot is of the first read of its transaction.
    pub(super) fn take_snapshot(&self, db: &mut Database, by: Session) {
        if self.sweep.has("set transaction isolation level snapshot") {
            db.take_snapshot(by);
        }
    }

    /// Collects in a snapshot, before the lock. Without one, this would be a scan that waits for writers.
    pub(super) fn look(
        &self,
        state: &mut State,
        me: usize,
        shard: i8,
        line: &Line,
    ) -> Result<(), Stop> {
        let by = session(me);
        self.take_snapshot(&mut state.db, by);
        let rows = match state.db.snapshot(by, CHANGE) {
            Some(rows) => rows,
            None => {
                let mut rows = Vec::new();
                for id in state.db.keys(CHANGE) {
                    let row = state.db.read(self.rules, by, (CHANGE, id), Read::Plain)?;
                    rows.extend(row.map(|row| (id, row)));
                }
                rows
            }
        };
        let mut list: Vec<i8> = rows
            .iter()
            .filter(|(_, row)| row[OF_SHARD] == shard && row[NUMBER] == 0)
            .map(|(id, _)| *id)
            .collect();
        if !line.says("order by c.change_id") {
            list.reverse();
        }
        list.truncate(self.batch);
        state.processes[me].list = list;
        Ok(())
    }

    /// Returns whether everything is collected: a scan that goes by locks is one step for each row.
    pub(super) fn collect(
        &self,
        state: &mut State,
        me: usize,
        shard: i8,
        line: &Line,
    ) -> Result<bool, Stop> {
        let by = session(me);
        let process = &mut state.processes[me];
        let bound = match line.says("c.change_id < @bound") && process.bound != 0 {
            true => process.bound,
            false => i8::MAX,
        };
        let locking = line.hint("change", "readcommittedlock");
        let past = line.hint("change", "readpast");
        if !locking && !past && self.rules.versioned {
            let found = state.db.committed(CHANGE);
            process.list = found
                .filter(|(id, row)| row[OF_SHARD] == shard && row[NUMBER] == 0 && *id < bound)
                .map(|(id, _)| id)
                .collect();
            self.collected(state, me, line);
            return Ok(true);
        }
        let keys = state.db.keys(CHANGE);
        let next = keys.into_iter().find(|id| *id > process.position);
        let Some(id) = next.filter(|id| *id < bound) else {
            self.collected(state, me, line);
            return Ok(true);
        };
        let how = if past { Read::Past } else { Read::Locking };
        let page_is_free = state.db.is_free(page_of(id), by, Mode::Shared);
        let row = match page_is_free {
            true => state.db.read(self.rules, by, (CHANGE, id), how)?,
            false => None,
        };
        let process = &mut state.processes[me];
        process.position = id;
        if row.is_some_and(|row| row[OF_SHARD] == shard && row[NUMBER] == 0) {
            process.list.push(id);
        }
        Ok(false)
    }

    pub(super) fn collected(&self, state: &mut State, me: usize, line: &Line) {
        let process = &mut state.processes[me];
        process.position = 0;
        // What was collected in a snapshot was put in order there.
        if line.step != "compare" && !line.says("order by c.change_id") {
            process.list.reverse();
        }
        process.list.truncate(self.batch);
        process.count = i8::try_from(process.list.len()).unwrap_or(i8::MAX);
        // `if @last is null`, and `if @change_count = 0`.
        if process.count == 0 && self.sweep.has("if @change_count = 0") {
            self.sweep_commits(state, me);
        }
    }

    /// Numbers what was collected: all rows at once where nobody can see the order, otherwise one row, in
    /// an order that is the server's.
    pub(super) fn number(&self, state: &mut State, me: usize, line: &Line) -> Result<(), Stop> {
        let by = session(me);
        let State { db, processes, .. } = state;
        let process = &mut processes[me];
        let last = process.last.unwrap_or(0);
        let only_without = line.says("c.change_sequence_number is null");
        let mut rows: Vec<(i8, i8)> = (1..).zip(process.list.iter().copied()).collect();
        if self.backward {
            rows.reverse();
        }
        if !self.rules.versioned {
            let done = usize::try_from(process.position).unwrap_or_default();
            rows = rows.into_iter().skip(done).take(1).collect();
        }
        let mut numbered = 0;
        for (place, id) in &rows {
            if !db.is_free(page_of(*id), by, Mode::Exclusive) {
                return Err(Stop::Blocked(self.reorganizer()));
            }
            let found = db.update(self.rules, by, (CHANGE, *id), Keep::Default, |mut row| {
                if only_without && row[NUMBER] != 0 {
                    return None;
                }
                row[NUMBER] = last + place;
                Some(Some(row))
            })?;
            numbered += usize::from(found);
        }
        if numbered != rows.len() && self.sweep.has("if @@rowcount <> @change_count") {
            self.sweep_fails(state, me);
            return Ok(());
        }
        process.position += 1;
        if !self.rules.versioned && process.position < process.count {
            process.at -= 1;
        } else {
            process.position = 0;
        }
        self.autocommit(state, by);
        Ok(())
    }
}
