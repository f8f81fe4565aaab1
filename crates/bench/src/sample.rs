//! Medians and their kin.

use std::time::Duration;

/// Figures of the same thing, measured several times.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample(Vec<f64>);

impl Sample {
    pub(crate) fn add(&mut self, figure: f64) {
        self.0.push(figure);
    }

    pub(crate) fn add_millis(&mut self, time: Duration) {
        self.add(time.as_secs_f64() * 1000.0);
    }

    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The figure below which this part of all figures lies; 0 if there are none.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let Some(last) = sorted.len().checked_sub(1) else {
            return 0.0;
        };
        let place = part.clamp(0.0, 1.0) * last as f64;
        let (low, high) = (place.floor() as usize, place.ceil() as usize);
        sorted[low] + (sorted[high] - sorted[low]) * (place - place.floor())
    }

    /// The figures of both.
    pub(crate) fn and(&self, other: &Sample) -> Sample {
        Sample(self.0.iter().chain(&other.0).copied().collect())
    }

    /// Round by round: this against the other.
    pub(crate) fn over(&self, other: &Sample) -> Sample {
        Sample(
            self.0
                .iter()
                .zip(&other.0)
                .map(|(ours, bare)| ours / bare)
                .collect(),
        )
    }
}

impl FromIterator<f64> for Sample {
    fn from_iter<I: IntoIterator<Item = f64>>(figures: I) -> Self {
        Sample(figures.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_whatever_the_order() {
        let odd: Sample = [9.0, 1.0, 3.0].into_iter().collect();
        assert_eq!(odd.median(), 3.0);
        let even: Sample = [4.0, 1.0, 3.0, 2.0].into_iter().collect();
        assert_eq!(even.median(), 2.5);
        assert_eq!(Sample::default().median(), 0.0);
    }

    #[test]
    fn quantiles_reach_both_ends() {
        let sample: Sample = (0..=100).map(f64::from).collect();
        assert_eq!(sample.quantile(0.0), 0.0);
        assert_eq!(sample.quantile(0.99), 99.0);
        assert_eq!(sample.quantile(1.0), 100.0);
    }

    #[test]
    fn rounds_are_compared_with_their_own_neighbour() {
        // Both sides were slow in the second round: the ratio does not care.
        let ours: Sample = [80.0, 8.0].into_iter().collect();
        let bare: Sample = [100.0, 10.0].into_iter().collect();
        assert_eq!(ours.over(&bare).quantile(0.0), 0.8);
        assert_eq!(ours.over(&bare).quantile(1.0), 0.8);
    }
}
