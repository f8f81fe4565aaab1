//! Leases of instances: `take_lease`, and giving one back.
//!
//! `time` is what everybody's own clock runs by; the server's clock runs with it, but may have been set back. A
//! lease lasts two units. An observer that has seen one renewal for three units by its own clock says that
//! it is stale.

use stateright::Property;

use crate::check::{Checked, Next, Protocol};
use crate::engine::{Database, Keep, Read, Row, Rules, Session, Stop, Table};
use crate::script::{Line, Program, Script, step, with};

const LEASE: Table = 0;
const OWNER: usize = 0;
const GENERATION: usize = 1;
const RENEWAL: usize = 2;
const EXPIRES: usize = 3;

/// How long a lease lasts.
const TTL: i8 = 2;

/// What a model of leases is made of.
#[derive(Debug, Clone)]
pub struct Scripts {
    /// `changefeed.take_lease`.
    pub take: Script,
    /// The statement in leases.rs that gives one back.
    pub release: Script,
    /// A holder counts from before it asked (`Lease::granted` in core), not from the answer.
    pub counts_from_question: bool,
    /// For how long an observer must have seen one renewal (`Sightings` in core).
    pub stale_after: i8,
}

impl Scripts {
    /// As they are shipped.
    pub fn shipped() -> Self {
        Scripts {
            take: take(),
            release: release(),
            counts_from_question: true,
            stale_after: TTL + TTL / 2,
        }
    }
}

fn take() -> Script {
    Script::new(
        "changefeed.take_lease",
        [
            with("set implicit_transactions off"),
            step("now", "set @now = sysutcdatetime()"),
            step(
                "look",
                "if not exists(select 1 from lease where name = @name)",
            ),
            with("  try"),
            step("insert", "    insert lease values"),
            with("    return"),
            with("  catch"),
            step(
                "update",
                "update lease set generation = case when owner = @owner and expires_at > @now then generation else generation + 1 end, owner = @owner, renewal = renewal + 1, ttl_milliseconds = @ttl_milliseconds, expires_at = case when owner = @owner and expires_at > @expires and expires_at <= dateadd(millisecond, @ttl_milliseconds, sysutcdatetime()) then expires_at else @expires end where name = @name and(owner = @owner or expires_at <= @now or renewal = @stale_renewal)",
            ),
            with("if @@rowcount = 1"),
            step(
                "granted",
                "  select @generation = l.generation from lease where l.name = @name and l.owner = @owner and l.expires_at = @expires",
            ),
            with("else"),
            step(
                "refused",
                "  select @renewal = l.renewal, @held_for = l.ttl_milliseconds from lease where l.name = @name",
            ),
        ],
    )
}

fn release() -> Script {
    Script::new(
        "leases.rs: update changefeed.lease",
        [step(
            "release",
            "update lease set expires_at = sysutcdatetime() where name = @p1 and owner = @p2 and generation = @p3",
        )],
    )
}

/// Who takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Takes the lease, renews it and gives it back, in so many calls.
    Instance {
        /// Its name.
        owner: i8,
        /// How many calls.
        calls: u8,
    },
    /// A call of an instance that it has given up waiting for; the server executes it at some time.
    Late {
        /// The instance's name.
        owner: i8,
    },
    /// The instance's giving back of generation 1, likewise.
    LateRelease {
        /// The instance's name.
        owner: i8,
    },
}

/// What one process knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Process {
    at: u8,
    calls: u8,
    asked: i8,
    now: i8,
    /// It trusts its lease before this moment.
    until: i8,
    generation: i8,
    /// The renewal of another that it has seen, and since when.
    seen: Option<(i8, i8)>,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    db: Database,
    time: i8,
    set_back: i8,
    processes: Vec<Process>,
    /// Generations, with those that were granted them.
    granted: Vec<(i8, i8)>,
}

/// The model.
#[derive(Debug, Clone)]
pub struct Leases {
    rules: Rules,
    roles: Vec<Role>,
    take: Program,
    release: Program,
    counts_from_question: bool,
    stale_after: i8,
    end: i8,
    sets_back: bool,
    reached: Vec<(&'static str, Condition)>,
}

/// Something that a state is or is not.
pub type Condition = fn(&Checked<Leases>, &State) -> bool;

impl Leases {
    /// A model of these scripts.
    pub fn new(rules: Rules, roles: &[Role], scripts: &Scripts) -> Self {
        Leases {
            rules,
            roles: roles.to_vec(),
            take: Program::of(&scripts.take),
            release: Program::of(&scripts.release),
            counts_from_question: scripts.counts_from_question,
            stale_after: scripts.stale_after,
            end: 5,
            sets_back: false,
            reached: Vec::new(),
        }
    }

    /// The server's clock is set back once, by more than a lease lasts.
    pub fn sets_back(mut self) -> Self {
        self.sets_back = true;
        self
    }

    /// Time runs for so long.
    pub fn until(mut self, end: i8) -> Self {
        self.end = end;
        self
    }

    /// This must be reached.
    pub fn reaches(mut self, name: &'static str, condition: Condition) -> Self {
        self.reached.push((name, condition));
        self
    }

    fn owner(&self, process: usize) -> i8 {
        match self.roles[process] {
            Role::Instance { owner, .. } | Role::Late { owner } | Role::LateRelease { owner } => {
                owner
            }
        }
    }

    fn takes(&self, state: &State, me: usize) -> Next<State> {
        let Some(line) = self.take.at(state.processes[me].at) else {
            return Next::Over;
        };
        let mut next = state.clone();
        match self.take_step(&mut next, me, line) {
            Ok(()) => Next::one(line.step, next),
            Err(Stop::Blocked(by)) => Next::Blocked(usize::from(by)),
            Err(_) => Next::Over,
        }
    }

    fn take_step(&self, state: &mut State, me: usize, line: &Line) -> Result<(), Stop> {
        let (by, owner) = (session(me), self.owner(me));
        let clock = state.time - state.set_back;
        let time = state.time;
        let State { db, processes, .. } = state;
        let process = &mut processes[me];
        let place = (LEASE, 0);
        process.at += 1;
        match line.step {
            "now" => {
                process.asked = time;
                process.now = clock;
            }
            "look" => {
                let row = db.read(self.rules, by, place, Read::Plain)?;
                if row.is_some() {
                    process.at = self.take.place("update");
                }
            }
            "insert" => {
                let row = row_of(owner, 1, 1, process.now + TTL);
                match db.insert(by, place, row) {
                    Ok(()) => {
                        db.commit(by);
                        self.grant(state, me, 1);
                    }
                    Err(Stop::Duplicate) => process.at = self.take.place("update"),
                    Err(stop) => return Err(stop),
                }
            }
            "update" => {
                let now = process.now;
                let asked = process.asked;
                let stale = process
                    .seen
                    .filter(|(_, since)| asked - since >= self.stale_after);
                let stale = stale.map(|(renewal, _)| renewal);
                let looks_at_time = line.says("expires_at <= @now");
                let looks_at_owner = line.says("owner = @owner or");
                let taken = db.update(self.rules, by, place, Keep::Default, |row| {
                    let mine = row[OWNER] == owner;
                    let free = row[EXPIRES] <= now || !looks_at_time;
                    if !((mine && looks_at_owner) || free || Some(row[RENEWAL]) == stale) {
                        return None;
                    }
                    let keeps = mine && row[EXPIRES] > now;
                    let grows = line.says("else generation + 1 end") && !keeps;
                    let renewal = row[RENEWAL] + i8::from(line.says("renewal = renewal + 1"));
                    let generation = row[GENERATION] + i8::from(grows);
                    let keeps_more = line.says("owner = @owner and expires_at > @expires")
                        && mine
                        && row[EXPIRES] > now + TTL
                        && row[EXPIRES] <= clock + TTL;
                    let expires = if keeps_more { row[EXPIRES] } else { now + TTL };
                    Some(Some(row_of(owner, generation, renewal, expires)))
                })?;
                db.commit(by);
                if !taken {
                    process.at = self.take.place("refused");
                }
            }
            "granted" => {
                let row = db.read(self.rules, by, place, Read::Plain)?;
                let expires = process.now + TTL;
                match row.filter(|row| row[OWNER] == owner && row[EXPIRES] == expires) {
                    Some(row) => self.grant(state, me, row[GENERATION]),
                    None => self.over(state, me),
                }
            }
            "refused" => {
                let row = db.read(self.rules, by, place, Read::Plain)?;
                let renewal = row.unwrap_or_default()[RENEWAL];
                if process.seen.is_none_or(|(seen, _)| seen != renewal) {
                    process.seen = Some((renewal, time));
                }
                self.over(state, me);
            }
            _ => {}
        }
        Ok(())
    }

    fn grant(&self, state: &mut State, me: usize, generation: i8) {
        let owner = self.owner(me);
        state.granted.push((generation, owner));
        state.granted.sort_unstable();
        state.granted.dedup();
        let time = state.time;
        let process = &mut state.processes[me];
        let from = if self.counts_from_question {
            process.asked
        } else {
            time
        };
        process.until = from + TTL;
        process.generation = generation;
        process.seen = None;
        self.over(state, me);
    }

    fn over(&self, state: &mut State, me: usize) {
        let process = &mut state.processes[me];
        process.at = 0;
        process.calls += 1;
        process.now = 0;
        process.asked = 0;
    }

    fn releases(&self, state: &State, me: usize, generation: i8) -> Next<State> {
        let (by, owner) = (session(me), self.owner(me));
        let Some(line) = self.release.at(0) else {
            return Next::Over;
        };
        let mut next = state.clone();
        let clock = state.time - state.set_back;
        let done = next
            .db
            .update(self.rules, by, (LEASE, 0), Keep::Default, |mut row| {
                let mine = row[OWNER] == owner || !line.says("owner = @p2");
                let same = row[GENERATION] == generation || !line.says("generation = @p3");
                row[EXPIRES] = clock;
                (mine && same).then_some(Some(row))
            });
        match done {
            Err(Stop::Blocked(by)) => Next::Blocked(usize::from(by)),
            _ => {
                next.db.commit(by);
                next.processes[me].until = 0;
                next.processes[me].calls += 1;
                Next::one("release", next)
            }
        }
    }

    fn trusting(&self, state: &State) -> usize {
        let all = state.processes.iter().zip(&self.roles);
        all.filter(|(p, role)| matches!(role, Role::Instance { .. }) && state.time < p.until)
            .count()
    }
}

fn row_of(owner: i8, generation: i8, renewal: i8, expires: i8) -> Row {
    let mut row = Row::default();
    row[OWNER] = owner;
    row[GENERATION] = generation;
    row[RENEWAL] = renewal;
    row[EXPIRES] = expires;
    row
}

fn session(process: usize) -> Session {
    u8::try_from(process).unwrap_or(u8::MAX)
}

impl State {
    /// How many different instances were granted the lease.
    pub fn owners(&self) -> usize {
        let mut owners: Vec<i8> = self.granted.iter().map(|(_, owner)| *owner).collect();
        owners.sort_unstable();
        owners.dedup();
        owners.len()
    }

    /// Whether the server's clock was set back.
    pub fn is_set_back(&self) -> bool {
        self.set_back > 0
    }
}

impl Protocol for Leases {
    type State = State;

    fn begin(&self) -> State {
        State {
            db: Database::default(),
            time: 3,
            set_back: 0,
            processes: vec![Process::default(); self.roles.len()],
            granted: Vec::new(),
        }
    }

    fn processes(&self) -> usize {
        self.roles.len()
    }

    fn next(&self, state: &State, me: usize) -> Next<State> {
        let process = &state.processes[me];
        match self.roles[me] {
            Role::Instance { calls, .. } if process.calls < calls => {
                let mut next = self.takes(state, me);
                // It gives back what it has, if it is not in the middle of a call.
                if process.at == 0
                    && process.generation > 0
                    && let Next::To(ways) = &mut next
                    && let Next::To(more) = self.releases(state, me, process.generation)
                {
                    ways.extend(more);
                }
                next
            }
            Role::Late { .. } if process.calls < 1 => self.takes(state, me),
            // Whoever gives a lease back and takes it again before it has ended keeps the generation: such a
            // call must not be late. Sweepers give back when they end, so it is not; the lease of clean-ups is given
            // back after each, but nothing depends on it.
            Role::LateRelease { .. } if process.calls < 1 && state.processes[0].generation > 1 => {
                self.releases(state, me, 1)
            }
            _ => Next::Over,
        }
    }

    fn faults(&self, state: &State) -> Vec<(&'static str, State)> {
        let mut ways = Vec::new();
        if state.time < self.end + 3 {
            let mut next = state.clone();
            next.time += 1;
            ways.push(("time passes", next));
        }
        // Not in the middle of a call: one that has read the time before the step takes a lease too early,
        // as if the clock had been set forward. Nothing can be done about that, and sweeps do not rest on it.
        let between_calls = state.processes.iter().all(|p| p.at == 0);
        if self.sets_back && state.set_back == 0 && between_calls {
            let mut next = state.clone();
            next.set_back = TTL + 1;
            ways.push(("the clock is set back", next));
        }
        ways
    }

    fn properties(&self) -> Vec<Property<Checked<Self>>> {
        let mut all = vec![
            Property::always(
                "12: one has the lease at a time",
                |m: &Checked<Leases>, s: &State| m.0.trusting(s) <= 1,
            ),
            Property::always("12: a generation is one owner's", |_, s: &State| {
                s.granted.windows(2).all(|pair| pair[0].0 != pair[1].0)
            }),
            Property::always("no deadlock", |m: &Checked<Leases>, s: &State| {
                !m.is_deadlocked(s)
            }),
            Property::sometimes("somebody has it", |m: &Checked<Leases>, s: &State| {
                m.0.trusting(s) == 1
            }),
        ];
        let reached = self.reached.iter();
        all.extend(reached.map(|(name, condition)| Property::sometimes(name, *condition)));
        all
    }
}

/// The scripts that this model executes.
pub fn tied() -> Vec<Script> {
    let scripts = Scripts::shipped();
    vec![scripts.take, scripts.release]
}
