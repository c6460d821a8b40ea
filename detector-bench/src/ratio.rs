//! Ratio of a percentile of two samples that were measured together, with a confidence interval.

use detector_testkit::random::Random;

use super::{Figure, Goal, statistics::percentile};

/// Samples drawn for the confidence interval.
const RESAMPLES: usize = 400;

/// A ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The value.
    pub value: f64,
    /// Lower end of the 95 % confidence interval.
    pub lower: f64,
    /// Upper end.
    pub upper: f64,
}

impl Ratio {
    /// The percentile of all values that each block has first, by that of those it has second.
    ///
    /// The uncertainty is found by drawing blocks at random (bootstrap), because the values of one block share the state that the
    /// machine was in.
    #[must_use]
    pub fn of_percentiles(blocks: &[[Vec<f64>; 2]], percent: f64) -> Self {
        let ratio = |blocks: &mut dyn Iterator<Item = &[Vec<f64>; 2]>| {
            let (mut first, mut second) = (Vec::new(), Vec::new());
            for [a, b] in blocks {
                first.extend_from_slice(a);
                second.extend_from_slice(b);
            }
            percentile(&first, percent) / percentile(&second, percent)
        };
        // A fixed seed, so that the same samples give the same result.
        let mut random = Random(0x2545_f491_4f6c_dd1d);
        let drawn: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                let mut draw = (0..blocks.len()).filter_map(|_| {
                    let number = random.below(blocks.len() as u64);
                    blocks.get(usize::try_from(number).ok()?)
                });
                ratio(&mut draw)
            })
            .collect();
        Self {
            value: ratio(&mut blocks.iter()),
            lower: percentile(&drawn, 2.5),
            upper: percentile(&drawn, 97.5),
        }
    }

    /// A figure in multiples, without a goal. The interval is not symmetric, so the larger side is the uncertainty.
    #[must_use]
    pub fn figure(self, group: &str, name: impl Into<String>) -> Figure {
        self.figure_with(
            group,
            name,
            (self.value - self.lower).max(self.upper - self.value),
        )
    }

    /// A figure in multiples with a goal; the uncertainty is that towards the goal's other side.
    #[must_use]
    pub fn figure_with_goal(self, group: &str, name: impl Into<String>, goal: Goal) -> Figure {
        let bound = match goal {
            Goal::Below(bound) | Goal::AtMost(bound) | Goal::AtLeast(bound) => bound,
        };
        let uncertainty = if bound > self.value {
            self.upper - self.value
        } else {
            self.value - self.lower
        };
        self.figure_with(group, name, uncertainty).goal(goal)
    }

    fn figure_with(self, group: &str, name: impl Into<String>, uncertainty: f64) -> Figure {
        Figure::new(group, name, self.value, "×")
            .uncertainty(uncertainty)
            .note(format!("95 %: {:.2} to {:.2}", self.lower, self.upper))
    }
}

#[cfg(test)]
mod tests {
    use detector_testkit::random::Random;

    use super::Ratio;
    use crate::{Goal, Verdict};

    fn blocks(count: usize, random: &mut Random) -> Vec<[Vec<f64>; 2]> {
        (0..count)
            .map(|_| {
                let mut sample = |scale: f64| {
                    (0..20)
                        .map(|_| scale * (1000 + random.below(1000)) as f64)
                        .collect()
                };
                [sample(3.0), sample(2.0)]
            })
            .collect()
    }

    #[test]
    fn interval_contains_the_ratio_and_shrinks_with_more_blocks() {
        let mut random = Random(3);
        let [few, many] = [10, 160].map(|count| blocks(count, &mut random));
        let [few, many] = [few, many].map(|blocks| Ratio::of_percentiles(&blocks, 50.0));
        assert!((many.lower..many.upper).contains(&1.5), "{many:?}");
        let width = |ratio: Ratio| ratio.upper - ratio.lower;
        assert!(width(many) < width(few) / 2.0, "{few:?} {many:?}");
    }

    #[test]
    fn only_the_side_of_the_interval_towards_the_goal_counts() {
        let ratio = Ratio {
            value: 100.0,
            lower: 90.0,
            upper: 500.0,
        };
        let verdict = |bound| {
            ratio
                .figure_with_goal("group", "name", Goal::AtLeast(bound))
                .verdict()
        };
        assert_eq!(verdict(50.0), Some(Verdict::Met));
        assert_eq!(verdict(95.0), Some(Verdict::Unknown(10.0)));
        assert_eq!(verdict(400.0), Some(Verdict::Unknown(400.0)));
        assert_eq!(verdict(600.0), Some(Verdict::Missed));
    }

    #[test]
    fn without_samples_nothing_is_known() {
        let ratio = Ratio::of_percentiles(&[], 50.0);
        assert!(ratio.figure("group", "name").value.is_none());
    }
}
