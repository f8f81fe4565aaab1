//! What was found, for programs (JSON) and for people (rows of a table).

use std::time::Duration;

use serde::Serialize;

use crate::Options;
use crate::sample::Sample;

/// If the middle half of the ratios spreads further than this, relative to their median, the
/// machine was busy with other things.
const NOISY: f64 = 0.3;

/// Everything that a benchmark found.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The database and its version.
    pub database: String,
    /// The version of changefeed.
    pub version: &'static str,
    /// Processors of the machine that measured.
    pub cores: usize,
    /// Whether less was done than usual.
    pub quick: bool,
    /// How long it took.
    pub seconds: f64,
    /// The measures, in the order in which they were made.
    pub measures: Vec<Measure>,
    /// What one should know before relying on them.
    pub notes: Vec<String>,
}

/// One figure, next to what the bare database does.
#[derive(Debug, Clone, Serialize)]
pub struct Measure {
    /// What was measured.
    pub measure: &'static str,
    /// What `ours` and `bare` count.
    pub unit: &'static str,
    /// With changefeed; the median of the rounds.
    pub ours: f64,
    /// The same without changefeed, or the other case that it is compared with.
    pub bare: Option<f64>,
    /// The median of the rounds' ratios, ours to bare.
    pub ratio: Option<f64>,
    /// The lower end of the middle half of the rounds' ratios.
    pub ratio_low: Option<f64>,
    /// The upper end of the middle half of the rounds' ratios.
    pub ratio_high: Option<f64>,
    /// What was promised; nothing for figures that are only informative.
    pub budget: Option<Budget>,
    /// Whether the promise was kept.
    pub met: Option<bool>,
    /// Whether the machine was busy with other things: the rounds disagree, or a figure that
    /// nothing is compared with was taken on a loaded machine.
    pub noisy: bool,
}

/// A promise about a ratio, or about a figure of ours where there is nothing to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Budget {
    /// Which way the promise goes.
    #[serde(flatten)]
    pub bound: Bound,
}

/// Which way a promise goes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl Budget {
    pub(crate) fn at_least(figure: f64) -> Self {
        Budget {
            bound: Bound::AtLeast(figure),
        }
    }

    pub(crate) fn at_most(figure: f64) -> Self {
        Budget {
            bound: Bound::AtMost(figure),
        }
    }

    fn is_met_by(self, figure: f64) -> bool {
        match self.bound {
            Bound::AtLeast(least) => figure >= least,
            Bound::AtMost(most) => figure <= most,
        }
    }
}

/// One line of the table for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// What was measured, with its unit.
    pub measure: String,
    /// Our figure.
    pub ours: String,
    /// The bare database's.
    pub bare: String,
    /// Ours to bare.
    pub ratio: String,
    /// What was promised.
    pub budget: String,
    /// `met`, `missed` or nothing, and whether it was noisy.
    pub verdict: String,
}

impl Report {
    /// The lines of a table: measure, ours, bare, ratio, budget, met or missed.
    pub fn rows(&self) -> Vec<Row> {
        self.measures.iter().map(Measure::row).collect()
    }

    /// Whether every promise was kept.
    pub fn all_met(&self) -> bool {
        self.measures.iter().all(|m| m.met != Some(false))
    }
}

impl Measure {
    /// Ours against the bare database, round by round.
    pub(crate) fn compared(
        measure: &'static str,
        unit: &'static str,
        ours: &Sample,
        bare: &Sample,
        budget: Option<Budget>,
    ) -> Self {
        let ratios = ours.over(bare);
        let ratio = ratios.median();
        let (low, high) = (ratios.quantile(0.25), ratios.quantile(0.75));
        Measure {
            measure,
            unit,
            ours: ours.median(),
            bare: Some(bare.median()),
            ratio: Some(ratio),
            ratio_low: Some(low),
            ratio_high: Some(high),
            budget,
            met: budget.map(|b| b.is_met_by(ratio)),
            noisy: high - low > ratio * NOISY,
        }
    }

    /// Medians of two cases that could not be alternated.
    pub(crate) fn medians(
        measure: &'static str,
        unit: &'static str,
        ours: &Sample,
        bare: &Sample,
        budget: Option<Budget>,
    ) -> Self {
        let ratio = ours.median() / bare.median();
        Measure {
            measure,
            unit,
            ours: ours.median(),
            bare: Some(bare.median()),
            ratio: Some(ratio),
            ratio_low: None,
            ratio_high: None,
            budget,
            met: budget.map(|b| b.is_met_by(ratio)),
            noisy: false,
        }
    }

    /// A figure that stands for itself.
    pub(crate) fn alone(
        measure: &'static str,
        unit: &'static str,
        ours: f64,
        budget: Option<Budget>,
    ) -> Self {
        Measure {
            measure,
            unit,
            ours,
            bare: None,
            ratio: None,
            ratio_low: None,
            ratio_high: None,
            budget,
            met: budget.map(|b| b.is_met_by(ours)),
            noisy: false,
        }
    }

    fn row(&self) -> Row {
        let noisy = if self.noisy { ", noisy" } else { "" };
        let verdict = match self.met {
            Some(true) => format!("met{noisy}"),
            Some(false) => format!("missed{noisy}"),
            None => noisy.trim_start_matches(", ").to_owned(),
        };
        let ratio = match (self.ratio, self.ratio_low, self.ratio_high) {
            (Some(ratio), Some(low), Some(high)) => format!("{ratio:.2} ({low:.2}–{high:.2})"),
            (Some(ratio), ..) => format!("{ratio:.2}"),
            (None, ..) => String::new(),
        };
        Row {
            measure: format!("{}, {}", self.measure, self.unit),
            ours: figure(self.ours),
            bare: self.bare.map(figure).unwrap_or_default(),
            ratio,
            budget: self.budget.map_or_else(String::new, |b| match b.bound {
                Bound::AtLeast(least) => format!("≥ {least}"),
                Bound::AtMost(most) => format!("≤ {most}"),
            }),
            verdict,
        }
    }
}

/// A number that a person can take in: three digits that mean something.
fn figure(number: f64) -> String {
    let size = number.abs();
    if size >= 1000.0 {
        let whole = format!("{number:.0}");
        let mut text = String::new();
        for (place, digit) in whole.chars().enumerate() {
            if place > 0 && (whole.len() - place) % 3 == 0 && !text.ends_with('-') {
                text.push(',');
            }
            text.push(digit);
        }
        text
    } else if size >= 100.0 {
        format!("{number:.0}")
    } else if size >= 10.0 {
        format!("{number:.1}")
    } else {
        format!("{number:.2}")
    }
}

/// Where measures put what they find.
pub(crate) struct Findings<'a> {
    progress: &'a dyn Fn(&str),
    measures: Vec<Measure>,
    notes: Vec<String>,
    disturbed: bool,
}

impl<'a> Findings<'a> {
    pub(crate) fn new(progress: &'a dyn Fn(&str)) -> Self {
        Findings {
            progress,
            measures: Vec::new(),
            notes: Vec::new(),
            disturbed: false,
        }
    }

    /// Says what is going on.
    pub(crate) fn doing(&self, what: &str) {
        (self.progress)(what);
    }

    pub(crate) fn add(&mut self, mut measure: Measure) {
        // A ratio is hardly moved by what disturbs both sides; a time is.
        measure.noisy |= self.disturbed && measure.ratio.is_none();
        self.measures.push(measure);
    }

    /// Somebody else uses the machine: figures that nothing is compared with cannot be trusted.
    pub(crate) fn disturbed(&mut self, complaint: String) {
        self.disturbed = true;
        self.note(complaint);
    }

    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    pub(crate) fn into_report(
        self,
        database: String,
        cores: usize,
        options: Options,
        took: Duration,
    ) -> Report {
        Report {
            database,
            version: env!("CARGO_PKG_VERSION"),
            cores,
            quick: options.quick,
            seconds: took.as_secs_f64(),
            measures: self.measures,
            notes: self.notes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_about_the_ratio() {
        let ours: Sample = [70.0, 80.0, 75.0].into_iter().collect();
        let bare: Sample = [100.0, 100.0, 100.0].into_iter().collect();
        let least = Some(Budget::at_least(0.75));
        let measure = Measure::compared("publish", "transactions/s", &ours, &bare, least);
        assert_eq!(measure.met, Some(true));
        assert!(!measure.noisy);
        let row = measure.row();
        assert_eq!(row.ratio, "0.75 (0.72–0.78)");
        assert_eq!(
            (row.budget.as_str(), row.verdict.as_str()),
            ("≥ 0.75", "met")
        );
        let most = Some(Budget::at_most(0.7));
        let measure = Measure::compared("publish", "transactions/s", &ours, &bare, most);
        assert_eq!(measure.row().verdict, "missed");
    }

    #[test]
    fn rounds_that_disagree_are_called_noisy() {
        let ours: Sample = [20.0, 80.0, 75.0].into_iter().collect();
        let bare: Sample = [100.0, 100.0, 100.0].into_iter().collect();
        let measure = Measure::compared("publish", "transactions/s", &ours, &bare, None);
        assert_eq!(measure.row().verdict, "noisy");
    }

    #[test]
    fn numbers_are_short_enough_to_compare() {
        assert_eq!(figure(1_234_567.8), "1,234,568");
        assert_eq!(figure(999.4), "999");
        assert_eq!(figure(12.34), "12.3");
        assert_eq!(figure(0.056), "0.06");
    }

    #[test]
    fn json_says_which_way_a_budget_goes() {
        let measure = Measure::alone("memory", "MiB", 20.0, Some(Budget::at_most(64.0)));
        let json = serde_json::to_value(measure).unwrap();
        assert_eq!(json["budget"], serde_json::json!({"at_most": 64.0}));
        assert_eq!(json["met"], true);
    }
}
