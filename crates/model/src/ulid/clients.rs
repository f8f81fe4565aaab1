//! What a client does, step by step.

use super::{
    APPLICATION, Client, INCIDENT, LIFE, Phase, Process, SHARD_ULID, State, Ulid, Ulids, session,
};
use crate::check::{Next, Protocol};
use crate::engine::{APPLICATION_LOCK, Keep, Mode, Owner, Place, Read, Row, Stop};
use crate::script::Line;

/// More than one incident can ask of anybody.
const TRIES: u8 = 3;

impl Ulids {
    pub(super) fn steps(&self, state: &State, me: usize) -> Next<State> {
        let mut next = state.clone();
        next.processes[me].silent = false;
        let process = &mut next.processes[me];
        let (name, done) = match process.phase {
            Phase::Idle => {
                process.at = 0;
                process.phase = match self.clients[me] {
                    Client::Snapshot => Phase::Lock,
                    _ => Phase::Enter,
                };
                if process.phase == Phase::Enter {
                    next.db.begin(session(me));
                }
                ("begin", Ok(()))
            }
            Phase::Lock | Phase::Wait => return self.waits(next, me),
            Phase::Enter => {
                let Some(line) = self.enter.at(process.at) else {
                    return Next::Over;
                };
                if line.step == "time" {
                    return self.looks_at_the_clock(&next, me);
                }
                (line.step, self.enter_step(&mut next, me, line))
            }
            Phase::Draw => {
                // new_ulid: `next value for changefeed.sequence`.
                let value = draw(&mut next);
                let process = &mut next.processes[me];
                process.ulid = Some((process.next.0, process.next.1 + (value - process.base)));
                process.phase = Phase::Write;
                ("new ulid", Ok(()))
            }
            Phase::Write => {
                let (time, number) = process.ulid.unwrap_or_default();
                let key = i8::try_from(me).unwrap_or_default();
                let mut row = Row::default();
                (row[0], row[1]) = (time, number);
                process.phase = match self.clients[me] {
                    Client::Raw => Phase::Publish,
                    _ => Phase::Commit,
                };
                process.at = 0;
                (
                    "write",
                    next.db.insert(session(me), (APPLICATION, key), row),
                )
            }
            Phase::Commit => {
                let Some(line) = self.commit.at(process.at) else {
                    return Next::Over;
                };
                (line.step, self.commit_step(&mut next, me, line))
            }
            Phase::Publish => {
                self.publish(&mut next, me);
                ("commit", Ok(()))
            }
            Phase::Report => {
                let Some(line) = self.report.at(process.at) else {
                    return Next::Over;
                };
                (line.step, self.report_step(&mut next, me, line))
            }
            Phase::Done => return Next::Over,
        };
        match done {
            Ok(()) => {
                self.turn(&mut next.processes[me]);
                Next::one(name, next)
            }
            Err(Stop::Blocked(by)) => Next::Blocked(usize::from(by)),
            Err(_) => {
                self.fails(&mut next, me);
                Next::one(name, next)
            }
        }
    }

    /// Goes on to what comes after a procedure.
    fn turn(&self, process: &mut Process) {
        let (program, then) = match process.phase {
            Phase::Enter => (&self.enter, Phase::Draw),
            Phase::Commit => (&self.commit, Phase::Publish),
            Phase::Report => (&self.report, Phase::Idle),
            _ => return,
        };
        if program.at(process.at).is_none() {
            process.phase = then;
            process.at = 0;
        }
    }

    // Waiting for the lock ----------------------------------------------------------------------

    fn waits(&self, mut next: State, me: usize) -> Next<State> {
        let by = session(me);
        let owner = match next.processes[me].phase {
            Phase::Lock => Owner::Session,
            _ => Owner::Transaction,
        };
        let counted = next.incidents();
        let process = &mut next.processes[me];
        let Some(line) = self.wait.at(process.at) else {
            return Next::Over;
        };
        match line.step {
            "count" => {
                process.incidents = counted;
                process.at += 1;
                self.has_the_lock(&mut next, me);
                Next::one("count", next)
            }
            "try" => {
                let place = (APPLICATION_LOCK, process.incidents);
                let incidents = process.incidents;
                process.at += 1;
                match next.db.lock(place, by, Mode::Exclusive, owner) {
                    Ok(()) => {
                        self.has_the_lock(&mut next, me);
                        Next::one("try", next)
                    }
                    Err(_) if counted != incidents => {
                        self.throws(&mut next, me, false);
                        Next::one("burned while waiting", next)
                    }
                    Err(_) => match next.holder(incidents) {
                        Some(holder) if next.processes[holder].silent => {
                            self.throws(&mut next, me, true);
                            Next::one("sees silence", next)
                        }
                        Some(holder) => Next::Blocked(holder),
                        None => Next::Over,
                    },
                }
            }
            "count again" => {
                process.at += 1;
                if counted != process.incidents {
                    self.throws(&mut next, me, false);
                } else {
                    self.has_the_lock(&mut next, me);
                }
                Next::one("count again", next)
            }
            _ => Next::Over,
        }
    }

    /// Goes on behind the wait, if that is over.
    fn has_the_lock(&self, state: &mut State, me: usize) {
        let counted = state.incidents();
        let process = &mut state.processes[me];
        if self.wait.at(process.at).is_some() {
            return;
        }
        state.entered_burned |= process.incidents != counted;
        process.at = 0;
        if process.phase == Phase::Wait {
            process.at = self.enter.place("wait") + 1;
        } else {
            state.db.begin(session(me));
        }
        state.processes[me].phase = Phase::Enter;
    }

    /// 55601: the client rolls back, and reports what it has seen.
    fn throws(&self, state: &mut State, me: usize, saw_silence: bool) {
        state.db.lose(session(me));
        let tries = state.processes[me].tries + 1;
        let gives_up = tries > TRIES;
        state.processes[me] = Process {
            phase: match (gives_up, saw_silence) {
                (true, _) => Phase::Done,
                (false, true) => Phase::Report,
                (false, false) => Phase::Idle,
            },
            tries,
            ..Process::default()
        };
    }

    /// 55603: this transaction cannot be committed.
    fn fails(&self, state: &mut State, me: usize) {
        state.failed |= state.processes[me].incidents == state.incidents();
        self.throws(state, me, false);
    }

    // begin_ulid_transaction ----------------------------------------------------------------------

    /// It may have been set back since somebody else looked.
    fn looks_at_the_clock(&self, state: &State, me: usize) -> Next<State> {
        let ways = (1..=self.times).map(|time| {
            let mut next = state.clone();
            next.processes[me].time = time;
            next.processes[me].at += 1;
            ("time", next)
        });
        Next::To(ways.collect())
    }

    fn enter_step(&self, state: &mut State, me: usize, line: &Line) -> Result<(), Stop> {
        let by = session(me);
        let counted = state.incidents();
        let State { db, processes, .. } = state;
        let process = &mut processes[me];
        let snapshot = self.clients[me] == Client::Snapshot;
        process.at += 1;
        match line.step {
            "count" if snapshot && counted != process.incidents => self.throws(state, me, false),
            "wait" if !snapshot => {
                process.phase = Phase::Wait;
                process.at = 0;
            }
            "level" => process.read_committed = true,
            "state" => {
                let place: Place = (SHARD_ULID, 0);
                if snapshot {
                    db.take_snapshot(by);
                }
                if self.clients[me] == Client::Serializable && !process.read_committed {
                    db.lock(place, by, Mode::Shared, Owner::Transaction)?;
                }
                let row = db.read(self.rules, by, place, Read::Plain)?;
                process.before = row.map(|row| (row[0], row[1]));
                process.floor = process.before;
            }
            "base" => {
                state.sequence += 1;
                process.base = state.sequence;
            }
            "left" => {
                let base = process.base;
                let left = db
                    .keys(LIFE)
                    .into_iter()
                    .filter_map(|key| db.newest((LIFE, key)))
                    .map(|row| (row[1], row[2] + (base - row[3])))
                    .max();
                process.floor = process.floor.max(left);
            }
            "tidy" if !snapshot => {
                for key in db.keys(LIFE) {
                    if db.read(self.rules, by, (LIFE, key), Read::Past)?.is_some()
                        && db.is_free((LIFE, key), by, Mode::Exclusive)
                    {
                        db.update(self.rules, by, (LIFE, key), Keep::Default, |_| Some(None))?;
                    }
                }
            }
            "life" => {
                process.next = match process.floor {
                    Some(floor) if process.time <= floor.0 => floor,
                    _ => (process.time, 0),
                };
                let (time, number) = process.next;
                let row = [process.incidents, time, number, process.base, 0, 0, 0, 0];
                let key = life_key(process.incidents, me);
                db.insert(by, (LIFE, key), row)?;
            }
            _ => {}
        }
        Ok(())
    }

    // commit_ulid_transaction ---------------------------------------------------------------------

    fn commit_step(&self, state: &mut State, me: usize, line: &Line) -> Result<(), Stop> {
        let by = session(me);
        let State { db, processes, .. } = state;
        let process = &mut processes[me];
        process.at += 1;
        match line.step {
            "mine" => {
                let key = life_key(process.incidents, me);
                db.update(self.rules, by, (LIFE, key), Keep::Default, |_| Some(None))?;
            }
            "incident" => {
                let incidents = process.incidents;
                let keep = match line.hint("incident", "updlock") {
                    true => Keep::Updlock,
                    false => Keep::Default,
                };
                let is_mine = |count: i8| match line {
                    l if l.says("[count] = @incidents") => count == incidents,
                    l if l.says("[count] >= @incidents") => count >= incidents,
                    _ => true,
                };
                let found = db.update(self.rules, by, (INCIDENT, 0), keep, |row| {
                    is_mine(row[0]).then_some(Some(row))
                })?;
                if !found && incidents == 0 && db.newest((INCIDENT, 0)).is_none() {
                    db.insert(by, (INCIDENT, 0), Row::default())?;
                } else if !found {
                    self.fails(state, me);
                }
            }
            "drawn" => {
                state.sequence += 1;
                let drawn = state.sequence;
                process.next.1 += drawn - process.base;
            }
            "move" => {
                let (before, next) = (process.before, process.next);
                let mut row = Row::default();
                (row[0], row[1]) = next;
                let compares = line.says("ulid_high = @before_high and ulid_low = @before_low");
                let moved = match before {
                    None if db.newest((SHARD_ULID, 0)).is_none() => {
                        db.insert(by, (SHARD_ULID, 0), row)?;
                        true
                    }
                    None if compares => false,
                    _ => db.update(self.rules, by, (SHARD_ULID, 0), Keep::Default, |old| {
                        let same = Some((old[0], old[1])) == before;
                        (same || !compares).then_some(Some(row))
                    })?,
                };
                if !moved {
                    self.fails(state, me);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn publish(&self, state: &mut State, me: usize) {
        let by = session(me);
        let incidents = state.processes[me].incidents;
        // Counted and committed: an update that waits for us has not judged us yet.
        let counted = state.db.settled((INCIDENT, 0)).map_or(0, |row| row[0]);
        state.zombie_committed |= counted > incidents && self.clients[me] != Client::Raw;
        state.db.commit(by);
        if let Some(ulid) = state.processes[me].ulid {
            state.published.push(ulid);
        }
        state.processes[me] = Process {
            phase: Phase::Done,
            published: true,
            ..Process::default()
        };
        // unlock_ulid_shard, after a transaction of snapshot isolation.
        state.db.lose(by);
    }

    // report_incident -----------------------------------------------------------------------------

    fn report_step(&self, state: &mut State, me: usize, line: &Line) -> Result<(), Stop> {
        let by = session(me);
        let observed = state.processes[me].observed;
        let holder = state.holder(observed);
        let State { db, processes, .. } = state;
        let process = &mut processes[me];
        process.at += 1;
        match line.step {
            "observed" => {
                let row = db.read(self.rules, by, (INCIDENT, 0), Read::Plain)?;
                process.observed = row.map_or(0, |row| row[0]);
            }
            "held" if holder.is_none() => process.phase = Phase::Idle,
            "silence" => {
                let silent = holder.is_some_and(|h| processes[h].silent);
                if !silent {
                    processes[me].phase = Phase::Idle;
                }
            }
            "raise" => {
                let compares = line.says("[count] = @observed");
                let before = db.newest((INCIDENT, 0)).map_or(0, |row| row[0]);
                let raised =
                    db.update(self.rules, by, (INCIDENT, 0), Keep::Default, |mut row| {
                        if compares && row[0] != observed {
                            return None;
                        }
                        row[0] += 1;
                        Some(Some(row))
                    })?;
                let mut counted = raised;
                if !raised && observed == 0 && db.newest((INCIDENT, 0)).is_none() {
                    let mut row = Row::default();
                    row[0] = 1;
                    db.insert(by, (INCIDENT, 0), row)?;
                    counted = true;
                }
                db.commit(by);
                // The lock that was burned is the one whose holder was seen to be silent.
                state.miscounted |= counted && before != observed;
                state.processes[me].phase = Phase::Idle;
            }
            _ => {}
        }
        Ok(())
    }

    /// Whoever lives goes on, however many others have stopped: a stopped one holds nothing but its lock,
    /// and that can be burned.
    pub(super) fn nobody_waits_for_the_silent(&self, state: &State) -> bool {
        (0..self.clients.len()).all(|first| {
            let mut at = first;
            for _ in 0..self.clients.len() {
                match self.next(state, at) {
                    Next::Blocked(by) if state.processes[by].frozen => return false,
                    Next::Blocked(by) => at = by,
                    _ => return true,
                }
            }
            true
        })
    }
}

fn draw(state: &mut State) -> i8 {
    state.sequence += 1;
    state.sequence
}

fn life_key(incidents: i8, me: usize) -> i8 {
    incidents * 8 + i8::try_from(me).unwrap_or_default()
}

// What tests want to have reached.
impl State {
    /// The ULIDs that were committed, in order.
    pub fn ulids(&self) -> &[Ulid] {
        &self.published
    }
}
