//! What an instance does, step by step. It claims one event at a time.

use super::{
    ATTEMPT, DELIVERED, DUE, EVENT, Events, GENERATION, KEY, LATE, LOCKED_BY, OUTCOME, Phase,
    Process, State, TRIES, TRIGGER, UNKNOWN, attempt_key, session,
};
use crate::check::Next;
use crate::engine::{Keep, Mode, Read, Row, Stop};
use crate::script::Line;

/// What is compared with the generation that a statement was told.
fn is_current(line: &Line, current: i8, said: i8) -> bool {
    match line {
        l if l.says(".generation = event.generation") => current == said,
        l if l.says(".generation <= event.generation") => said <= current,
        _ => true,
    }
}

impl Events {
    pub(super) fn steps(&self, state: &State, me: usize) -> Next<State> {
        let process = &state.processes[me];
        match process.phase {
            Phase::Claim => self.claims(state, me),
            Phase::Holds => {
                let mut ways = Vec::new();
                if state.now < process.until {
                    let mut next = state.clone();
                    next.processes[me].phase = Phase::Sent;
                    next.sent.extend(process.holds);
                    ways.push(("send", next));
                }
                let mut next = state.clone();
                if self.touch(&mut next, me, "release").is_ok() {
                    self.round_is_over(&mut next, me);
                    ways.push(("release", next));
                }
                Next::To(ways)
            }
            Phase::Sent => {
                let mut ways = Vec::new();
                for success in [true, false] {
                    let mut next = state.clone();
                    next.processes[me].phase = Phase::Finish(success);
                    next.processes[me].at = 0;
                    ways.push(("answered", next));
                }
                // An instance that wakes up late asks for more time all the same. If nobody else has the event
                // it gets it, and then there may be more at a time than all together should have: what
                // is promised of that is promised of instances that are not stopped for longer than a lease.
                let in_time = state.now < process.until || self.wanted.overall.is_none();
                if !process.renewed && in_time {
                    let mut next = state.clone();
                    next.processes[me].renewed = true;
                    if self.touch(&mut next, me, "renew").is_ok() {
                        ways.push(("renew", next));
                    }
                }
                Next::To(ways)
            }
            Phase::Finish(success) => self.finishes(state, me, success),
            Phase::Done => Next::Over,
        }
    }

    fn round_is_over(&self, state: &mut State, me: usize) {
        let rounds = state.processes[me].rounds + 1;
        state.processes[me] = Process {
            rounds,
            ..Process::default()
        };
    }

    /// Renews or releases what it holds: one statement, a transaction of its own.
    fn touch(&self, state: &mut State, me: usize, which: &str) -> Result<(), Stop> {
        let by = session(me);
        let program = if which == "renew" {
            &self.renew
        } else {
            &self.release
        };
        let Some(line) = program.at(0) else {
            return Ok(());
        };
        let Some((event, generation)) = state.processes[me].holds else {
            return Ok(());
        };
        let now = state.now;
        let renews = which == "renew";
        let done = state
            .db
            .update(self.rules, by, (EVENT, event), Keep::Default, |mut row| {
                let is_locked = row[LOCKED_BY] != 0 || !line.says("locked_by is not null");
                if !is_locked || !is_current(line, row[GENERATION], generation) {
                    return None;
                }
                if renews {
                    row[DUE] = now + 1;
                } else {
                    row[DUE] = now;
                    row[LOCKED_BY] = 0;
                    row[TRIES] -= 1;
                }
                Some(Some(row))
            })?;
        state.db.commit(by);
        if renews && done {
            state.processes[me].until = now + 1;
        }
        Ok(())
    }

    // event_claim.sql ---------------------------------------------------------------------------

    fn claims(&self, state: &State, me: usize) -> Next<State> {
        let Some(line) = self.claim.at(state.processes[me].at) else {
            return Next::Over;
        };
        let mut next = state.clone();
        next.processes[me].at += 1;
        match self.claim_step(&mut next, me, line) {
            Ok(true) => {
                self.skip(&mut next.processes[me]);
                Next::one(line.step, next)
            }
            // Nothing is due: asked again later.
            Ok(false) => Next::To(Vec::new()),
            Err(Stop::Blocked(by)) => Next::Blocked(usize::from(by)),
            Err(_) => Next::Over,
        }
    }

    /// Goes behind the steps that are for triggers of another kind.
    fn skip(&self, process: &mut Process) {
        let is_for_others = |step: &str| match step {
            "alone" | "held" => self.wanted.overall.is_none(),
            "due" => self.wanted.ordered,
            "heads" | "older" => !self.wanted.ordered,
            _ => false,
        };
        while process.phase == Phase::Claim
            && self
                .claim
                .at(process.at)
                .is_some_and(|line| is_for_others(line.step))
        {
            process.at += 1;
        }
    }

    fn claim_step(&self, state: &mut State, me: usize, line: &Line) -> Result<bool, Stop> {
        let by = session(me);
        let now = state.now;
        let State { db, processes, .. } = state;
        let process = &mut processes[me];
        let is_due = |row: &Row, now: i8| row[DUE] != 0 && row[DUE] <= now;
        match line.step {
            "look" => {
                process.now = now;
                process.room = 1;
                let due = db.keys(EVENT).into_iter().any(|id| {
                    let row = db.read(self.rules, by, (EVENT, id), Read::Past);
                    matches!(row, Ok(Some(row)) if is_due(&row, now))
                });
                return Ok(due);
            }
            "begin" => db.begin(by),
            "alone" if self.wanted.overall.is_some() => {
                let keep = match line.hint("event_trigger", "updlock") {
                    true => Keep::Updlock,
                    false => Keep::Default,
                };
                db.update(self.rules, by, (TRIGGER, 0), keep, |row| Some(Some(row)))?;
            }
            "held" => {
                if let Some(overall) = self.wanted.overall {
                    let rows = db.keys(EVENT).into_iter();
                    let held = rows.filter_map(|id| db.newest((EVENT, id)));
                    let now = process.now;
                    let held = held
                        .filter(|row| row[DUE] > now && row[LOCKED_BY] != 0)
                        .count();
                    let left = overall.saturating_sub(held);
                    process.room = process.room.min(i8::try_from(left).unwrap_or(i8::MAX));
                }
            }
            "now" => process.now = now,
            "due" if !self.wanted.ordered && process.room > 0 => {
                let now = process.now;
                let mut found = Vec::new();
                for id in db.keys(EVENT) {
                    let free = db.is_free((EVENT, id), by, Mode::Update);
                    if let Some(row) = db.read(self.rules, by, (EVENT, id), Read::Past)?
                        && free
                        && is_due(&row, now)
                    {
                        found.push((row[DUE], id, row));
                    }
                }
                found.sort_unstable();
                if let Some((_, id, row)) = found.first() {
                    if line.hint("event", "updlock") {
                        db.lock_row(by, (EVENT, *id))?;
                    }
                    process.due = Some(as_due(*id, row));
                }
            }
            "heads" if self.wanted.ordered && process.room > 0 => {
                let now = process.now;
                let dirty = line.says("from event o with(readuncommitted)");
                let mut found = Vec::new();
                for id in db.keys(EVENT) {
                    let Some(row) = db.read(self.rules, by, (EVENT, id), Read::Past)? else {
                        continue;
                    };
                    let how = if dirty { Read::Dirty } else { Read::Past };
                    let mut head = None;
                    for other in db.keys(EVENT) {
                        let older = db.read(self.rules, by, (EVENT, other), how)?;
                        if older.is_some_and(|o| o[KEY] == row[KEY] && o[DUE] != 0) {
                            head = head.or(Some(other));
                        }
                    }
                    if is_due(&row, now) && head == Some(id) {
                        found.push((row[DUE], id, row));
                    }
                }
                found.sort_unstable();
                process.due = found.first().map(|(_, id, row)| as_due(*id, row));
            }
            "older" if self.wanted.ordered => {
                if let Some([id, ..]) = process.due {
                    let key = db.settled((EVENT, id)).unwrap_or_default()[KEY];
                    for other in db.keys(EVENT).into_iter().filter(|other| *other < id) {
                        let row = db.read(self.rules, by, (EVENT, other), Read::Plain)?;
                        if row.is_some_and(|row| row[KEY] == key && row[DUE] != 0) {
                            process.due = None;
                        }
                    }
                }
            }
            "claim" => self.claim_due(state, me, line)?,
            "unknown" => {
                if let (Some([id, generation, _, owner]), Some(_)) = (process.due, process.holds)
                    && owner != 0
                    && db.newest((ATTEMPT, attempt_key(id, generation))).is_none()
                {
                    let mut row = Row::default();
                    row[OUTCOME] = UNKNOWN;
                    db.insert(by, (ATTEMPT, attempt_key(id, generation)), row)?;
                }
            }
            "commit" => {
                db.commit(by);
                process.due = None;
                process.at = 0;
                match process.holds {
                    Some(_) => process.phase = Phase::Holds,
                    None => self.round_is_over(state, me),
                }
            }
            _ => {}
        }
        Ok(true)
    }

    fn claim_due(&self, state: &mut State, me: usize, line: &Line) -> Result<(), Stop> {
        let by = session(me);
        let State { db, processes, .. } = state;
        let process = &mut processes[me];
        let Some([id, generation, tries, owner]) = process.due else {
            return Ok(());
        };
        let now = process.now;
        let mine = i8::try_from(me).unwrap_or_default() + 1;
        let compares = line.says("d.generation = event.generation");
        let only_due = line.says("due_at <= @now");
        let grows = line.says("generation = generation + 1");
        let claimed = db.update(self.rules, by, (EVENT, id), Keep::Default, |mut row| {
            let same =
                row[GENERATION] == generation && row[TRIES] == tries && row[LOCKED_BY] == owner;
            if (compares && !same) || (only_due && (row[DUE] == 0 || row[DUE] > now)) {
                return None;
            }
            row[DUE] = now + 1;
            row[GENERATION] += i8::from(grows);
            row[TRIES] += 1;
            row[LOCKED_BY] = mine;
            Some(Some(row))
        })?;
        if claimed {
            let row = db.newest((EVENT, id)).unwrap_or_default();
            process.holds = Some((id, row[GENERATION]));
            process.until = row[DUE];
            let older = db.keys(EVENT).into_iter().filter(|other| *other < id);
            let unfinished = older
                .filter_map(|other| db.settled((EVENT, other)))
                .any(|other| other[KEY] == row[KEY] && other[DUE] != 0);
            state.out_of_order |= self.wanted.ordered && unfinished;
        }
        Ok(())
    }

    // event_finish.sql ----------------------------------------------------------------------------

    fn finishes(&self, state: &State, me: usize, success: bool) -> Next<State> {
        let Some(line) = self.finish.at(state.processes[me].at) else {
            return Next::Over;
        };
        let mut next = state.clone();
        next.processes[me].at += 1;
        match self.finish_step(&mut next, me, success, line) {
            Ok(()) => Next::one(line.step, next),
            Err(Stop::Blocked(by)) => Next::Blocked(usize::from(by)),
            Err(_) => Next::Over,
        }
    }

    fn finish_step(
        &self,
        state: &mut State,
        me: usize,
        success: bool,
        line: &Line,
    ) -> Result<(), Stop> {
        let by = session(me);
        let now = state.now;
        let State { db, processes, .. } = state;
        let process = &mut processes[me];
        let Some((event, generation)) = process.holds else {
            return Ok(());
        };
        let place = (ATTEMPT, attempt_key(event, generation));
        let mut attempt = Row::default();
        attempt[OUTCOME] = if success { 1 } else { 2 };
        match line.step {
            "begin" => db.begin(by),
            "decide" => {
                let locked = line.says("locked_by is not null");
                let owner = db.settled((EVENT, event)).unwrap_or_default()[LOCKED_BY];
                process.applied =
                    db.update(self.rules, by, (EVENT, event), Keep::Default, |mut row| {
                        let is_locked = row[LOCKED_BY] != 0 || !locked;
                        if !is_locked || !is_current(line, row[GENERATION], generation) {
                            return None;
                        }
                        row[LOCKED_BY] = 0;
                        row[DELIVERED] = i8::from(success);
                        row[DUE] = if success { 0 } else { now };
                        Some(Some(row))
                    })?;
                let mine = i8::try_from(me).unwrap_or_default() + 1;
                state.overwritten |= process.applied && owner != mine;
            }
            "record" if process.applied => db.insert(by, place, attempt)?,
            "known now" if !process.applied => {
                attempt[LATE] = 1;
                db.update(self.rules, by, place, Keep::Default, |row| {
                    (row[OUTCOME] == UNKNOWN).then_some(Some(attempt))
                })?;
            }
            "late" if db.read(self.rules, by, place, Read::Plain)?.is_none() => {
                attempt[LATE] = 1;
                db.insert(by, place, attempt)?;
            }
            "commit" => {
                db.commit(by);
                self.round_is_over(state, me);
            }
            _ => {}
        }
        Ok(())
    }
}

fn as_due(id: i8, row: &Row) -> [i8; 4] {
    [id, row[GENERATION], row[TRIES], row[LOCKED_BY]]
}
