//! What a worker does, step by step.

use super::{
    ATTEMPTS, BACKLOG, EXPIRES, LAST_VERSION, LEASE, LOG, NEWER, OWNER, PARKED, Phase, Process,
    ROW, Role, State, TRACKED_IN, TRACKED_VERSION, WATCH, WATCHED, Watches, session,
};
use crate::check::{Next, Protocol};
use crate::engine::{Keep, Mode, Read, Row, Stop};
use crate::script::{Line, Program};

/// How often a row is tried.
const MOST_ATTEMPTS: i8 = 2;

impl Watches {
    pub(super) fn works(&self, state: &State, me: usize) -> Next<State> {
        let process = &state.processes[me];
        let program: &Program = match process.phase {
            Phase::Read => &self.read,
            Phase::Move => &self.moves,
            Phase::Load => &self.load,
            Phase::Lease => &self.lease,
            Phase::Settle(_) => &self.settle,
            Phase::Rows => return self.reads_rows(state, me),
            Phase::Call => return self.calls(state, me),
        };
        let Some(line) = program.at(process.at) else {
            return Next::Over;
        };
        let mut next = state.clone();
        next.processes[me].at += 1;
        let done = match process.phase {
            Phase::Read => self.read_step(&mut next, me, line),
            Phase::Move => self.move_step(&mut next, me, line),
            Phase::Load => self.load_step(&mut next, me, line),
            Phase::Lease => self.lease_step(&mut next, me, line),
            Phase::Settle(success) => self.settle_step(&mut next, me, line, success),
            _ => Ok(()),
        };
        match done {
            Ok(()) => Next::one(line.step, next),
            Err(Stop::Blocked(by)) => Next::Blocked(usize::from(by)),
            Err(_) => Next::Over,
        }
    }

    fn go(&self, process: &mut Process, phase: Phase) {
        process.phase = phase;
        process.at = 0;
    }

    fn round_is_over(&self, state: &mut State, me: usize) {
        let rounds = state.processes[me].rounds + 1;
        state.processes[me] = Process {
            rounds,
            ..Process::default()
        };
        self.begin_round(&mut state.processes[me]);
    }

    fn begin_round(&self, process: &mut Process) {
        if !self.native {
            self.go(process, Phase::Move);
        }
    }

    // watch_changes_tracked.sql -------------------------------------------------------------------

    fn read_step(&self, state: &mut State, me: usize, line: &Line) -> Result<(), Stop> {
        let by = session(me);
        if !self.native {
            self.begin_round(&mut state.processes[me]);
            return Ok(());
        }
        let State {
            db,
            tracking,
            processes,
            ..
        } = state;
        let process = &mut processes[me];
        let snapshot = self.read.has("set transaction isolation level snapshot");
        match line.step {
            "begin" => db.begin(by),
            "until" => {
                process.until = if snapshot {
                    tracking.current
                } else {
                    tracking.given
                };
            }
            "since" => {
                if snapshot {
                    db.take_snapshot(by);
                    process.snapshot = Some(tracking.changes.clone());
                }
                let row = db.read(self.rules, by, (WATCHED, 0), Read::Plain)?;
                let row = row.unwrap_or_default();
                process.since = row[TRACKED_VERSION];
                process.known = row[TRACKED_IN];
            }
            "floor" => {
                process.floor = tracking.floor;
                if tracking.id == 0 {
                    // 55701: asked again later.
                    db.rollback(by);
                    self.round_is_over(state, me);
                }
            }
            "behind" => {
                process.missed = process.since < process.floor || process.since > tracking.current;
            }
            "changes" if !process.missed => {
                process.until = process.until.max(process.since);
                let seen = process.snapshot.as_ref().unwrap_or(&tracking.changes);
                let (since, until) = (process.since, process.until);
                let mut found: Vec<(i8, i8)> = seen
                    .iter()
                    .filter(|(_, version)| *version > since)
                    .filter(|(_, version)| !line.says("<= @until") || *version <= until)
                    .map(|(key, version)| (*version, *key))
                    .collect();
                found.sort_unstable();
                if found.len() >= self.chunk {
                    // Each transaction has changed one row, so that there are no ties.
                    found.truncate(self.chunk);
                    process.until = found.last().map_or(until, |(version, _)| *version);
                }
                process.keys = found.into_iter().map(|(_, key)| key).collect();
            }
            "noted" => {
                process.noted = tracking.id;
                if self.compares_life && process.noted != process.known {
                    process.missed = true;
                }
            }
            "end" => {
                db.commit(by);
                process.snapshot = None;
                self.go(process, Phase::Move);
            }
            _ => {}
        }
        Ok(())
    }

    // watch_move.sql ------------------------------------------------------------------------------

    fn move_step(&self, state: &mut State, me: usize, line: &Line) -> Result<(), Stop> {
        let by = session(me);
        let State { db, processes, .. } = state;
        let process = &mut processes[me];
        match line.step {
            "begin" => db.begin(by),
            "lock" => {
                let Process {
                    since,
                    known,
                    until,
                    noted,
                    ..
                } = *process;
                let native = self.native;
                let before = db.settled((WATCHED, 0)).unwrap_or_default()[TRACKED_VERSION];
                let locked =
                    db.update(self.rules, by, (WATCHED, 0), Keep::Default, |mut row| {
                        let same =
                            row[TRACKED_VERSION] == since || !line.says("tracked_version = @since");
                        let life = row[TRACKED_IN] == known || !line.says("isnull(@known, 0)");
                        if native && !(same && life) {
                            return None;
                        }
                        row[LAST_VERSION] += 1;
                        if native {
                            row[TRACKED_VERSION] = until;
                            row[TRACKED_IN] = noted;
                        }
                        Some(Some(row))
                    })?;
                if !locked {
                    db.commit(by);
                    self.go(process, Phase::Lease);
                }
                state.moved_again |= locked && native && until < before;
            }
            "take" if !self.native => self.take_noted(state, me)?,
            "take" if process.missed => {
                self.missed(state, me)?;
            }
            "functions" => {
                for key in process.keys.clone() {
                    self.put(state, me, key)?;
                }
            }
            "commit" => {
                db.commit(by);
                process.keys.clear();
                let loading = db.settled((WATCH, 0)).is_some_and(|row| row[0] != 0);
                process.missed = false;
                let phase = if loading { Phase::Load } else { Phase::Lease };
                self.go(process, phase);
            }
            _ => {}
        }
        Ok(())
    }

    /// What our trigger has noted: passed by if it is locked.
    fn take_noted(&self, state: &mut State, me: usize) -> Result<(), Stop> {
        let by = session(me);
        let Some(line) = self.noted.at(0) else {
            return Ok(());
        };
        let past = line.text.contains("readpast");
        for order in state.db.keys(LOG) {
            let how = if past { Read::Past } else { Read::Locking };
            let Some(row) = state.db.read(self.rules, by, (LOG, order), how)? else {
                continue;
            };
            if past && !state.db.is_free((LOG, order), by, Mode::Update) {
                continue;
            }
            state.processes[me].keys.push(row[0]);
            if self.noted.at(1).is_some() {
                let place = (LOG, order);
                state
                    .db
                    .update(self.rules, by, place, Keep::Default, |_| Some(None))?;
            }
        }
        state.processes[me].keys.dedup();
        Ok(())
    }

    /// Puts a changed key into the backlog: watch_move_function.sql.
    fn put(&self, state: &mut State, me: usize, key: i8) -> Result<(), Stop> {
        let by = session(me);
        let waits = self
            .function
            .at(0)
            .is_some_and(|line| line.says("_changefeed_newer_operation = …"));
        let place = (BACKLOG, key);
        let found = state
            .db
            .update(self.rules, by, place, Keep::Default, |mut row| {
                if row[LEASE] != 0 {
                    row[NEWER] = i8::from(waits);
                } else {
                    row[ATTEMPTS] = 0;
                }
                row[PARKED] = 0;
                Some(Some(row))
            })?;
        if !found {
            match state.db.insert(by, place, Row::default()) {
                Ok(()) | Err(Stop::Duplicate) => {}
                Err(stop) => return Err(stop),
            }
        }
        Ok(())
    }

    /// All rows are to be handed over again: watch_missed.sql.
    fn missed(&self, state: &mut State, me: usize) -> Result<(), Stop> {
        let by = session(me);
        state
            .db
            .update(self.rules, by, (WATCH, 0), Keep::Default, |mut row| {
                row[0] = 1;
                Some(Some(row))
            })?;
        for key in state.db.keys(BACKLOG) {
            let place = (BACKLOG, key);
            state
                .db
                .update(self.rules, by, place, Keep::Default, |mut row| {
                    row[NEWER] = i8::from(row[LEASE] != 0);
                    if row[PARKED] == 1 {
                        row[PARKED] = 0;
                        row[ATTEMPTS] = 0;
                    }
                    Some(Some(row))
                })?;
        }
        Ok(())
    }

    // watch_load.sql ------------------------------------------------------------------------------

    fn load_step(&self, state: &mut State, me: usize, line: &Line) -> Result<(), Stop> {
        let by = session(me);
        let State { db, processes, .. } = state;
        let process = &mut processes[me];
        match line.step {
            "pick" => process.keys = db.committed(ROW).map(|(key, _)| key).collect(),
            "begin" => db.begin(by),
            "lock" => {
                db.update(self.rules, by, (WATCHED, 0), Keep::Default, |mut row| {
                    row[LAST_VERSION] += 1;
                    Some(Some(row))
                })?;
            }
            "first" => {
                let first = db.update(self.rules, by, (WATCH, 0), Keep::Default, |mut row| {
                    let was = row[0];
                    row[0] = 0;
                    (was != 0).then_some(Some(row))
                })?;
                if !first {
                    process.keys.clear();
                }
            }
            "load" => {
                for key in process.keys.clone() {
                    match db.insert(by, (BACKLOG, key), Row::default()) {
                        Ok(()) | Err(Stop::Duplicate) => {}
                        Err(stop) => return Err(stop),
                    }
                }
            }
            "commit" => {
                db.commit(by);
                process.keys.clear();
                self.go(process, Phase::Lease);
            }
            _ => {}
        }
        Ok(())
    }

    // watch_lease.sql -----------------------------------------------------------------------------

    fn lease_step(&self, state: &mut State, me: usize, line: &Line) -> Result<(), Stop> {
        let by = session(me);
        let now = state.now;
        let State { db, processes, .. } = state;
        let process = &mut processes[me];
        match line.step {
            "begin" => db.begin(by),
            "lock" => {
                db.update(self.rules, by, (WATCHED, 0), Keep::Default, |mut row| {
                    row[LAST_VERSION] += 1;
                    Some(Some(row))
                })?;
                process.lease = db.newest((WATCHED, 0)).unwrap_or_default()[LAST_VERSION];
            }
            "give up" => {
                for key in db.keys(BACKLOG) {
                    db.update(self.rules, by, (BACKLOG, key), Keep::Default, |row| {
                        let over = row[LEASE] != 0 && row[EXPIRES] <= now;
                        (over && row[PARKED] == 0 && row[ATTEMPTS] >= MOST_ATTEMPTS)
                            .then(|| Some(given_up(row)))
                    })?;
                }
            }
            "due" => {
                let mut due = None;
                for key in db.keys(BACKLOG) {
                    let row = db.read(self.rules, by, (BACKLOG, key), Read::Plain)?;
                    let row = row.unwrap_or_default();
                    let free = row[LEASE] == 0
                        || (row[EXPIRES] <= now
                            && line.says("_changefeed_lease_expiration_time <= @now"))
                        || !line.says("_changefeed_lease_generation is null");
                    if row[PARKED] == 0 && free {
                        due = due.or(Some(key));
                    }
                }
                process.key = due.unwrap_or(0);
            }
            "claim" if process.key != 0 => {
                let mine = i8::try_from(me).unwrap_or_default() + 1;
                let lease = process.lease;
                db.update(
                    self.rules,
                    by,
                    (BACKLOG, process.key),
                    Keep::Default,
                    |mut row| {
                        row[LEASE] = lease;
                        row[OWNER] = mine;
                        row[EXPIRES] = now + 1;
                        row[ATTEMPTS] += 1;
                        Some(Some(row))
                    },
                )?;
                process.expires = now + 1;
            }
            "commit" => {
                db.commit(by);
                match process.key {
                    0 => self.round_is_over(state, me),
                    _ => self.go(process, Phase::Rows),
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// watch_rows.sql: the row as it is now.
    fn reads_rows(&self, state: &State, me: usize) -> Next<State> {
        let mut next = state.clone();
        let key = state.processes[me].key;
        // In a snapshot where rows are not versioned, so that nobody is waited for.
        next.processes[me].value = state.db.settled((ROW, key)).unwrap_or_default()[0];
        self.go(&mut next.processes[me], Phase::Call);
        Next::one("rows", next)
    }

    /// The function works only while the lease is trusted.
    fn calls(&self, state: &State, me: usize) -> Next<State> {
        let process = &state.processes[me];
        let mut ways = Vec::new();
        if state.now < process.expires {
            let mut next = state.clone();
            let place = usize::try_from(process.key).unwrap_or_default();
            next.handled[place] = next.handled[place].max(process.value);
            self.go(&mut next.processes[me], Phase::Settle(true));
            ways.push(("succeeds", next));
        }
        let mut next = state.clone();
        self.go(&mut next.processes[me], Phase::Settle(false));
        ways.push(("fails", next));
        Next::To(ways)
    }

    // watch_settle.sql ----------------------------------------------------------------------------

    fn settle_step(
        &self,
        state: &mut State,
        me: usize,
        line: &Line,
        success: bool,
    ) -> Result<(), Stop> {
        let by = session(me);
        let now = state.now;
        let State { db, processes, .. } = state;
        let process = &mut processes[me];
        match line.step {
            "begin" => db.begin(by),
            "lock" => {
                db.update(self.rules, by, (WATCHED, 0), Keep::Default, |mut row| {
                    row[LAST_VERSION] += 1;
                    Some(Some(row))
                })?;
            }
            "settle" => {
                let (key, lease) = (process.key, process.lease);
                let done = self.done.at(0);
                let compares = done.is_some_and(|l| l.says("_changefeed_lease_generation = @p3"));
                let keeps_newer =
                    done.is_some_and(|l| l.says("_changefeed_newer_operation is null"));
                let before = db.newest((BACKLOG, key));
                let changed =
                    db.update(self.rules, by, (BACKLOG, key), Keep::Default, |mut row| {
                        if (compares && row[LEASE] != lease) || row[LEASE] == 0 {
                            return None;
                        }
                        Some(match (success, row[NEWER] == 1 && keeps_newer) {
                            (true, false) => None,
                            (true, true) => Some(Row::default()),
                            (false, _) if row[ATTEMPTS] >= MOST_ATTEMPTS => Some(given_up(row)),
                            (false, _) => {
                                // It waits for its next attempt; here, until its lease is over.
                                row[EXPIRES] = row[EXPIRES].min(now + 1);
                                Some(row)
                            }
                        })
                    })?;
                let mine = i8::try_from(me).unwrap_or_default() + 1;
                let owner = before.map_or(mine, |row| row[OWNER]);
                state.overwritten |= changed && owner != mine;
            }
            "commit" => {
                db.commit(by);
                self.round_is_over(state, me);
            }
            _ => {}
        }
        Ok(())
    }

    /// Workers pass by what a writer has not committed.
    pub(super) fn workers_wait_for_no_writer(&self, state: &State) -> bool {
        (0..self.roles.len()).all(|process| {
            let is_worker = matches!(self.roles[process], Role::Worker { .. });
            match self.next(state, process) {
                Next::Blocked(by) if is_worker => !matches!(self.roles[by], Role::Writer { .. }),
                _ => true,
            }
        })
    }
}

/// Attempts are used up: parked, unless a newer change has come meanwhile.
fn given_up(row: Row) -> Row {
    let mut after = Row::default();
    if row[NEWER] == 0 {
        after[PARKED] = 1;
        after[ATTEMPTS] = row[ATTEMPTS];
    }
    after
}
