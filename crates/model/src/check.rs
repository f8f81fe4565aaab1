//! Runs a model through a checker.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model, Property};

/// What a process can do next.
pub enum Next<S> {
    /// Nothing any more.
    Over,
    /// It waits for another one.
    Blocked(usize),
    /// One of these, each with the name of the step.
    To(Vec<(&'static str, S)>),
}

impl<S> Next<S> {
    /// One way only.
    pub fn one(step: &'static str, state: S) -> Self {
        Next::To(vec![(step, state)])
    }
}

/// A protocol: processes that take steps on a state that they share.
pub trait Protocol: Clone + Send + Sync + 'static {
    /// Everything there is.
    type State: Clone + Debug + Hash + Eq + Send + Sync;
    /// Where it begins.
    fn begin(&self) -> Self::State;
    /// How many processes there are.
    fn processes(&self) -> usize;
    /// What one of them can do.
    fn next(&self, state: &Self::State, process: usize) -> Next<Self::State>;
    /// What happens to them.
    fn faults(&self, _state: &Self::State) -> Vec<(&'static str, Self::State)> {
        Vec::new()
    }
    /// The promises, and what must be reached for them to mean anything.
    fn properties(&self) -> Vec<Property<Checked<Self>>>;
}

/// A protocol as the checker sees it.
#[derive(Clone)]
pub struct Checked<P>(pub P);

/// Who does what; the number is the way that was taken.
pub type Action = (usize, &'static str, usize);

/// The process of an action that is a fault.
pub const FAULT: usize = 99;

impl<P: Protocol> Model for Checked<P> {
    type State = P::State;
    type Action = Action;

    fn init_states(&self) -> Vec<P::State> {
        vec![self.0.begin()]
    }

    fn actions(&self, state: &P::State, actions: &mut Vec<Action>) {
        for process in 0..self.0.processes() {
            if let Next::To(ways) = self.0.next(state, process) {
                actions.extend((0..ways.len()).map(|way| (process, ways[way].0, way)));
            }
        }
        let faults = self.0.faults(state);
        actions.extend((0..faults.len()).map(|way| (FAULT, faults[way].0, way)));
    }

    fn next_state(&self, state: &P::State, (process, _, way): Action) -> Option<P::State> {
        if process == FAULT {
            return Some(self.0.faults(state).swap_remove(way).1);
        }
        match self.0.next(state, process) {
            Next::To(mut ways) => Some(ways.swap_remove(way).1),
            _ => None,
        }
    }

    fn properties(&self) -> Vec<Property<Self>> {
        self.0.properties()
    }
}

impl<P: Protocol> Checked<P> {
    /// Whether processes wait for each other in a circle.
    pub fn is_deadlocked(&self, state: &P::State) -> bool {
        (0..self.0.processes()).any(|first| {
            let mut at = first;
            for _ in 0..self.0.processes() {
                match self.0.next(state, at) {
                    Next::Blocked(by) if by == first => return true,
                    Next::Blocked(by) => at = by,
                    _ => return false,
                }
            }
            false
        })
    }

    /// Whether everybody has done what there was to do.
    pub fn is_over(&self, state: &P::State) -> bool {
        (0..self.0.processes()).all(|p| matches!(self.0.next(state, p), Next::Over))
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct Verdict {
    /// States that are different from each other.
    pub states: usize,
    /// Properties that do not hold, or examples that were not found.
    pub broken: Vec<String>,
}

/// Walks through all states.
pub fn check<P: Protocol>(protocol: P) -> Verdict {
    let checker = Checked(protocol).checker().spawn_bfs().join();
    verdict(&checker)
}

/// Walks until this promise is broken, or through all states.
pub fn find<P: Protocol>(protocol: P, promise: &'static str) -> Verdict {
    let model = Checked(protocol).checker();
    let checker = model
        .finish_when(HasDiscoveries::AnyOf([promise].into()))
        .spawn_bfs()
        .join();
    verdict(&checker)
}

fn verdict<P: Protocol>(checker: &impl Checker<Checked<P>>) -> Verdict {
    use stateright::Expectation::{Always, Eventually, Sometimes};
    let found = checker.discoveries();
    let mut broken = Vec::new();
    for property in checker.model().properties() {
        match (property.expectation, found.get(property.name)) {
            (Always | Eventually, Some(path)) => {
                let steps: Vec<String> = path
                    .clone()
                    .into_actions()
                    .iter()
                    .map(|(process, step, _)| format!("{process}:{step}"))
                    .collect();
                broken.push(format!("{} after {}", property.name, steps.join(" ")));
            }
            (Sometimes, None) => broken.push(format!("{} was not reached", property.name)),
            _ => {}
        }
    }
    Verdict {
        states: checker.unique_state_count(),
        broken,
    }
}
