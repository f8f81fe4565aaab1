//! The last hour, in memory: one value per step and line. Pure: time comes as a number of steps.

use std::collections::{BTreeMap, VecDeque};

/// Values that are kept of each line.
pub const LENGTH: usize = 720;
/// Lines that are kept; a database with more feeds than this is watched by Prometheus.
const LINES: usize = 2000;

/// Which line: its kind and its name.
pub type Line = (&'static str, String);

/// Lines of values that all end at the same step.
#[derive(Debug, Default)]
pub(super) struct Series {
    lines: BTreeMap<Line, VecDeque<Option<f32>>>,
    steps: usize,
}

impl Series {
    /// Adds a step, `missed` steps after the one before (0 if there was none in between). A line without
    /// a value has none there; one that has had none for all the time that is kept is forgotten.
    pub(super) fn step(&mut self, missed: usize, values: impl Iterator<Item = (Line, f64)>) {
        let missed = missed.min(LENGTH);
        self.steps = (self.steps + missed + 1).min(LENGTH);
        for line in self.lines.values_mut() {
            line.extend(std::iter::repeat_n(None, missed + 1));
        }
        for (line, value) in values {
            let room = self.lines.len() < LINES;
            if !room && !self.lines.contains_key(&line) {
                continue;
            }
            let steps = self.steps;
            let values = self
                .lines
                .entry(line)
                .or_insert_with(|| std::iter::repeat_n(None, steps).collect());
            if let Some(last) = values.back_mut() {
                *last = Some(value as f32);
            }
        }
        for line in self.lines.values_mut() {
            let extra = line.len().saturating_sub(LENGTH);
            line.drain(..extra);
        }
        self.lines
            .retain(|_, line| line.iter().any(Option::is_some));
    }

    /// The lines that are wanted.
    pub(super) fn lines(&self, wanted: impl Fn(&Line) -> bool) -> Vec<(Line, Vec<Option<f32>>)> {
        self.lines
            .iter()
            .filter(|(line, _)| wanted(line))
            .map(|(line, values)| (line.clone(), values.iter().copied().collect()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str) -> Line {
        ("rate", name.to_owned())
    }

    #[test]
    fn all_lines_end_at_the_same_step() {
        let mut series = Series::default();
        series.step(0, [(line("a"), 1.0)].into_iter());
        series.step(2, [(line("a"), 2.0), (line("b"), 3.0)].into_iter());
        let lines = series.lines(|_| true);
        assert_eq!(lines[0].1, [Some(1.0), None, None, Some(2.0)]);
        assert_eq!(lines[1].1, [None, None, None, Some(3.0)]);
    }

    #[test]
    fn what_is_too_old_is_forgotten() {
        let mut series = Series::default();
        series.step(0, [(line("a"), 1.0)].into_iter());
        for _ in 0..LENGTH - 1 {
            series.step(0, [(line("b"), 1.0)].into_iter());
        }
        assert_eq!(series.lines(|_| true).len(), 2);
        series.step(0, std::iter::empty());
        let lines = series.lines(|_| true);
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].1.len(), LENGTH);
        series.step(LENGTH * 9, std::iter::empty());
        assert!(series.lines(|_| true).is_empty());
    }
}
